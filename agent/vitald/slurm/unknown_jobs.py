"""
How many jobs the prolog let through or refused while nothing was known of the node.

For each such job the prolog, as root, appends one byte to a file: its size is the count. So this
works while the daemon is down or hangs, and prologs that run at the same time need no lock. The
daemon reads only the sizes.

Owns     the two files, beside `[slurm] record`.
Refuses  deciding about a job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vitald.slurm.report import report
from vitald.slurm.settings import UNKNOWN_CHOICES, SlurmSettings


def count_job(settings: SlurmSettings) -> None:
    """Count a job that `[slurm] unknown` has just decided about."""
    path = _find_file(settings.record, settings.unknown)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, b".")
        finally:
            os.close(fd)
    except OSError as error:
        report(f"{path}: this job is not counted: {error.strerror}")


def read_counts(record: Path) -> Mapping[str, int]:
    """The jobs so far, by the value of `[slurm] unknown`. Raises OSError."""
    return {choice: _measure_size(_find_file(record, choice)) for choice in UNKNOWN_CHOICES}


def _find_file(record: Path, choice: str) -> Path:
    return record.parent / f"slurm-unknown-{choice}"


def _measure_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
