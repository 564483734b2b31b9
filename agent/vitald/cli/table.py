"""Tables that fit the output: columns are left out or folded where there is no room for all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitald.cli import layout, render

_GAP = "  "
_INDENT = "    "  # of what stands below a row
_MIN_TEXT_COLUMNS = 24  # of a column that is folded


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    `omitted`: the highest number is left out first where there is no room; 0: never.
    `right`: aligned to the right. `folded`: free text, broken into lines; below the row where there
    is too little room beside it.
    """

    title: str
    omitted: int = 0
    right: bool = False
    folded: bool = False


def format_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    notes: Sequence[Sequence[str]] = (),
) -> Iterator[str]:
    """The titles, then the rows, each followed by its notes, indented. Cells and notes may be
    coloured. A column with neither a title nor a text is left out, and so
    are the titles where there is none.
    """
    room = layout.get_width() if layout.fits_lines() else sys.maxsize
    titles = [column.title for column in columns]
    used = [number for number in range(len(columns)) if any(row[number] for row in (titles, *rows))]
    widths = [
        max(layout.count_columns(row[number]) for row in (titles, *rows))
        for number in range(len(columns))
    ]
    beside, below = _fit_columns(columns, widths, used, room)
    if any(titles):
        for line in _format_row(titles, columns, widths, beside):
            yield render.colour_text(line, "dim")
    for place, row in enumerate(rows):
        yield from _format_row(row, columns, widths, beside)
        own = [row[number] for number in below if row[number]]
        for text in (*own, *(notes[place] if notes else ())):
            yield from layout.fold_line(f"{_INDENT}{text}", room, indent=len(_INDENT) + 2)


def _fit_columns(
    columns: Sequence[Column], widths: list[int], used: Sequence[int], room: int
) -> tuple[list[int], list[int]]:
    """The columns that are shown side by side, and those below each row. In `widths`, that of a
    folded column becomes what is left for it.
    """
    beside, below = [*used], []
    while (over := sum(widths[number] + len(_GAP) for number in beside) - len(_GAP) - room) > 0:
        folded = next((number for number in beside if columns[number].folded), None)
        if folded is not None and widths[folded] - over >= _MIN_TEXT_COLUMNS:
            widths[folded] -= over
            break
        omitted = max(beside, key=lambda number: columns[number].omitted)
        if columns[omitted].omitted:
            beside.remove(omitted)
        elif folded is not None:
            beside.remove(folded)
            below.append(folded)
        else:
            break
    return beside, below


def _format_row(
    row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], beside: Sequence[int]
) -> Iterator[str]:
    cells = []
    for number in beside:
        lines = [row[number]]
        if columns[number].folded:
            lines = [*layout.fold_line(row[number], widths[number], indent=0, break_words=True)]
        cells.append(lines)
    for place in range(max(map(len, cells), default=0)):
        padded = [
            layout.pad_text(
                cell[place] if place < len(cell) else "",
                widths[number],
                right=columns[number].right,
            )
            for number, cell in zip(beside, cells)
        ]
        yield _GAP.join(padded).rstrip()
