"""
A lock around reading a node's reason, deciding on it and recording the new one.

The prolog, the epilog, the health check and `vitald recover` may run at the same time. Without the
lock the record could name another reason than Slurm has, and the node would count as one that a
person took over.

Owns     the lock file beside the record. It stays: a killed program releases it.
Refuses  waiting longer than its caller may.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitald.slurm.report import report
from vitald.slurm.settings import Settings

_POLL_S = 0.02


class ReasonsLocked(Exception):
    """Another program of vitald changes the node for longer than this one may wait."""


@contextmanager
def hold_reasons(settings: Settings, seconds: float) -> Iterator[None]:
    """Hold the lock; wait for it for at most `seconds`. Raises ReasonsLocked.

    A lock file that cannot be used is reported, and has no other effect: an unfit node must be
    drained.
    """
    fd = _open_lock(settings.reasons_file)
    if fd is None:
        yield
        return
    try:
        _wait_for_lock(fd, seconds)
        yield
    finally:
        os.close(fd)


def _open_lock(reasons_file: Path | None) -> int | None:
    if reasons_file is None:
        return None
    path = reasons_file.with_name(f"{reasons_file.name}.lock")
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        # Not blocking: it may be a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        _report_unusable(path, error)
        return None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    _report_unusable(path, OSError(errno.EPERM, "it is no file of this user"))
    return None


def _report_unusable(path: Path, error: OSError) -> None:
    report(f"{path}: no lock, so concurrent changes of the node are not ordered: {error.strerror}")


def _wait_for_lock(fd: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise ReasonsLocked(
                    f"another program of vitald has been changing the node for {seconds:.1f} s"
                ) from None
        except OSError as error:  # a file system without locks
            report(f"no lock, so concurrent changes of the node are not ordered: {error.strerror}")
            return
        time.sleep(_POLL_S)
