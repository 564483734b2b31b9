"""
systemd's notify protocol, through systemd-python: readiness, a status line, the watchdog.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger("systemd")


class Notifier:
    """Does nothing outside systemd. Where systemd waits for us but systemd-python is absent, it says so once."""

    def __init__(self) -> None:
        self._notify: Callable[[str], bool] | None = None
        self._said = ""
        if not os.environ.get("NOTIFY_SOCKET"):
            return
        try:
            from systemd import daemon  # type: ignore[attr-defined,unused-ignore]
        except ImportError:
            log.error(
                "systemd_python_missing",
                effect="systemd is waiting for READY=1 and will not get it: the unit will time out",
                next_step="install python3-systemd (or pip install 'vitald[systemd]'), or set Type=exec in the unit",
            )
        else:
            self._notify = cast("Callable[[str], bool]", daemon.notify)

    @property
    def watchdog_s(self) -> float | None:
        """Half of the time within which systemd wants a sign of life, or None."""
        usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        if self._notify is None or not usec.isdigit() or (pid and pid != str(os.getpid())):
            return None
        return int(usec) / 2e6

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """The line that `systemctl status` shows; sent when it changes."""
        if text != self._said:
            self._said = text
            self._send(f"STATUS={text}")

    def _send(self, message: str) -> None:
        if self._notify is not None:
            self._notify(message)
