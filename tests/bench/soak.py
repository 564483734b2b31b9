"""
soak: a day in the life of a node, of the real daemon, in some minutes: does anything grow?

The daemon is the one that production runs, with all of its sources, its socket, its metrics, its
ledger on a disk, the process that asks (simulated) NVML and the programs that it starts. Only its
clock is ours: while something is under way, in a lane, a reader's thread, the NVML worker or a
program, time passes as it does; when all of it waits, the clock is turned on to what comes next. So
every timer of a day fires, in order, and every deadline keeps its meaning: nothing is sped up,
waiting is left out.

Around it the day happens, by the same clock: scrapes every 15 s, clients that come, go, hang and
misbehave, watchers, kernel lines, storms, faults and repairs of each kind of device, jobs, drills,
people, reloads, sources that break, a locked ledger, a stepped clock. `/dev/kmsg` is a pipe in
packet mode, a record a read as there.

`python -m tests.bench soak` is the whole day, and with `--hours H` another length.
`python -m tests.bench.soak HOURS --trace` tells also what grew, by line of code.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import fcntl
import gc
import heapq
import http.client
import itertools
import json
import mmap
import os
import queue
import random
import selectors
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.bench.measure import PYTHON, ROOT, Json, cpu_s, load, scratch
from tests.dcgmi import Dcgmi, Fault, diag
from tests.harness import UnixConnection, free_port
from tests.network_tree import NetworkTree
from tests.neuron_tree import NeuronTree
from tests.trees import Tree
from vitald.log.settings import LogSettings
from vitald.simulator.simulated_node import SimulatedNode

HOURS = 24.0
SHORTEST = 0.03  # a shorter day is over before there are samples of its first and its last third
_SAMPLES = 96  # in whatever length
_GPUS = 8
_NEURON = ["0000:cc:00.0", "0000:b5:00.0", "0000:b6:00.0", "0000:6f:00.0"]
_EFA = ["0000:10:19.0", "0000:20:19.0"]
_MLX5 = ["0000:2a:00.0", "0000:3a:00.0"]
_STORMS = 12
_ANSWER_S = 60.0  # real ones, for the daemon to come to rest

# By how much each may rise over the second half. What is counted in pieces (the most in its last
# third beside the most in its first): not beyond what happens to be under way in the one and not in
# the other.
# rss_mib       the least-squares line; the allocator keeps a peak's pages, so one peak higher than
# all before is no growth yet
# blocks_share  of Python's own allocator, the sharper measure of the same: two objects a scrape
# would be 5,760 of some 350,000
BOUNDS = {
    "rss_mib": 2.0,
    "worker_rss_mib": 0.5,
    "blocks_share": 0.01,
    "fds": 2,
    "threads": 1,
    "tasks": 3,
    "children": 1,
    "worker_fds": 0,
    "watchers": 1,
    "clients": 2,
    "readings": 0,
    "answers": 0,
    "queue": 0,
    "held": 0,
}


def run(hours: float = HOURS) -> Json:
    return soak(hours)


def soak(hours: float, least: int = 6, *, trace: bool = False) -> Json:
    """A day of that many hours, in which everything happens that does in one of 24, `least` times
    or more. Figures, and what they come to.
    """
    with ExitStack() as stack:
        disk, memory = (
            stack.enter_context(scratch()),
            stack.enter_context(tempfile.TemporaryDirectory(prefix="vitald-soak-", dir="/dev/shm")),
        )
        return stack.enter_context(Day(disk, Path(memory), hours, least, trace=trace)).pass_by()


# --- in the daemon's process: the clock


class Clock:
    """The real one, and what was turned on. The NVML worker reads it, too: it says since when it is
    in a call.
    """

    def __init__(self, shared: Path) -> None:
        shared.write_bytes(bytes(8))
        with shared.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self.ahead = 0.0
        self.stepped = 0.0  # the wall clock alone
        self._time, self._monotonic, self._gettime = time.time, time.monotonic, time.clock_gettime
        time.time = lambda: self._time() + self.ahead + self.stepped
        time.monotonic = lambda: self._monotonic() + self.ahead
        time.clock_gettime = lambda clock: (
            self._gettime(clock)
            + (self.ahead if clock != time.CLOCK_REALTIME else self.ahead + self.stepped)
        )

    def turn(self, seconds: float) -> None:
        self.ahead += seconds
        struct.pack_into("d", self._shared, 0, self.ahead)


# Before the worker's own code, whose process knows nothing of this one's clock.
_WORKER_CLOCK = """
import mmap, os, struct, time
_shared = mmap.mmap(os.open({path!r}, os.O_RDONLY), 8, prot=mmap.PROT_READ)
_monotonic = time.monotonic
time.monotonic = lambda: _monotonic() + struct.unpack_from("d", _shared)[0]
"""


class Work:
    """What is under way beside the loop. While there is any, time passes as it does."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._lanes: set[int] = set()
        self.workers: list[Any] = []

    def began(self) -> None:
        with self._lock:
            self._count += 1

    def ended(self) -> None:
        with self._lock:
            self._count -= 1

    def under_way(self) -> bool:
        if self._count:
            return True
        self.workers = [one for one in self.workers if one._process.returncode is None]
        # An answer is due, or a process is to end.
        return any(
            one.ended or (one._answer is not None and not one._answer.done())
            for one in self.workers
        )

    def watch(self) -> None:
        """Have everything counted that the daemon does outside its loop. Each count goes down only
        after the loop has been told.
        """
        from vitald import worker_thread
        from vitald.collectors.device_poller import ReaderThreads
        from vitald.collectors.nvml import worker_process
        from vitald.diagnostics.run import process

        work = self

        class Counted(queue.SimpleQueue[Any]):
            def put(self, item: object, *_: Any, **__: Any) -> None:
                if item is not None:
                    work.began()
                super().put(item)

        def run_lane(one: worker_thread.WorkerThread) -> None:
            while (job := one._calls.get()) is not None:
                job()
                work.ended()

        worker_thread.queue = SimpleNamespace(SimpleQueue=Counted)  # type: ignore[assignment]
        worker_thread.WorkerThread._run = run_lane  # type: ignore[method-assign]
        read = ReaderThreads._run_reads

        def read_on(self: Any, *given: Any) -> None:
            try:
                read(self, *given)
            finally:
                work.ended()

        start = threading.Thread.start

        def start_counted(thread: threading.Thread) -> None:
            if getattr(thread._target, "__func__", None) is read_on:  # type: ignore[attr-defined]
                work.began()
            start(thread)

        ReaderThreads._run_reads = read_on  # type: ignore[method-assign]
        threading.Thread.start = start_counted  # type: ignore[method-assign]
        _counted(work, process.Programs, "execute")
        _counted(work, worker_process, "_wait_for_end")
        begin = worker_process.WorkerProcess.__init__

        def begin_worker(self: Any, *given: Any) -> None:
            begin(self, *given)
            work.workers.append(self)

        worker_process.WorkerProcess.__init__ = begin_worker  # type: ignore[method-assign]


