"""
The processes of a program: its session, and where systemd has delegated its control group to the
daemon (`Delegate=yes`), all of a control group of its own.

Owns     listing the processes that live, and sending them signals.
Refuses  waiting, and the loop: it reads all of /proc.

Without a control group, a process that leaves the session (setsid) is no longer held.

Source: proc_pid_stat(5), cgroups(7), kernel Documentation/admin-guide/cgroup-v2.rst (cgroup.kill,
from 5.14), systemd docs/CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitald.text import clean_line

_PROCFS = Path("/proc")
_CGROUPFS = Path("/sys/fs/cgroup")
RUN_CGROUP = "diagnostic-"  # and the program's process id: its control group
_MEMBERS = "cgroup.procs"
_KILL = "cgroup.kill"  # from Linux 5.14
_DEAD = "ZX"
_STUCK = "D"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. `started`, in clock ticks since boot, distinguishes it from a
    later one with its id.
    """

    pid: int
    name: str
    state: str = ""
    parent: int = 0
    group: int = 0
    session: int = 0
    started: int = -1

    def __str__(self) -> str:
        return f"{clean_line(self.name)} (pid {self.pid})"

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and was not reaped yet."""
        return self.state in _DEAD

    @property
    def is_stuck(self) -> bool:
        """In the kernel, where no signal reaches it."""
        return self.state == _STUCK


class HeldProcesses:
    """The program with process id `pid`, which leads a session of its own and is not reaped before
    the others have ended: so the number stays its own.
    """

    def __init__(self, pid: int, delegated: Path | None = None) -> None:
        """`delegated`: the control group in which one may be made for the program."""
        self._pid = pid
        self._terminated: set[int] = set()
        self._cgroup = self._make_cgroup(delegated) if delegated is not None else None

    def _make_cgroup(self, delegated: Path) -> Path | None:
        """None where it cannot be made."""
        cgroup = delegated / f"{RUN_CGROUP}{self._pid}"
        try:
            cgroup.mkdir()
            (cgroup / _MEMBERS).write_text(str(self._pid))
        except OSError:
            with suppress(OSError):
                cgroup.rmdir()
            return None
        return cgroup

    def signal_living(self, number: int | None) -> list[Process]:
        """Returns the processes that live, the program among them, after sending them a signal.
        Raises OSError if they cannot be listed.
        """
        living = self._list_living()
        if number == signal.SIGKILL and self._cgroup is not None:
            with suppress(OSError):  # otherwise each process gets its own signal
                (self._cgroup / _KILL).write_text("1")
        if number is not None:
            self.signal_group(number)
            self._signal_others(living, number)
        return living

    def signal_group(self, number: int) -> None:
        """Signals the program's process group, with SIGTERM only once: a second one makes some
        programs exit without stopping what they started elsewhere.
        """
        if number == signal.SIGTERM and self._pid in self._terminated:
            return
        self._terminated.add(self._pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def close(self) -> None:
        """Removes the control group; one with a process that hangs in the kernel stays."""
        if self._cgroup is not None:
            with suppress(OSError):
                self._cgroup.rmdir()

    def _signal_others(self, living: Iterable[Process], number: int) -> None:
        """Those that are not in the program's process group, with SIGTERM only once."""
        for process in living:
            is_repeated = number == signal.SIGTERM and process.pid in self._terminated
            if process.group == self._pid or is_repeated:
                continue
            self._terminated.add(process.pid)
            # It has ended, or belongs to another user: the next list shows which
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)

    def _list_living(self) -> list[Process]:
        # Some of the session may have begun before the program was in its control group
        found = {each.pid: each for each in list_processes() if each.session == self._pid}
        if self._cgroup is not None:
            members = map(int, (self._cgroup / _MEMBERS).read_text().split())
            found |= {each.pid: each for each in _read_processes(_PROCFS, members)}
        for process in found.values():
            # Orphans are ours to reap where the daemon is its container's first process
            if process.is_dead and process.parent == os.getpid() and process.pid != self._pid:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
        return [process for process in found.values() if not process.is_dead]


def find_delegated_cgroup(procfs: Path = _PROCFS, cgroupfs: Path = _CGROUPFS) -> Path | None:
    """The daemon's own control group if systemd has delegated it, which then belongs to the
    service's user; None if it has not, as in most containers.
    """
    try:
        lines = (procfs / "self/cgroup").read_text().splitlines()
        own = next(cgroupfs / line[4:] for line in lines if line.startswith("0::/"))
        if os.geteuid() == 0:
            is_delegated = os.getxattr(own, "trusted.delegate") == b"1"
        else:
            is_delegated = own.stat().st_uid == os.geteuid()
    except (OSError, StopIteration):
        return None
    return own if is_delegated else None


def is_running(process: Process) -> bool:
    """Whether it has not ended since it was seen."""
    found = _read_process(_PROCFS, process.pid)
    return found is not None and found.started == process.started and not found.is_dead


def list_processes(procfs: Path = _PROCFS) -> Iterator[Process]:
    """All that can be seen."""
    with os.scandir(procfs) as entries:
        pids = sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
    return _read_processes(procfs, pids)


def _read_processes(procfs: Path, pids: Iterable[int]) -> Iterator[Process]:
    found = (_read_process(procfs, pid) for pid in pids)
    return (process for process in found if process is not None)


def _read_process(procfs: Path, pid: int) -> Process | None:
    try:
        fd = os.open(f"{procfs}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            head, _, tail = os.read(fd, 4096).rpartition(b")")
        finally:
            os.close(fd)
        words = tail.split()
        numbers = [int(words[at]) for at in (1, 2, 3, 19)]
        return Process(
            pid, head.partition(b"(")[2].decode(errors="replace"), words[0].decode(), *numbers
        )
    except (OSError, ValueError, IndexError):
        return None  # it has ended meanwhile
