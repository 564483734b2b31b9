"""
The idle detector: whether anything uses the accelerators, or work holds the node.

    processes with a device open ─┐
    the driver's own list         │
    Slurm's processes and cgroups ├─►  find_uses()  ─►  the users; none if all is idle
    announced jobs, a release    ─┘

A state that cannot be determined counts as use. Threads and timeouts are the caller's: reading
/proc may block.

Three kinds of evidence overlap on purpose. Open device files show new users at once, but only with
the right to read other users' processes. The driver's list covers all containers, and is read
before each call. A job may hold the node before it opens a device. Source: proc(5), cgroups(7).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path

from vitald.diagnostics.idle.device_users import DeviceUser, ProcessTable, is_device
from vitald.diagnostics.idle.harmless import LISTED, PROGRAMS, SYSTEM_ACCOUNTS, TESTS, KnownPrograms
from vitald.small_files import list_names, read_text
from vitald.text import clean_line

_GPU = re.compile(r"nvidia[0-9]+")
_NEURON = re.compile(r"neuron[0-9]+")
_JOB_FOLDER = re.compile(r"job_([0-9A-Za-z+_.-]{1,40})")
_SLURM_CGROUP = re.compile(
    r"(?:slurmstepd\.scope|/slurm[^/\n]*/uid_[0-9]+)/job_([0-9A-Za-z+_.-]{1,40})"
)
_POD_CGROUP = re.compile(
    r"kubepods[^\n]*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
)

_MAX_CGROUPS = 256  # searched in one job
_MAX_USES = 32
_MAX_GAP_S = 60.0  # between two observations of one idle period


class UseKind(Enum):
    """Why the devices are not idle, in the order in which uses are listed."""

    RELEASE = "release"
    JOB = "job"  # announced by its scheduler
    SLURM = "slurm"
    POD = "pod"
    PROCESS = "process"
    DRIVER = "driver"  # reported by the driver, of a process that cannot be inspected
    UNKNOWN = "unknown"


_ORDER = {kind: place for place, kind in enumerate(UseKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One user of the devices. `words` describe it: `job 123 (slurm)`."""

    kind: UseKind
    words: str
    job: str = ""
    pod: str = ""
    pid: int = 0
    device: str = ""


def list_slurm_jobs(cgroup: Path) -> list[str]:
    """Jobs that have a Slurm cgroup with processes."""
    root = str(cgroup)
    found: list[str] = []
    scopes: list[str] = []
    for base in (root, f"{root}/unified"):
        slices = [base, *(folder for folder in _list_folders(base) if folder.endswith(".slice"))]
        scopes += (
            folder
            for slice_folder in slices
            for folder in _list_folders(slice_folder)
            if folder.endswith("slurmstepd.scope")
        )
    for controller in _list_folders(root):
        for slurm in _list_folders(controller):
            if slurm.rpartition("/")[2].startswith("slurm") and not slurm.endswith(".scope"):
                scopes += (
                    user
                    for user in _list_folders(slurm)
                    if user.rpartition("/")[2].startswith("uid_")
                )
    for scope in scopes:
        for folder in _list_folders(scope):
            match = _JOB_FOLDER.fullmatch(folder.rpartition("/")[2])
            if match is not None and match[1] not in found and _has_processes(folder):
                found.append(match[1])
    return found


def find_pod(cgroups: str) -> str:
    """The Kubernetes pod that a process belongs to, by its uid."""
    match = _POD_CGROUP.search(cgroups)
    return match[1].replace("_", "-") if match else ""


def find_slurm_job(cgroups: str) -> str:
    """The Slurm job that a process belongs to."""
    match = _SLURM_CGROUP.search(cgroups)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleContext:
    """What the rest of the daemon knows when the users are determined."""

    announced: Collection[str] = ()  # jobs that their scheduler announced
    released: str = ""  # the release in force, in words; "" if there is none
    # Process ids on each GPU that answered recently.
    compute: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # Bytes in use on each Neuron device that answered recently.
    memory: Mapping[str, float] = field(default_factory=dict)
    # A run of ours has the devices: only processes known to belong to others count. Memory in use
    # does not: it has no owner.
    testing: bool = False


