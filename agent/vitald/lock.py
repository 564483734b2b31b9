"""
A lock on a folder, for one process at a time, that only its owner can take.

flock(2) needs only the right to open, so any user who may read a folder, or a file in it, could
hold a lock on that and keep the daemon out. Hence a file of its own, which only its owner may
open. It is removed with the lock; one that a killed process left is used again.

Owns     the file, and that the one that is held is the one that is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = ".lock"


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError if another process holds it, OSError if that is unknown."""
    path = folder / FILE
    fd = _take(path)
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_at(path, fd):
                path.unlink()
        os.close(fd)


def _take(path: Path) -> int:
    while True:
        # Not for writing: on a disk that is mounted read-only, one that is there will do. Not
        # blocking: it may be a pipe.
        fd = os.open(
            path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
        )
        try:
            _judge(path, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its former holder has just removed it


def _judge(path: Path, fd: int) -> None:
    """Root may find one that the folder's owner left."""
    found = os.fstat(fd)
    owners = (os.geteuid(), path.parent.stat().st_uid)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in owners:
        raise OSError(errno.EPERM, "it is no file of the folder's owner", str(path))
    if found.st_mode & 0o077:
        os.fchmod(fd, 0o600)


def _is_at(path: Path, fd: int) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))
