"""
Standard output and standard error: either may be a closed pipe, a full disk, or not open at all.

    with Streams() as streams:
        ...    # raises OutputError or ReaderGone if standard output cannot be written

A failed write to standard error is no error: it is noted for the exit code.

Owns     the streams while a verb runs, and that the interpreter has nothing left to write when it
         exits.
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
    """Standard output cannot be written. No OSError: code that handles those of a file must not
    catch it.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))


class ReaderGone(OutputError):
    """The reader of standard output has closed it, as `head` does: no error."""


class _RawStream(io.FileIO):
    """A descriptor inherited from the parent, which may be non-blocking."""

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
    """Replaces the streams of the process within its context. Streams replaced by others stay."""

    def __init__(self) -> None:
        self._before = sys.stdin, sys.stdout, sys.stderr
        self._remarks: _StandardError | None = None

    @property
    def lost_remarks(self) -> bool:
        """Whether a write to standard error failed."""
        return self._remarks is not None and self._remarks.lost

    def __enter__(self) -> Streams:
        if None in self._before:
            _occupy_descriptors()
        if sys.stdin is None:
            sys.stdin = open(0, closefd=False)  # reading it fails, as of a closed one
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
        """Discards what is left in the buffer: the interpreter would exit with 120 over it."""
        if isinstance(getattr(getattr(sys.stdout, "buffer", None), "raw", None), _StandardOutput):
            fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(fd, 1)
            os.close(fd)
            sys.stdout.flush()


def _occupy_descriptors() -> None:
    """Opens what is closed of the three, else the next file or socket would take its number.

    What is opened can neither be read nor written.
    """
    for fd, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)  # the lowest that is free


def _wrap_text(
    raw: _RawStream, like: TextIO | None, *, line_buffering: bool = False, errors: str = ""
) -> TextIO:
    """As the interpreter made it; a character that the encoding lacks is written as an escape."""
    if like is not None and not errors:
        line_buffering = bool(getattr(like, "line_buffering", False))
        if getattr(like, "write_through", False):  # PYTHONUNBUFFERED: only a terminal needs it
            line_buffering = like.isatty()
        errors = like.errors or ""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding if like is not None else "utf-8",
        errors="backslashreplace" if errors in ("", "strict") else errors,
        line_buffering=line_buffering,
    )
