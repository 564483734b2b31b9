"""
The daemon's own log: one line per decision, on standard error. JSON for the journal and for pipes,
text on a terminal.

Nothing that happens to a line stops the daemon: where journald has ended, lines are lost until it
is back, and then go to it again. Source: systemd src/libsystemd/sd-journal/journal-send.c
sd_journal_stream_fd (what a stream begins with).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import structlog

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


_JOURNAL = Path("/run/systemd/journal/stdout")
_CONNECT_S = 0.2
# Identifier, unit (journald knows better), the priority of a line, whether a line may have its own
# priority, and where else lines are written.
_HEADER = b"vitald\n\n6\n1\n0\n0\n0\n"


class Stream:
    """Standard error. `journal`: the socket of journald, if that reads it."""

    def __init__(self, file: TextIO, journal: Path | None) -> None:
        self._file, self._journal = file, journal

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            with suppress(OSError):
                self._connect()
                self._file.flush()  # what could not be written is still in the buffer

    def _connect(self) -> None:
        if self._journal is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_CONNECT_S)
            sock.connect(str(self._journal))
            sock.sendall(_HEADER)
            sock.setblocking(True)
            os.dup2(sock.fileno(), self._file.fileno(), inheritable=True)


class _Libraries(logging.Handler):
    """What libraries say through the standard library's logging, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        reason = (
            f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
            if record.exc_info and record.exc_info[0]
            else ""
        )
        say = structlog.get_logger(record.name)
        say.log(
            record.levelno,
            "library",
            logger=record.name,
            message=record.getMessage()[:500],
            reason=reason[:500],
        )


def configure_log(level: str, form: str) -> None:
    """`form` is auto, json or text. May be called again: a reload changes the level."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if as_text
        else structlog.processors.JSONRenderer(sort_keys=False)
    )
    stream = Stream(sys.stderr, _JOURNAL if "JOURNAL_STREAM" in os.environ else None)
    logging.basicConfig(
        level=max(LEVELS[level], logging.WARNING), handlers=[_Libraries()], force=True
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
