"""Writes the file that the daemon reads: written aside, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

_MODE = 0o640  # the daemon's group reads it; the firmware's tables have serial numbers


def write_sensors(path: Path, content: Mapping[str, object]) -> None:
    """Raises OSError. The folder belongs to root alone, so that nobody else can place a link."""
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(aside, flags, _MODE), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), _MODE)  # whatever the umask
            json.dump(content, file, ensure_ascii=False)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
