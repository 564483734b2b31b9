"""
Whether a run may have the devices: jobs, a release, other processes, diagnostics that go on.
And whether a repair may have them, for which more is required.

A state that cannot be determined counts as use.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog

from vitald.diagnostics.idle.detector import IdleContext, IdleDetector, Use
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.problem_log import ProblemLog
from vitald.diagnostics.run.held_processes import list_processes
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_DRIVER_TIMEOUT_S = 2.0
_DRIVER_PERIOD_S = 1.0  # between queries while a run has the devices
_DETECTOR_TIMEOUT_S = 5.0
_EXPECTED_JOB_S = 60.0  # by then a job that began is in the node's state
_RELEASE_S = 12.0  # by then an announced release has begun, or has failed
_PROBLEM = "idle_not_known"
_IDLE_PERIOD_S = 10.0
_IDLE_MAX_AGE_S = 30.0
_FIRST_USER = 1000  # of people; those below are services (login.defs(5), UID_MIN)


class ComputeUsers:
    """Processes that compute on each GPU, as the driver lists them."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._read_at = -_DRIVER_PERIOD_S
        self._last: Mapping[str, Sequence[float]] = {}

    async def read_users(self, *, testing: bool) -> Mapping[str, Sequence[float]]:
        """Queries the driver before each run, and at most once a second beside an active run.

        Raises asyncio.TimeoutError before a run. A driver that answers late under the load of an
        active run is no sign of other work: then the last answer stays valid.
        """
        if not testing:
            return await self._node.read_compute_users(_DRIVER_TIMEOUT_S)
        if time.monotonic() - self._read_at < _DRIVER_PERIOD_S:
            return self._last
        self._read_at = time.monotonic()
        try:
            self._last = await self._node.read_compute_users(_DRIVER_PERIOD_S)
        except asyncio.TimeoutError:
            self._last = self._node.list_compute_users()
        return self._last


class DeviceAccess:
    """Who uses the devices, or is about to."""

    def __init__(
        self,
        node: NodeView,
        detector: IdleDetector,
        worker_thread: WorkerThread,
        problems: ProblemLog,
        procfs: Path,
    ) -> None:
        self._node = node
        self._detector = detector
        self._worker_thread = worker_thread
        self._problems = problems
        self._procfs = procfs
        self._compute_users = ComputeUsers(node)
        # A thread of its own: a read that hangs on a stuck process must not block the others.
        self._detector_thread = WorkerThread("diagnostics-idle")
        # Jobs that began and may not be in the node's state yet, with the time of their begin.
        self._expected_jobs: dict[str, float] = {}
        self._release_announced_at = -_RELEASE_S

    def close(self) -> None:
        self._detector_thread.close()

    def expect_job(self, job: str) -> None:
        """A job begins: it uses the devices from now on."""
        self._expected_jobs[job] = time.monotonic()

    def forget_job(self, job: str) -> None:
        self._expected_jobs.pop(job, None)

    def announce_release(self) -> None:
        """The devices are about to be released: nothing may start until the release has begun."""
        self._release_announced_at = time.monotonic()

    def list_jobs(self) -> list[str]:
        """Jobs that run, as their scheduler reported, including those that have just begun."""
        now, running = time.monotonic(), self._node.list_jobs()
        self._expected_jobs = {
            job: began
            for job, began in self._expected_jobs.items()
            if now - began < _EXPECTED_JOB_S and job not in running
        }
        return [*running, *self._expected_jobs]

    def describe_release(self) -> str:
        """Who released the devices, or "now" if a release is announced; "" if there is none."""
        if released := self._node.describe_release():
            self._release_announced_at = -_RELEASE_S
            return released
        return "now" if time.monotonic() - self._release_announced_at < _RELEASE_S else ""

    def release_obstacle(self) -> str:
        """The release that a run must wait for; "" if there is none."""
        released = self.describe_release()
        return f"the end of the release: {released}" if released else ""

    async def find_leftovers(self) -> str:
        """Processes of an earlier run that prevent any start; "" if there are none."""
        try:
            left = await self._worker_thread.call(partial(find_leftovers, self._procfs))
        except (ThreadStuck, OSError) as error:
            return f"reading the processes: {error}"
        return f"the end of an earlier diagnostic: {', '.join(left[:3])}" if left else ""

    async def find_users(self, *, testing: bool) -> tuple[Use, ...]:
        """Who uses the devices; `testing`: beside our own run, which has them."""
        detector = self._detector
        try:
            compute = await self._compute_users.read_users(testing=testing)
        except asyncio.TimeoutError:
            return (detector.report_unknown("the driver does not say in time who uses the GPUs"),)
        context = IdleContext(
            announced=self.list_jobs(),
            released=self.describe_release(),
            compute=compute,
            memory=self._node.list_memory_use(),
            testing=testing,
        )
        try:
            uses = await self._detector_thread.call(
                lambda: detector.find_uses(context), _DETECTOR_TIMEOUT_S
            )
        except Exception as error:  # also a fault of ours: an unknown state counts as use
            self._problems.report_problem(_PROBLEM, error, "what needs idle devices waits")
            return (detector.report_unknown(str(error)),)
        self._problems.clear_problem(_PROBLEM)
        return uses

    async def measure_idle(self) -> tuple[float, tuple[Use, ...]]:
        """For how many seconds the devices have been idle, and who uses them."""
        uses = await self.find_users(testing=False)
        return self._detector.get_idle_s(time.monotonic()), uses

    def sees_all_work(self) -> bool:
        """Whether the last measurement could see all that runs on accelerators here.

        In a container, the driver's list remains, but a job that computes later is not in it. On a
        node without accelerators, work leaves no trace of the kinds that are looked for.
        """
        return self._detector.sees_node and self._node.has_accelerators


