"""
Clock synchronisation state, from adjtimex(2).

Without modes the call only reads and requires no privilege. systemd-timesyncd, ntpd and chronyd
(with `rtcsync`, the default of distributions) set the kernel's state; a clock that no daemon
synchronises counts as unsynchronised once its maximum error reaches 16 s. If the call is forbidden
(ProtectClock=yes in the service's unit), systemd-timedated is queried; it only reports whether the
error has reached 16 s, so the offset is unknown.

Source: adjtimex(2); Linux include/uapi/linux/timex.h, kernel/time/ntp.c;
org.freedesktop.timedate1(5), systemd src/basic/time-util.c ntp_synced.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import RawReadings
from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.small_files import describe_error

_UNSYNC, _NANO = 0x0040, 0x2000
_LONG = ctypes.c_long
_MAX_ERROR_S = 16.0  # the kernel's limit of the maximum error
_ASK = ("timedatectl", "show", "--property=NTPSynchronized", "--value")
_ANSWER_S = 5.0
# Each request starts systemd-timedated, which logs it; the error takes nine hours to reach 16 s.
_AGAIN_S = {True: 1800.0, False: 300.0}


class Timex(ctypes.Structure):
    """struct timex. `maxerror` is in microseconds, `offset` too, or in nanoseconds where `status`
    says so.
    """

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", _LONG),
        ("freq", _LONG),
        ("maxerror", _LONG),
        ("esterror", _LONG),
        ("status", ctypes.c_int),
        ("constant", _LONG),
        ("precision", _LONG),
        ("tolerance", _LONG),
        ("rest", ctypes.c_char * 256),  # the kernel writes behind what we read
    )

    offset: int
    maxerror: int
    status: int


def adjtimex() -> Timex:
    """The kernel's clock state. Raises OSError."""
    timex = Timex()
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
    except AttributeError:
        raise OSError(38, os.strerror(38)) from None
    if call(ctypes.byref(timex)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return timex


def ask_timedated() -> bool:
    """Whether systemd-timedated calls the clock synchronised. Raises OSError."""
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            _ASK,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
            text=True,
        )
        return {"yes": True, "no": False}[done.stdout.strip()]
    except FileNotFoundError:
        raise OSError("there is no timedatectl here") from None
    except (subprocess.SubprocessError, KeyError, ValueError):
        raise OSError("timedatectl did not say") from None


class SystemClock:
    """The system clock."""

    def __init__(self) -> None:
        self.adjtimex: Callable[[], Timex] = adjtimex
        self.timedated: Callable[[], bool] = ask_timedated
        self._kept = False
        self._ask_at = float("-inf")

    def list_devices(self) -> Iterator[PolledDevice]:
        yield PolledDevice(Component(ComponentKind.NODE, "clock"), self._read_clock)

    def _read_clock(self) -> RawReadings:
        raw = RawReadings()
        try:
            timex = self.adjtimex()
        except OSError as error:
            refused = f"adjtimex: {describe_error(error)}"
            raw.missing["clock_offset_seconds"] = refused
            self._ask_timedated(raw, refused)
            return raw
        raw.values["unsynchronised"] = float(bool(timex.status & _UNSYNC))
        raw.values["clock_error_seconds"] = timex.maxerror / 1e6
        raw.values["clock_offset_seconds"] = abs(timex.offset) / (
            1e9 if timex.status & _NANO else 1e6
        )
        return raw

    def _ask_timedated(self, raw: RawReadings, refused: str) -> None:
        """The synchronisation state according to timedated."""
        if time.monotonic() >= self._ask_at:
            try:
                self._kept = self.timedated()
            except OSError as error:
                raw.missing["unsynchronised"] = f"{refused}; {error}"
                return
            self._ask_at = time.monotonic() + _AGAIN_S[self._kept]
        raw.values["unsynchronised"] = float(not self._kept)
        if not self._kept:
            raw.values["clock_error_seconds"] = _MAX_ERROR_S
