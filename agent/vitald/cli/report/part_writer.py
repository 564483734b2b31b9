"""How a part gets into the archive of `vitald report`: redacted, without stopping the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import TracebackType

from vitald.cli.report.archive import Archive, CannotWrite
from vitald.cli.report.redact import Redactor
from vitald.text import escape_unprintable


class _PartGuard:
    """Notes the error of one part, so that the others are written: hence the one catch-all."""

    def __init__(self, miss: Callable[[str], None]) -> None:
        self._miss = miss

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, CannotWrite):
            return False
        self._miss(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        return True


class PartWriter:
    """Adds parts to an archive. `missing`: the parts that failed, and why. `part`: the current."""

    def __init__(self, archive: Archive, redactor: Redactor) -> None:
        self.missing: list[tuple[str, str]] = []
        self.part = "README.txt"
        self._archive = archive
        self._redactor = redactor

    def guard_part(self, name: str) -> _PartGuard:
        self.part = name
        return _PartGuard(partial(self.note_missing, name))

    def note_missing(self, name: str, why: str) -> None:
        self.missing.append((name, self._redactor.redact_text(" ".join(why.split()))[:500]))

    def add_text(self, name: str, text: str) -> None:
        self._archive.add_member(name, self.encode_text(text))

    def encode_text(self, text: str) -> bytes:
        """Without secrets and control characters."""
        return self._redactor.remove_secrets(_escape_lines(text).encode(errors="replace"))

    def add_json(self, name: str, value: object) -> None:
        self._archive.add_member(
            name, self._redactor.remove_secrets(json.dumps(value, indent=1).encode() + b"\n")
        )

    def format_line(self, value: object) -> bytes:
        return self._redactor.remove_secrets(json.dumps(value).encode() + b"\n")


def _escape_lines(text: str) -> str:
    """The text with control characters escaped, but for tabs and newlines."""
    return escape_unprintable(text.replace("\r\n", "\n"), keep="\t\n")
