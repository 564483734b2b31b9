"""How text is laid out in the columns of a terminal: its width, folded and cut lines.

Widths are columns of a terminal, not characters: an East Asian wide character takes two, a
combining one none (Unicode Standard Annex #11), and a colour's escape sequence none.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator

_WHOLE_COLUMNS = 200  # of what is cut to a width where lines are not folded
_MIN_COLUMNS = 20  # a narrower terminal folds the lines itself
_HANGING = 4
LABEL_COLUMNS = 13  # before the text of a finding: `      hint   `
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COLOUR_OR_CHARACTER = re.compile(r"\x1b\[[0-9;]*m|.", re.DOTALL)
_LABEL = re.compile(r" {6}[a-z]* +")


def fits_lines() -> bool:
    """Whether lines are folded, and tables leave columns out: on a terminal only. A pipe gets each
    line whole, so that grep finds what belongs together. COLUMNS changes nothing there: GNU
    readline sets it for all children of a program that has only loaded it.
    """
    return sys.stdout.isatty()


def get_width() -> int:
    """On a terminal COLUMNS, else its own."""
    if not fits_lines():
        return _WHOLE_COLUMNS
    return max(_MIN_COLUMNS, shutil.get_terminal_size((80, 24)).columns)


def count_columns(text: str) -> int:
    """The columns that a text takes."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return len(text) if text.isascii() else sum(map(_measure_character, text))


def _measure_character(character: str) -> int:
    import unicodedata

    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad_text(text: str, columns: int, *, right: bool = False) -> str:
    gap = " " * max(0, columns - count_columns(text))
    return gap + text if right else text + gap


def cut_text(text: str, columns: int) -> str:
    """At most so many columns, the last one a `…` where it is cut. Without colours."""
    if count_columns(text) <= columns:
        return text
    return f"{next(_split_columns(text, max(1, columns - 1)))}…"


def _split_columns(text: str, columns: int) -> Iterator[str]:
    """The text in pieces of at most so many columns. A piece has at least one character."""
    piece, used = "", 0
    for part in _COLOUR_OR_CHARACTER.findall(text):
        width = 0 if part.startswith("\x1b") else count_columns(part)
        if used and used + width > columns:
            yield piece
            piece, used = "", 0
        piece, used = piece + part, used + width
    yield piece


def fold_line(
    line: str, columns: int, *, indent: int | None = None, break_words: bool = False
) -> Iterable[str]:
    """The line, broken between words. What follows is indented by `indent`, or as the text behind
    the label is. A word of ASCII that is too long stays whole, so that an address or a path can be
    copied, unless `break_words`.
    """
    if count_columns(line) <= columns:
        yield line
        return
    if indent is None:
        indent = min(_HANGING + len(line) - len(line.lstrip()), columns // 2)
        if _LABEL.fullmatch(line[:LABEL_COLUMNS]):
            indent = LABEL_COLUMNS
    out = ""
    for gap, word in re.findall(r"(\s*)(\S+)", line):
        if out.strip() and count_columns(out + gap + word) > columns:
            yield out
            out = " " * indent + word
        else:
            out += gap + word
        if (break_words or not word.isascii()) and count_columns(out) > columns:
            *full, out = _split_columns(out, columns)
            yield from full
    yield out
