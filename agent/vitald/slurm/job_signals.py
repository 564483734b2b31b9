"""
`[slurm] signal`: signals the jobs of this node once for each reason to save, so that they write a
checkpoint before the node is reset.

Slurm says which jobs are on this node: the name of a process is its user's choice. A job is
recorded before it is signalled, so that it never gets the same signal twice, and gets 4 in all at
most. A signal that a program does not handle may end it: the setting is off by default.

Sources: scancel(1), squeue(1) of Slurm 22.05.

Owns     which jobs are signalled, and the record of it.
Refuses  deciding when to save, which the daemon does.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from vitald.slurm import scontrol
from vitald.slurm.report import report
from vitald.slurm.settings import Settings

FILE = "slurm-signals"  # beside the record of reasons, which only root may write
MAX_SIGNALS = 4  # of one job, whatever the daemon says
_MAX_S = 20.0  # of one health check, for all jobs
_MAX_BYTES, _KEPT_LINES = 256 * 1024, 2048
_OF_BATCH = "B:"


def signal_jobs(
    settings: Settings, status: Mapping[str, object], node: str, seconds: float
) -> None:
    """Signal the jobs on `node` that were not signalled for the present advice. `status`: the
    daemon's answer to /v1/status; `seconds`: of each program.
    """
    advice = cast("Mapping[str, object]", status.get("advice") or {})
    if settings.signal == "off" or advice.get("save") is not True or settings.reasons_file is None:
        return
    path = settings.reasons_file.parent / FILE
    jobs, problem = scontrol.list_running_jobs(node, seconds)
    if problem:
        report(f"no job signalled: {problem}")
        return
    digest, end = _identify_reason(status, advice), time.monotonic() + _MAX_S
    for job in dict.fromkeys(jobs):
        if time.monotonic() > end:
            report("not all jobs signalled in time: the next health check goes on")
            return
        try:
            with _open_record(path) as record:
                is_new = record.add_job(job, digest)
        except (OSError, ValueError) as error:
            report(f"no job signalled: {path}: {error}")
            return
        if is_new:
            _signal_job(settings.signal, job, str(advice.get("why")), seconds)


def _signal_job(signal: str, job: str, why: str, seconds: float) -> None:
    name = signal.removeprefix(_OF_BATCH)
    target = ["--batch"] if signal.startswith(_OF_BATCH) else []
    _, problem = scontrol.run_program("scancel", [f"--signal={name}", *target, job], seconds)
    if problem:
        report(f"job {job}: SIG{name} perhaps not sent, and not repeated: {problem}")
    else:
        report(f"job {job}: SIG{name} sent, so that it saves: {why}")


def _identify_reason(status: Mapping[str, object], advice: Mapping[str, object]) -> str:
    """The same for one finding in one boot, or for one announcement, whatever its text becomes."""
    finding = advice.get("finding")
    reason = (finding,) if finding is not None else (advice.get("by"), advice.get("why"))
    return hashlib.sha256(repr((status.get("bootId"), *reason)).encode()).hexdigest()[:16]


class _Record:
    """Lines of a job and a reason."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        data = os.pread(fd, _MAX_BYTES + 1, 0)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"longer than {_MAX_BYTES} bytes")
        self._lines = data.decode("ascii").splitlines()
        if not all(line.count(" ") == 1 for line in self._lines):
            raise ValueError("not a record of signals: move it away")

    def add_job(self, job: str, reason: str) -> bool:
        """Record on disk that the job is signalled now. False if it must not be."""
        line = f"{job} {reason}"
        count = sum(known.partition(" ")[0] == job for known in self._lines)
        if line in self._lines or count >= MAX_SIGNALS:
            return False
        data = "".join(f"{kept}\n" for kept in [*self._lines, line][-_KEPT_LINES:]).encode()
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))
        os.fsync(self._fd)
        return True


@contextmanager
def _open_record(path: Path) -> Iterator[_Record]:
    """The record, locked: two health checks may run at once. Raises OSError, ValueError."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield _Record(fd)
    finally:
        os.close(fd)
