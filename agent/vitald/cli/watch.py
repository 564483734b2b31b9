"""`vitald status --watch`: the status again and again, in place on a terminal, one below the other
elsewhere. A daemon that ends or restarts is shown, and waited for.

The control sequences are those of ECMA-48 and, for the alternate screen, of xterm (ctlseqs.html).
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from vitald.cli import client, layout, render
from vitald.cli.gpu_numbers import number_gpus, read_gpu_numbers

if TYPE_CHECKING:
    from vitald.server import schema

FormatStatus = Callable[["schema.NodeStatus"], Iterable[str]]

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def watch_status(
    arguments: argparse.Namespace, interval: float, format_status: FormatStatus
) -> NoReturn:
    """Never returns: it ends by Ctrl-C, by a signal, or when its output is closed. `interval`: in
    seconds.
    """
    watched = _Watched(arguments, format_status)
    if not (sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        _append_for_ever(watched, interval)
    with Screen() as screen:
        while True:
            screen.draw(watched.format_frame())
            if screen.wait(interval):
                continue
            watched.read()


def _append_for_ever(watched: _Watched, interval: float) -> NoReturn:
    while True:
        for line in (*watched.format_frame(), ""):
            render.print_line(line)
        sys.stdout.flush()
        time.sleep(interval)
        watched.read()


class _Watched:
    """The last answer of the daemon, and what became of the daemon meanwhile."""

    def __init__(self, arguments: argparse.Namespace, format_status: FormatStatus) -> None:
        self._arguments = arguments
        self._format_status = format_status
        self._status: schema.NodeStatus | None = None
        self._numbers: dict[str, int] = {}
        self._error = ""
        self._answered_at = ""
        self._started_at = ""
        self._restarts = 0
        self.read()

    def read(self) -> None:
        try:
            self._status = status = client.read_status(self._arguments)
        except (client.NoAnswer, client.DaemonRefused) as error:
            self._error = str(error)
            return
        self._error = ""
        self._answered_at = time.strftime("%H:%M:%S")
        started_at = str(status["startedAt"])
        if started_at != self._started_at:
            self._restarts += bool(self._started_at)
            self._started_at = started_at
            self._numbers = {}
        if not self._numbers:  # they stay the same while the driver is loaded
            self._numbers = read_gpu_numbers(self._arguments)
        number_gpus(status, self._numbers)

    def format_frame(self) -> Iterator[str]:
        now = time.strftime("%H:%M:%S")
        if self._error:
            unknown = render.colour_status("unknown")
            yield f"{unknown}  {render.escape_text(self._error)}"
            last = f"its last answer was at {self._answered_at}" if self._answered_at else ""
            yield f"  {now}: waiting for the daemon{', ' + last if last else ''}"
            return
        assert self._status is not None
        yield from self._format_status(self._status)
        again = ""
        if self._restarts:
            since = render.format_time(self._started_at)
            times = "" if self._restarts == 1 else f", {self._restarts} times in all"
            again = f"; the daemon was restarted at {since}{times}"
        yield render.colour_text(f"  {now}{again}; Ctrl-C ends", "dim")


class Screen:
    """The terminal's other screen, for as long as the context lasts.

    Owns     the terminal's screen and cursor, and the handlers of the signals below.
    """

    def __init__(self) -> None:
        self._woken_by, self._wake = os.pipe()
        self._before: dict[int, object] = {}
        self._must_stop = False

    def __enter__(self) -> Screen:
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        handlers = {
            signal.SIGWINCH: _ignore,
            signal.SIGTERM: _end,
            signal.SIGHUP: _end,
            signal.SIGTSTP: self._stop,
        }
        for number, handler in handlers.items():
            self._before[number] = signal.signal(number, handler)
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_LEAVE)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._woken_by)

    def draw(self, lines: Iterable[str]) -> None:
        """One write for the whole screen: a line is replaced, never cleared first."""
        columns, rows = _read_size()
        shown = cut_rows(list(_fold_lines(lines, columns)), rows, columns)
        # Behind a full line the cursor is still on its last character, which would be cleared.
        body = "\r\n".join(
            line if layout.count_columns(line) >= columns else f"{line}{_END_OF_LINE}"
            for line in shown
        )
        below = f"\r\n{_BELOW}" if len(shown) < rows else ""
        self._write(f"{_HOME}{body}{below}")

    def wait(self, seconds: float) -> bool:
        """Whether a signal ended the wait, such as the one for another size."""
        ready, _, _ = select.select([self._woken_by], [], [], seconds)
        if ready:
            os.read(self._woken_by, 1024)
        if self._must_stop:
            self._must_stop = False
            self._write(_LEAVE)  # the shell gets its own screen back
            os.kill(os.getpid(), signal.SIGSTOP)
            self._write(_ENTER)
        return bool(ready)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z. Not at once: a write may be under way."""
        self._must_stop = True

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _read_size() -> tuple[int, int]:
    """Columns and rows now: COLUMNS and LINES are those of the start."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = 0, 0
    return columns or layout.get_width(), rows or shutil.get_terminal_size((80, 24)).lines


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The wait has ended: that is enough."""


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _fold_lines(lines: Iterable[str], columns: int) -> Iterator[str]:
    """No line is wider than the screen, and nothing in it moves the cursor."""
    for line in lines:
        yield from layout.fold_line(_escape_controls(line), columns, break_words=True)


def _escape_controls(line: str) -> str:
    """What stands between the colours was escaped where it was formatted; here once more, because
    a cursor that moves would change what other lines seem to say.
    """
    parts = _COLOUR.split(line)
    parts[::2] = map(render.escape_text, parts[::2])
    return "".join(parts)


def cut_rows(lines: Sequence[str], rows: int, columns: int) -> Sequence[str]:
    """At most so many lines, the last of them says how many more there are."""
    if len(lines) <= rows:
        return lines
    left = f"… {len(lines) - rows + 1} more lines: vitald status"
    return [*lines[: rows - 1], layout.cut_text(left, columns)]
