"""The daemon's own log: one line per decision, on standard error. JSON for the journal and for pipes, text on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Libraries(logging.Handler):
    """What libraries say through the standard library's logging, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        reason = f"{record.exc_info[0].__name__}: {record.exc_info[1]}" if record.exc_info and record.exc_info[0] else ""
        say = structlog.get_logger(record.name)
        say.log(record.levelno, "library", logger=record.name, message=record.getMessage()[:500], reason=reason[:500])


def configure(level: str, form: str) -> None:
    """`form` is auto, json or text. May be called again: a reload changes the level."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if as_text else structlog.processors.JSONRenderer(sort_keys=False)
    )
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[_Libraries()], force=True)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
