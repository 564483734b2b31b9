"""
The file of `vitald report`: a compressed tar archive that never grows beyond its limit, and that is
there whole or not at all.

Owns     the format, the limit, and the way to the final name: written beside it under a name of its
         own, for its owner only, and put there once it is complete. Nothing that is there already
         is overwritten, or followed where it is a link, unless that was asked for.
Refuses  knowing what is in it. Names are the caller's own, never taken from what is archived.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_BLOCK_BYTES = 512
_END_BYTES = 2 * _BLOCK_BYTES
_LEVEL = 6
_RESERVE_BYTES = (
    1024 * 1024
)  # what the compressor still holds, and what is said at the end of what is missing
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


class ArchiveFull(Exception):
    """With this the archive would be larger than it may be; it is as it was before."""


class CannotWrite(Exception):
    """The archive itself cannot be written; the text says why."""


class Archive:
    """Members are added whole. One that does not fit is taken back, and those after it may still
    fit.
    """

    def __init__(self, file: IO[bytes], folder: str, time: float, most: int) -> None:
        """`folder`: what all names begin with. `most`: bytes of the file."""
        self._file = file
        self._folder = folder
        self._time = int(time)
        self._most = max(_RESERVE_BYTES, most) - _RESERVE_BYTES
        self._crc, self._size = 0, 0
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        # By hand, since a compressor that can be copied is one that can take back what it was
        # given: gzip's own header and trailer.
        self._write_raw(struct.pack("<4sIBB", b"\x1f\x8b\x08\x00", self._time, 0, 3))

    def add_member(self, name: str, data: bytes) -> None:
        self.stream_member(name, len(data), (data,))

    def stream_member(self, name: str, size: int, parts: Iterable[bytes]) -> None:
        """A member that comes in parts, of `size` bytes together. Raises Full."""
        before = self._compressor.copy(), self._crc, self._size, self._file.tell()
        try:
            self._compress(self._build_header(name, size))
            written = 0
            for part in parts:
                written += len(part)
                self._compress(part)
                if self._file.tell() > self._most:
                    raise ArchiveFull(
                        "with it the archive would be larger than"
                        f" {self._most + _RESERVE_BYTES >> 20} MiB"
                    )
            if written != size:
                raise ValueError(f"{size} bytes were said, {written} came")
            self._compress(bytes(-size % _BLOCK_BYTES))
        except BaseException:
            self._compressor, self._crc, self._size, place = before
            with _convert_errors():
                self._file.seek(place)
                self._file.truncate()
            raise

    def close(self, name: str, data: bytes) -> int:
        """The last member, for which there always is room, and the end. Returns the size of it all
        in bytes.
        """
        self._compress(
            self._build_header(name, len(data))
            + data
            + bytes(-len(data) % _BLOCK_BYTES)
            + bytes(_END_BYTES)
        )
        self._write_raw(
            self._compressor.flush() + struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)
        )
        with _convert_errors():
            self._file.flush()
        return self._file.tell()

    def _build_header(self, name: str, size: int) -> bytes:
        member = tarfile.TarInfo(f"{self._folder}/{name}")
        member.size, member.mtime, member.mode = size, self._time, 0o600
        return member.tobuf(tarfile.USTAR_FORMAT)

    def _compress(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._write_raw(self._compressor.compress(data))

    def _write_raw(self, data: bytes) -> None:
        with _convert_errors():
            self._file.write(data)


@contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.strerror or str(error)) from error


@contextmanager
def create_file(path: Path, *, force: bool) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
    """A file to write, and what puts it at `path` once it is complete; without that nothing is left
    of it. Raises CannotWrite.
    """
    _check_target(path, force=force)
    beside = path.with_name(f".{path.name[:80]}.{secrets.token_hex(6)}.part")

    def publish() -> None:
        with _convert_errors():
            file.flush()
            os.fsync(file.fileno())
            _publish(beside, path, force=force)

    with _convert_errors():
        fd = os.open(
            beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        file = os.fdopen(fd, "w+b")
    try:
        yield file, publish
    finally:
        with suppress(OSError):  # a write that failed has been said by then
            file.close()
        beside.unlink(missing_ok=True)


def _check_target(path: Path, *, force: bool) -> None:
    with _convert_errors():
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            raise CannotWrite("that is a symbolic link")
        if not stat.S_ISREG(mode):
            raise CannotWrite("that is no ordinary file")
        if not force:
            raise CannotWrite("there is such a file already; --force replaces it")


def _publish(made: Path, path: Path, *, force: bool) -> None:
    _check_target(path, force=force)
    if not force:
        try:
            os.link(
                made, path, follow_symlinks=False
            )  # the one way that never replaces what came meanwhile
        except FileExistsError:
            raise CannotWrite("there is such a file already; --force replaces it") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
    made.replace(path)