def _counted(work: Work, owner: Any, name: str) -> None:
    plain = getattr(owner, name)

    async def counted(*given: Any, **named: Any) -> Any:
        work.began()
        try:
            return await plain(*given, **named)
        finally:
            work.ended()

    setattr(owner, name, counted)


class Turning(selectors.DefaultSelector):
    """Where the loop would wait for nothing but time, the clock is turned on; up to `until`, and
    then who drives it is told.
    """

    def __init__(self, clock: Clock, work: Work, told: Callable[[], None]) -> None:
        super().__init__()
        self._clock, self._work, self._told = clock, work, told
        self.until = 0.0
        self.turned = 0

    def select(self, timeout: float | None = None) -> Any:
        waits = self._work.under_way()  # first: whoever ends now has told the loop before
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        left = self.until - time.monotonic()
        if waits:
            return super().select(min(timeout or 1.0, 0.005))
        if left <= 0:
            self._told()
            return super().select(min(timeout or 1.0, 0.05))
        self._clock.turn(min(left, timeout if timeout is not None else left))
        self.turned += 1
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: selectors.BaseSelector, work: Work) -> None:
        super().__init__(selector)
        self._work = work

    def run_in_executor(self, executor: Any, func: Any, *given: Any) -> Any:
        self._work.began()
        future = super().run_in_executor(executor, func, *given)
        future.add_done_callback(lambda _: self._work.ended())
        return future


def serve(folder: Path, fd: int) -> None:
    """The daemon's process: `vitald run`, with this clock, and somebody who turns it at the other
    end of `fd`.
    """
    from vitald.cli.resident_memory import return_memory_early
    from vitald.collectors.nvml import worker_process
    from vitald.config.sections import load_config
    from vitald.log.output import configure_log

    faulthandler.register(signal.SIGUSR1)
    control = socket.socket(fileno=fd)
    control.setblocking(False)
    clock, work = Clock(folder / "clock"), Work()
    worker_process._START = _WORKER_CLOCK.format(path=str(folder / "clock")) + worker_process._START
    work.watch()
    config = load_config(folder / "config.toml")
    configure_log(config[LogSettings].level, config[LogSettings].format)
    from vitald.daemon import Daemon

    return_memory_early()
    asked = False

    def told() -> None:
        nonlocal asked
        if asked:
            asked = False
            say({"now": time.monotonic(), "time": time.time(), "turned": selector.turned})

    def say(value: Json) -> None:
        control.setblocking(True)
        control.sendall(json.dumps(value).encode() + b"\n")
        control.setblocking(False)

    selector = Turning(clock, work, told)
    loop = Loop(selector, work)
    asyncio.set_event_loop(loop)
    daemon: Daemon

    def listen() -> None:
        nonlocal asked
        if not (asking := control.recv(4096)):
            loop.remove_reader(control.fileno())
            daemon.stopping.set()
        for line in asking.decode().splitlines():
            verb, _, value = line.partition(" ")
            if verb == "until":
                selector.until, asked = time.monotonic() + float(value), True
            elif verb == "step":
                clock.stepped += float(value)
            elif verb == "sample":
                say(_sample(daemon, work))
            elif verb == "trace":
                say(_traced())

    async def main() -> None:
        nonlocal daemon
        daemon = Daemon(config, folder / "config.toml")
        loop.add_reader(control.fileno(), listen)
        gc.collect()
        gc.freeze()  # as `vitald run` does
        await daemon.run()

    loop.run_until_complete(main())
    os._exit(0)


