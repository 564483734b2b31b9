"""What the kernel's ring buffer holds at the start of the daemon: from which record on, and whether
the record that was read last is still in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from vitald.collectors.kernel_log.kmsg import estimate_wall_time
from vitald.collectors.kernel_log.log_position import LogPosition
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord

MARGIN_USEC = 2_000_000  # time stamps of two processors differ by less
_MARGIN_S = 10.0
_BUFFER_BYTES = 16384
_MAX_TORN = 1000  # invalid records; the ring has none


@dataclass(frozen=True, slots=True)
class RingState:
    """`has_position`: the record at the stored position is in the ring.

    `first_records` are the oldest ones, by time stamp (microseconds on the kernel's clock) and
    text: the journal may lack the very first.
    """

    oldest: KernelRecord
    has_position: bool
    first_records: frozenset[tuple[int, bytes]] = frozenset()

    def may_continue(self, position: LogPosition) -> bool:
        """Whether the ring can be the one that `position` was read in, although that record has
        been overwritten: the host has been up since.
        """
        is_later = self.oldest.seq > position.seq and self.oldest.usec >= (position.usec or 0)
        return is_later and position.time > estimate_wall_time(0) + _MARGIN_S

    def covers(self, usec: int, text: bytes) -> bool:
        """Whether this record, or one that is as young, is still in the ring."""
        return (usec, text) in self.first_records or usec > self.oldest.usec + MARGIN_USEC


def read_ring_state(path: str, position: LogPosition) -> RingState | None:
    """None if the ring is empty. Blocks. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        oldest: KernelRecord | None = None
        first_records: set[tuple[int, bytes]] = set()
        has_position, torn = False, 0
        while torn <= _MAX_TORN:
            try:
                data = os.read(fd, _BUFFER_BYTES)
                # The ring has no end of file: this is another file, which the source will report
                if not data:
                    break
                record = KernelRecord.parse(data)
            except BlockingIOError:
                break
            except BrokenPipeError:
                oldest, first_records = None, set()  # the oldest record has been overwritten
                continue
            except TornRecord:
                torn += 1
                continue
            oldest = oldest or record
            if record.usec <= oldest.usec + MARGIN_USEC:
                first_records.add((record.usec, record.text))
            elif record.seq > position.seq:
                break
            is_last_read = record.seq == position.seq and position.matches_record(
                record.usec, record.text
            )
            has_position = has_position or is_last_read
    finally:
        os.close(fd)
    return RingState(oldest, has_position, frozenset(first_records)) if oldest is not None else None
