"""
Times as text: RFC 3339 in UTC, formatted and parsed.
"""

from __future__ import annotations

import time as clock
from datetime import datetime, timezone


def format_rfc3339(time: float, timespec: str = "milliseconds") -> str:
    """`2026-11-18T13:46:40.250Z`. `time`: seconds since 1970. `timespec`: as of datetime.isoformat.

    Raises ValueError, OverflowError or OSError where the time is in no year that a date can have.
    """
    utc = datetime.fromtimestamp(time, timezone.utc)
    return utc.isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    """The time as written: without a zone in it, without a zone. Raises ValueError."""
    # fromisoformat knows no Z before Python 3.11
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)


def parse_day(text: str) -> float:
    """The beginning of a day such as 2026-11-18, in UTC, in seconds since 1970. Raises
    ValueError.
    """
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()


def format_compact(time: float) -> str:
    """`20261118T134640Z`, for the name of a file. `time`: seconds since 1970."""
    return clock.strftime("%Y%m%dT%H%M%SZ", clock.gmtime(time))
