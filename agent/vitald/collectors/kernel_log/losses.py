"""
Records that a log lost, as the log itself shows: messages about dropped records, and gaps in the
sequence numbers of saved /dev/kmsg records.

Source: Linux kernel/printk/printk.c (console_unlock) and lib/ratelimit.c (___ratelimit); for the
programs that read the kernel's log see lines.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitald.collectors.kernel_log.lines import READER_LOSS, Line

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
