"""
What a log shows of records that it lost: its own words, and gaps in the numbers of saved /dev/kmsg
records.

Source: Linux kernel/printk/printk.c and lib/ratelimit.c, systemd journald-kmsg.c, rsyslog
runtime/ratelimit.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitald.collectors.kernel_log.lines import Line

_WORDS = re.compile(rb"dropped|suppressed|Missed|lost")
# Of the kernel's rate limits, those that thin out what it says of processes and of packets
_HARMLESS = (
    rb"(?:net_ratelimit|show_signal(?:_msg)?|\w{0,32}audit\w{0,32}|unhandled_signal|"
    rb"__handle_mm_fault|do_trap\w{0,16})"
)
_STATEMENT = re.compile(
    rb"\*\* (\d{1,10}) printk messages dropped \*\*"
    rb"|systemd-journald?(?:\[\d{1,10}\])?: (?:Missed (\d{1,10}) kernel messages"
    rb"|/dev/kmsg buffer overrun, some messages lost)"
    rb"|rsyslogd(?:\[\d{1,10}\])?: im(?:journal|klog): (\d{1,10}) messages lost due to"
    rb"|(?!" + _HARMLESS + rb": )[A-Za-z_][\w .\-]{0,63}: (\d{1,10}) callbacks suppressed\s*\Z"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """`count`: how many records are missing; None if the log does not say it."""

    count: int | None


class LossDetector:
    """Finds losses in the lines of one log."""

    __slots__ = ("_seq",)

    def __init__(self) -> None:
        self._seq: int | None = None

    def find_loss(self, line: Line) -> Loss | None:
        """The loss that a line shows: of records before it, or of those that it speaks of. Call it
        for every line, in order.
        """
        if line.seq is not None:
            before, self._seq = self._seq, line.seq
            # A number that falls begins another boot
            if before is not None and line.seq > before + 1:
                return Loss(line.seq - before - 1)
        if _WORDS.search(line.message) is None:
            return None
        said = _STATEMENT.match(line.message)
        if said is None:
            return None
        return Loss(int(said[said.lastindex]) if said.lastindex is not None else None)
