"""
The page of a rank: a sealed memory file into which the job writes its last step.

Owns     making the file, reading it, and bounding what it claims.
Refuses  mapping it: the daemon reads with pread(2), so no job can make it fault.

The job can neither shrink nor grow the file. It may write anything into it: what is absurd counts
as not reported. Source: memfd_create(2), fcntl(2) on file sealing.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import struct
from dataclasses import dataclass

from vitald.jobsocket.packets import (
    MAX_STEP,
    PhaseReport,
    Progress,
    read_limit,
    read_seconds,
)
from vitald.model.job_page import PAGE_BYTES, PAGE_FILE_BYTES, PAGE_FORMAT, PageFlag, Phase

_LAYOUT = struct.Struct(PAGE_FORMAT)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NOEXEC_SEAL = 0x0008  # MFD_NOEXEC_SEAL, Linux 6.3
_READS = 3  # of a page that is being written


@dataclass(frozen=True, slots=True)
class PageReading:
    """What a page says."""

    progress: Progress
    phase: PhaseReport


def parse_page(data: bytes) -> PageReading | None:
    """None while a write is in progress, and before the first one."""
    if len(data) < PAGE_BYTES:
        return None
    fields = _LAYOUT.unpack_from(data)
    first_seq, step, _monotonic, seconds, busy, loss, _norm, phase, flags, limit, last_seq = fields
    if first_seq != last_seq or first_seq == 0 or step > MAX_STEP:
        return None
    known = phase in Phase.__members__.values()
    return PageReading(
        Progress(
            step=step,
            seconds=read_seconds(seconds),
            busy=read_seconds(busy),
            loss=loss if math.isfinite(loss) else None,
            is_finite=not flags & PageFlag.NOT_FINITE,
        ),
        PhaseReport(phase=Phase(phase) if known else Phase.TRAIN, limit_s=read_limit(limit)),
    )


class RankPage:
    """The page of one rank. Raises OSError if the node has no memory or files left."""

    def __init__(self) -> None:
        self.fd = _create_file()
        try:
            os.ftruncate(self.fd, PAGE_FILE_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(self.fd)
            raise

    def read(self) -> PageReading | None:
        """None if nothing was written yet, or it is being written whenever it is read."""
        for _ in range(_READS):
            reading = parse_page(os.pread(self.fd, PAGE_BYTES, 0))
            if reading is not None:
                return reading
        return None

    def close(self) -> None:
        os.close(self.fd)


def _create_file() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("vitald-job", flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("vitald-job", flags)  # an older kernel
