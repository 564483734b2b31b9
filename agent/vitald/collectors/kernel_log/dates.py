"""
Parses the date before a saved line: dmesg -T, journalctl, syslog, RFC 3339.

A date without a zone is in this machine's time zone. A syslog date has no year, which is inferred.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from vitald.collectors.kernel_log.lines import MONTHS

_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T"
    r" ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z| UTC\b| ?[+\-]\d\d:?\d\d)?"
)
_NAMED = re.compile(
    rf"(?<!\w)(?P<month>{'|'.join(MONTHS)}) +(?P<day>\d{{1,2}}) "
    r"(?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<part>\d{1,9}))?(?: (?P<year>\d{4})\b)?"
)
_DAY = timedelta(days=1)
_MAX_YEARS = 8  # between two 29ths of February


def parse_date(prefix: bytes, latest: float) -> float | None:
    """Seconds since the epoch, or None if the prefix has no date.

    `latest`: when the log was last written. A date without a year is in the last year in which it
    is not after `latest`.
    """
    if b":" not in prefix:
        return None  # most stamps
    text = prefix.decode("utf-8", "replace")
    try:
        if (iso := _ISO.search(text)) is not None:
            return _make_time(
                iso, int(iso["year"]), int(iso["month"]), _parse_zone(iso["zone"])
            ).timestamp()
        if (named := _NAMED.search(text)) is not None:
            return _parse_named(named, latest)
    except (ValueError, OverflowError, OSError):
        return None  # the 31st of February, or a year out of range
    return None


def _parse_named(found: re.Match[str], latest: float) -> float | None:
    month = MONTHS.index(found["month"]) + 1
    if found["year"]:
        return _make_time(found, int(found["year"]), month, None).timestamp()
    last = datetime.fromtimestamp(latest) + _DAY  # local time, as the stamp
    for year in range(last.year, last.year - _MAX_YEARS - 1, -1):
        try:
            moment = _make_time(found, year, month, None)
        except ValueError:
            continue
        if moment.replace(tzinfo=None) <= last:
            return moment.timestamp()
    return None


def _make_time(found: re.Match[str], year: int, month: int, zone: timezone | None) -> datetime:
    hour, minute, second = (int(part) for part in found["clock"].split(":"))
    usec = int((found["part"] or "0")[:6].ljust(6, "0"))
    return datetime(year, month, int(found["day"]), hour, minute, second, usec, zone)


def _parse_zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text in ("Z", " UTC"):
        return timezone.utc
    sign, digits = text.strip()[0], text.strip()[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if sign == "-" else offset)
