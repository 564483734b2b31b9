"""
Output for people: short lines and tables, the worst first, whole on a narrow terminal, colour on a
terminal only, no control characters from outside.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TextIO

from vitald.model.words import ComponentKind
from vitald.text import count_noun, escape_unprintable
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.scan.saved_coverage import Stamp


Json = dict[str, object]

COLOUR_CODE = r"\x1b\[[0-9;]*m"
LABEL_COLUMNS = 13  # before the text of a finding: `      hint   `
_MIN_LINE = 49  # characters: `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034` has 48
_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2", "magenta": "35"}
_STATUS_COLOURS = {
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "red",
    "unknown": "magenta",
}
_KIND_NOUNS = {kind.value: kind.noun for kind in ComponentKind}
_INDENT = "    "


def colour_text(text: str, *names: str) -> str:
    """Coloured on a terminal, unless NO_COLOR is set (no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or not can_redraw(sys.stdout)
    if not names or is_plain:
        return text
    return f"\033[{';'.join(_COLOURS[name] for name in names)}m{text}\033[0m"


def colour_status(status: str) -> str:
    return colour_text(status.upper(), "bold", _STATUS_COLOURS.get(status, "bold"))


def escape_text(text: object) -> str:
    """Text from outside, with control characters escaped."""
    return escape_unprintable(str(text))


def can_redraw(stream: TextIO) -> bool:
    """Whether it is a terminal that knows control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def get_width() -> int:
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 200


def print_line(line: str) -> None:
    """Print a line; folded, on a terminal that is narrower."""
    print("\n".join(fold_line(line, get_width())) if sys.stdout.isatty() else line)


def count_columns(text: str) -> int:
    """The columns that a text takes: none for its colours, two for an East Asian wide character
    (Unicode Standard Annex 11).
    """
    if "\x1b" in text:
        import re

        text = re.sub(COLOUR_CODE, "", text)
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(combining(character) > 0 for character in text)


def fold_line(line: str, columns: int) -> Iterable[str]:
    """The line, broken between words; what follows is indented as the text behind the label is. A
    word of ASCII that is too long stays whole, so that an address or a path can be copied.
    """
    import re

    indent = min(4 + len(line) - len(line.lstrip()), columns // 2)
    if re.fullmatch(r" {6}[a-z]* +", line[:LABEL_COLUMNS]):
        indent = LABEL_COLUMNS
    out = ""
    for gap, word in re.findall(r"(\s*)(\S+)", line):
        if out.strip() and count_columns(out + gap + word) > columns:
            yield out
            out = " " * indent + word
        else:
            out += gap + word
        while not word.isascii() and count_columns(out) > columns:
            piece = _take_columns(out, columns) or out[:1]
            yield piece
            out = out[len(piece) :]
    yield out


def _take_columns(text: str, columns: int) -> str:
    """As much of the start of a text as takes no more columns."""
    import re

    taken, free = "", columns
    for part in re.findall(rf"{COLOUR_CODE}|.", text, re.DOTALL):
        free -= count_columns(part)
        if free < 0:
            break
        taken += part
    return taken


def cut_text(text: str, columns: int) -> str:
    """At most so many columns, the last of them a `…` where it is cut. Without colours."""
    if count_columns(text) <= columns:
        return text
    return f"{_take_columns(text, columns - 1)}…"


def cut_line(line: str, columns: int) -> str:
    """A kernel log line, cut, but never so short that the number of an Xid or SXid is lost."""
    return cut_text(line, max(columns, _MIN_LINE))


def parse_time(moment: object) -> datetime | None:
    return parse_rfc3339(str(moment)) if moment else None


def use_utc() -> None:
    """Have this process show times in UTC: their reader may be in another time zone."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def format_time(moment: object) -> str:
    """Local time; with the date unless it is today."""
    when = parse_time(moment)
    if when is None:
        return "never"
    local = when.astimezone()
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def describe_time(moment: object) -> str:
    """`14:05:12 (5 min ago)`, `14:05:12 (in 5 min)`, `never`."""
    when = parse_time(moment)
    if when is None:
        return "never"
    left = (when - datetime.now(timezone.utc)).total_seconds()
    distance = f"in {format_span(left)}" if left >= 0.5 else f"{format_span(-left)} ago"
    return f"{format_time(moment)} ({distance})"


def format_age(moment: object) -> str:
    """`12 s`, `5 min`, `3 h`, `4 d`."""
    when = parse_time(moment)
    if when is None:
        return "never"
    return format_span(max(0.0, (datetime.now(timezone.utc) - when).total_seconds()))


def format_span(seconds: float) -> str:
    """A duration in seconds, in the unit that suits it."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def count_kind(count: int, kind: str) -> str:
    """`8 GPUs`, `1 disk`: components of a kind, as the API names it."""
    return count_noun(count, name_kind(kind))


def name_kind(kind: str) -> str:
    """`GPU`, `disk`: a kind of component, as the API names it, in words."""
    return _KIND_NOUNS.get(kind, kind)


def describe_count(count: object) -> str:
    return "seen once" if count == 1 else f"seen {count} times"


def emit_json(value: object) -> None:
    print(json.dumps(value, indent=None if not sys.stdout.isatty() else 2))


def describe_stamp(stamp: Stamp) -> str:
    """When a line was written, and its number."""
    from vitald.server import serialize

    where = f"line {stamp.number}"
    if stamp.time is not None:
        moment = serialize.format_moment(stamp.time)
        return f"{format_time(moment)} ({format_age(moment)} ago, {where})"
    if stamp.usec is not None:
        return f"{stamp.usec / 1e6:.6f} s after the start ({where})"
    return f"{where}, which has no date"


def format_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> Iterator[str]:
    """The lines of a table. `right`: numbers of the columns that are aligned to the right."""
    for lines in lay_out_table(titles, rows, right):
        yield from lines


def lay_out_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> Iterator[list[str]]:
    """The line of the titles, then that of each row. Cells for which a terminal has no room on it
    follow on further lines, indented.

    Cells may be coloured. A column without a title that is empty in all rows is left out.
    """
    shown = [
        number for number, title in enumerate(titles) if title or any(row[number] for row in rows)
    ]
    widths = {
        number: max(count_columns(row[number]) for row in (titles, *rows)) for number in shown
    }

    def pad(row: Sequence[str], number: int) -> str:
        gap = " " * (widths[number] - count_columns(row[number]))
        return gap + row[number] if number in right else row[number] + gap

    heading = _fill_lines([pad(titles, number) for number in shown])
    yield [colour_text(line, "dim") for line in heading]
    for row in rows:
        yield [*_fill_lines([pad(row, number) for number in shown])]


def _fill_lines(cells: Sequence[str]) -> Iterator[str]:
    """As many cells on each line as a terminal has room for."""
    room = get_width() if sys.stdout.isatty() else sys.maxsize
    line = cells[0]
    for cell in cells[1:]:
        text = cell.rstrip()
        if count_columns(f"{line}  {text}") <= room:
            line += f"  {cell}"
        elif text:
            yield line.rstrip()
            line = f"{_INDENT}{text.lstrip()}"
    yield line.rstrip()
