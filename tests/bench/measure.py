"""
What the benchmarks share: percentiles, what /proc says of a process, the machine's facts, and a
folder to work in.

Nothing here judges: a figure stands beside its floor, and a reader draws the conclusion.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from tests.harness import PYTHON, ROOT, Json, Node

T = TypeVar("T")
SETTLE_S = 2.0  # from a start to the moment when what start-up set going is over
_FORK = get_context("fork")


class Skipped(Exception):
    """The machine lacks what a benchmark needs; the text says what."""


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(seconds: Sequence[float], unit: float = 1e3) -> Json:
    """min, p50, p99 and max of times in seconds, in milliseconds unless told otherwise."""
    if not seconds:
        return {"n": 0}
    named = {
        "min": min(seconds),
        "p50": percentile(seconds, 0.5),
        "p99": percentile(seconds, 0.99),
        "max": max(seconds),
    }
    return {"n": len(seconds), **{name: round(value * unit, 3) for name, value in named.items()}}


def less(measured: Json, floor: Json) -> Json:
    """What is left of each figure when the floor is taken off."""
    return {
        name: round(float(str(measured[name])) - float(str(floor[name])), 3)
        for name in measured
        if name != "n" and name in floor
    }


def load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def machine(folder: Path) -> Json:
    """The facts without which the figures mean nothing."""
    cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    _, (device, _, kind, options, *_) = max(
        (len(mount[1]), mount) for mount in mounts if folder.is_relative_to(mount[1])
    )
    return {
        "kernel": platform.release(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_mib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20),
        "python": platform.python_version(),
        "disk": f"{device} {kind} ({options})",
        "load": load(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one benchmark, on a disk and not in memory: a commit must cost what it costs."""
    with tempfile.TemporaryDirectory(prefix="vitald-bench-", dir="/var/tmp") as made:
        yield Path(made)


def environment(folder: Path) -> dict[str, str]:
    """For programs under measurement: compiled modules are cached, as those of an installed package
    are.

    A daemon that had to compile them itself would start twice as late and weigh some 8 MiB more.
    """
    made = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
        "PYTHONPATH": "",
        "PYTHONUNBUFFERED": "",
    }
    if not (folder / "pycache").exists():
        warm = Node(folder / "warm")
        warm.environment = made
        with warm:
            warm.metrics()
            for verb in ("check", "status"):
                asked = command("-m", "vitald", verb, "--socket", str(warm.socket))
                subprocess.run(
                    asked, check=False, capture_output=True, cwd=ROOT, env={**os.environ, **made}
                )
    return made


def node(folder: Path, kernel_log: str = "file", extra: str = "", name: str = "node") -> Node:
    """A node whose daemon runs as an installed one would. Not started yet."""
    made = Node(folder / name, kernel_log=kernel_log, extra=extra)
    made.environment = environment(folder)
    return made


def command(*arguments: str) -> list[str]:
    return [PYTHON, *arguments]


def pid_of(running: Node) -> int:
    assert running.process is not None
    return running.process.pid


def cpu_s(pid: int) -> float:
    """CPU that a process has used, by the scheduler's own count: threads that have ended are in it,
    as those of the looks.
    """
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used: CPU by the scheduler's own count and in ticks of utime and stime;
    waits and preemptions of living threads.
    """

    cpu_s: float
    ticks_s: float
    voluntary: int
    involuntary: int

    @staticmethod
    def of(pid: int) -> Usage:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        voluntary = involuntary = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                status = (task / "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended since it was listed
            switches = dict(
                re.findall(r"^(voluntary|nonvoluntary)_ctxt_switches:\s+(\d+)", status, re.M)
            )
            voluntary += int(switches["voluntary"])
            involuntary += int(switches["nonvoluntary"])
        return Usage(
            cpu_s(pid),
            (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
            voluntary,
            involuntary,
        )

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.cpu_s - before.cpu_s,
            self.ticks_s - before.ticks_s,
            self.voluntary - before.voluntary,
            self.involuntary - before.involuntary,
        )


def memory_mib(pid: int | str) -> Json:
    """Resident set and its highest so far, proportional set (shared pages shared out), private and
    anonymous pages.
    """
    status = dict(
        re.findall(
            r"^(VmRSS|VmHWM|Threads):\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M
        )
    )
    rollup = dict(
        re.findall(
            r"^(Pss|Private_Dirty|Anonymous):\s+(\d+)",
            Path(f"/proc/{pid}/smaps_rollup").read_text(),
            re.M,
        )
    )
    kib = {
        "rss": status["VmRSS"],
        "rss_max": status["VmHWM"],
        "pss": rollup["Pss"],
        "private_dirty": rollup["Private_Dirty"],
    }
    return {
        **{name: round(int(value) / 1024, 1) for name, value in kib.items()},
        "threads": int(status["Threads"]),
    }


def rss_mib(pid: int | str) -> float:
    return float(str(memory_mib(pid)["rss"]))


def forget_peak(pid: int) -> None:
    """Let VmHWM begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and the result."""
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


class Helper:
    """A process of our own beside the daemon: `work` gets a pipe, sends "ready", and at the end
    what it has to tell.
    """

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self.pipe, theirs = _FORK.Pipe()
        self.process = _FORK.Process(
            target=_run, args=(work, theirs, self.pipe, *arguments), daemon=True
        )
        self.process.start()
        theirs.close()
        self.ask("ready")

    def ask(self, expected: str = "", seconds: float = 30.0) -> object:
        """The next thing that it sends."""
        if not self.pipe.poll(seconds):
            self.close()
            raise TimeoutError(f"{self.process.name}: nothing within {seconds:g} s")
        said = self.pipe.recv()
        assert not expected or said == expected, said
        return said

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def close(self) -> None:
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_http(
    pipe: Connection, path: str, answer: Callable[[web.Request], Awaitable[web.Response]]
) -> None:
    """The work of a Helper: a server with this route, whose port it sends, until the pipe ends."""

    async def serve() -> None:
        app = web.Application()
        app.router.add_get(path, answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send("ready")
        pipe.send(runner.addresses[0][1])
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
        await ended.wait()

    asyncio.run(serve())


def _run(
    work: Callable[..., None], pipe: Connection, parents: Connection, *arguments: object
) -> None:
    parents.close()  # so that the parent's end is seen here as the end of the pipe
    work(pipe, *arguments)


__all__ = [
    "PYTHON",
    "ROOT",
    "SETTLE_S",
    "Connection",
    "Helper",
    "Json",
    "Node",
    "Skipped",
    "Usage",
    "command",
    "environment",
    "forget_peak",
    "less",
    "load",
    "machine",
    "memory_mib",
    "node",
    "percentile",
    "pid_of",
    "rss_mib",
    "scratch",
    "serve_http",
    "spread",
    "timed",
]
