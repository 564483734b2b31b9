"""
Lines of rendered logs, split into prefix and kernel message: dmesg, journalctl, syslog, raw kmsg.
And the records that a log lost, as the log itself shows.

One known prefix is removed; rules match the message from its first character. A line whose tag
names another program than `kernel` is that program's, whatever it quotes.

Source of the messages about lost records: Linux kernel/printk/printk.c (console_unlock) and
lib/ratelimit.c (___ratelimit).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from vitald.collectors.kernel_log.recognise import begins_with_name
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord, escape

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"\d\d:\d\d:\d\d"
_MONTH = f"(?:{'|'.join(MONTHS)})"
_SECONDS = r"\[ *(?P<seconds>\d+)\.(?P<micros>\d+) ?\]"
_WALL = rf"\[[A-Z][a-z]{{2}} {_MONTH} +\d{{1,2}} {_CLOCK} \d{{4}}\]"  # dmesg -T
_DATE, _ZONE = rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}", r"(?:Z| ?[+\-]\d\d:?\d\d)?"
_FACILITIES = "kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]"
_LEVELS = "emerg|alert|crit|err|warn|notice|info|debug"
_CALLER = r"\[ *[TC]\d+\]"  # CONFIG_PRINTK_CALLER: the task or the processor that printed it
_STAMP = re.compile(
    r"(?:<(?P<prio>\d{1,3})>)?"  # dmesg -r, a line for /dev/kmsg
    # dmesg -x
    rf"(?:(?P<facility>{_FACILITIES}) *:(?P<level>{_LEVELS}) *: )?"
    # dmesg, dmesg --time-format iso
    rf"(?:(?:{_SECONDS}|{_WALL}|{_DATE}(?:[.,]\d+)?{_ZONE})"
    rf"(?: ?(?P<caller>{_CALLER}))?"
    rf" |{_CALLER} )?"
)
_PRIO = r"(?:<(?P<prio>\d{1,3})>)?"  # RFC 3164 or RFC 5424 as sent
_HOST = r"[A-Za-z0-9][\w.\-:]{0,253}(?<!:)"
# Or RFC 5424: "kernel - - - "
_TAG = r"(?P<tag>[^\s:\[\]]{1,128})(?:(?:\[\d+\])?:(?: |(?=\[)|\Z)| (?:\d+|-) \S+ - )"
_SYSLOG = re.compile(
    rf"{_PRIO}(?:{_MONTH} +\d{{1,2}} {_CLOCK}(?:\.\d+)?"  # journalctl short, syslog
    rf"|[A-Z][a-z]{{2}} {_DATE}{_ZONE} [A-Z]{{2,5}}"  # journalctl short-full
    rf"|{_DATE}(?:\.\d+)?{_ZONE}"  # journalctl short-iso, RFC 3339 syslog; dmesg writes a comma
    rf") (?:(?P<host>{_HOST}) )?(?:[a-z0-9]+\.[a-z]+ )?{_TAG}"
)
# RFC 5424: <prio>1 date host program pid id [data] text; a length before it is RFC 6587's
_RFC5424 = re.compile(
    rf"(?:\d{{1,6}} )?<(?P<prio>\d{{1,3}})>1 (?:{_DATE}(?:\.\d+)?{_ZONE}|-) (?P<host>\S{{1,255}})"
    r" (?P<tag>\S{1,48}) \S{1,128} \S{1,32} "
    r"(?:-|(?:\[(?:[^\]\\]|\\.){0,1024}\])+)(?: (?:\ufeff)?|\Z)"
)
# The stamps that hardly anything but dmesg writes: its bracket, its names of facility and level, or
# its date with a comma.
_DMESG_STAMP = re.compile(
    rf"(?:<\d{{1,3}}>)?(?:(?:{_FACILITIES}) *:\w+ *: )?(?:\[ *\d+\.\d+|{_WALL}"
    rf"|{_DATE.replace('[T ]', 'T')},\d{{6}}[+\-Z])"
)
_KERNEL = re.compile(rf"(?:{_HOST} )?kernel:(?: |(?=\[))")
# The kernel cuts a record at about 1 KiB, escapes make it up to four times as long
_MAX_LINE_BYTES = 8192
# What programs that read the kernel's log write when they missed a part of it. The only lines of
# other programs that are kept. Source: systemd journald-kmsg.c, rsyslog runtime/ratelimit.c.
READER_LOSS = (
    r"(?:systemd-journald?|rsyslogd(?:-\d{1,5})?)(?:\[\d{1,10}\])?: (?:"
    r"Missed (?P<missed>\d{1,10}) kernel messages|/dev/kmsg buffer overrun, some messages lost"
    r"|im(?:journal|klog): (?P<limited>\d{1,10}) messages lost due to rate-limiting)"
)
_READER_LOSS = re.compile(READER_LOSS)
_RAW = re.compile(rb"\d{1,4},\d+,\d+,[^;]{1,256};")
_MAX_SECONDS_DIGITS = 12  # a longer number is no uptime
MAX_CONTINUATIONS = 16  # lines that continue one record
# Lines of these drivers hold no text chosen by a user but a process name, which is too short to
# forge a second line.
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
DOUBT = "it has the stamp of the line before it, and may be the rest of that record"
_WORDS = re.compile(rb"dropped|suppressed|Missed|lost")
# Rate limits of the kernel for messages about processes and packets, not about hardware
_HARMLESS = (
    r"(?:net_ratelimit|show_signal(?:_msg)?|\w{0,32}audit\w{0,32}|unhandled_signal|"
    r"__handle_mm_fault|do_trap\w{0,16})"
)
_MESSAGE = re.compile(
    (
        r"\*\* (?P<dropped>\d{1,10}) printk messages dropped \*\*"
        rf"|{READER_LOSS}"
        rf"|(?!{_HARMLESS}: )[A-Za-z_][\w .\-]{{0,63}}: (?P<suppressed>\d{{1,10}}) callbacks"
        r" suppressed\s*\Z"
    ).encode()
)


@dataclass(slots=True)  # not frozen: one is made for every line of a log, in half the time
class Line:
    """A kernel message without its prefix. `facility` is None where the form keeps none."""

    message: bytes  # still escaped, where the form escapes
    facility: int | None = None
    # The kernel's own stamp, where the form has it
    usec: int | None = field(default=None, compare=False)
    # The form alone shows that the line is a kernel log's
    has_kernel_prefix: bool = field(default=False, compare=False)
    host: str = field(default="", compare=False)  # as the form names it
    # The form writes a record as one line
    is_whole_record: bool = field(default=False, compare=False)
    # Level and caller as the form writes them; they are the same in all lines of a record
    printed_by: str = field(default="", compare=False)
    seq: int | None = field(default=None, compare=False)  # the record's number in the kernel's ring

    @property
    def is_continuation(self) -> bool:
        """Whether the line is indented and without a stamp: it continues the record before, which
        has a newline in it.
        """
        return (
            not self.has_kernel_prefix
            and self.facility is None
            and self.message[:1] in (b" ", b"\t")
        )


class ContinuationDetector:
    """Detects lines that may continue a record: where a form does not mark the end of a record, a
    newline in a user's text begins a line.

    syslog(2), /proc/kmsg and so rsyslog, `dmesg -S` and pstore write the record's own stamp, level
    and caller before each of its lines. Of lines with the same ones, those after a hardware
    driver's are trusted.
    """

    __slots__ = ("_head", "_trusted")

    def __init__(self) -> None:
        self._head: tuple[int | None, str] = None, ""
        self._trusted = True

    def copy(self) -> ContinuationDetector:
        """The state now, for lines that are read again."""
        same = ContinuationDetector()
        same._head, same._trusted = self._head, self._trusted
        return same

    def find_doubt(self, line: Line) -> str:
        """Why the line may not be a record of its own; empty if nothing suggests it. Call it for
        every line, in order.
        """
        head = line.usec, line.printed_by
        # The stamp is 0 early in a boot
        if line.is_whole_record or not line.usec or head != self._head:
            self._head = head
            self._trusted = line.message.startswith(_HARDWARE_PREFIXES) and not begins_with_name(
                line.message
            )
            return ""
        return "" if self._trusted else DOUBT


def join_lines(line: Line, more: Iterable[bytes]) -> Line:
    """A record of several lines as /dev/kmsg writes it: one line, with escaped newlines."""
    message = rb"\x0a".join([line.message, *(escape(text.strip()) for text in more)])
    return replace(line, message=message)


def strip_prefix(raw: bytes) -> Line | None:
    """The kernel message of a line, or None if the line is another program's."""
    raw = raw[:_MAX_LINE_BYTES].rstrip(b"\r\n")
    if _RAW.match(raw):
        try:
            record = KernelRecord.parse(raw)
        except TornRecord:
            return None
        return Line(
            record.text,
            record.facility,
            record.usec,
            has_kernel_prefix=True,
            is_whole_record=True,
            seq=record.seq,
        )
    text = raw.decode("utf-8", "surrogateescape")
    facility: int | None = None
    usec: int | None = None
    by_kernel, host, is_whole, printed_by = False, "", False, ""
    if (syslog := _SYSLOG.match(text) or _RFC5424.match(text)) is not None:
        if syslog["tag"] != "kernel":
            return find_reader_line(syslog["tag"], text[syslog.end() :])
        facility = int(prio) >> 3 if (prio := syslog["prio"]) else None
        text, by_kernel, host = text[syslog.end() :], True, syslog["host"] or ""
    elif (stamp := _STAMP.match(text)) is not None and stamp.end():
        facility, usec = _parse_facility(stamp["prio"], stamp["facility"]), _parse_usec(stamp)
        by_kernel = _DMESG_STAMP.match(text, 0, stamp.end()) is not None
        printed_by = f"{stamp['prio'] or stamp['level'] or ''}{stamp['caller'] or ''}"
        text = text[stamp.end() :]
    if (tagged := _KERNEL.match(text)) is not None:
        is_whole = usec is not None  # journalctl -o short-monotonic indents the rest of a record
        text, by_kernel = text[tagged.end() :], by_kernel or tagged.end() > len("kernel: ")
    # syslog keeps the kernel's own bracket where printk.time is on
    if (stamp := _STAMP.match(text)) is not None:
        printed_by = printed_by or stamp["caller"] or ""
        by_kernel = by_kernel or _DMESG_STAMP.match(text, 0, stamp.end()) is not None
        text, usec = text[stamp.end() :], _parse_usec(stamp) if usec is None else usec
    message = text.encode("utf-8", "surrogateescape")
    return Line(message, facility, usec, by_kernel, host, is_whole, printed_by)


def find_reader_line(program: str, text: str) -> Line | None:
    """The line of a program that reads the kernel's log, if it reports that records are missing."""
    message = f"{program}: {text}"
    if _READER_LOSS.match(message) is None:
        return None
    return Line(message.encode("utf-8", "surrogateescape"), is_whole_record=True)


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


@dataclass(frozen=True, slots=True)
class Loss:
    """`count`: how many records are missing; None if that is unknown."""

    count: int | None


class LossDetector:
    """Finds losses in the lines of one log of one host."""

    __slots__ = ("_seq",)

    def __init__(self) -> None:
        self._seq: int | None = None

    def find_loss(self, line: Line) -> Loss | None:
        """The loss that a line shows. Call it for every line, in order."""
        if line.seq is not None:
            before, self._seq = self._seq, line.seq
            # A lower number begins another boot
            if before is not None and line.seq > before + 1:
                return Loss(line.seq - before - 1)
        if _WORDS.search(line.message) is None:
            return None
        found = _MESSAGE.match(line.message)
        if found is None:
            return None
        return Loss(int(found[found.lastindex]) if found.lastindex is not None else None)
