"""
The grammar of a `/dev/kmsg` record.

    <prio>,<seq>,<usec>,<flags>[,<more fields>...];<text>\\n
    [ KEY=value\\n ...]

Source: Linux Documentation/ABI/testing/dev-kmsg and kernel/printk/printk.c (info_print_ext_header,
msg_add_ext_text). Every byte below 0x20, from 0x7f up, and the backslash arrive as `\\xNN`, so a
raw newline always ends the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_ESCAPED = re.compile(rb"[^ -\[\]-~]")

# prio, seq, usec, text; further fields and the dictionary lines are skipped.
split_record = re.compile(rb"(\d{1,4}),(\d{1,20}),(\d{1,20}),[^;\n]{1,512};([^\n]*)").match


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
