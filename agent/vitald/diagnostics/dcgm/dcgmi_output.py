"""
Finds the documents in the output of `dcgmi diag`, whatever surrounds them.

With -j it prints one document, perhaps below lines of libraries and above those of a wrapper. With
`--iterations` that is an object with all documents; where an iteration could not run, its error
object stands before it. Without -j it prints a table.

Each object that begins a line is decoded once, the first one first. One that is no document, cannot
be decoded or leaves a part of a document beside it makes the output `broken`: what is not read may
be the failure. What captures the output limits its size.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from vitald.diagnostics.dcgm.conversion import to_word
from vitald.diagnostics.dcgm.document import ROOTS, DcgmDocument, Json, read_document
from vitald.diagnostics.dcgm.printed_table import parse_table

_ITERATIONS = "iterations"
_BEGINNING = re.compile(r"^[ \t]*(?=\{)", re.MULTILINE)
# A key, or the end of something larger, in the text around documents
_PART = re.compile(r'"[\w ]+"\s*:|^[ \t]*[\]},]|[\[,]\s*\Z', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmOutput:
    """The whole output."""

    documents: tuple[DcgmDocument, ...] = ()
    iterations: int = 0  # announced
    not_run: int = 0  # iterations without a document
    failed: bool = False  # the iterations' own overall result
    broken: str = ""  # why something that should be a document cannot be read
    outside: str = ""  # the text around the documents


def read_output(printed: bytes | str) -> DcgmOutput:
    """Reads any output. Never raises."""
    text = printed.decode("utf-8", "replace") if isinstance(printed, bytes) else printed
    values, outside, broken = _decode_objects(text.lstrip("\ufeff"))
    documents: list[DcgmDocument] = []
    iterations = not_run = 0
    failed = False
    for value in values:
        rounds = value.get(_ITERATIONS, [value])
        if not isinstance(rounds, list) or not rounds:
            broken = broken or "there are no iterations in it"
            continue
        ran = [one for one in rounds if isinstance(one, dict) and _is_document(one)]
        documents += map(read_document, ran)
        if _ITERATIONS in value:
            iterations += len(rounds)
            not_run += len(rounds) - len(ran)
            failed = failed or value.get("Overall Result", "Pass") != "Pass"
    if not values and not broken:
        table, is_whole = parse_table(text)
        documents += [table] if table is not None else []
        broken = "" if is_whole else "the table is cut off before its end"
    return DcgmOutput(
        documents=tuple(documents),
        iterations=iterations,
        not_run=not_run,
        failed=failed,
        broken=broken,
        outside=outside,
    )


def _decode_objects(text: str) -> tuple[list[Json], str, str]:
    """The objects that begin a line, the text around them, and why one of them cannot be read."""
    decoder = json.JSONDecoder(object_pairs_hook=_build_object)
    values: list[Json] = []
    pieces: list[str] = []
    broken = ""
    at = 0
    while not broken and (beginning := _BEGINNING.search(text, at)) is not None:
        pieces.append(text[at : beginning.start()])
        try:
            value, at = decoder.raw_decode(text, beginning.end())
        except RecursionError:
            broken = "nested too deeply"
        except ValueError as error:
            broken = _explain_error(error, text, beginning.end())
        else:
            values.append(value)
            broken = "" if _is_output(value) else "an object that dcgmi diag does not print"
    if not broken:
        pieces.append(text[at:])
        if values and any(map(_PART.search, pieces)):
            broken = "a part of something larger stands beside it"
    return values, "\n".join(filter(None, map(str.strip, pieces))), broken


def _build_object(pairs: list[tuple[str, object]]) -> Json:
    """One of two values of the same key, perhaps the failure, would be lost."""
    value: Json = {}
    for key, one in pairs:
        if key in value:
            raise ValueError(f"{to_word(key) or 'a key'} stands twice in one object")
        value[key] = one
    return value


def _explain_error(error: ValueError, text: str, start: int) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return to_word(str(error))
    if error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()):
        return "cut off before its end"
    return f"not JSON from character {error.pos - start} on"


def _is_document(value: Json) -> bool:
    return sum(root in value for root in ROOTS) == 1


def _is_output(value: Json) -> bool:
    """Whether it is either a document, or the object with those of all iterations."""
    return sum(key in value for key in (*ROOTS, _ITERATIONS)) == 1
