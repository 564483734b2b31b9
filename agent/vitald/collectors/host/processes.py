"""
Processes stuck in the kernel: in uninterruptible sleep, without having run between two reads.

A healthy process is often found waiting for a disk. One is stuck if its count of context switches
does not change, the criterion of the kernel's hung task detector. Root can read in its stack where
it is stuck, a process that may trace it in its wait channel.

Only the first thread of a process is read; `hung_task` lines in the kernel log cover the others.
Kernel threads do not count: a driver's worker may wait in this state for its next task.

Source: proc_pid_stat(5), proc_loadavg(5); Linux kernel/hung_task.c.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.small_files import KERNEL_THREAD, read_text
from vitald.text import join_first, replace_unprintable

# Functions and modules, as they stand in a stack: `[<0>] nvidia_ioctl+0x1f/0x30 [nvidia]`.
_DRIVERS = {
    "nvidia": re.compile(r"\b(?:nvidia|nv_|uvm_|_nv\d{6})"),
    "neuron": re.compile(r"\b(?:neuron|ncdev_|ndma_)"),
    "efa": re.compile(r"\befa(?:_|\])"),
    "mlx5": re.compile(r"\bmlx5_"),
    "nvme": re.compile(r"\bnvme(?:_|\])"),
    "nfs": re.compile(r"\b(?:nfs\d?_|rpc_wait)|\[(?:nfsv?\d*|sunrpc)\]"),
    "lustre": re.compile(r"\b(?:ptlrpc|ldlm)_|\[(?:lustre|ptlrpc)\]"),
}
OTHER = "other"
_MIN_LOAD = 0.5  # a task that has waited for 42 s adds this much to the one-minute load
_MAX_READ = 128  # processes in one poll, besides those found waiting before
_WAITING = "D"
_LIMITS = (("threads", "sys/kernel/threads-max"), ("pids", "sys/kernel/pid_max"))
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class WaitingProcess:
    """A process in uninterruptible sleep. `since` is on the monotonic clock."""

    pid: int
    began: str  # its start time: a number is given out again
    switches: str
    name: str
    since: float
    where: str
    driver: str


class StuckProcesses:
    """Processes that wait. Kernel threads, most of all processes, are recognised once and not read
    again.
    """

    def __init__(self, procfs: Path, files: Files) -> None:
        self._procfs = procfs
        self._files = files
        self._inodes: dict[int, int] = {}  # of all processes when the turn began
        # Kernel threads: inode by number; another task with the same number has another inode
        self._threads: dict[int, int] = {}
        self._turn: list[int] = []  # processes still to be read before the turn begins anew
        self._waiting: dict[int, WaitingProcess] = {}

    def list_devices(self) -> Iterator[PolledDevice]:
        yield PolledDevice(Component(ComponentKind.NODE, "processes"), self._read_processes)

    def _read_processes(self) -> RawReadings:
        raw, began = RawReadings(), time.monotonic()
        load = self._files.read_value(raw, "load", self._procfs / "loadavg", _parse_load)
        if load is None:
            return raw
        raw.values["load"], raw.values["tasks"] = load
        most = [
            self._files.read_number(raw, f"{name}_most", self._procfs / file)
            for name, file in _LIMITS
        ]
        if limits := [limit for limit in most if limit]:
            raw.values["tasks_used_ratio"] = round(load[1] / min(limits), 4)
        if not os.access(self._procfs / "1/stat", os.R_OK):
            raw.missing["stuck"] = "other users' processes are hidden (hidepid)"
            return raw
        if load[0] < _MIN_LOAD:
            self._waiting, self._turn = {}, []
        else:
            self._scan_processes()
        self._report_waiting(raw, began)
        return raw

    def _report_waiting(self, raw: RawReadings, now: float) -> None:
        """Processes found now for the first time are most likely healthy and not named."""
        longest = dict.fromkeys((*_DRIVERS, OTHER), 0.0)
        for process in self._waiting.values():
            longest[process.driver] = max(longest[process.driver], now - process.since)
        raw.values |= {
            f"stuck_in_{driver}_seconds": round(seconds, 1) for driver, seconds in longest.items()
        }
        oldest = sorted(
            (process for process in self._waiting.values() if process.since < now),
            key=lambda process: process.since,
        )
        named = [f"{process.name} ({process.pid}) in {process.where}" for process in oldest]
        raw.display_name = join_first(named, _MAX_NAMED)
        if oldest:
            raw.fields = {"process": oldest[0].name, "where": oldest[0].where}

    def _scan_processes(self) -> None:
        """Reads those that waited before, and the next ones in turn; the youngest first, as kernel
        threads are old.
        """
        if not self._turn:
            self._turn = self._list_candidates()
        before = dict(islice(self._waiting.items(), _MAX_READ))  # the oldest
        next_ = [self._turn.pop() for _ in range(min(_MAX_READ, len(self._turn)))]
        found = (
            self._read_waiting(pid, before.get(pid)) for pid in dict.fromkeys((*before, *next_))
        )
        self._waiting = {process.pid: process for process in found if process is not None}

    def _list_candidates(self) -> list[int]:
        with os.scandir(self._procfs) as entries:
            here = {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal()}
        self._threads = {
            pid: inode for pid, inode in self._threads.items() if here.get(pid) == inode
        }
        self._inodes = here
        return sorted(here.keys() - self._threads.keys())

    def _read_waiting(self, pid: int, before: WaitingProcess | None) -> WaitingProcess | None:
        folder = f"{self._procfs}/{pid}"
        try:
            head, _, tail = read_text(f"{folder}/stat").rpartition(")")
            words = tail.split()
            if int(words[6]) & KERNEL_THREAD:
                self._threads[pid] = self._inodes.get(pid, 0)
                return None
            if words[0] != _WAITING:
                return None
            switches = "".join(
                line
                for line in read_text(f"{folder}/status").splitlines()
                if "ctxt_switches" in line
            )
        except (OSError, ValueError, IndexError):
            return None  # it has ended meanwhile
        if before is not None and (before.began, before.switches) == (words[19], switches):
            return before
        where = _read_stack(folder)
        name = replace_unprintable(head.partition("(")[2])  # a process may call itself anything
        driver = next((name for name, pattern in _DRIVERS.items() if pattern.search(where)), OTHER)
        return WaitingProcess(
            pid, words[19], switches, name, time.monotonic(), _find_function(where), driver
        )


def _parse_load(text: str) -> list[float]:
    """Load of the last minute, and how many tasks there are, threads included: `0.20 0.18 0.12 1/80
    11206`.
    """
    words = text.split()
    return [float(words[0]), float(words[3].partition("/")[2])]


def _read_stack(folder: str) -> str:
    """Its stack, else the one function that it waits in; empty where neither may be read."""
    for file in ("stack", "wchan"):
        with suppress(OSError):
            text = read_text(f"{folder}/{file}")
            if text and text != "0":
                return text
    return ""


def _find_function(where: str) -> str:
    """The innermost function that is a driver's, else the innermost: `nvidia_ioctl`."""
    frames = [
        line.split()[1] if line.startswith("[<") else line
        for line in where.splitlines()
        if line.strip()
    ]
    names = [frame.partition("+")[0] for frame in frames]
    own = (name for name in names if any(pattern.search(name) for pattern in _DRIVERS.values()))
    return next(own, names[0] if names else "a place that only root may see")