def _sample(daemon: Any, work: Work) -> Json:
    """What the process holds, garbage collected, and what is in each collection that lives as long
    as the daemon.
    """
    gc.collect()
    board, pipeline, judge = daemon.node_state, daemon.pipeline, daemon.pipeline.judge
    memory = judge.memory
    wal = daemon.pipeline.ledger.path.with_name("ledger.db-wal")
    status = _status("self")
    workers = [one.pid for one in work.workers if one._process.returncode is None]
    worker = _status(str(workers[0])) if workers else {}
    return {
        "rss_mib": status["VmRSS"] / 1024,
        "anonymous_mib": status["RssAnon"] / 1024,
        **_malloced(),
        # Not gc.get_objects(): it also holds tuples that another thread has yet to finish, which
        # breaks them
        "blocks": sys.getallocatedblocks(),
        "fds": len([*Path("/proc/self/fd").iterdir()]),
        "threads": status["Threads"],
        "tasks": len(asyncio.all_tasks()),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "worker_rss_mib": worker.get("VmRSS", 0) / 1024,
        "worker_fds": len([*Path(f"/proc/{workers[0]}/fd").iterdir()]) if workers else 0,
        "wal_mib": wal.stat().st_size / 2**20 if wal.exists() else 0.0,
        "ledger_mib": daemon.pipeline.ledger.measure_size() / 2**20,
        "collections": {
            "findings": len(board.findings),
            "incidents": len(board.incidents),
            "recent": len(board.recent),
            "event_series": len(board.events.counts),
            "event_times": len(board.events.last_times),
            "gpu_xids": len(board.events.xids),
            "readings": sum(map(len, board.readings.values())),
            "answers": sum(map(len, board._answers_for.values())),
            "watchers": board.watchers,
            "jobs": len(board.jobs.running) + len(board.jobs.recent),
            "marks": len(memory.marks),
            "settled": len(memory.resolved),
            "devices": len(memory.devices),
            "queue": len(pipeline._queue.items),
            "held": len(pipeline.ledger_writer._held.entries),
            "clients": daemon.api.connection_limit.clients,
            "announcements": len(daemon.sources.interpreter.drills._by_id),
        },
    }


def _status(pid: str) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in lines)
        if name in ("VmRSS", "RssAnon", "Threads")
    }


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "used",
            "free",
            "keepcost",
        )
    ]


def _malloced() -> dict[str, float]:
    """What the C library has handed out, large objects and SQLite's caches among it, and what it
    keeps of what was given back.
    """
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)  # glibc 2.33
    if ask is None:
        return {"malloc_used_mib": 0.0, "malloc_free_mib": 0.0}
    ask.restype = _Mallinfo
    told = ask()
    return {
        "malloc_used_mib": (told.used + told.hblkhd) / 2**20,
        "malloc_free_mib": told.free / 2**20,
    }


_traces: list[tracemalloc.Snapshot] = []


def _traced() -> Json:
    """What grew since this was first asked, by line of code. It costs memory itself, so the figures
    beside it are not those of a run without.
    """
    gc.collect()
    if not tracemalloc.is_tracing():
        tracemalloc.start(3)
        return {"grew": []}
    only = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
    _traces.append(tracemalloc.take_snapshot().filter_traces(only))
    if len(_traces) < 2:
        return {"grew": []}
    grew = [one for one in _traces[-1].compare_to(_traces[0], "traceback") if one.size_diff > 2048]
    return {
        "grew": [
            {"bytes": one.size_diff, "count": one.count_diff, "where": one.traceback.format()[-8:]}
            for one in grew[:25]
        ]
    }


# --- beside it: the day


