"""Tables for people: aligned columns, and whole on a narrow terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence

from vitald.cli import render

_INDENT = "    "


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
        number: max(render.count_columns(row[number]) for row in (titles, *rows))
        for number in shown
    }

    def pad(row: Sequence[str], number: int) -> str:
        gap = " " * (widths[number] - render.count_columns(row[number]))
        return gap + row[number] if number in right else row[number] + gap

    heading = _fill_lines([pad(titles, number) for number in shown])
    yield [render.colour_text(line, "dim") for line in heading]
    for row in rows:
        yield [*_fill_lines([pad(row, number) for number in shown])]


def _fill_lines(cells: Sequence[str]) -> Iterator[str]:
    """As many cells on each line as a terminal has room for."""
    room = render.get_width() if sys.stdout.isatty() else sys.maxsize
    line = cells[0]
    for cell in cells[1:]:
        text = cell.rstrip()
        if render.count_columns(f"{line}  {text}") <= room:
            line += f"  {cell}"
        elif text:
            yield line.rstrip()
            line = f"{_INDENT}{text.lstrip()}"
    yield line.rstrip()
