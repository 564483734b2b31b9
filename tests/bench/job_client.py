"""
job_client: what `job.step` costs a training process, in µs of its time.

With the page of a server, without a daemon, and switched off; by turns with a call of an empty
function with the same arguments. Of each the median and the best of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from types import ModuleType
from typing import Any

from tests.bench.measure import Json, load, scratch
from tests.job_server import JobServer, load_client

ROUNDS, STEPS = 20, 20_000
_LOSSES = [1.0 / (number + 1) for number in range(STEPS)]


def run() -> Json:
    client = load_client()
    with scratch() as folder, JobServer(folder / "j") as server:
        absent, off, with_page = client.Job(), client.Job(), client.Job()
        absent.start(path=str(folder / "absent"))
        off.start(path="")
        with_page.start(path=str(server.path))
        server.accept().welcome(every_s=1.0)
        while with_page._page is None:
            with_page.step(0)
        calls: dict[str, Callable[..., object]] = {
            "floor_empty_call": lambda step, loss: None,
            "page": with_page.step,
            "without_daemon": absent.step,
            "off": off.step,
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name].append(_time_steps(call))
        advice = _time_advice(with_page)
        connect = _time_connect(client, str(folder / "absent"))
        _end(with_page, absent, off)
    figures: Json = {
        name: {"best": round(min(taken), 3), "median": round(median(taken), 3)}
        for name, taken in times.items()
    }
    return {
        "unit": "µs",
        **figures,
        "save_advised": advice,
        "attempt_without_daemon": connect,
        "load": load(),
    }


def _time_steps(call: Callable[..., object]) -> float:
    began = time.perf_counter()
    for step, loss in enumerate(_LOSSES):
        call(step, loss=loss)
    return (time.perf_counter() - began) / STEPS * 1e6


def _time_advice(job: Any) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        job.save_advised  # noqa: B018
    return round((time.perf_counter() - began) / STEPS * 1e6, 3)


def _time_connect(client: ModuleType, path: str) -> float:
    """The attempt to connect that is made every 30 s at most."""
    job = client.Job()
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        job.start(path=path)
        taken.append(time.perf_counter() - began)
    _end(job)
    return round(median(taken) * 1e6, 1)


def _end(*jobs: Any) -> None:
    for job in jobs:
        job.end()
