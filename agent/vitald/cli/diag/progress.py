"""The progress of a run: one line, redrawn on a terminal; elsewhere a line for each change."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from vitald.cli import render
from vitald.cli.diag.views import format_duration, format_name
from vitald.cli.progress import clear_line, draw_line

if TYPE_CHECKING:
    from vitald.server import schema

_BAR_COLUMNS = 24
_REPEAT_S = 60.0


class Progress:
    """Shows the progress of a run. `quiet`: nothing if `to` is no terminal."""

    def __init__(self, to: TextIO, *, quiet: bool = False) -> None:
        self._to = to
        self._drawn = render.can_redraw(to)
        self._silent = quiet and not self._drawn
        self._shown = ""
        self._shown_at = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            clear_line(self._to)

    def show_run(
        self, run: schema.ActiveDiagnostic, behind: schema.ActiveDiagnostic | None = None
    ) -> None:
        """`behind`: the run that it waits for, if any."""
        if self._silent:
            return
        name = format_name(run)
        if run["stage"] == "waiting":
            waits_for = render.escape_text(run["waitsFor"])
            if not waits_for:
                waits_for = f"{format_name(behind)} to end" if behind is not None else "its turn"
            since = f", {render.format_age(run['requestedAt'])} so far"
            self.show_line(f"{name} waits for {waits_for}", since=since)
            return
        is_ending = run["stage"] == "ending"
        test = f", {render.escape_text(run['test'])}" if run["test"] else ""
        passed = format_time(run["elapsed"], run["expected"])
        if self._drawn:
            ending = ", is told to end" if is_ending else ""
            bar = draw_bar(run["elapsed"], run["expected"])
            self.show_line(f"{name} {bar} {passed}{ending}{test}")
        else:
            self.show_line(f"{name} {'ends' if is_ending else 'runs'}{test}", since=f", {passed}")

    def show_line(self, line: str, since: str = "") -> None:
        """`since` changes all the time: it alone is no reason for another line."""
        if self._drawn:
            draw_line(self._to, line + since)
            return
        news, now = re.sub(r"\d+", "", line), time.monotonic()
        if not self._silent and (news != self._shown or now - self._shown_at >= _REPEAT_S):
            self._shown, self._shown_at = news, now
            self._to.write(f"{line}{since}\n")
            self._to.flush()


def draw_bar(elapsed: float, expected: float) -> str:
    """At most 99 %: a run that takes longer than expected is not shown as ended."""
    share = min(elapsed / expected, 0.99) if expected > 0 else 0.0
    done = int(share * _BAR_COLUMNS)
    return f"[{'#' * done}{'.' * (_BAR_COLUMNS - done)}] {share:4.0%}"


def format_time(elapsed: float, expected: float) -> str:
    if expected <= 0:
        return format_duration(elapsed)
    if elapsed <= expected:
        return f"{format_duration(elapsed)} of about {format_duration(expected)}"
    return f"{format_duration(elapsed)}, usually {format_duration(expected)}"
