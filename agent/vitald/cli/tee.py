"""
`torchrun ... 2>&1 | vitald tee`: passes the output of a job through unchanged, and reports lines
that show an error of NCCL, CUDA, memory or the Neuron runtime over the job socket.

The output comes first: it is written before it is searched, and nothing of the search or of the
daemon can change, delay or end it.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import time
from contextlib import suppress

from vitald.catalog.output_lines import OutputLine, OutputSearch, read_output_lines
from vitald.cli import EX_IOERR, READER_GONE, job_connection
from vitald.cli.job_connection import JobConnection, cut_error_text

_PIECE_BYTES = 65536
_SAME_S = 60.0  # between two reports of one shape of line
_ALL_S = 1.0  # between two reports
_MAX_WAITING = 16


def options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The exit code of the job is the first of the pipeline: use `set -o pipefail` in bash."
    )


def run(arguments: argparse.Namespace) -> int:
    del arguments
    # Ctrl-C reaches the whole pipeline: the job's last words are still to be passed on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reporter = LineReporter(
        JobConnection(
            job_connection.find_socket(os.environ),
            {**job_connection.read_identity(os.environ), "role": "observer"},
        )
    )
    search = OutputSearch(load_output_lines())
    try:
        _pass_output(search, reporter)
        for line, text in search.find_last_line():
            reporter.report_line(line, text)
    except BrokenPipeError:
        return READER_GONE
    except _CannotRead as error:
        return _report_failure("standard input cannot be read", error.strerror)
    except OSError as error:
        return _report_failure("standard output cannot be written", error.strerror)
    finally:
        reporter.finish()
    return 0


def load_output_lines() -> list[OutputLine]:
    """The lines of the catalogue."""
    from vitald import tomlfile
    from vitald.catalog import CatalogError
    from vitald.catalog.loader import FOLDER
    from vitald.catalog.tables import OUTPUT_LINES

    errors: list[str] = []
    lines = read_output_lines(tomlfile.read_toml(FOLDER / f"{OUTPUT_LINES}.toml")[1], errors)
    if errors:
        raise CatalogError(errors)
    return lines


class _CannotRead(OSError):
    """Standard input, such as a terminal that was hung up."""


def _report_failure(what: str, why: str | None) -> int:
    with suppress(OSError):  # standard error may be the same terminal
        os.write(2, f"vitald: {what}: {why}\n".encode())
    return EX_IOERR


class LineReporter:
    """Reports lines, each shape at most once a minute, and waits for none of them."""

    def __init__(self, connection: JobConnection) -> None:
        self._connection = connection
        self._reported: dict[str, float] = {}  # by name, when
        self._repeats: dict[str, int] = {}  # since then
        self._waiting: list[dict[str, object]] = []
        self._next = 0.0

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def report_line(self, line: OutputLine, text: str) -> None:
        now = time.monotonic()
        last = self._reported.get(line.name)
        if last is not None and now - last < _SAME_S:
            self._repeats[line.name] = self._repeats.get(line.name, 0) + 1
            return
        self._reported[line.name] = now
        repeats = self._repeats.pop(line.name, 0)
        more = f" ({repeats} more of these lines before)" if repeats else ""
        shown = cut_error_text(f"{line.title}{more}: {text}")
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append({"kind": "error", "what": line.what.value, "text": shown})
        self.send_due()

    def send_due(self) -> None:
        now = time.monotonic()
        if self._waiting and now >= self._next:
            self._next = now + _ALL_S
            self._connection.send(self._waiting.pop(0))

    def finish(self) -> None:
        """Sends what waits: the job has ended, and its last lines are the reason."""
        for packet in self._waiting:
            self._connection.send(packet)
        self._connection.close()


def _pass_output(search: OutputSearch, reporter: LineReporter) -> None:
    """Until the end of standard input. Raises _CannotRead, or OSError if standard output cannot be
    written.
    """
    while True:
        if reporter.is_waiting and not select.select([0], [], [], _ALL_S)[0]:
            reporter.send_due()
            continue
        piece = _read_piece()
        if not piece:
            return
        _write_piece(piece)
        for line, text in search.find_lines(piece):
            reporter.report_line(line, text)
        reporter.send_due()


def _read_piece() -> bytes:
    while True:
        try:
            return os.read(0, _PIECE_BYTES)
        except BlockingIOError:  # a descriptor that another program made non-blocking
            select.select([0], [], [])
        except OSError as error:
            raise _CannotRead(*error.args) from error


def _write_piece(piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        try:
            left = left[os.write(1, left) :]
        except BlockingIOError:
            select.select([], [1], [])
