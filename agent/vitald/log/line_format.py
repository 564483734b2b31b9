"""
Lines of the log, as text or as JSON. Without a library: what runs as root logs with it, too.

The journal gets a syslog priority before each line, `<3>`, which it takes off, and no time in a
line of text: it has its own. Source: sd-daemon(3); systemd.exec(5), "$JOURNAL_STREAM".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TextIO

from vitald.text import escape_unprintable

# The priorities of syslog(3). There is no method for "notice": log.info(..., level="notice").
PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "notice": 5, "info": 6, "debug": 7}

_BARE = re.compile(r'[^\s"=]+')


def is_journal(file: TextIO) -> bool:
    """Whether journald reads what is written to the file."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def format_record(record: Mapping[str, object], form: str, *, to_journal: bool) -> str:
    """One line, and as text one more for each of a traceback. `form`: "text" or "json". `record`
    has `event`, `level` and `timestamp`, may have `exception` (a traceback), and `message`: a
    sentence, which is the text instead of the event and its fields.
    """
    if form == "json":
        lines = [json.dumps(record, default=str)]
    else:
        lines = _format_text(dict(record), to_journal=to_journal)
    prefix = f"<{PRIORITIES[str(record['level'])]}>" if to_journal else ""
    return "\n".join(f"{prefix}{line}" for line in lines)


def _format_text(fields: dict[str, object], *, to_journal: bool) -> list[str]:
    event, level, when, traceback = (
        str(fields.pop(name, "")) for name in ("event", "level", "timestamp", "exception")
    )
    text = str(fields.pop("message", "")) or " ".join([event, *map(_format_field, fields.items())])
    head = text if to_journal else f"{when} {level:<8} {text}"
    return [
        escape_unprintable(line) for line in [head, *(f"    {x}" for x in traceback.splitlines())]
    ]


def _format_field(field: tuple[str, object]) -> str:
    """`gpus=8`, `error="no space left"`, `sinks="kubernetes, nfd"`."""
    name, value = field
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"{name}={text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)}"
