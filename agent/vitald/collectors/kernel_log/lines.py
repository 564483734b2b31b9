"""
A line of a rendered log, split into prefix and kernel message: dmesg in all its modes, journalctl,
syslog, raw kmsg.

One known prefix is taken off, then the message is matched from its first character. A line whose
tag names another program than `kernel` is that program's, whatever it quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from vitald.collectors.kernel_log.recognise import begins_with_name
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord, escape

_MONTH = r"(?:\d{1,2}[^\W\d]|[^\W\d]{3,5}\.?)"  # localised: "Mär", "Okt", "févr.", "8月"
_CLOCK = r"\d\d:\d\d:\d\d"
_DELTA = r"(?: *< *\d+\.\d+ ?>| {16})?"  # dmesg -d, journalctl -o short-delta
# Also dmesg -e: "[  +0.000844]"
_SECONDS = rf"\[(?: *(?:\+\d+\.\d+|(?P<seconds>\d+)\.(?P<micros>\d+)))?{_DELTA} ?\]"
# Dmesg -T, dmesg -H
_WALL = rf"\[(?:[^\W\d]{{1,4}}\.? )?{_MONTH} *\d{{1,2}} \d\d:\d\d(?::\d\d \d{{4}})?{_DELTA}\]"
_DATE, _ZONE = rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}", r"(?:Z| ?[+\-]\d\d:?\d\d)?"
_FACILITIES = "kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]"
_CALLER = r"\[ *[TC]\d+\]"
_STAMP = re.compile(
    r"(?:<(?P<prio>\d{1,3})>)?"  # dmesg -r, a line for /dev/kmsg
    # Dmesg -x
    rf"(?:(?P<facility>{_FACILITIES}) *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: )?"
    # Dmesg, dmesg --time-format iso
    rf"(?:(?:{_SECONDS}|{_WALL}|\[\.\.\.\]|{_DATE}(?:[.,]\d+)?{_ZONE})(?: ?{_CALLER})?"
    rf" |{_CALLER} )?"
)
_PRIO = r"(?:<(?P<prio>\d{1,3})>)?"  # a sender's RFC 3164 or RFC 5424, as it is on the wire
_HOST = r"[A-Za-z0-9][\w.\-:]{0,253}(?<!:)"
# Or RFC 5424: "kernel - - - "
_TAG = r"(?P<tag>[^\s:\[\]]{1,128})(?:(?:\[\d+\])?:(?: |(?=\[)|\Z)| (?:\d+|-) \S+ - )"
_SYSLOG = re.compile(
    rf"{_PRIO}(?:{_MONTH} +\d{{1,2}} {_CLOCK}(?:\.\d+)?"  # journalctl short, syslog
    rf"|[^\W\d]{{2,4}}\.? {_DATE}{_ZONE} [A-Z]{{2,5}}"  # journalctl short-full
    rf"|{_DATE}(?:\.\d+)?{_ZONE}"  # journalctl short-iso, RFC 3339 syslog; dmesg writes a comma
    rf"|\d{{9,11}}\.\d{{6}}|{_CLOCK}"  # journalctl short-unix, a date cut off
    rf") (?:(?P<host>{_HOST}) )?(?:[a-z0-9]+\.[a-z]+ )?{_TAG}"
)
# RFC 5424: <prio>1 date host program pid id [data] text; a length before it is RFC 6587's
_RFC5424 = re.compile(
    rf"(?:\d{{1,6}} )?<(?P<prio>\d{{1,3}})>1 (?:{_DATE}(?:\.\d+)?{_ZONE}|-) (?P<host>\S{{1,255}})"
    r" (?P<tag>\S{1,48}) \S{1,128} \S{1,32} "
    r"(?:-|(?:\[(?:[^\]\\]|\\.){0,1024}\])+)(?: (?:\ufeff)?|\Z)"
)
_TALOS = re.compile(rf"\S{{1,255}}: +kern: +[a-z]+: \[{_DATE}(?:\.\d+)?Z\]: ")
# Of the stamps, those that hardly anything but dmesg writes: its bracket, its names of facility and
# level, or its date with a comma.
_DMESG_STAMP = re.compile(
    rf"(?:<\d{{1,3}}>)?(?:(?:{_FACILITIES}) *:\w+ *: )?(?:\[ *\d+\.\d+|\["
    rf" *\+\d+\.\d+|{_WALL}|{_DATE.replace('[T ]', 'T')},\d{{6}}[+\-Z]|\[\.\.\.\])"
)
_KERNEL = re.compile(rf"(?:{_HOST} )?kernel:(?: |(?=\[))")
# The kernel cuts a record at about 1 KiB, escapes make it four times that; more is nobody's record
_MAX_LINE_BYTES = 8192
_RAW = re.compile(rb"\d{1,4},\d+,\d+,[^;]{1,256};")
_MAX_SECONDS_DIGITS = 12  # of seconds; a longer one is nobody's uptime
MAX_CONTINUATIONS = 16  # lines that go on with one record
# Lines of these hold no text of a user's but a process's name, which is too short for a second line
# that says something.
_HARDWARE_PREFIXES = (
    b"NVRM: ",
    b"nvidia",
    b"mce: ",
    b"[Hardware Error]",
    b"{",
    b"EDAC ",
    b"pcieport ",
    b"mlx",
    b"nvme ",
    b"neuron:",
    b"efa ",
    b"infiniband ",
)
DOUBT = "it has the stamp of the line before it and may be the rest of that record"


@dataclass(slots=True)  # not frozen: one is made for every line of a log, in half the time
class Line:
    """A kernel message out of a text. `facility` is None where the form keeps none."""

    message: bytes  # still escaped, where the form escapes
    facility: int | None = None
    # On the kernel's own clock, where the form has that
    usec: int | None = field(default=None, compare=False)
    # The form alone says that it is a line of a kernel log
    has_kernel_prefix: bool = field(default=False, compare=False)
    host: str = field(default="", compare=False)  # that the form names
    is_whole_record: bool = field(
        default=False, compare=False
    )  # the form writes a record as one line

    @property
    def is_continuation(self) -> bool:
        """Indented and without a stamp: of the record before, which the kernel wrote with a newline
        in it.
        """
        return (
            not self.has_kernel_prefix
            and self.facility is None
            and self.message[:1] in (b" ", b"\t")
        )


class ContinuationDetector:
    """Tells a line that may be the rest of a record: where a form keeps no record's end, a newline
    in a user's text begins a line.

    syslog(2), /proc/kmsg and so rsyslog, `dmesg -S` and pstore write the record's own stamp before
    each of its lines. Of records that follow within one microsecond, those are believed that come
    after a line of hardware's.
    """

    __slots__ = ("_believed", "_usec")

    def __init__(self) -> None:
        self._usec: int | None = None
        self._believed = True

    def copy(self) -> ContinuationDetector:
        """As it is now, for lines that are read again."""
        same = ContinuationDetector()
        same._usec, same._believed = self._usec, self._believed
        return same

    def find_doubt(self, line: Line) -> str:
        """Why the line may not be what it seems; empty where nothing speaks against it. To be asked
        of every line, in order.
        """
        # The clock stands at 0 early in a boot
        if line.is_whole_record or not line.usec or line.usec != self._usec:
            self._usec = line.usec
            self._believed = line.message.startswith(_HARDWARE_PREFIXES) and not begins_with_name(
                line.message
            )
            return ""
        return "" if self._believed else DOUBT


def join_lines(line: Line, more: Iterable[bytes]) -> Line:
    """A record of several lines as /dev/kmsg has it: one, with escaped newlines."""
    message = rb"\x0a".join([line.message, *(escape(one.strip()) for one in more)])
    return Line(message, line.facility, line.usec, line.has_kernel_prefix, line.host)


def strip_prefix(raw: bytes) -> Line | None:
    """The kernel message of a line, or None where the line is another program's."""
    raw = raw[:_MAX_LINE_BYTES].rstrip(b"\r\n")
    if _RAW.match(raw):
        try:
            record = KernelRecord.parse(raw)
        except TornRecord:
            return None
        return Line(
            record.text, record.facility, record.usec, has_kernel_prefix=True, is_whole_record=True
        )
    text = raw.decode("utf-8", "surrogateescape")
    facility: int | None = None
    usec: int | None = None
    shaped, host = False, ""
    if (syslog := _SYSLOG.match(text) or _RFC5424.match(text) or _TALOS.match(text)) is not None:
        if syslog.re is not _TALOS:
            if syslog["tag"] != "kernel":
                return None
            facility, host = (
                int(prio) >> 3 if (prio := syslog["prio"]) else None,
                syslog["host"] or "",
            )
        text, shaped = text[syslog.end() :], True
    elif (stamp := _STAMP.match(text)) is not None and stamp.end():
        facility, usec = _parse_facility(stamp["prio"], stamp["facility"]), _parse_usec(stamp)
        shaped = _DMESG_STAMP.match(text, 0, stamp.end()) is not None
        text = text[stamp.end() :]
    if (tagged := _KERNEL.match(text)) is not None:
        text, shaped = text[tagged.end() :], shaped or tagged.end() > len("kernel: ")
    # Syslog keeps the kernel's own bracket where printk.time is on
    if (stamp := _STAMP.match(text)) is not None:
        shaped = shaped or _DMESG_STAMP.match(text, 0, stamp.end()) is not None
        text, usec = text[stamp.end() :], _parse_usec(stamp) if usec is None else usec
    return Line(text.encode("utf-8", "surrogateescape"), facility, usec, shaped, host)


def _parse_usec(stamp: re.Match[str]) -> int | None:
    seconds, micros = stamp["seconds"], stamp["micros"]
    return (
        int(seconds) * 1_000_000 + int(micros[:6].ljust(6, "0"))
        if seconds and len(seconds) <= _MAX_SECONDS_DIGITS
        else None
    )


def _parse_facility(prio: str | None, name: str | None) -> int | None:
    if prio:
        return int(prio) >> 3
    if name:
        return 0 if name == "kern" else 1
    return None
