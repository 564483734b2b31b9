"""
idle: what the daemon uses while nothing happens, and what it weighs.

Daemons side by side: on a silent pipe in place of /dev/kmsg, on /dev/kmsg itself (where others may
write meanwhile; the records that came are told), and on a file, which must be polled; beside a bare
reader of /dev/kmsg (the floor of CPU) and Pythons that hold nothing, or the daemon's libraries (the
floors of memory).
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench import ring
from tests.bench.measure import (
    SETTLE_S,
    Helper,
    Json,
    Node,
    Usage,
    command,
    environment,
    less,
    load,
    memory_mib,
    node,
    pid_of,
    scratch,
)

SECONDS = 60.0
_LIBRARIES = "aiohttp.web, anyio, prometheus_client, sqlite3, structlog"


def run() -> Json:
    with scratch() as folder, ExitStack() as stack:
        daemons = {
            "silent": _silent(folder, stack),
            **{kind: node(folder, kernel_log=kind, name=kind) for kind in _kinds()},
        }
        for daemon in daemons.values():
            stack.enter_context(daemon)
        pids = {kind: pid_of(running) for kind, running in daemons.items()}
        if "kmsg" in daemons:
            pids["floor_reader"] = stack.enter_context(
                Helper(ring.bare_reader, "idle", b"no such text")
            ).pid
        bare = {"floor_python": "", "floor_libraries": f"import {_LIBRARIES};"}
        for name, imports in bare.items():
            pids[name] = _hold(stack, imports, environment(folder))
        time.sleep(5 * SETTLE_S)
        at_start = {name: memory_mib(pid) for name, pid in pids.items()}
        records = {name: _read(running) for name, running in daemons.items()}
        before = {name: Usage.of(pid) for name, pid in pids.items()}
        time.sleep(SECONDS)
        used = {name: Usage.of(pid).since(before[name]) for name, pid in pids.items()}
        records = {name: _read(running) - records[name] for name, running in daemons.items()}
        at_end = {name: memory_mib(pid) for name, pid in pids.items()}
    return {
        "seconds": SECONDS,
        "records_that_came_meanwhile": records,
        **{name: _figures(used[name], at_start[name], at_end[name]) for name in pids},
        "load": load(),
    }


def _silent(folder: Path, stack: ExitStack) -> Node:
    """A daemon whose /dev/kmsg is a pipe that stays open and silent: the machine's own log is not
    ours to silence.
    """
    made = node(folder, kernel_log="kmsg", name="silent")
    pipe = made.folder / "kmsg"
    os.mkfifo(pipe)
    stack.callback(os.close, os.open(pipe, os.O_RDWR))
    made.config.write_text(
        made.settings.replace('source = "kmsg"', f'source = "kmsg"\npath = "{pipe}"')
    )
    return made


def _figures(used: Usage, at_start: Json, at_end: Json) -> Json:
    return {
        "cpu_percent": round(100 * used.cpu_s / SECONDS, 4),
        "cpu_percent_by_ticks": round(100 * used.ticks_s / SECONDS, 3),
        "wakeups_per_s": round(used.voluntary / SECONDS, 2),
        "preempted": used.involuntary,
        "memory_mib": at_start,
        "rss_grown_mib": less(at_end, at_start)[
            "rss"
        ],  # the bare reader is a fork of the benchmark: its memory says nothing
    }


def _kinds() -> list[str]:
    return ["kmsg", "file"] if os.access("/dev/kmsg", os.R_OK) else ["file"]


def _read(running: Node) -> float:
    return running.metric("vitald_kernel_records_read_total") or 0.0


def _hold(stack: ExitStack, imports: str, extra: dict[str, str]) -> int:
    """A Python that has imported these and waits."""
    process = stack.enter_context(
        subprocess.Popen(
            command("-c", f"{imports}print(1, flush=True); input()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **extra},
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid
