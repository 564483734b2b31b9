"""
diagnostics: what they cost the jobs, and the daemon while nothing is asked for.

Simulated GPUs and a stand-in for dcgmi, whose own start is in the figures that say so. The floor of
what starts a program is Python doing nothing, that of a request is one that has nothing to wait
for, that of the idle detector a bare listing of /proc. On a machine where other diagnostics run (a
test's stand-in, too) nothing of this starts: run it in a process namespace of its own (`unshare -pf
--mount-proc python -m tests.bench diagnostics`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

from tests.bench.measure import (
    PYTHON,
    ROOT,
    SETTLE_S,
    Json,
    Node,
    Skipped,
    Usage,
    command,
    environment,
    less,
    load,
    memory_mib,
    pid_of,
    scratch,
    spread,
    timed,
)
from tests.dcgmi import Answer, Dcgmi, diag, document
from tests.waiting import until
from vitald import catalog
from vitald.diagnostics.dcgm import reading
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.diagnostics.device_access import find_leftovers
from vitald.diagnostics.idle.detector import IdleContext, IdleDetector
from vitald.simulator.simulated_node import SimulatedNode

PROLOGS, LOOKS, READS, STARTS, JOBS, RUNS = 100, 40, 100, 10, 10, 20
EXTRA = 1000  # processes
IDLE_S = 60.0
_PRINTED = 2 * 1024 * 1024
_SCRIPT = Path(PYTHON).with_name("vitald")
_GPUS = 8


def run() -> Json:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise Skipped("needs a C compiler")
    if left := find_leftovers():
        raise Skipped(f"other diagnostics run: {', '.join(left)}")
    with scratch() as folder, ExitStack() as stack:
        dcgmi = stack.enter_context(Dcgmi(folder / "bin", gpus=_GPUS))
        gpus = SimulatedNode(folder / "gpus", "h100")
        on, off = _node(folder, "on", gpus, dcgmi), _node(folder, "off", gpus, dcgmi)
        off.config.write_text(
            off.settings.replace("[diagnostics]\n", "[diagnostics]\nenabled = false\n")
        )
        figures: Json = {
            "unit": "ms",
            "idle_detector": _idle_detector(),
            "reading_16_gpus_level_4": _reading(),
        }
        with off:
            with on:
                figures["idle"] = _idle(on, off)
            # On request only: the schedule would come between.
            figures["prolog"] = _prolog(folder, off)
            figures["run_to_start"] = _to_start(folder, off, dcgmi)
            figures["job_to_free"] = _to_free(off, dcgmi)
            figures["memory"] = _memory(off, dcgmi)
        return {**figures, "load": load()}


def _node(folder: Path, name: str, gpus: SimulatedNode, dcgmi: Dcgmi) -> Node:
    made = Node(
        folder / name,
        gpus=gpus,
        extra=f'[diagnostics]\nidle = "1s"\n[dcgm]\nprogram = "{dcgmi.path}"\n',
    )
    made.environment |= environment(folder)
    return made


def _idle_detector() -> Json:
    """Looks half a second apart, as beside a run: mostly young processes, then old ones."""
    figures: Json = {}
    for extra in (0, EXTRA):
        with ExitStack() as stack:
            for _ in range(extra):
                stack.callback(subprocess.Popen(["sleep", "600"]).kill)
            detector, looks, floor = IdleDetector(), list[float](), list[float]()
            first = timed(partial(detector.find_uses, IdleContext()))[0]
            began = time.process_time()
            for _ in range(LOOKS):
                time.sleep(0.5)
                looks.append(timed(partial(detector.find_uses, IdleContext()))[0])
            used = time.process_time() - began
            floor = [timed(_listing)[0] for _ in range(LOOKS)]
            figures[f"{extra}_more"] = {
                "processes": _listing(),
                "first_look": round(first * 1e3, 2),
                **spread(looks),
                "cpu_percent_at_two_a_second": round(100 * used / (LOOKS * 0.5), 2),
                "floor_listing": spread(floor),
            }
    return figures


def _listing() -> int:
    with os.scandir("/proc") as entries:
        return sum(entry.name.isdecimal() for entry in entries)


def _reading() -> Json:
    text = document(level=4, gpus=16)
    meanings = Meanings(catalog.load_catalog())
    taken = spread(
        [
            timed(lambda: reading.read_report(text, meanings, exit_code=0, level=4))[0]
            for _ in range(READS)
        ]
    )
    floor = spread([timed(lambda: json.loads(text))[0] for _ in range(READS)])
    return {"bytes": len(text), **taken, "floor_json": floor}


def _idle(on: Node, off: Node) -> Json:
    """Two daemons side by side. What dcgmi itself costs, once in ten minutes, is not in it."""
    nodes = {"on": on, "off": off}
    time.sleep(5 * SETTLE_S)
    before = {name: Usage.of(pid_of(one)) for name, one in nodes.items()}
    time.sleep(IDLE_S)
    used = {name: Usage.of(pid_of(one)).since(before[name]) for name, one in nodes.items()}
    return {
        "seconds": IDLE_S,
        **{f"{name}_cpu_percent": round(100 * one.cpu_s / IDLE_S, 3) for name, one in used.items()},
        "difference_cpu_percent": round(100 * (used["on"].cpu_s - used["off"].cpu_s) / IDLE_S, 3),
        **{f"{name}_wakeups_per_s": round(one.voluntary / IDLE_S, 2) for name, one in used.items()},
        **{f"{name}_memory_mib": memory_mib(pid_of(one)) for name, one in nodes.items()},
    }


def _prolog(folder: Path, running: Node) -> Json:
    """The scripts as slurmd calls them, by turns with Python doing nothing."""
    if not _SCRIPT.exists():
        return {"skipped": f"{_SCRIPT} is not there"}
    extra = {
        "SLURM_JOB_USER": "alice",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_EXIT_CODE2": "0:0",
        **environment(folder),
    }
    times: dict[str, list[float]] = {"prolog": [], "epilog": [], "floor_python": []}
    for number in range(PROLOGS + 1):
        own = {
            **extra,
            "VITALD": str(_SCRIPT),
            "VITALD_CONFIG": str(running.config),
            "SLURM_JOB_ID": str(9000 + number),
        }
        for name in times:
            words = (
                command("-c", "pass")
                if name == "floor_python"
                else [str(ROOT / "packaging/slurm" / name)]
            )
            seconds, done = timed(
                lambda words=words, own=own: subprocess.run(
                    words, env=own, cwd="/", capture_output=True, check=False
                )
            )  # type: ignore[misc]
            assert (done.returncode, done.stderr) == (0, b""), done
            times[name].append(seconds)
    figures = {name: spread(taken[1:]) for name, taken in times.items()}
    return {**figures, "difference": less(figures["prolog"], figures["floor_python"])}


def _to_start(folder: Path, running: Node, dcgmi: Dcgmi) -> Json:
    """From the call of `vitald diag run 1` to the first line of the program that it starts."""
    taken = []
    for _ in range(STARTS):
        dcgmi.forget()
        began = time.time()
        done = subprocess.run(
            command("-m", "vitald", "diag", "run", "1", "--socket", str(running.socket)),
            cwd=ROOT,
            env={**os.environ, **environment(folder)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done
        taken.append(dcgmi.runs()[0].at - began)
    isolated = [
        timed(
            lambda: subprocess.run([str(dcgmi.path), "--version"], check=False, capture_output=True)
        )[0]
        for _ in range(STARTS)
    ]
    return {**spread(taken), "floor_dcgmi_stand_in": spread(isolated)}


def _to_free(running: Node, dcgmi: Dcgmi) -> Json:
    """From a job's begin to the answer that the devices are free."""
    programs = {
        "nothing_runs": None,
        "tame": diag(level=2, delay_s=60.0, leaves="child"),
        "deaf": Answer(hang=True, ignores_term=True, leaves="session"),
    }
    figures: Json = {}
    for name, answer in programs.items():
        taken = []
        for number in range(JOBS):
            job = f"{name}-{number}"
            if answer is not None:
                dcgmi.answer("diag -r 2", answer)
                before = len(dcgmi.runs())
                _told(running, "/v1/diagnostics/run", {"level": 2, "reason": "measured"})
                until(
                    lambda before=before: len(dcgmi.runs()) > before and len(dcgmi.alive()) == 2,
                    "level 2",
                )  # type: ignore[misc]
            taken.append(
                timed(lambda job=job: _told(running, "/v1/jobs", {"event": "begin", "job": job}))[0]
            )  # type: ignore[misc]
            assert dcgmi.alive() == (), "something is left"
            _told(running, "/v1/jobs", {"event": "end", "job": job})
            # What was stopped is owed: the next request begins it again.
            until(lambda: {"waiting"} >= {run["stage"] for run in _requested(running)}, "the end")
        figures[name] = spread(taken)
    dcgmi.answer("diag -r 2", diag(level=2))
    return figures


def _requested(running: Node) -> list[Json]:
    return cast("list[Json]", running.get("/v1/diagnostics")["active"])


def _told(running: Node, path: str, body: Json) -> None:
    status, answer = running.request("POST", path, body)
    assert status in (200, 202), answer


def _memory(running: Node, dcgmi: Dcgmi) -> Json:
    """Runs that print as much as is kept of them, and more."""
    dcgmi.answer(
        "diag -r 1",
        Answer(
            stdout=document(level=1),
            stderr="all is well, and much is said of it\n" * (_PRINTED // 36),
        ),
    )
    figures: Json = {"before_mib": memory_mib(pid_of(running))}
    for number in range(RUNS):
        _told(running, "/v1/diagnostics/run", {"level": 1, "reason": "measured"})
        until(lambda: 1 not in {run["level"] for run in _requested(running)}, "the end")
        if number == 0:
            figures["after_1_mib"] = memory_mib(pid_of(running))
    figures[f"after_{RUNS}_mib"] = memory_mib(pid_of(running))
    figures["ledger_mib"] = round(
        sum(one.stat().st_size for one in running.state.iterdir()) / 2**20, 1
    )
    return figures