class IdleMonitor:
    """Whether the node is idle, measured while a repair waits for the running job. Nothing is
    measured otherwise: each measurement reads all processes and asks the driver.

    A repair ends whatever runs, so more is required than for a diagnostic: in a container that does
    not share the node's process ids, and without accelerators, the node is never known to be idle.

    `is_needed`: whether a repair waits for the node to be idle. `is_testing`: a diagnostic of
    ours has the devices. `idle_s`: for how long they must have been unused.
    """

    def __init__(
        self,
        access: DeviceAccess,
        *,
        is_needed: Callable[[], bool],
        is_testing: Callable[[], bool],
        idle_s: float,
    ) -> None:
        self._access = access
        self._is_needed = is_needed
        self._is_testing = is_testing
        self._idle_s = idle_s
        self._idle_since: float | None = None
        self._measured_at = -_IDLE_MAX_AGE_S

    def is_idle(self) -> bool:
        """Whether nothing used the node for `idle_s`, as measured a moment ago. Jobs that have
        begun since count at once.
        """
        if time.monotonic() - self._measured_at >= _IDLE_MAX_AGE_S or self._access.list_jobs():
            return False
        return self._idle_since is not None and time.monotonic() - self._idle_since >= self._idle_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._is_needed() and not self._is_testing():
                await self._measure()
            await asyncio.sleep(_IDLE_PERIOD_S)

    async def _measure(self) -> None:
        idle_s, uses = await self._access.measure_idle()
        now = time.monotonic()
        self._measured_at = now
        is_idle = not uses and self._access.sees_all_work()
        self._idle_since = now - idle_s if is_idle else None


def find_leftovers(
    procfs: Path = Path("/proc"), names: Sequence[str] = ("nvvs",)
) -> tuple[str, ...]:
    """Diagnostics that go on without who started them, by the names of their programs: `nvvs (pid
    4711)`.

    DCGM's host engine starts its tests itself: they outlive a `dcgmi` that was killed, and are
    waited for. They end sooner if `dcgmi` gets a SIGTERM here. Whatever an ordinary
    user calls by that name is none. Raises OSError where processes cannot be listed.
    """
    named = (
        process
        for process in list_processes(procfs)
        if not process.is_dead
        and (process.name in names or _read_program_name(procfs, process.pid) in names)
    )
    return tuple(str(process) for process in named if _is_systems(procfs, process.pid))


def _is_systems(procfs: Path, pid: int) -> bool:
    """Whether it is root's, a service's or our own."""
    try:
        uid = (procfs / str(pid)).stat().st_uid
    except OSError:
        return False
    return uid < _FIRST_USER or uid == os.geteuid()


def _read_program_name(procfs: Path, pid: int) -> str:
    """The name of the file that it runs; empty where that may not be known."""
    try:
        return Path(f"{procfs}/{pid}/exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return ""