class IdleDetector:
    """Finds the users of the devices, and measures for how long there have been none."""

    def __init__(
        self,
        procfs: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        dev: Path = Path("/dev"),
        *,
        own: Collection[int] = (),
        ignored: Collection[str] = (),
        accounts: range = SYSTEM_ACCOUNTS,
        proven: Callable[[str], bool] = is_device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own`: processes that, with all that descend from them, do not count. `ignored`: paths of
        more programs that are no work.

        `accounts`: the user ids that no ordinary user has.
        """
        self._table = ProcessTable(procfs, dev, proven)
        self._cgroup = cgroup
        self._dev = dev
        self._own = frozenset(own)
        self._harmless = KnownPrograms(
            [*(program.path for program in PROGRAMS), *ignored], accounts
        )
        self._listed = KnownPrograms([*LISTED, *ignored], accounts)
        self._tests = KnownPrograms(TESTS, accounts)
        self._clock = clock
        self._since: float | None = None
        self._last = float("-inf")

    def find_uses(self, context: IdleContext) -> tuple[Use, ...]:
        """Returns the users of the devices, the most certain evidence first. Blocks."""
        compute, memory = context.compute, context.memory
        try:
            self._table.read_processes(self._clock())
            uses = [*self._list_announced(context), *self._list_device_users()]
            # In a container the driver's process ids cannot be matched to those of our own run.
            if not (context.testing and self._table.outside):
                uses += self._list_driver_users(compute)
            if not context.testing:
                uses += [*self._list_memory_users(memory), *self._list_unknown(compute, memory)]
        except OSError as error:
            return (self.report_unknown(clean_line(str(error))),)
        found = _merge_uses(uses)
        self._note_state(idle=not found)
        return found

    def find_device_users(self) -> tuple[Use, ...]:
        """The processes that a reboot would end: those that have devices open, tests of DCGM among
        them. Not those that were killed already and are stuck in the driver, which only a reboot
        ends. Does not read the memory of any, so it cannot get stuck with one.

        Sees everything only with the right to read other users' open files. Blocks.
        """
        table = self._table
        try:
            table.read_processes(self._clock())
        except OSError as error:
            return (self.report_unknown(clean_line(str(error))),)
        uses = [
            self._name_use(UseKind.PROCESS, user.pid, user.words, user.devices[0])
            for user in self._list_harmful()
            if not self._descends_from_own(user.pid) and not table.is_killed(user.pid)
        ]
        if table.unreadable_reason:
            uses.append(self.report_unknown(table.unreadable_reason))
        return _merge_uses(uses)

    def report_unknown(self, why: str) -> Use:
        """Records that the state could not be determined: the devices are not idle."""
        self._note_state(idle=False)
        return Use(kind=UseKind.UNKNOWN, words=f"not known: {why}")

    @property
    def sees_node(self) -> bool:
        """Whether the processes that were read last are those of the whole node, not only of this
        container.
        """
        return not self._table.outside

    def get_idle_s(self, now: float) -> float:
        """Seconds without a use, as observed since the daemon started."""
        return (
            max(0.0, now - self._since)
            if self._since is not None and now - self._last <= _MAX_GAP_S
            else 0.0
        )

    def _note_state(self, *, idle: bool) -> None:
        now = self._clock()
        if not idle:
            self._since = None
        elif self._since is None or now - self._last > _MAX_GAP_S:
            self._since = now
        self._last = now

    def _list_announced(self, context: IdleContext) -> Iterator[Use]:
        if context.released:
            yield Use(kind=UseKind.RELEASE, words=f"released: {context.released}")
        for job in list_slurm_jobs(self._cgroup):
            yield _make_slurm_use(job)
        for pid, job in self._table.steps.items():
            yield _make_slurm_use(job, pid=pid)
        for job in context.announced:
            yield Use(kind=UseKind.JOB, words=clean_line(f"job {job}"), job=job)

    def _list_harmful(self) -> Iterator[DeviceUser]:
        """Processes that have devices open, without the programs for which that is no work."""
        for user in self._table.device_users:
            if not self._harmless.matches_process(self._table.read_program(user.pid, user.name)):
                yield user

    def _list_device_users(self) -> Iterator[Use]:
        for user in self._list_harmful():
            if not self._is_ours(user.pid):
                yield self._name_use(UseKind.PROCESS, user.pid, user.words, user.devices[0])

    def _list_driver_users(self, compute: Mapping[str, Sequence[float]]) -> Iterator[Use]:
        """Processes that the driver reports. The report may be outdated: those that have ended or
        released the devices since are left out.
        """
        table = self._table
        for gpu, pids in compute.items():
            for pid in map(int, pids):
                if table.outside:
                    yield Use(
                        kind=UseKind.DRIVER,
                        words=f"process {pid} of the node computes on {gpu}, as the driver says",
                        device=gpu,
                    )
                elif not table.is_idle(pid) and not self._is_ours(pid):
                    found = table.read_stat(pid)
                    name = found.name if found is not None else "a process"
                    if self._listed.matches_process(table.read_program(pid, name)):
                        continue
                    yield self._name_use(
                        UseKind.DRIVER,
                        pid,
                        f"{name} (pid {pid}) computes on {gpu}, as the driver says",
                        gpu,
                    )

    def _list_memory_users(self, memory: Mapping[str, float]) -> Iterator[Use]:
        for device, used in memory.items():
            if used > 0 and self._table.unreadable_reason:
                yield Use(
                    kind=UseKind.DRIVER,
                    words=f"memory of {device} is in use, as the driver says",
                    device=device,
                )

    def _list_unknown(
        self, compute: Mapping[str, object], memory: Mapping[str, object]
    ) -> Iterator[Use]:
        """Unknown uses: if some processes cannot be inspected, the driver must have answered for
        every device.
        """
        why = self._table.unreadable_reason
        if not why:
            return
        files = list_names(self._dev)
        for what, pattern, answered in (
            ("GPUs", _GPU, compute),
            ("Neuron devices", _NEURON, memory),
        ):
            there = sum(pattern.fullmatch(name) is not None for name in files)
            if len(answered) < there:
                unknown = there - len(answered)
                words = f"{why}, and the driver does not say who uses {unknown} of {there} {what}"
                yield Use(kind=UseKind.UNKNOWN, words=f"not known: {words}")

    def _descends_from_own(self, pid: int) -> bool:
        return any(ancestor in self._own for ancestor, _ in self._table.list_ancestors(pid))

    def _is_ours(self, pid: int) -> bool:
        # Some of DCGM's tests are programs of their own, such as nvbandwidth.
        lineage = self._table.list_ancestors(pid)
        tests, running = self._tests, self._table.read_program
        return any(
            ancestor in self._own or tests.matches_process(running(ancestor, name))
            for ancestor, name in lineage
        ) or self._table.is_held(pid)

    def _name_use(self, kind: UseKind, pid: int, words: str, device: str) -> Use:
        """By the work that it is part of, where its cgroup says it."""
        cgroups = self._table.read_cgroups(pid)
        if job := find_slurm_job(cgroups):
            return _make_slurm_use(job, pid=pid, device=device)
        if uid := find_pod(cgroups):
            return Use(
                kind=UseKind.POD, words=f"pod {uid}: {words}", pod=uid, pid=pid, device=device
            )
        return Use(kind=kind, words=words, pid=pid, device=device)


def _make_slurm_use(job: str, *, pid: int = 0, device: str = "") -> Use:
    words = f"job {job} (slurm)" if job else f"a job of Slurm's (pid {pid})"
    return Use(kind=UseKind.SLURM, words=words, job=job, pid=pid, device=device)


def _merge_uses(uses: Sequence[Use]) -> tuple[Use, ...]:
    """Each job, pod and process once, the plainest evidence first."""
    found: dict[tuple[str, object], Use] = {}
    for use in sorted(uses, key=lambda use: (_ORDER[use.kind], -len(use.device))):
        key: tuple[str, object] = ("pid", use.pid) if use.pid else ("", use.words)
        if use.job or use.pod:
            key = ("work", use.job or use.pod)
        known = found.get(key)
        if known is None or (known.kind is UseKind.JOB and use.kind is UseKind.SLURM):
            found[key] = use
    return tuple(islice(sorted(found.values(), key=lambda use: _ORDER[use.kind]), _MAX_USES))


def _list_folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _has_processes(job: str) -> bool:
    """Whether processes are left in a job's cgroup; empty ones stay behind at times. What cannot be
    read counts.
    """
    with suppress(OSError):
        return "populated 0" not in read_text(f"{job}/cgroup.events")
    folders = [job]
    for count, folder in enumerate(folders):
        if count >= _MAX_CGROUPS:
            return True
        try:
            if read_text(f"{folder}/cgroup.procs"):
                return True
        except FileNotFoundError:
            pass
        except OSError:
            return True
        folders += _list_folders(folder)
    return False
