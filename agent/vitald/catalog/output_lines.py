"""
Lines that jobs print when they fail, as `application_lines.toml` lists them, and how a stream of
output is searched for them.

Pure: the caller reads the table and the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vitald.catalog.tables import OUTPUT_LINES
from vitald.checking import Unexpected, read_member, read_text, read_texts
from vitald.model.job_page import ErrorKind

FILE = f"{OUTPUT_LINES}.toml"
MAX_LINE_BYTES = 8192  # a longer line is searched in pieces of this length
_SEPARATORS = re.compile(rb"[\r\n]")  # progress bars end a line with a carriage return
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_KEYS = {"title", "what", "contains", "match", "source", "samples"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLine:
    """One shape of line. Every such line has `contains`; `pattern` is the rest, if there is one."""

    name: str
    title: str
    what: ErrorKind
    contains: bytes
    pattern: re.Pattern[bytes] | None
    source: str
    samples: tuple[str, ...] = ()

    def matches(self, line: bytes) -> bool:
        if self.contains not in line:
            return False
        return self.pattern is None or self.pattern.search(line) is not None


def read_output_lines(tables: Mapping[str, object], errors: list[str]) -> list[OutputLine]:
    """The entries `[line.NAME]`, in their order. Mistakes are appended to `errors`."""
    entries = tables.get("line")
    if not isinstance(entries, dict) or set(tables) != {"line"}:
        errors.append(f"{FILE}: expected tables such as [line.NAME] only")
        return []
    found = []
    for name, entry in entries.items():
        try:
            found.append(_read_entry(name, entry))
        except (ValueError, re.error) as error:
            errors.append(f"{FILE}: [line.{name}] {error}")
    return found


def _read_entry(name: str, entry: object) -> OutputLine:
    if not isinstance(entry, dict):
        raise Unexpected("a table", entry)
    if unknown := sorted(set(entry) - _KEYS):
        raise ValueError(f"{unknown[0]}: unknown key")
    contains = read_text(entry.get("contains"), 1, "contains: a text")
    match = read_text(entry.get("match", ""), 0, "match: an expression")
    line = OutputLine(
        name=name,
        title=read_text(entry.get("title"), 1, "title: a text"),
        what=read_member(entry.get("what"), ErrorKind),
        contains=contains.encode(),
        pattern=re.compile(match.encode()) if match else None,
        source=read_text(entry.get("source"), 1, "source: a text"),
        samples=tuple(read_texts(entry.get("samples", []), "samples: a list of texts")),
    )
    for sample in line.samples:
        if not line.matches(sample.encode()):
            raise ValueError(f"a sample does not match: {sample[:60]!r}")
    return line


class OutputSearch:
    """Searches a stream that comes in pieces. A line may be spread over several of them."""

    def __init__(self, lines: list[OutputLine]) -> None:
        self._lines = lines
        self._rest = b""  # of the last line, which has not ended

    def find_lines(self, piece: bytes) -> Iterator[tuple[OutputLine, str]]:
        """What matches in the lines that end in this piece, with the text of the line."""
        text = self._rest + piece
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._rest = text[end:]
        if len(self._rest) > MAX_LINE_BYTES:
            end, self._rest = len(text), b""
        yield from self._find_in(text[:end])

    def find_last_line(self) -> Iterator[tuple[OutputLine, str]]:
        """What matches in the last line, which ended with the stream."""
        text, self._rest = self._rest, b""
        yield from self._find_in(text)

    def _find_in(self, text: bytes) -> Iterator[tuple[OutputLine, str]]:
        present = [shape for shape in self._lines if shape.matches(text)]
        if not present:
            return  # as in nearly all output: no line is looked at
        for line in _SEPARATORS.split(text):
            match = next((shape for shape in present if shape.matches(line)), None)
            if match is not None:
                yield match, _COLOUR.sub(b"", line).decode("utf-8", "replace").strip()
