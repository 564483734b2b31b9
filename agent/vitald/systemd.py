"""
systemd's side of a service: readiness, a status line, the watchdog, and the sockets that it hands
over.

Both are a few lines of protocol, implemented here, not by a library: systemd-python has no
wheels, and a daemon without it must be ready, too. Sources: sd_notify(3), sd_watchdog_enabled(3),
sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import structlog

from vitald.text import replace_unprintable

log: structlog.stdlib.BoundLogger = structlog.get_logger("systemd")

_FIRST_FD = 3
_SEND_S = 0.5  # systemd reads at once; a full queue must not hold up the loop


class Notifier:
    """Does nothing outside systemd."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._status = ""
        self._failed = False

    @property
    def watchdog_s(self) -> float | None:
        """Half of the time within which systemd wants a sign of life, or None."""
        usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        if not self._address or not usec.isdecimal() or (pid and pid != str(os.getpid())):
            return None
        return int(usec) / 2e6

    def notify_ready(self) -> None:
        self._send_state("READY=1")

    def notify_stopping(self) -> None:
        self._send_state("STOPPING=1")

    def notify_watchdog(self) -> None:
        self._send_state("WATCHDOG=1")

    def notify_status(self, text: str) -> None:
        """The line that `systemctl status` shows; sent when it changes. A line break in it would
        begin another assignment, such as `STOPPING=1`.
        """
        text = replace_unprintable(text, " ")
        if text != self._status:
            self._status = text
            self._send_state(f"STATUS={text}")

    def _send_state(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(_SEND_S)
                sock.connect(
                    self._address.replace("@", "\0", 1)
                    if self._address.startswith("@")
                    else self._address
                )
                sock.sendall(message.encode())
        except OSError as error:
            if not self._failed:
                log.error(
                    "systemd_not_notified",
                    address=self._address,
                    error=str(error),
                    effect="systemd may restart the daemon",
                )
            self._failed = True
        else:
            self._failed = False


def take_passed_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The listening Unix sockets that systemd opened for us (vitald.socket); whatever else it hands
    over is closed.

    The variables go: what we start must not take them for its own.
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for fd in range(_FIRST_FD, _FIRST_FD + min(int(count), 64)):
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        if (sock.family, sock.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            sock.setblocking(False)
            found.append(sock)
        else:
            log.error(
                "socket_refused",
                fd=fd,
                family=sock.family.name,
                next_step="vitald.socket may have ListenStream= with a path only",
            )
            sock.close()
    return found