_XIDS = (
    (79, "GPU has fallen off the bus."),
    (
        31,
        (
            "Ch 00000012, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_4 faulted @"
            " 0x7f2c_36c00000. Fault is of type FAULT_PDE ACCESS_TYPE_READ"
        ),
    ),
    (
        48,
        (
            "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at"
            " partition 4, subpartition 0."
        ),
    ),
    (63, "Row Remapper: New row (0x0000000001aa5555) marked for remapping, reset gpu to activate."),
    (94, "Contained: SM (0x1). RST: No, D-RST: No"),
    (13, "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address"),
    (119, "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76"),
    (45, "Ch 00000008"),
    (74, "NVLink: fatal error detected on link 4"),
    (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
)
_OTHERS = (
    (
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0"
        " page:0x12 offset:0x0 grain:32 syndrome:0x0)"
    ),
    (
        "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB,"
        " shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0"
    ),
    "INFO: task python3:4711 blocked for more than 122 seconds.",
    "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2",
    "nvme nvme1: I/O tag 12 (100c) QID 4 timeout, aborting",
    "mce: [Hardware Error]: Machine check events logged",
    "pcieport 0000:16:01.0: AER: Corrected error message received from 0000:19:00.0",
    "python3[4711]: segfault at 0 ip 0000 sp 0000 error 4 in x.so[1000+2000]",
)


class Day:
    """The node, the daemon on it, and everybody who has to do with it. Deterministic but for what
    takes how long.
    """

    def __init__(self, disk: Path, memory: Path, hours: float, least: int, *, trace: bool) -> None:
        self.seconds, self.least, self.trace = hours * 3600.0, least, trace
        self.chance = random.Random(7)
        self.happened: Counter[str] = Counter()
        self.took: Counter[str] = Counter()  # real seconds
        self.folder = disk
        self.gpus = SimulatedNode(memory / "gpus", "h100", _GPUS)
        self.neuron = NeuronTree(self.gpus.sysfs, _NEURON, machine="unknown")
        self.network = NetworkTree(self.gpus.sysfs)
        for address in _EFA:
            self.network.efa(address)
        self.ports = [
            self.network.mlx5(address, f"ib{number}") for number, address in enumerate(_MLX5)
        ]
        self._proc(Tree(memory))
        self.dcgmi = Dcgmi(memory / "bin", gpus=_GPUS)
        self.dcgmi.diag(diag(level=1, gpus=_GPUS))
        self.kmsg = memory / "kmsg"
        os.mkfifo(self.kmsg)
        self.port = free_port()
        self.socket = disk / "run" / "vitald.sock"
        self.settings = f"""
[paths]
sysfs = "{self.gpus.sysfs}"
procfs = "{memory / "proc"}"
state = "{disk / "state"}"
runtime = "{disk / "run"}"
[kernel_log]
path = "{self.kmsg}"
journal = "off"
[nvml]
library = "{self.gpus.library}"
[dcgm]
program = "{self.dcgmi.path}"
[ledger]
max_size = "4MiB"
[metrics]
listen = "127.0.0.1:{self.port}"
[log]
format = "json"
"""
        (disk / "config.toml").write_text(self.settings)
        self.stack = ExitStack()
        self.seq = 0
        self.written = 0
        self.writer = -1
        self.watchers: list[socket.socket] = []
        self.idlers: list[socket.socket] = []
        self.now = self.wall = 0.0
        self.samples: list[Json] = []
        self._waiting: list[tuple[float, Callable[[], object]]] = []
        self.turned = 0.0

    @staticmethod
    def _proc(tree: Tree) -> None:
        for pid in range(1, 200):
            tree.write(
                f"proc/{pid}/stat", f"{pid} (worker) S 1 1 1 0 -1 4194560 {'0 ' * 12} 1234 0 0"
            )
        tree.write("proc/loadavg", "6.00 5.80 4.00 9/200 11206")
        tree.write(
            "proc/meminfo",
            "MemTotal: 2097152000 kB\nMemAvailable: 1048576000 kB\nHardwareCorrupted: 0 kB",
        )
        tree.write(
            "proc/1/mountinfo",
            "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw,errors=remount-ro",
        )
        (tree.root / "proc/sys").symlink_to("/proc/sys")

    # --- the daemon's process

    def __enter__(self) -> Day:
        self.stack.enter_context(self.dcgmi)
        self._open_log()
        ours, theirs = socket.socketpair()
        self.control = self.stack.enter_context(ours)
        self.answers = ours.makefile("r")
        self.errors = self.stack.enter_context((self.folder / "vitald.log").open("wb"))
        with theirs:
            command = [
                PYTHON,
                "-m",
                "tests.bench.soak",
                "--serve",
                str(self.folder),
                "--fd",
                str(theirs.fileno()),
            ]
            environment = {
                **os.environ,
                **self.gpus.environment,
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "",
            }
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stderr=self.errors,
                stdout=self.errors,
            )
        self.stack.callback(self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.process.send_signal(signal.SIGUSR1)  # where it is
            time.sleep(0.5)
            sys.stderr.write((self.folder / "vitald.log").read_text(errors="replace")[-6000:])
        for one in (*self.watchers, *self.idlers):
            one.close()
        self.stack.close()
        if self.writer >= 0:
            os.close(self.writer)

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, line: str) -> Json:
        self.control.settimeout(_ANSWER_S)
        self.control.sendall(f"{line}\n".encode())
        answer = self.answers.readline()
        if not answer:
            raise RuntimeError(f"the daemon has gone: {self.process.poll()}")
        told: Json = json.loads(answer)
        return told

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and what it brings."""
        told = self._ask(f"until {max(0.0, seconds)}")
        self.now, self.wall, self.turned = (
            float(str(told[name])) for name in ("now", "time", "turned")
        )

    # --- the day

    def pass_by(self) -> Json:
        began = time.monotonic()
        self.advance(0.0)
        for _ in range(60):
            self.advance(1.0)
            with suppress(OSError, http.client.HTTPException):
                if all(one["state"] != "starting" for one in self.get("/v1/status")["sources"]):
                    break
        start = self.now
        due: list[tuple[float, int, Callable[[], None]]] = []
        tie = itertools.count()
        for number, (every, what) in enumerate(self._plan()):
            heapq.heappush(due, (start + every * (0.3 + 0.05 * (number % 11)), next(tie), what))
        every_of = {what: every for every, what in self._plan()}
        next_sample = start
        while (passed := self.now - start) < self.seconds:
            at, _, what = due[0]
            if next_sample <= min(at, self.now):
                self._take_sample(passed)
                next_sample += self.seconds / _SAMPLES
                continue
            if at > self.now:
                begun = time.monotonic()
                self.advance(min(at, next_sample) - self.now)
                self.took["passing"] += time.monotonic() - begun
                continue
            heapq.heappop(due)
            self.happened[what.__name__] += 1
            begun = time.monotonic()
            what()
            self.took[what.__name__] += time.monotonic() - begun
            # What is kept up to a limit is to be full when the second half begins: a day of storms
            # happens in its first quarter.
            sooner = _STORMS if what == self.storm and passed < self.seconds / 4 else 1
            heapq.heappush(due, (max(at + every_of[what] / sooner, self.now), next(tie), what))
            self._later()
        self._take_sample(self.now - start)
        return self._result(self.now - start, time.monotonic() - began)

    def _plan(self) -> list[tuple[float, Callable[[], None]]]:
        """How often what happens."""
        hour = 3600.0
        plan: list[tuple[float, Callable[[], None]]] = [
            (15.0, self.scrape),
            (30.0, self.work),
            (10.0, self.chatter),
            (60.0, self.dashboard),
            (300.0, self.prolog),
            (100.0, self.watcher),
            (240.0, self.misbehave),
            (780.0, self.fault),
            (840.0, self.other_fault),
            (1020.0, self.flap),
            (1140.0, self.gpu_counters),
            (1380.0, self.neuron_counters),
            (1740.0, self.job),
            (1860.0, self.person),
            (2220.0, self.drill),
            (2460.0, self.lose_gpu),
            (2820.0, self.neuron_reset),
            (hour, self.reload),
            (1.1 * hour, self.storm),
            (1.2 * hour, self.release),
            (2 * hour, self.kill_worker),
            (2.5 * hour, self.gap),
            (3 * hour, self.break_log),
            (3.2 * hour, self.diagnostic),
            (3.7 * hour, self.driver_reload),
            (4 * hour, self.lock_ledger),
            (4 * hour, self.step_clock),
        ]
        return [(min(every, self.seconds / self.least), what) for every, what in plan]

    def _after(self, seconds: float, what: Callable[[], object]) -> None:
        self._waiting.append((self.now + min(seconds, self.seconds / 20), what))

    def _later(self) -> None:
        ready = [what for at, what in self._waiting if at <= self.now]
        self._waiting = [one for one in self._waiting if one[0] > self.now]
        for what in ready:
            what()

    # --- those who ask

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        with closing(UnixConnection(self.socket, timeout=_ANSWER_S)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def get(self, path: str) -> Json:
        status, answer = self.request("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def scrape(self) -> None:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/metrics", timeout=_ANSWER_S
        ) as page:
            assert page.status == 200 and page.read()

    def dashboard(self) -> None:
        for path in (
            "/v1/status",
            "/v1/events?newest=true&limit=50",
            "/v1/gpus",
            "/v1/components",
            "/v1/incidents",
            "/healthz",
        ):
            self.get(path)

    def prolog(self) -> None:
        for work in ("prolog", "epilog"):
            self.get(f"/v1/status?for={work}")
        for path in (
            "/v1/findings?state=cleared&limit=20",
            "/v1/diagnostics",
            "/v1/diagnostics/runs",
            "/v1/expect",
            "/v1/jobs",
            "/v1/rules/xid/79",
        ):
            self.get(path)
        for found in self._opened()[:3]:
            self.request("GET", f"/v1/findings/{found['id']}/why")

    def watcher(self) -> None:
        """One comes; of those before, all read but the last, who hangs; the oldest goes, without a
        word or in good order.
        """
        sock = self._connect()
        sock.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
        for one in self.watchers[1:]:
            one.setblocking(False)
            with suppress(OSError):
                while one.recv(1 << 16):
                    pass
        self.watchers.append(sock)
        if len(self.watchers) > 4:
            gone = self.watchers.pop(0)
            if self.chance.random() < 0.5:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()

    def misbehave(self) -> None:
        for one in self.idlers:
            one.close()
        self.idlers = []
        for said in (
            b"",
            b"GET /v1/sta",
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
            b"\0" * 100,
            b"GET /" + b"a" * 9000,
        ):
            sock = self._connect()
            with suppress(OSError):
                sock.sendall(said)
            self.idlers.append(sock)
        for path in (
            "/v2/status",
            "/v1/events?since=yesterday",
            "/v1/findings/99999999/why",
            f"/v1/rules/xid/{self.chance.randrange(10**6)}",
        ):
            self.request("GET", path)
        self.request("POST", "/v1/findings/1/clear", {"reason": ""})

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(_ANSWER_S)
        sock.connect(str(self.socket))
        return sock

    # --- the kernel log

    def _open_log(self) -> None:
        self.writer = os.open(self.kmsg, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(
            self.writer, fcntl.F_SETFL, fcntl.fcntl(self.writer, fcntl.F_GETFL) | os.O_DIRECT
        )  # a write is a record, and a read
        fcntl.fcntl(self.writer, 1031, 1 << 20)  # F_SETPIPE_SZ: 256 records

    def _kernel(self, *lines: str, priority: int = 3) -> None:
        for line in lines:
            usec = int(self.now * 1e6)
            record = f"{priority},{self.seq},{usec},-;{line}\n".encode()
            while True:
                try:
                    os.write(self.writer, record[:4000])
                    break
                except BlockingIOError:
                    self.advance(0.0)
            self.seq += 1
            self.written += 1

    def chatter(self) -> None:
        self._kernel(
            *(
                f"usb 1-1.4: new high-speed USB device number {self.seq} using xhci_hcd, serial"
                f" {self.seq * 7919:x}"
                for _ in range(3)
            ),
            priority=6,
        )

    def _xid(self, gpu: int, code: int, words: str) -> str:
        address = self.gpus.addresses[gpu].rpartition(".")[0]
        return (
            f"NVRM: Xid (PCI:{address}): {code}, pid={self.chance.randrange(1000, 10**6)},"
            f" name=python3, {words}"
        )

    def fault(self) -> None:
        number = self.happened["fault"]
        code, words = _XIDS[number % len(_XIDS)]
        self._kernel(self._xid(number % _GPUS, code, words))

    def other_fault(self) -> None:
        number = self.happened["other_fault"]
        self._kernel(_OTHERS[number % len(_OTHERS)])

    def storm(self) -> None:
        """Hundreds of lines at once: suppressed consequences, unknown codes and addresses,
        forgeries by processes, lines that drive a terminal.
        """
        for number in range(600):
            code, words = self.chance.choice(_XIDS)
            kind = number % 6
            if kind == 0:
                self._kernel(
                    self._xid(
                        self.chance.randrange(_GPUS),
                        500 + self.chance.randrange(60),
                        "something new",
                    )
                )
            elif kind == 1:
                self._kernel(
                    f"NVRM: Xid (PCI:{0x1000 + self.chance.randrange(4):04x}:00:00): {code},"
                    f" {words}"
                )
            elif kind == 2:
                self._kernel(self._xid(0, code, words), priority=11)
            elif kind == 3:
                self._kernel(f"\x1b[2J<b>{'x' * 3000}")
            else:
                self._kernel(self._xid(self.chance.randrange(_GPUS), code, words))

    def gap(self) -> None:
        self.seq += 50
        self._kernel("after the gap", priority=6)

    def break_log(self) -> None:
        """The reader gets an end of file, and finds the log again later."""
        os.close(self.writer)
        self.advance(5.0)
        self._open_log()
        self.advance(70.0)
        self._kernel("here again", priority=6)

    # --- hardware

    def work(self) -> None:
        """What healthy devices count, and how warm they are."""
        self.network.traffic()
        number = self.happened["work"]
        for index in range(len(_NEURON)):
            self.neuron.put(index, "stats/hardware/health_status/healthcheck_heartbeat", number)
            self.neuron.put(
                index,
                "stats/power/utilization",
                f"POWER_STATUS_VALID,{int(self.wall)},5.00,60.00,{number % 50}.{index:02d}",
            )
        self.gpus.set_values(
            None,
            {
                "temp_c": 40 + number % 30,
                "power_mw": 200_000 + 1000 * (number % 400),
                "energy_mj": 1000 * (number + 1),
            },
        )

    def flap(self) -> None:
        name = self.ports[self.happened["flap"] % len(self.ports)]
        self.network.down(name)
        self._kernel(f"{name}: Port: 1 Link DOWN", priority=4)
        self._after(120.0, lambda: self.network.up(name))

    def gpu_counters(self) -> None:
        number = self.happened["gpu_counters"]
        gpu = number % _GPUS
        self.gpus.set_values(
            gpu,
            {
                "ecc.cor.vol.total": number * 3,
                "ecc.cor.agg.total": number * 3,
                "pcie.replay": number,
                "throttle": "0x40",
            },
        )
        self.gpus.emit_event(gpu, 0x8, 13)
        self._after(200.0, lambda: self.gpus.set_values(gpu, {"throttle": "0x0"}))

    def neuron_counters(self) -> None:
        number = self.happened["neuron_counters"]
        self.neuron.ecc(number % len(_NEURON), "mem_ecc_corrected", number)
        self.neuron.count(number % len(_NEURON), number % 8, "timeout", number)

    def neuron_reset(self) -> None:
        index = self.happened["neuron_reset"] % len(_NEURON)
        self.neuron.reset(index, 0)
        self._after(45.0, lambda: self.neuron.reset(index, 1))

    def lose_gpu(self) -> None:
        gpu = self.happened["lose_gpu"] % _GPUS
        self.gpus.lose(gpu)
        self._after(200.0, lambda: self.gpus.restore(gpu))

    def driver_reload(self) -> None:
        self.gpus.reload_driver()

    def kill_worker(self) -> None:
        for pid in (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ):
            with suppress(ProcessLookupError, FileNotFoundError):
                if b"nvml.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)

    # --- people and schedulers

    def _opened(self) -> Sequence[Json]:
        found: Sequence[Json] = self.get("/v1/findings?limit=1000")["findings"]
        return found

    def job(self) -> None:
        number = self.happened["job"]
        self.request(
            "POST", "/v1/jobs", {"event": "begin", "job": str(number), "user": "alice", "uid": 1000}
        )
        failed = number % 3 == 0
        end = {
            "event": "end",
            "job": str(number),
            "exitCode": 1 if failed else 0,
            "signal": 0,
            "reason": "exit",
            "diagnose": number % 9 == 0,
        }
        self._after(900.0, lambda: self.request("POST", "/v1/jobs", end))

    def person(self) -> None:
        """Repairs one, and closes the others."""
        for number, found in enumerate(self._opened()):
            verb = "remedy" if number == 0 else "clear"
            self.request(
                "POST", f"/v1/findings/{found['id']}/{verb}", {"reason": "seen to, ticket 4711"}
            )
        if self.happened["person"] % 4 == 0:
            self.request("POST", "/v1/expect/confirm", {"reason": "as it should be"})

    def drill(self) -> None:
        line = self._xid(self.happened["drill"] % _GPUS, 79, "GPU has fallen off the bus.")
        self.request("POST", "/v1/drills", {"line": line, "holdSeconds": 60})
        self._kernel(line, priority=11)

    def reload(self) -> None:
        profile = ("hyperpod", "nvidia")[self.happened["reload"] % 2]
        (self.folder / "config.toml").write_text(
            f'{self.settings}[catalog]\nprofile = "{profile}"\noverrides."xid/63".action ='
            ' "reboot_node"\n'
        )
        self.process.send_signal(signal.SIGHUP)

    def release(self) -> None:
        self.request("POST", "/v1/release", {"reason": "a reset", "seconds": 120})
        if self.happened["release"] % 2:
            self._after(60.0, lambda: self.request("POST", "/v1/release/end", {}))

    def diagnostic(self) -> None:
        """One that fails, on request; the next ones by the schedule pass."""
        self.dcgmi.diag(diag(level=1, gpus=_GPUS, faults=[Fault(84, gpu=3)]))
        self.request(
            "POST",
            "/v1/diagnostics/run",
            {"reason": "a suspicion", "check": "dcgm", "level": 1, "busy": True},
        )
        self._after(300.0, lambda: self.dcgmi.diag(diag(level=1, gpus=_GPUS)))

    # --- the machine itself

    def lock_ledger(self) -> None:
        """Somebody looks at it with a tool that locks it, for longer than a commit may take."""
        with closing(
            sqlite3.connect(self.folder / "state" / "ledger.db", isolation_level=None, timeout=5.0)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            self.fault()
            self.advance(4.0)
            other.execute("ROLLBACK")
        self.advance(40.0)

    def step_clock(self) -> None:
        self.control.sendall(f"step {(3600, -3600)[self.happened['step_clock'] % 2]}\n".encode())

    # --- what came of it

    def _take_sample(self, passed: float) -> None:
        self.samples.append({"hour": passed / 3600.0, **self._ask("sample")})
        if self.trace and len(self.samples) in (_SAMPLES // 4, _SAMPLES // 2):
            self._ask("trace")
        print(f"  {passed / 3600.0:6.2f} h  {_line(self.samples[-1])}", file=sys.stderr, flush=True)

    def _result(self, passed: float, took: float) -> Json:
        status = self.get("/v1/status")
        second = [one for one in self.samples if float(str(one["hour"])) >= passed / 7200.0]
        grew = {
            name: _rise(second, name)
            for name in (
                "rss_mib",
                "anonymous_mib",
                "malloc_used_mib",
                "malloc_free_mib",
                "blocks",
                "wal_mib",
                "worker_rss_mib",
            )
        }
        first, last = second[: len(second) // 3], second[-(len(second) // 3) :]
        most = {
            name: [max(one[name] for one in part) for part in (first, last)]
            for name in ("fds", "threads", "tasks", "children", "worker_fds")
        }
        sizes: dict[str, list[int]] = {
            name: [max(one["collections"][name] for one in part) for part in (first, last)]
            for name in second[0]["collections"]
        }
        most |= {
            name: sizes[name]
            for name in ("watchers", "clients", "readings", "answers", "queue", "held")
        }
        lines = (self.folder / "vitald.log").read_text(errors="replace").splitlines()
        log = [json.loads(line) for line in lines if line.startswith("{")]
        said = Counter(
            str(entry.get("event"))
            for entry in log
            if not str(entry.get("event")).startswith("DCGM")
        )
        figures: Json = {
            "hours": round(passed / 3600.0, 2),
            "turned_on": self.turned,
            "rise_over_second_half": {name: round(value, 4) for name, value in grew.items()},
            "blocks": [second[0]["blocks"], second[-1]["blocks"]],
            "most_at_its_begin_and_end": most,
            "collections_at_its_begin_and_end": sizes,
            "wal_mib_most": round(max(float(str(one["wal_mib"])) for one in self.samples), 2),
            "ledger_mib_most": round(max(float(str(one["ledger_mib"])) for one in self.samples), 2),
            "rss_mib": [
                round(float(str(one["rss_mib"])), 2)
                for one in self.samples[:: max(1, _SAMPLES // 12)]
            ],
            "happened": dict(self.happened),
            "took_s": {name: round(seconds, 1) for name, seconds in self.took.most_common(10)},
            "kernel_lines": self.written,
            "daemon": {
                "records_read": status["kernelLog"]["recordsRead"],
                "ledger_ok": status["ledger"]["ok"],
                "states": {one["name"]: one["state"] for one in status["sources"]},
                "events": self._stored("events"),
                "runs": self._stored("runs"),
                "said": dict(said.most_common()),
                "exceptions": [entry for entry in log if "exception" in entry][:5],
            },
            "cpu_s": round(cpu_s(self.process.pid), 1),
            "load": load(),
        }
        if self.trace:
            figures["grew"] = self._ask("trace")["grew"]
        return {**figures, "exceeded": exceeded(figures), "real_s": round(took, 1)}

    def _stored(self, table: str) -> int:
        with closing(
            sqlite3.connect(f"file:{self.folder}/state/ledger.db?mode=ro", uri=True)
        ) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _line(sample: Json) -> str:
    sizes: dict[str, int] = sample["collections"]
    names = ("blocks", "fds", "threads", "tasks", "children")
    return (
        f"{float(str(sample['rss_mib'])):7.2f} MiB  malloc"
        f" {float(str(sample['malloc_used_mib'])):.2f} free"
        f" {float(str(sample['malloc_free_mib'])):.2f} "
        f" {'  '.join(f'{name} {sample[name]}' for name in names)}  wal"
        f" {float(str(sample['wal_mib'])):.1f} "
        f" {' '.join(f'{name}={size}' for name, size in sizes.items())}"
    )


def _rise(samples: Sequence[Json], name: str) -> float:
    """How much the straight line through the samples (least squares) rises from the first to the
    last.
    """
    points = [(float(str(one["hour"])), float(str(one[name]))) for one in samples]
    middle_x, middle_y = (sum(part) / len(points) for part in zip(*points))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
    return slope * (points[-1][0] - points[0][0])


def exceeded(figures: Json) -> list[str]:
    """What grew beyond its bound."""
    rises: dict[str, float] = figures["rise_over_second_half"]
    most: dict[str, list[int]] = figures["most_at_its_begin_and_end"]
    found = {name: rises[name] for name in ("rss_mib", "worker_rss_mib")} | {
        name: last - first for name, (first, last) in most.items()
    }
    found["blocks_share"] = rises["blocks"] / figures["blocks"][0]
    return [
        f"{name}: {found[name]:+.4g}, at most {bound:+.4g}"
        for name, bound in BOUNDS.items()
        if found[name] > bound
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("hours", nargs="?", type=float, default=HOURS)
    parser.add_argument(
        "--least", type=int, default=6, help="how often everything happens at least"
    )
    parser.add_argument("--trace", action="store_true", help="tell what grew, by line of code")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve, arguments.fd)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    figures = soak(arguments.hours, arguments.least, trace=arguments.trace)
    print(json.dumps(figures, indent=2))
    return 1 if figures["exceeded"] else 0


if __name__ == "__main__":
    sys.exit(main())
