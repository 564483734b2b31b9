"""
Finds the documents in the output of `dcgmi diag`, whatever surrounds them, with iterations.

A document is an object that begins a line and has a key that begins with `DCGM `, or `iterations`.
An object inside another one is never taken for a document: one that was cut off is full of complete
objects.

Without -j it prints a table, which is read as far as it says the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from vitald.diagnostics.dcgm.conversion import to_word
from vitald.diagnostics.dcgm.document import MAX_RESULTS, DcgmDocument, read_document
from vitald.diagnostics.dcgm.printed_table import parse_table

_MAX_DOCUMENTS = 256
_MAX_OUTSIDE = 8192  # characters kept at each end of the text around the documents
_FIRST_COLUMN = re.compile(r'^\{(?=\s*["}])', re.MULTILINE)
_ANY_COLUMN = re.compile(r'^[ \t]+\{(?=\s*["}])', re.MULTILINE)
# Keys of a document whose beginning was lost
_LEFT_OVER = re.compile(
    r'"(?:test_categories|test_summary|entity_group_id|error_severity|runtime_error)"\s*:'
    r'|"results"\s*:\s*\['
)
_DOCUMENT_START = re.compile(
    r'\{\s*"(?:DCGM |iterations"|Overall Result"|entity_groups"|metadata"|test_categories")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmOutput:
    """The whole output."""

    documents: tuple[DcgmDocument, ...] = ()
    iterations: int = 0  # announced
    not_run: int = 0  # iterations without a document
    failed: bool = False  # the iterations' own overall result
    broken: str = ""  # why something that should be a document cannot be read
    outside: str = ""  # the text around the documents, shortened


def read_output(printed: bytes | str) -> DcgmOutput:
    """Reads any output. Never raises."""
    text = printed.decode("utf-8", "replace") if isinstance(printed, bytes) else printed
    text = text.replace("\x00", " ").lstrip("\ufeff")
    found = _DocumentFinder(text)
    found.find_objects(_FIRST_COLUMN)
    if not found.objects and not found.broken:
        found.find_objects(_ANY_COLUMN)  # a wrapper has indented everything
    outside = found.collect_outside()
    documents: list[DcgmDocument] = []
    announced = not_run = 0
    failed = False
    for value in found.objects:
        if "iterations" in value:
            whole = value["iterations"]
            rounds = whole if isinstance(whole, list) else [None]
            announced += len(rounds)
            failed = failed or (
                "Overall Result" in value and to_word(value["Overall Result"]).lower() != "pass"
            )
            for iteration in rounds[:MAX_RESULTS]:
                if isinstance(iteration, dict) and _has_root(iteration):
                    documents.append(read_document(iteration))
                else:
                    not_run += 1
            not_run += max(not rounds, len(rounds) - MAX_RESULTS)
        if _has_root(value):
            documents.append(read_document(value))
    if not found.objects and not found.broken:
        shown, is_whole = parse_table(text)
        if shown is not None:
            documents.append(read_document(shown))
            found.broken = "" if is_whole else "the table is cut off before its end"
    return DcgmOutput(
        documents=tuple(documents),
        iterations=announced,
        not_run=not_run,
        failed=failed,
        broken=found.broken,
        outside=outside,
    )


class _UncountedText(str):
    """The json module counts the lines before each error, which takes minutes for a million errors
    and is not used.
    """

    __slots__ = ()

    def count(self, *_: object) -> int:
        return 0

    def rfind(self, *_: object) -> int:
        return -1

    def rindex(self, *_: object) -> int:
        return 0


class _DocumentFinder:
    """Finds documents at the beginnings of lines."""

    def __init__(self, text: str) -> None:
        self.text = _UncountedText(text)
        self.objects: list[dict[str, object]] = []
        self.broken = ""
        self._twice = ""  # a key that the last decoded object has twice
        self._spans: list[tuple[int, int]] = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._build_object,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_drop_constant,
            strict=False,
        )
        # Limits all attempts together to a few passes over the text, since each may read far
        # before it fails
        self._patience = 4 * len(text) + 100_000

    def find_objects(self, beginnings: re.Pattern[str]) -> None:
        after = 0
        for match in beginnings.finditer(self.text):
            start = match.end() - 1
            if start < after:
                continue
            if self._patience < 0:
                self.broken = self.broken or "too garbled to be read"
                return
            self._twice = ""
            try:
                value, end = self._decoder.raw_decode(self.text, start)
            except RecursionError:
                # dcgmi prints nothing like it; every line of it would fail in the same way
                self.broken = "nested too deeply"
                return
            except ValueError as error:
                reached = getattr(error, "pos", start)
                self._patience -= reached - start + 64
                cut_off = self._cut_off(error, reached)
                if cut_off or _DOCUMENT_START.match(self.text, start):
                    self.broken = (
                        "cut off before its end"
                        if cut_off
                        else f"not JSON from character {reached - start} on"
                    )
                if cut_off:
                    return  # the rest lies inside it
                continue
            after = end
            self._patience -= end - start
            self._take_object(value, start, end)

    def _take_object(self, value: object, start: int, end: int) -> None:
        if not isinstance(value, dict) or not ("iterations" in value or _has_root(value)):
            return
        if self.text[end : end + 1024].lstrip()[:1] in tuple(",]}") or self.text[
            max(0, start - 1024) : start
        ].rstrip()[-1:] in tuple(",["):
            self.broken = "only a part of something larger"
            return
        if len(self.objects) >= _MAX_DOCUMENTS:
            self.broken = "too many documents"
            return
        if self._twice:
            self.broken = f"{self._twice} stands twice in one object"
        self.objects.append(value)
        self._spans.append((start, end))

    def _build_object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        """No version prints a key twice; one of the two values, perhaps the failure, would be
        lost.
        """
        value = dict(pairs)
        if len(value) < len(pairs):
            self._twice = to_word(_find_repeated(key for key, _ in pairs)) or "a key"
        return value

    def _cut_off(self, error: ValueError, reached: int) -> bool:
        rest = self.text[reached : reached + 64].strip()
        return str(error).startswith("Unterminated string") or (
            len(rest) < 6 and reached + 64 >= len(self.text)
        )

    def collect_outside(self) -> str:
        pieces, at = [], 0
        for start, end in [*self._spans, (len(self.text), 0)] if self._spans else ():
            if not self.broken and _LEFT_OVER.search(self.text, at, start):
                self.broken = "a part of another document stands beside it"
            at = end
        at = 0
        for start, end in self._spans:
            pieces.append(_shorten_text(self.text[at:start]))
            at = end
        if not self._spans and self.broken:
            return _shorten_text(self.text[: self.text.find("{")])
        pieces.append(_shorten_text(self.text[at:]))
        return "\n".join(piece for piece in pieces if piece)[: 4 * _MAX_OUTSIDE]


def _find_repeated(keys: Iterable[str]) -> str:
    """The first key that stood before; "" if there is none."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return ""


def _shorten_text(text: str) -> str:
    text = text.strip()
    return (
        text if len(text) <= 2 * _MAX_OUTSIDE else f"{text[:_MAX_OUTSIDE]}\n{text[-_MAX_OUTSIDE:]}"
    )


def _parse_int(digits: str) -> int | None:
    return int(digits) if len(digits) < 19 else None


def _parse_float(digits: str) -> float | None:
    return float(digits) if len(digits) < 64 else None


def _drop_constant(_: str) -> None:
    """Drops NaN and infinities, which no version prints."""


def _has_root(value: dict[str, object]) -> bool:
    return any(key.startswith("DCGM ") for key in value)
