"""
Standard output and standard error: either may be a closed pipe, a full disk, or not open at all.

    with Streams() as streams:
        ...                      # raises Unwritten or ReaderGone where standard output takes
        nothing

What is said on standard error never stops anything: that it was lost is remembered, for the exit
code.

Owns     the streams while a verb runs, and that the interpreter has nothing left to write at its
         end.
"""

from __future__ import annotations

import io
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(Exception):
    """Standard output cannot be written. No OSError: who reads a file shall not take it for
    theirs.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))


class ReaderGone(OutputError):
    """Whoever read standard output has gone, as `head` does: no error."""


class _RawStream(io.FileIO):
    """A descriptor that somebody else opened, perhaps without blocking."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)

    def write(self, data: ReadableBuffer) -> int:
        while (written := super().write(data)) is None:
            import select

            select.select([], [self], [])
        return written


class _StandardOutput(_RawStream):
    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise ReaderGone(error) from None
        except OSError as error:
            raise OutputError(error) from None


class _StandardError(_RawStream):
    lost = False

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError:
            self.lost = True
            return memoryview(data).nbytes


class Streams:
    """The process's own, while it lasts. What somebody has put in their place stays."""

    def __init__(self) -> None:
        self._before = sys.stdin, sys.stdout, sys.stderr
        self._remarks: _StandardError | None = None

    @property
    def lost_remarks(self) -> bool:
        """Whether something that was said on standard error could not be written."""
        return self._remarks is not None and self._remarks.lost

    def __enter__(self) -> Streams:
        if None in self._before:
            _occupy_descriptors()
        if sys.stdin is None:
            sys.stdin = open(0, closefd=False)  # reading it is refused, as of one that is closed
        if sys.stdout is sys.__stdout__:
            sys.stdout = _wrap_text(_StandardOutput(1), sys.__stdout__)
        if sys.stderr is sys.__stderr__:
            self._remarks = _StandardError(2)
            sys.stderr = _wrap_text(
                self._remarks, sys.__stderr__, line_buffering=True, errors="backslashreplace"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._before

    def discard(self) -> None:
        """What is left in the buffer goes nowhere: the interpreter would exit with 120 over it."""
        if isinstance(getattr(getattr(sys.stdout, "buffer", None), "raw", None), _StandardOutput):
            fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(fd, 1)
            os.close(fd)
            sys.stdout.flush()


def _occupy_descriptors() -> None:
    """A closed one of the three would become the next file or socket that is opened.

    What stands in its place can neither be read nor written.
    """
    for fd, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)  # the lowest that is free


def _wrap_text(
    raw: _RawStream, like: TextIO | None, *, line_buffering: bool = False, errors: str = ""
) -> TextIO:
    """As the interpreter made it; what its character set has no sign for is written as an
    escape.
    """
    if like is not None and not errors:
        line_buffering, errors = getattr(like, "line_buffering", False), like.errors or ""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding if like is not None else "utf-8",
        errors="backslashreplace" if errors in ("", "strict") else errors,
        line_buffering=line_buffering,
    )
