"""A saved file as a stream of plain bytes: it may be compressed with gzip or zstd."""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import BinaryIO, cast

_BUFFER_BYTES = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# What reading a damaged file raises
DAMAGED = (EOFError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """`written`: time of the last write in seconds since the epoch; None if unknown."""

    stream: io.BufferedReader
    written: float | None = None
    file: BinaryIO | None = None  # None where its size is unknown
    unpacker: subprocess.Popen[bytes] | None = None

    def measure_share(self) -> float | None:
        """How much of the file was read so far, 0 to 1; None if its size is unknown."""
        size = os.fstat(self.file.fileno()).st_size if self.file is not None else 0
        if self.file is None or not size:
            return None
        return min(1.0, os.lseek(self.file.fileno(), 0, os.SEEK_CUR) / size)

    def check_end(self) -> None:
        """Raises OSError if the stream has ended because the file is damaged."""
        if self.unpacker is not None and self.unpacker.wait():
            raise OSError(f"zstd: exit code {self.unpacker.returncode}")


@contextmanager
def open_log(path: str) -> Iterator[OpenedLog]:
    """A file, or `-` for standard input. Raises OSError."""
    if path == "-":
        stream = cast("io.BufferedReader", sys.stdin.buffer)
        yield OpenedLog(_unzip(stream) if stream.peek(2)[:2] == _GZIP else stream)
        return
    with Path(path).open("rb") as file:
        stat = os.fstat(file.fileno())
        if not (S_ISREG(stat.st_mode) or S_ISFIFO(stat.st_mode)):
            raise OSError(
                errno.EINVAL,
                "not a file: save what is to be judged, or pipe it: dmesg | vitald scan -",
                path,
            )
        regular = file if S_ISREG(stat.st_mode) else None
        written = stat.st_mtime if regular is not None else None
        magic = file.peek(4)[:4]
        program = shutil.which("zstd") if magic == _ZSTD and regular is not None else None
        if program is not None:
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            with _unpack_file(program, file) as unpacker:
                assert unpacker.stdout is not None
                stream = cast("io.BufferedReader", unpacker.stdout)
                yield OpenedLog(stream, written, regular, unpacker)
            return
        yield OpenedLog(_unzip(file) if magic[:2] == _GZIP else file, written, regular)


def _unzip(packed: BinaryIO) -> io.BufferedReader:
    return io.BufferedReader(gzip.GzipFile(fileobj=packed), _BUFFER_BYTES)


@contextmanager
def _unpack_file(program: str, file: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [program, "-dcq"],
        bufsize=_BUFFER_BYTES,
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # it may not have been read to its end
