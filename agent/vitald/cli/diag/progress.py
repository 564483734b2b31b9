"""
How far a run is: one line that is drawn over on a terminal, a line for each change elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from vitald.cli import render
from vitald.cli.diag.views import format_duration, format_name

if TYPE_CHECKING:
    from vitald.server import schema

_BAR_COLUMNS = 24
_REPEAT_S = 60.0


class Progress:
    """`quiet`: nothing where there is no terminal, since what is printed there is read by a
    program.
    """

    def __init__(self, to: TextIO, *, quiet: bool = False) -> None:
        self._to = to
        self._drawn = to.isatty() and os.environ.get("TERM") != "dumb"
        self._silent = quiet and not self._drawn
        self._told = ""
        self._told_at = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            self._to.write("\r\033[K")
            self._to.flush()

    def show_run(
        self, going: schema.DiagnosticGoing, behind: schema.DiagnosticGoing | None = None
    ) -> None:
        """`behind`: the run that it waits for, if it is that."""
        if self._silent:
            return
        what, waits_for = format_name(going), render.escape_text(going["waitsFor"])
        elapsed, expected = going["elapsed"], going["expected"]
        if going["stage"] == "waiting":
            waits_for = waits_for or (
                f"{format_name(behind)} to end" if behind is not None else "its turn"
            )
            self.show_line(
                f"{what} waits for {waits_for}",
                since=f", {render.format_age(going['askedAt'])} so far",
            )
            return
        state = "ends" if going["stage"] == "ending" else "runs"
        test = f", {render.escape_text(going['test'])}" if going["test"] else ""
        passed = format_time(elapsed, expected)
        if self._drawn:
            self.show_line(
                f"{what} {draw_bar(elapsed, expected)}"
                f" {passed}{', is told to end' if state == 'ends' else ''}{test}"
            )
        else:
            self.show_line(f"{what} {state}{test}", since=f", {passed}")

    def show_line(self, line: str, since: str = "") -> None:
        """`since` changes all the time, and is no news by itself."""
        if self._drawn:
            self._to.write(
                f"\r{render.cut_text(line + since, max(10, shutil.get_terminal_size((80, 24)).columns - 1))}\033[K"
            )
            self._to.flush()
            return
        news, now = re.sub(r"\d+", "", line), time.monotonic()
        if not self._silent and (news != self._told or now - self._told_at >= _REPEAT_S):
            self._told, self._told_at = news, now
            self._to.write(f"{line}{since}\n")
            self._to.flush()


def draw_bar(elapsed: float, expected: float) -> str:
    """Full only when it has ended: what takes longer than it usually does stays just below."""
    share = min(elapsed / expected, 0.99) if expected > 0 else 0.0
    done = int(share * _BAR_COLUMNS)
    return f"[{'#' * done}{'.' * (_BAR_COLUMNS - done)}] {share:4.0%}"


def format_time(elapsed: float, expected: float) -> str:
    if expected <= 0:
        return format_duration(elapsed)
    return (
        f"{format_duration(elapsed)} of about {format_duration(expected)}"
        if elapsed <= expected
        else f"{format_duration(elapsed)}, usually {format_duration(expected)}"
    )
