"""
Whether the clock is kept by somebody: what the kernel's own clock discipline says.

adjtimex(2) with no modes set only reads, and anybody may. systemd-timesyncd, ntpd and chronyd (with `rtcsync`, as distributions
ship it) tell the kernel when they are in step; what nobody keeps counts as unsynchronised once its possible error is 16 s.
Source: adjtimex(2); Linux include/uapi/linux/timex.h, kernel/time/ntp.c.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator

from agent.model import Component, ComponentKind
from agent.sources.files import Look, why
from agent.sources.polled import Device

_UNSYNC, _NANO = 0x0040, 0x2000
_LONG = ctypes.c_long


class Timex(ctypes.Structure):
    """struct timex. `maxerror` is in microseconds, `offset` too, or in nanoseconds where `status` says so."""

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
    """What the kernel says of its clock. Raises OSError."""
    timex = Timex()
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
    except AttributeError:
        raise OSError(38, os.strerror(38)) from None
    if call(ctypes.byref(timex)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return timex


class Clock:
    """The system clock."""

    def __init__(self) -> None:
        self.adjtimex: Callable[[], Timex] = adjtimex

    def devices(self) -> Iterator[Device]:
        yield Device(Component(ComponentKind.NODE, "clock"), self._look)

    def _look(self) -> Look:
        look = Look()
        try:
            timex = self.adjtimex()
        except OSError as error:
            look.missing["unsynchronised"] = f"adjtimex: {why(error)}"
            return look
        look.values["unsynchronised"] = float(bool(timex.status & _UNSYNC))
        look.values["clock_error_seconds"] = timex.maxerror / 1e6
        look.values["clock_offset_seconds"] = abs(timex.offset) / (1e9 if timex.status & _NANO else 1e6)
        return look
