"""A file that others read while it is written anew: written aside, then renamed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from vitald.publish.sink import SinkFailed

REWRITE_S = 120.0  # an unchanged file is written again: its age shows that the publisher runs
_MODE = 0o644  # the readers are other users


async def replace_file(path: Path, content: str) -> None:
    """Raises SinkFailed. The file is not synced: after a power failure it is written anew."""
    try:
        await asyncio.to_thread(_replace_file, path, content.encode())
    except OSError as error:
        raise SinkFailed(f"{path}: {error.strerror or error}") from error


def _replace_file(path: Path, content: bytes) -> None:
    # A dot file in the same folder: Node Feature Discovery ignores it, and node_exporter too, since
    # its name does not end in .prom. A left-over or a link in its place is never written through.
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(aside, flags, _MODE), "wb") as file:
            os.fchmod(file.fileno(), _MODE)  # whatever the umask
            file.write(content)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
