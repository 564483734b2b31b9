"""
How far the kernel's ring has been read: a record's number, and enough to know the same record in
the journal, which keeps no numbers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from vitald.model import Position


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The last record that was read. `usec` is on the kernel's clock, `time` in seconds since the
    epoch, about.
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
        """Raises ValueError."""
        words = text.split()
        if len(words) == 1:
            return LogPosition(int(words[0]))
        seq, usec, check, time = words
        return LogPosition(int(seq), int(usec), int(check), float(time))

    @staticmethod
    def from_position(position: Position | None) -> LogPosition | None:
        """A position that is not the ring's (the source was a file before) counts as none."""
        try:
            return LogPosition.parse(position.cursor) if position is not None else None
        except ValueError:
            return None

    def matches_record(self, usec: int, text: bytes) -> bool:
        """Whether this is that very record."""
        return self.usec == usec and self.text_crc == zlib.crc32(text)
