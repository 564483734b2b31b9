"""
Position in the kernel's ring: the number of a record, and what identifies the same record in the
journal, which keeps no numbers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from vitald.model import Position


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The last record that was read. `usec` is on the kernel's clock in microseconds, `time` in
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
