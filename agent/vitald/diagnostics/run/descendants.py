"""
Who comes from a program that was started, wherever it went.

Owns     telling a program's descendants from all other processes, and sending them signals: by
         session and group, by parent, and by a variable in the environment, which also those carry
         who left the session and whose parent has died.
Refuses  waiting, and the loop: everything here is plain and may hang in the kernel, as where a
         process holds its own memory's lock.

Source: proc_pid_stat(5), proc_pid_environ(5).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitald.small_files import KERNEL_THREAD
from vitald.text import clean_line

MARKER = "VITALD_RUN"
_ENVIRON_BYTES = 1024 * 1024
# In a sweep: a process that becomes another program has no environment while its new memory is
# being filled
_BECOMES_S = 0.25
_BECOMES_AGAIN_S = 0.001
_DEAD = "ZX"
_STUCK = "D"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. `started`, in clock ticks since boot, distinguishes it from a
    later one with its id. Only the first two are known where /proc cannot be read.
    """

    pid: int
    name: str
    state: str = ""
    parent: int = 0
    group: int = 0
    session: int = 0  # 0 also where a container's process is in a session begun outside
    flags: int = 0
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


class Descendants:
    """Of the program with process id `pid`, which leads a session of its own and has not been
    reaped: so the number stays its own. None: of one that an earlier daemon started.
    """

    def __init__(self, pid: int | None, marker: str, procfs: Path = Path("/proc")) -> None:
        self._pid = pid
        self._marker = f"{MARKER}={marker}".encode()
        self._procfs = procfs
        self._known: set[tuple[int, int]] = set()
        self._terminated: set[tuple[int, int]] = set()
        self._bare: set[tuple[int, int]] = set()  # without any environment
        self._is_group_terminated = False
        main = _read_process(procfs, pid) if pid is not None else None
        self._since = main.started if main is not None else 0
        self._same = _same_namespace(procfs)

    def sweep_processes(self, number: int | None = None, *, deep: bool = True) -> list[Process]:
        """Sends a signal to all living descendants, including the program, and returns them.
        SIGTERM is sent only once to each.

        All are found before any is signalled: a process can be found by its parent only while the
        parent lives. `deep`: read environments, too. Raises OSError if processes cannot be listed.
        """
        if not self._same:
            raise OSError(f"{self._procfs} numbers processes otherwise than this process does")
        found = self._find_processes(deep)
        self._known |= {(process.pid, process.started) for process in found}
        if number is not None:
            self.signal_group(number)
        for process in found:
            if process.is_dead:
                self._reap_orphan(process)
            elif number is not None and process.group != self._pid:
                self._send_signal(process, number)
        return [process for process in found if not process.is_dead]

    def signal_group(self, number: int) -> None:
        """Signals the program's process group, with SIGTERM only once: a second one makes some
        programs exit without stopping what they started elsewhere.
        """
        if self._pid is None:
            return
        if number == signal.SIGTERM:
            if self._is_group_terminated:
                return
            self._is_group_terminated = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def _find_processes(self, deep: bool) -> list[Process]:
        everyone = [
            process for process in list_processes(self._procfs) if process.started >= self._since
        ]
        found = {process.pid: process for process in everyone if self._is_ours(process)}
        if deep:
            found |= self._find_marked(
                [process for process in everyone if process.pid not in found]
            )
        while more := {
            process.pid: process
            for process in everyone
            if process.parent in found and process.pid not in found
        }:
            found |= more
        return list(found.values())

    def _is_ours(self, process: Process) -> bool:
        return (
            process.pid == self._pid
            or self._pid in (process.group, process.session)
            or (process.pid, process.started) in self._known
        )

    def _find_marked(self, others: list[Process]) -> dict[int, Process]:
        """Those whose environment has the marker. An empty environment is read again for a while:
        execve(2) may be in progress.
        """
        found = {}
        until = time.monotonic() + _BECOMES_S
        # Kernel threads never have one.
        unread = [one for one in others if not (one.is_dead or one.flags & KERNEL_THREAD)]
        while True:
            bare = []
            for process in unread:
                words = _read_environment(self._procfs, process.pid)
                if self._marker in words:
                    found[process.pid] = process
                elif words == [b""] and (process.pid, process.started) not in self._bare:
                    bare.append(process)
            if not bare or time.monotonic() > until:
                self._bare |= {(process.pid, process.started) for process in bare}
                return found
            unread = bare
            time.sleep(_BECOMES_AGAIN_S)

    def _send_signal(self, process: Process, number: int) -> None:
        if number == signal.SIGTERM and (process.pid, process.started) in self._terminated:
            return
        self._terminated.add((process.pid, process.started))
        # It has ended, or belongs to another user: the next sweep shows which.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)

    def _reap_orphan(self, process: Process) -> None:
        """Orphans are ours to reap where the daemon is its container's first process. The program
        itself is reaped last, by who started it.
        """
        if process.parent == os.getpid() and process.pid != self._pid:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def is_running(process: Process, procfs: Path = Path("/proc")) -> bool:
    """Whether it has not ended since it was seen."""
    found = _read_process(procfs, process.pid)
    return found is not None and found.started == process.started and not found.is_dead


def list_processes(procfs: Path) -> Iterator[Process]:
    """All that can be seen."""
    with os.scandir(procfs) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    for pid in sorted(pids):
        if (process := _read_process(procfs, pid)) is not None:
            yield process


def _same_namespace(procfs: Path) -> bool:
    """Whether the numbers there may be sent signals from here: another container's, or the host's,
    may not.
    """
    try:
        return (procfs / "self").readlink().name == str(os.getpid())
    except OSError:
        return False


def _read_process(procfs: Path, pid: int) -> Process | None:
    try:
        fd = os.open(f"{procfs}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            head, _, tail = os.read(fd, 4096).rpartition(b")")
        finally:
            os.close(fd)
        words = tail.split()
        numbers = [int(words[at]) for at in (1, 2, 3, 6, 19)]
        return Process(
            pid, head.partition(b"(")[2].decode(errors="replace"), words[0].decode(), *numbers
        )
    except (OSError, ValueError, IndexError):
        return None  # it has ended meanwhile


def _read_environment(procfs: Path, pid: int) -> list[bytes]:
    """Nothing where it may not be read: then it is another user's. One empty word where there is
    none.
    """
    try:
        with open(f"{procfs}/{pid}/environ", "rb", buffering=0) as file:
            return file.read(_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return []
