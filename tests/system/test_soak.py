"""Nothing grows: the day of `tests/bench/soak.py` in short, and what was found by the whole one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import soak
from tests.bench.soak import BOUNDS, exceeded
from tests.harness import ROOT, Json
from tests.system.nvml import _environments, _Worker, own, story
from vitald.simulator.simulated_node import SimulatedNode

_HOURS, _LEAST = 0.25, 2
# So short a day is one of storms: what is kept up to a limit is still being filled, and that
# weighs. What is counted in pieces must not grow even so; and each of hundreds of clients, looks,
# programs and reloads would leave a piece.
_BOUNDS = {**BOUNDS, "rss_mib": 12.0, "blocks_share": 0.08}


def test_a_quarter_of_an_hour_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of thing happened, the daemon took it, and it holds as many descriptors, threads
    and tasks as before.
    """
    monkeypatch.setattr(soak, "BOUNDS", _BOUNDS)
    figures = soak.soak(_HOURS, _LEAST)
    assert figures["exceeded"] == []
    assert min(figures["happened"].values()) >= _LEAST
    daemon: Json = figures["daemon"]
    assert daemon["states"].pop("hwmon") == "not present"  # this machine shows no sensor
    assert daemon["ledger_ok"] and {*daemon["states"].values()} <= {"ok", "stale", "released"}
    assert int(str(daemon["records_read"])) >= int(str(figures["kernel_lines"]))
    said: dict[str, int] = daemon["said"]
    for word, least in (
        *(
            ("source_failed", 1),
            ("source_recovered", 1),
            ("ledger_failed", 1),
            ("ledger_recovered", 1),
            ("nvml_attached", 3),
        ),
        *(
            ("reloaded", 2),
            ("clock_stepped", 2),
            ("drill_announced", 2),
            ("released", 2),
            ("job_recorded", 3),
            ("diagnostic_ended", 3),
        ),
        *(("finding_opened", 100), ("finding_cleared", 100)),
    ):
        assert said.get(word, 0) >= least, (word, said)
    # Nothing that only a clock turned too far would bring about, a look, a program or a lane that
    # is late; and no fault of ours.
    assert not {
        word: said[word]
        for word in ("source_hangs", "nvml_worker_ended", "wedged", "event_not_judged")
        if word in said
    }
    assert daemon["exceptions"] == []
    assert float(str(figures["wal_mib_most"])) < 8.0


def test_the_command_that_the_documents_name() -> None:
    """Two minutes of a day. Whether its bounds held is not said here: they are a whole day's."""
    command = [sys.executable, "-m", "tests.bench", "soak", "--hours", str(soak.SHORTEST)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    figures: Json = json.loads(done.stdout)["benchmarks"]["soak"]
    assert "error" not in figures, done.stderr
    assert float(str(figures["hours"])) >= soak.SHORTEST
    assert done.returncode == bool(figures["exceeded"])
    assert min(figures["happened"].values()) >= 1


def figures_of(**changes: object) -> Json:
    calm: dict[str, object] = {
        "rise_over_second_half": {"rss_mib": 0.1, "worker_rss_mib": 0.0, "blocks": 100.0},
        "most_at_its_begin_and_end": {
            **{
                name: [4, 4]
                for name in ("watchers", "clients", "readings", "answers", "queue", "held")
            },
            "fds": [28, 28],
            "threads": [10, 10],
            "tasks": [35, 33],
            "children": [1, 1],
            "worker_fds": [15, 15],
        },
        "blocks": [340_000, 340_100],
    }
    for name, value in changes.items():
        calm[name] = {**calm[name], **value}  # type: ignore[dict-item]
    return calm


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rise_over_second_half": {"rss_mib": 2.9}}, "rss_mib"),  # 1 KiB a scrape
        (
            {"rise_over_second_half": {"blocks": 3.0 * 2880}},
            "blocks_share",
        ),  # three objects a scrape
        ({"most_at_its_begin_and_end": {"fds": [28, 31]}}, "fds"),
        ({"most_at_its_begin_and_end": {"threads": [10, 12]}}, "threads"),
        ({"most_at_its_begin_and_end": {"tasks": [35, 40]}}, "tasks"),
        ({"most_at_its_begin_and_end": {"worker_fds": [15, 16]}}, "worker_fds"),
    ],
)
def test_what_grows_is_named(changes: dict[str, object], named: str) -> None:
    assert exceeded(figures_of()) == []
    (said,) = exceeded(figures_of(**changes))
    assert said.startswith(f"{named}: ")


def test_a_line_through_the_samples_is_not_fooled_by_one() -> None:
    level = [
        {"hour": float(hour), "rss_mib": 80.0 + (4.0 if hour == 20 else 0.0)} for hour in range(40)
    ]
    assert abs(soak._rise(level, "rss_mib")) < 0.2
    rising = [
        {**one, "rss_mib": float(str(one["rss_mib"])) + 0.1 * number}
        for number, one in enumerate(level)
    ]
    assert 3.7 < soak._rise(rising, "rss_mib") < 4.1


@story
async def test_a_gpu_that_comes_and_goes_leaves_nothing_in_the_worker(tmp_path: Path) -> None:
    """Each time it is listened to anew, and what listened before is let go of."""
    node = SimulatedNode(tmp_path, "h100", 2)
    _environments[str(own(node))] = node.environment
    worker = _Worker(str(own(node)), lambda told: None)
    gpus = node.addresses

    def held() -> tuple[int, int]:
        return tuple(
            len([*Path(f"/proc/{worker.pid}/{what}").iterdir()]) for what in ("fd", "task")
        )  # type: ignore[return-value]

    async def until_held(wanted: tuple[int, int]) -> None:
        for _ in range(500):
            if held() == wanted:
                return
            await asyncio.sleep(0.01)
        raise AssertionError((held(), wanted))

    try:
        await worker.send_command({"do": "attach", "gpus": gpus})
        fds, threads = held()
        for _ in range(3):
            node.lose(1)
            await until_held((fds - 1, threads - 1))
            node.restore(1)
            await worker.send_command({"do": "look", "fast": gpus, "slow": [], "inventory": []})
            await until_held((fds, threads))
    finally:
        worker.kill_process()
