"""
The daemon's own log, on standard error: a line for each decision (agent/vitald/log/line_format.py).

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

from vitald.log.line_format import PRIORITIES, format_record, is_journal

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


_JOURNAL = Path("/run/systemd/journal/stdout")
_CONNECT_S = 0.2
# Identifier, unit (journald knows better), the priority of a line without one, whether a line may
# have its own priority, and where else lines are written.
_HEADER = f"vitald\n\n{PRIORITIES['error']}\n1\n0\n0\n0\n".encode()


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
        said = record.getMessage()[:500]
        structlog.get_logger(record.name).log(
            record.levelno, "library", logger=record.name, said=said, reason=reason[:500]
        )


def configure_log(level: str, form: str) -> None:
    """Once, at the start. `form` is text or json."""
    to_journal = is_journal(sys.stderr)

    def render(_: object, __: str, record: structlog.typing.EventDict) -> str:
        return format_record(record, form, to_journal=to_journal)

    logging.basicConfig(handlers=[_Libraries()], force=True)
    structlog.configure(
        processors=[
            _add_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=structlog.WriteLoggerFactory(
            file=Stream(sys.stderr, _JOURNAL if to_journal else None)  # type: ignore[arg-type]
        ),
        cache_logger_on_first_use=False,
    )
    set_level(level)


def set_level(level: str) -> None:
    """Also later: a reload may change it."""
    logging.getLogger().setLevel(max(LEVELS[level], logging.WARNING))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]))


def _add_level(
    logger: object, method: str, record: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """As structlog.processors.add_log_level, but for a level that the line names itself."""
    named = {"level": record["level"]} if "level" in record else {}
    return {**structlog.processors.add_log_level(logger, method, record), **named}
