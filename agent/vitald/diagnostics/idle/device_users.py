"""
Who has the accelerators' device files open, and which processes are steps of Slurm jobs.

Owns     one table of a node's processes, cheap enough to be brought up to date several times a
         second.
Refuses  whose work counts: that is the idle detector's.

Kernel threads are recognised once. Tables of open files cost the most: they are read at each scan
for young processes and otherwise every two seconds, less often the longer a read takes. What lies
in a process's memory (its command line) is read only if the process holds a device or a step:
reading that of a process stuck in the driver may block. Source: proc(5), pid_namespaces(7).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

from vitald.diagnostics.idle.harmless import RunningProgram
from vitald.diagnostics.run.held_processes import RUN_CGROUP
from vitald.small_files import KERNEL_THREAD, list_names, read_text
from vitald.text import clean_line, count_noun, join_first

# Device files that only those who use a device have open. /dev/nvidiactl and the two capabilities
# of MIG's management are open to all users.
_DEVICE = r"(nvidia(?:[0-9]+|-uvm|-caps/nvidia-cap(?:[3-9]|[0-9]{2,}))|neuron[0-9]+)"


_STEPD = "slurmstepd"
_STEP = re.compile(r"slurmstepd: \[([0-9]+)")
# `slurmstepd infinity` holds the cgroup of all steps for as long as slurmd runs: no job
_KEEPER = "infinity"

_INIT = 1
_EXITING = 0x00000004  # PF_EXITING
_SIGKILL = 1 << 8  # in the mask of pending signals
_HOST_PIDS = "pid:[4026531836]"  # the first namespace of processes always has this number
_YOUNG_S = 60.0  # a job opens its devices some time after it began
_FRESH_S = 2.0
_TURNS = 16
_SHARE = 50  # a table that takes 10 ms to read is read twice a second at the most
_MAX_FILES = 65536
_MAX_PARENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUser:
    """A process that has devices open."""

    pid: int
    name: str
    devices: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"{self.name} (pid {self.pid}) has {join_first(self.devices, 1)} open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """Of /proc/PID/stat, which can be read of any process, and of a stuck one. `killed`: it ends as
    soon as the kernel lets it; the kernel turns every fatal signal into a pending SIGKILL.
    """

    name: str
    state: str
    parent: int
    session: int
    threads: int
    kernel: bool
    killed: bool


@dataclass(slots=True)
class _KnownProcess:
    """What is known of one process."""

    inode: int  # of its folder: a number is given out again, and then this is another
    first: float
    again: float = 0.0  # when its open files are to be read next
    devices: tuple[str, ...] = ()
    name: str = ""
    step: str | None = None  # it is a slurmstepd, of this job where that is known
    hidden: bool = False


def is_device(path: str) -> bool:
    """Whether it leads to a character device: a file of the same name is nothing."""
    try:
        return Path(path).is_char_device()
    except OSError:
        return False


class ProcessTable:
    """The processes of a node: which have devices open, and which are steps of Slurm jobs."""

    def __init__(self, procfs: Path, dev: Path, proven: Callable[[str], bool] = is_device) -> None:
        self._procfs = str(procfs)
        self._proven = proven
        # `/srv/image/dev/nvidia0`: of one that only changed its root. ` (deleted)`: the file was
        # recreated meanwhile.
        self._device = re.compile(
            rf"(?:{re.escape(str(dev))}|.*/dev)/{_DEVICE}(?: \(deleted\))?", re.DOTALL
        )
        self._known: dict[int, _KnownProcess] = {}
        self._begun = False
        # Processes of other containers may use the devices, and their numbers mean others here
        self.outside = False
        self.veiled = False  # those of other users are not even listed

    def read_processes(self, now: float) -> None:
        """Bring it up to date. Raises OSError where procfs itself cannot be read."""
        here: dict[int, _KnownProcess] = {}
        first = now if self._begun else float("-inf")  # what was there before us is not young
        with os.scandir(self._procfs) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    pid, inode = int(entry.name), entry.inode()
                    seen = self._known.get(pid)
                    here[pid] = (
                        seen
                        if seen is not None and seen.inode == inode
                        else _KnownProcess(inode, first)
                    )
        self._known, self._begun = here, True
        self._check_visibility()
        for pid, seen in list(here.items()):
            if seen.again <= now:
                self._update_process(pid, seen, now)

    @property
    def device_users(self) -> list[DeviceUser]:
        return [
            DeviceUser(pid=pid, name=seen.name, devices=seen.devices)
            for pid, seen in sorted(self._known.items())
            if seen.devices
        ]

    @property
    def steps(self) -> dict[int, str]:
        """Processes of Slurm that each hold a step, and the jobs, where those are known."""
        return {
            pid: seen.step for pid, seen in sorted(self._known.items()) if seen.step is not None
        }

    @property
    def hidden(self) -> int:
        """Number of processes that could not be inspected. The node's first process uses no device,
        and may be unreadable even to root.
        """
        return sum(seen.hidden for pid, seen in self._known.items() if pid != _INIT)

    def is_idle(self, pid: int) -> bool:
        """Whether it has ended, or was inspected and has no device open."""
        seen = self._known.get(pid)
        return not self.veiled if seen is None else not (seen.hidden or seen.devices)

    def read_stat(self, pid: int | str) -> Stat | None:
        """The process's state, or None if it no longer exists. Of a thread: `PID/task/TID`."""
        with suppress(OSError, ValueError, IndexError):
            head, _, tail = read_text(f"{self._procfs}/{pid}/stat").rpartition(")")
            words = tail.split()
            flags, pending = int(words[6]), int(words[28])
            return Stat(
                name=clean_line(head.partition("(")[2]),
                state=words[0],
                parent=int(words[1]),
                session=int(words[3]),
                threads=int(words[17]),
                kernel=bool(flags & KERNEL_THREAD),
                killed=bool(flags & _EXITING or pending & _SIGKILL),
            )
        return None

    def is_killed(self, pid: int) -> bool:
        """Whether all its threads have ended, or were killed and wait for the kernel, such as in
        the driver. The first thread alone says nothing once it has ended.
        """
        first = self.read_stat(pid)
        if first is None or first.state not in "ZX":
            return first is not None and first.killed
        try:
            threads = list_names(f"{self._procfs}/{pid}/task")
        except OSError:
            return False
        states = [self.read_stat(f"{pid}/task/{thread}") for thread in threads]
        return all(state is not None and (state.state in "ZX" or state.killed) for state in states)

    def read_program(self, pid: int, name: str) -> RunningProgram:
        """The program that a process runs, and its owner."""
        owner, path, file_owner = None, "", None
        with suppress(OSError):
            owner = os.stat(f"{self._procfs}/{pid}").st_uid  # noqa: PTH116
        with suppress(OSError):
            executable = f"{self._procfs}/{pid}/exe"
            path = os.readlink(executable).removesuffix(" (deleted)")  # noqa: PTH115
            file_owner = os.stat(executable).st_uid  # noqa: PTH116
        return RunningProgram(name, owner, path, file_owner)

    def list_ancestors(self, pid: int) -> Iterator[tuple[int, str]]:
        """A process, its parent, and so on, each with its name, which is empty where it has ended.
        After an orphan comes the leader of its session.
        """
        for _ in range(_MAX_PARENTS):
            found = self.read_stat(pid)
            yield pid, found.name if found is not None else ""
            if found is None or found.parent <= 0:
                return
            is_orphan = found.parent == _INIT and found.session not in (0, pid)
            pid = found.session if is_orphan else found.parent

    def read_cgroups(self, pid: int | str) -> str:
        """Its control groups, one line for each hierarchy; empty if they cannot be read."""
        with suppress(OSError):
            return read_text(f"{self._procfs}/{pid}/cgroup")
        return ""

    def is_held(self, pid: int) -> bool:
        """Whether it is in a control group that the daemon made for a run."""
        lines = self.read_cgroups("self").splitlines()
        own = next((line for line in lines if line.startswith("0::")), "0::")
        return f"\n{own}/{RUN_CGROUP}" in f"\n{self.read_cgroups(pid)}"

    @property
    def unreadable_reason(self) -> str:
        """Why some processes may be invisible here; empty if all are visible."""
        if self.outside:
            return "processes outside this container cannot be seen"
        if self.veiled:
            return "other users' processes are hidden (hidepid)"
        return f"{count_noun(self.hidden, 'process')} could not be checked" if self.hidden else ""

    def _check_visibility(self) -> None:
        own = f"{self._procfs}/self"
        self.veiled = Path(own).exists() and not os.access(f"{self._procfs}/1/stat", os.R_OK)
        try:
            # It names no file.
            self.outside = os.readlink(f"{own}/ns/pid") != _HOST_PIDS  # noqa: PTH115
        except OSError:
            self.outside = False  # a tree that was laid out

    def _update_process(self, pid: int, seen: _KnownProcess, now: float) -> None:
        young = now - seen.first < _YOUNG_S
        began = perf_counter()
        files = self._open_files(pid)
        if young or not seen.name or seen.step is not None or files != (False, seen.devices):
            found = self.read_stat(pid)
            if found is None:
                files = (False, ())
            elif found.kernel:
                seen.again, seen.hidden = float("inf"), False
                return
            else:
                seen.name = found.name
                is_step = found.name == _STEPD and found.state not in "ZX"
                seen.step = self._find_step(pid, seen) if is_step else None
                if found.state == "Z":
                    # Its first thread has ended. Others may still run, such as one that is stuck
                    # in the driver.
                    files = self._open_files_of_threads(pid) if found.threads > 1 else (False, ())
        seen.hidden, seen.devices = files
        wait = _FRESH_S
        if now - seen.again > _FRESH_S:  # after a pause: spread the processes over the period
            wait = _FRESH_S * (pid % _TURNS + 1) / _TURNS
        seen.again = now + max(0.0 if young else wait, _SHARE * (perf_counter() - began))

    def _open_files(self, process: int | str) -> tuple[bool, tuple[str, ...]]:
        """Whether they are hidden from us, and which devices are among them."""
        folder = f"{self._procfs}/{process}/fd/"
        found: set[str] = set()
        try:
            with os.scandir(folder) as entries:
                for count, entry in enumerate(islice(entries, _MAX_FILES + 1)):
                    if count == _MAX_FILES:
                        return True, tuple(sorted(found))
                    try:
                        # A Path for each costs as much as the rest.
                        path = os.readlink(folder + entry.name)  # noqa: PTH115
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # closed meanwhile
                    if "/nvidia" in path or "/neuron" in path:
                        match = self._device.fullmatch(path)
                        if match is not None and self._proven(folder + entry.name):
                            found.add(match[1])
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            return False, ()  # it has ended meanwhile
        except OSError:
            return True, tuple(sorted(found))
        return False, tuple(sorted(found))

    def _open_files_of_threads(self, pid: int) -> tuple[bool, tuple[str, ...]]:
        """One thread answers for all of them, unless it has ended too."""
        try:
            threads = list_names(f"{self._procfs}/{pid}/task")
        except OSError:
            return True, ()
        for thread in threads:
            hidden, devices = self._open_files(f"{pid}/task/{thread}")
            if hidden or devices:
                return hidden, devices
        return False, ()

    def _find_step(self, pid: int, seen: _KnownProcess) -> str | None:
        """The job of a slurmstepd: `slurmstepd: [123.0]`; "" if unknown, None if it has no job."""
        if seen.step:
            return seen.step
        try:
            line = read_text(f"{self._procfs}/{pid}/cmdline")
        except OSError:
            return ""
        match = _STEP.match(line)
        if match is not None:
            return match[1]
        return None if _KEEPER in line.split("\0") else ""
