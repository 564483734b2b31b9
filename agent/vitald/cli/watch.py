"""`vitald status --watch`: the status on the whole terminal, redrawn in place."""

from __future__ import annotations

import argparse
import curses
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vitald.cli import UsageError, client, render
from vitald.cli.check import EXIT
from vitald.text import count_noun

if TYPE_CHECKING:
    from _curses import window

    from vitald.server import schema

FormatStatus = Callable[["schema.NodeStatus"], Iterable[str]]


def watch_status(arguments: argparse.Namespace, format_status: FormatStatus) -> int:
    """Draw the status every `arguments.watch` seconds until `q` is pressed. Returns the exit code
    of the last status. Raises UsageError where there is no terminal to redraw.
    """
    if not (render.can_redraw(sys.stdout) and sys.stdin.isatty()):
        raise UsageError(
            "--watch redraws a terminal, and this is none: vitald events --follow prints what"
            " changes"
        )
    try:
        return curses.wrapper(
            lambda screen: _Watch(screen, arguments, format_status).draw_until_quit()
        )
    except curses.error as error:
        raise UsageError(f"--watch cannot redraw this terminal: {error}") from None


class _Watch:
    """Redraws the status. Ctrl-Z and another size of the terminal are handled by ncurses."""

    def __init__(
        self, screen: window, arguments: argparse.Namespace, format_status: FormatStatus
    ) -> None:
        self._screen = screen
        self._arguments = arguments
        self._format_status = format_status
        self._answered_at = ""  # a time of the API
        self._attributes = _make_attributes()

    def draw_until_quit(self) -> int:
        self._screen.timeout(max(1, round(self._arguments.watch * 1000)))
        while True:
            status, lines = self._read_status()
            self._draw(lines, f"{time.strftime('%H:%M:%S')}; q ends")
            if self._screen.getch() == ord("q"):
                return EXIT[status]

    def _read_status(self) -> tuple[str, list[str]]:
        """The status, and the lines that show it."""
        try:
            status = client.read_status(self._arguments)
        except (client.NoAnswer, client.DaemonRefused) as error:
            lines = [f"{render.colour_status('unknown')}  {render.escape_text(error)}"]
            if self._answered_at:
                lines.append(f"  last answer {render.describe_time(self._answered_at)}")
            return "unknown", lines
        self._answered_at = status["time"]
        return str(status["status"]), [*self._format_status(status)]

    def _draw(self, lines: list[str], footer: str) -> None:
        """Lines that are too many are left out, and counted."""
        rows, columns = self._screen.getmaxyx()
        folded = [part for line in lines for part in render.fold_line(line, columns)]
        if (more := len(folded) + 1 - rows) > 0:
            del folded[rows - 1 :]
            footer = f"… {count_noun(more, 'more line')}: vitald status; {footer}"
        self._screen.erase()
        for row, line in enumerate([*folded, render.colour_text(footer, "dim")]):
            column = 0
            for text, attribute in self._split_colours(line):
                # A character in the last place of the screen would scroll it.
                room = columns - column - (row == rows - 1)
                if room > 0:
                    self._screen.addstr(row, column, render.cut_text(text, room), attribute)
                column += render.count_columns(text)
        self._screen.refresh()

    def _split_colours(self, line: str) -> Iterator[tuple[str, int]]:
        """The texts of a line, each with its attribute."""
        attribute = curses.A_NORMAL
        encoding = self._screen.encoding
        for number, part in enumerate(re.split(f"({render.COLOUR_CODE})", line)):
            if number % 2:
                attribute = curses.A_NORMAL
                for code in part[2:-1].split(";"):
                    attribute |= self._attributes.get(code, curses.A_NORMAL)
            elif part:
                yield part.encode(encoding, "backslashreplace").decode(encoding), attribute


def _make_attributes() -> dict[str, int]:
    """What curses has for each code of ECMA-48 that `render.colour_text` uses."""
    attributes = {"1": curses.A_BOLD, "2": curses.A_DIM}
    if curses.has_colors():
        curses.use_default_colors()
        for number in range(1, 8):
            curses.init_pair(number, number, -1)
            attributes[str(30 + number)] = curses.color_pair(number)
    return attributes
