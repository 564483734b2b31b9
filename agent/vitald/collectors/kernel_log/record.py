r"""
The grammar of a `/dev/kmsg` record, its position in the kernel's ring, and what its text reports.

    <prio>,<seq>,<usec>,<flags>[,<more fields>...];<text>\n
    [ KEY=value\n ...]

Source: Linux Documentation/ABI/testing/dev-kmsg and kernel/printk/printk.c (info_print_ext_header,
msg_add_ext_text). Every byte below 0x20, from 0x7f up, and the backslash arrive as `\xNN`, so a
raw newline always ends the text.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitald.model.event import Value
from vitald.model.source import Position

_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_ESCAPED = re.compile(rb"[^ -\[\]-~]")

BANNER = b"Linux version "  # the first line of every boot
# With its version number it is longer than a process name, so that no process can forge it.
_VERSION = re.compile(re.escape(BANNER) + rb"\d{1,3}\.\d{1,3}")
# prio, seq, usec, text; further fields and the dictionary lines are skipped.
split_record = re.compile(rb"(\d{1,4}),(\d{1,20}),(\d{1,20}),[^;\n]{1,512};([^\n]*)").match


def is_banner(message: bytes) -> bool:
    """Whether it is the first line of a boot."""
    return _VERSION.match(message) is not None


class TornRecord(ValueError):
    """Bytes that are not a record of this grammar."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record; its text is still escaped. `seq` and the boot id identify it."""

    facility: int
    level: int
    seq: int
    usec: int  # the kernel's local clock; it stops during suspend
    text: bytes

    @property
    def from_kernel(self) -> bool:
        """A writer of /dev/kmsg cannot set facility 0: the kernel replaces it by 1."""
        return self.facility == 0

    @staticmethod
    def parse(data: bytes) -> KernelRecord:
        """The record in the bytes of one read. Raises TornRecord."""
        found = split_record(data)
        if found is None:
            raise TornRecord(f"not a kmsg record: {data[:80]!r}")
        prio, seq, usec, text = found.groups()
        return KernelRecord(int(prio) >> 3, int(prio) & 7, int(seq), int(usec), text)


def unescape(text: bytes) -> str:
    """The text as the kernel printed it; bytes that are not UTF-8 become U+FFFD."""
    if b"\\x" in text:
        text = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), text)
    return text.decode("utf-8", "replace")


def escape(text: bytes) -> bytes:
    """The text as /dev/kmsg gives it: bytes below 0x20 and from 0x7f up, and the backslash, become
    `\\xNN`.
    """
    return _ESCAPED.sub(escape_byte, text)


def escape_byte(found: re.Match[bytes]) -> bytes:
    """One byte as `\\xNN`."""
    return b"\\x%02x" % found[0][0]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The last record that was read: its number, and what identifies it in the journal, which keeps
    no numbers. `usec` is on the kernel's clock in microseconds, `time` in
    seconds since the epoch, approximate.
    """

    seq: int
    usec: int | None = None
    text_crc: int = 0  # crc32 of its text
    time: float = 0.0

    def __str__(self) -> str:
        return (
            str(self.seq)
            if self.usec is None
            else f"{self.seq} {self.usec} {self.text_crc} {self.time:.3f}"
        )

    @staticmethod
    def parse(text: str) -> LogPosition:
        """The position that `str` wrote. Raises ValueError."""
        numbers = text.split()
        if len(numbers) == 1:
            return LogPosition(int(numbers[0]))
        seq, usec, text_crc, time = numbers
        return LogPosition(int(seq), int(usec), int(text_crc), float(time))

    @staticmethod
    def from_position(position: Position | None) -> LogPosition | None:
        """None also for a position of another kind (the source was a file before)."""
        try:
            return LogPosition.parse(position.cursor) if position is not None else None
        except ValueError:
            return None

    def matches_record(self, usec: int, text: bytes) -> bool:
        """Whether this is the position of the record with that stamp and text."""
        return self.usec == usec and self.text_crc == zlib.crc32(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLine:
    """What the text alone of one record reports. `number` is the Xid or SXid number; `link` the
    number of the NVLink printed; `fatal` what the line itself says, None if it says nothing about
    it.
    """

    kind: str
    code: str
    number: int | None = None
    pci: str | None = None
    pid: int | None = None
    process: str | None = None
    link: int | None = None
    fatal: bool | None = None
    continues: bool = False  # a follow-up record of the event before it
    context: bool = False  # no fault, but explains others
    fields: Mapping[str, Value] = field(default_factory=dict)


def format_pci(domain: str | None, bus: str, device: str, function: str | None = None) -> str:
    """`dddd:bb:dd.f` as sysfs writes it. A missing domain or function is 0: an Xid names no
    function.
    """
    slot = f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"
    return f"{slot}.{function or '0'}".lower()


def normalize_pci(text: str) -> str:
    """`dddd:bb:dd.f`, as sysfs writes it, of an address in any of the drivers' spellings."""
    head, _, function = text.partition(".")
    domain, bus, device = (["0", *head.split(":")])[-3:]
    return format_pci(domain, bus, device, function or "0")
