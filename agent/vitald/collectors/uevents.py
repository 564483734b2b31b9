"""
The kernel's announcements of devices that come, go and change (uevents), which start a poll.

They are received through libudev, directly from the kernel: earlier than udev passes them on, and
also where no udev runs. Bursts of announcements cause few polls. Announcements are not facts: any
root process can make the kernel send one (`echo remove > .../uevent`), so sources read the present
state themselves. Without libudev, changes are seen in the next round.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from vitald.worker_thread import NoThread, ThreadStuck, WorkerThread

if TYPE_CHECKING:
    import pyudev

log: structlog.stdlib.BoundLogger = structlog.get_logger("uevents")

Wake = Callable[[], None]

# The first announcement of a subsystem wakes at once, others of its second together at its end
_PAUSE_S = 1.0
_AT_ONCE = 256  # messages read before other tasks of the loop run
_AGAIN_S = 60.0  # until a socket that failed is opened again
_OPEN_S = 20.0  # to find and load libudev
# Of these only devices of hardware: each container that starts has interfaces and block devices of
# software.
_HARDWARE_ONLY = ("net", "block")
_READING = (OSError, ValueError, OverflowError, MemoryError)  # what pyudev raises for an errno
_SOFTWARE = "/sys/devices/virtual/"


class Uevents:
    """Receives announcements, and wakes the listeners of their subsystem."""

    def __init__(self, listeners: Mapping[str, Sequence[Wake]]) -> None:
        """`listeners`: by subsystem (`pci`, `net`), what to call. They are called on the event loop
        and must not block.
        """
        self.error = ""  # why nothing is received; empty while all is well
        self.heard = 0  # messages received
        self.lost = 0  # overruns of the socket
        self._listeners = listeners
        self._pausing: set[str] = set()
        self._again: set[str] = set()
        self._failed = asyncio.Event()

    async def listen(self) -> None:
        """Until cancelled; returns if there is no libudev. A failure is logged once, kept as
        `error`, and tried again.
        """
        while True:
            try:
                worker_thread = WorkerThread("uevents")
            except NoThread as error:
                self._set_error(f"libudev cannot listen to the kernel: {error}")
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                # Finding the library starts a process
                monitor = await worker_thread.call(self._open_socket, _OPEN_S)
            except ImportError as error:
                return self._set_error(f"libudev is not there: {error}")
            except (OSError, ValueError, ThreadStuck) as error:
                self._set_error(f"libudev cannot listen to the kernel: {error}")
            else:
                self._set_error("")
                await self._hear_safely(monitor)
            finally:
                worker_thread.close()
            await asyncio.sleep(_AGAIN_S)

    def _open_socket(self) -> pyudev.Monitor:
        # Where there is no libudev, this raises ImportError, and the daemon does without
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in self._listeners:
            monitor.filter_by(subsystem)
        monitor.start()
        return monitor

    async def _hear_safely(self, monitor: pyudev.Monitor) -> None:
        """Also at the limit of file descriptors, which is no reason to end."""
        try:
            await self._receive_messages(monitor)
        except OSError as error:
            self._set_error(f"libudev cannot listen to the kernel: {error}")

    async def _receive_messages(self, monitor: pyudev.Monitor) -> None:
        """Until the socket fails."""
        loop, fd = asyncio.get_running_loop(), monitor.fileno()
        self._failed.clear()
        with socket.socket(fileno=os.dup(fd)) as same:
            loop.add_reader(fd, self._read_message, monitor, same)
            try:
                self._wake_all()  # for what happened before
                await self._failed.wait()
            finally:
                loop.remove_reader(fd)

    def _read_message(self, monitor: pyudev.Monitor, same: socket.socket) -> None:
        """Read the messages that have arrived."""
        for _ in range(_AT_ONCE):
            try:
                device = monitor.poll(0)
                if device is None:
                    return
                subsystem, path = device.subsystem, device.sys_path
            except _READING as error:
                # pyudev's poll fails at an overrun and leaves the error on the socket; SO_ERROR
                # clears it.
                number = same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or getattr(
                    error, "errno", None
                )
                if number == errno.ENOBUFS:
                    self._handle_overrun()
                    continue
                self._report_failure(error)
                return
            self.heard += 1
            if subsystem not in _HARDWARE_ONLY or not path.startswith(_SOFTWARE):
                self._wake_listeners(subsystem)

    def _handle_overrun(self) -> None:
        """What was lost is unknown, so everything is polled."""
        self.lost += 1
        log.warning("uevents_lost", times=self.lost, effect="all devices are polled again")
        self._wake_all()

    def _report_failure(self, error: Exception) -> None:
        self._set_error(f"the kernel's announcements cannot be read: {error}")
        self._wake_all()
        self._failed.set()

    def _wake_all(self) -> None:
        for subsystem in self._listeners:
            self._wake_listeners(subsystem)

    def _wake_listeners(self, subsystem: str) -> None:
        if subsystem in self._pausing:
            self._again.add(subsystem)
            return
        for wake in self._listeners.get(subsystem, ()):
            wake()
        self._pausing.add(subsystem)
        asyncio.get_running_loop().call_later(_PAUSE_S, self._end_pause, subsystem)

    def _end_pause(self, subsystem: str) -> None:
        self._pausing.discard(subsystem)
        if subsystem in self._again:
            self._again.discard(subsystem)
            self._wake_listeners(subsystem)

    def _set_error(self, error: str) -> None:
        if error and error != self.error:
            log.warning(
                "uevents_not_heard",
                error=error,
                effect="what comes and goes is seen at the next round",
            )
        elif self.error and not error:
            log.info("uevents_heard_again", level="notice")
        self.error = error
