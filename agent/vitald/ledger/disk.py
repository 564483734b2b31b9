"""
Checks of the ledger's files that SQLite does not make.

Owns     whether each is a regular file, no link or pipe; whether they are still the files that were
         opened; whether their file system is mounted; damage of the write-ahead log that SQLite
         would take for its end; a count of the commits in a file of its own.
Refuses  the contents, and deciding what follows.

Source: SQLite's file format, walformat.html and wal.c.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from array import array
from contextlib import suppress
from pathlib import Path

_SUFFIXES = ("", "-wal", "-shm", "-journal")
_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_MAGIC = 0x377F0682  # checksums of little-endian words; this plus 1: of big-endian ones
_WORD = 0xFFFFFFFF

Identity = tuple[int, int]  # device and inode


def describe_irregular(path: Path) -> str:
    """Describe the ledger's first file that is not a regular one; empty if there is none."""
    for suffix in _SUFFIXES:
        part = path.with_name(path.name + suffix)
        try:
            mode = part.lstat().st_mode
        except OSError:
            continue  # opening it gives the reason
        if stat.S_ISLNK(mode):
            return f"{part}: is a symbolic link, which is not followed: remove it"
        if not stat.S_ISREG(mode):
            return f"{part}: is no plain file: remove it"
    return ""


def identify_file(path: Path) -> Identity | None:
    """Device and inode of the file at the path; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def find_device(folder: Path) -> int | None:
    """Device number of the file system that a folder is on, or would be."""
    for place in (folder, *folder.parents):
        try:
            return place.stat().st_dev
        except OSError:
            continue
    return None


def is_unmounted(folder: Path, device: int) -> bool:
    """Whether the file system of a folder is no longer mounted there."""
    return find_device(folder) != device and not os.path.ismount(folder)


def count_lost_frames(log: Path) -> int:
    """Number of committed frames of a write-ahead log that SQLite would skip. No process may have
    the log open.

    SQLite reads a log up to the first frame with a wrong checksum, because an interrupted write
    ends that way. But such a write is the last one: if whole commits follow the wrong frame, the
    log was damaged after it was written. Raises OSError.
    """
    data = log.read_bytes()
    if len(data) < _HEADER.size or not any(data[: _HEADER.size + _FRAME.size]):
        return len(data) // 4096 if any(data) else 0  # begun, and not completed; or zeroed
    magic, _, size, _, *salt, first, second = _HEADER.unpack_from(data)
    little = magic == _MAGIC
    sound = (
        magic & ~1 == _MAGIC
        and size >= 512
        and _sum_words(data[:24], (0, 0), little=little) == (first, second)
    )
    if not sound:
        return max(1, len(data) // 4096)
    places = range(_HEADER.size, len(data) - _FRAME.size - size + 1, _FRAME.size + size)
    # Frames after the last commit that SQLite sees: page count if one ends a commit, and validity
    behind: list[tuple[int, bool]] = []
    chain, former = True, (first, second)
    for place in places:
        _, commit, salt_1, salt_2, *stored = _FRAME.unpack_from(data, place)
        content = data[place : place + 8] + data[place + _FRAME.size : place + _FRAME.size + size]
        # A frame with another salt is from an earlier round, or its salt is damaged.
        this_round = [salt_1, salt_2] == salt
        fits = this_round and _sum_words(content, former, little=little) == tuple(stored)
        chain = chain and fits
        if this_round:
            behind.append((commit, fits))
        if chain and commit:
            behind = []
        former = (stored[0], stored[1])
    ends = [at for at, (commit, _) in enumerate(behind) if commit]
    cut_short = ends == [len(behind) - 1] and not behind[-1][1]
    return len(behind) if ends and not cut_short else 0


class CommitCount:
    """The number of commits to a ledger, in a file of its own.

    It is written after the commit is on disk, without waiting: it may be lower than the number in
    the ledger, and never higher.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self) -> int:
        """The number of commits; 0 if it was not counted or cannot be read."""
        with suppress(OSError, ValueError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                number, sum_ = os.pread(fd, 64, 0).split()
            finally:
                os.close(fd)
            if int(sum_, 16) == zlib.crc32(number):
                return int(number)
        return 0

    def open(self) -> None:
        """Open the file for writing. If that fails, commits are not counted."""
        with suppress(OSError):
            self._fd = os.open(
                self._path,
                os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
                0o640,
            )

    def write(self, number: int) -> None:
        if self._fd is not None:
            text = b"%020d" % number
            with suppress(OSError):
                os.pwrite(self._fd, text + b" %08x\n" % zlib.crc32(text), 0)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _sum_words(data: bytes, start: tuple[int, int], *, little: bool) -> tuple[int, int]:
    words = array("I")
    words.frombytes(data)
    if little != (struct.pack("=I", 1) == struct.pack("<I", 1)):
        words.byteswap()
    first, second = start
    pairs = iter(words)
    for word, other in zip(pairs, pairs):
        first = (first + word + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second
