"""How far long work has come: one line on a terminal, redrawn and cleared; nothing elsewhere."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

from vitald.cli import render
from vitald.text import count_noun

_FIRST_S, _REPEAT_S = 0.5, 0.25  # short work shows nothing


def draw_line(stream: TextIO, line: str) -> None:
    """Draw it over the line of the cursor, cut to the terminal."""
    columns = max(10, shutil.get_terminal_size((80, 24)).columns - 1)
    stream.write(f"\r{render.cut_text(render.escape_text(line), columns)}\033[K")
    stream.flush()


def clear_line(stream: TextIO) -> None:
    stream.write("\r\033[K")
    stream.flush()


def describe_reading(lines: int, share: float | None) -> str:
    """`12000 lines read (45%)`. `share`: of the file, 0 to 1."""
    part = "" if share is None else f" ({share:.0%})"
    return f"{count_noun(lines, 'line')} read{part}"


def _feeds_pipe() -> bool:
    """Whether standard output is a pipe: its reader, such as less, draws on the same terminal."""
    try:
        return stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:  # it is closed
        return False


class WorkProgress:
    """Shows on standard error what its context is doing, and for how long.

    Owns     the thread that draws, while the context lasts.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        """`describe`: what is done and how far it is; called from another thread."""
        self._describe = describe
        self._began = time.monotonic()
        self._is_drawn = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_until_ended, daemon=True)

    def __enter__(self) -> WorkProgress:
        if render.can_redraw(sys.stderr) and not _feeds_pipe():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._clear()

    @contextmanager
    def give_way(self) -> Iterator[None]:
        """Nothing is drawn while something else is printed, perhaps on the same terminal."""
        with self._lock:
            self._clear()
            yield

    def _clear(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            clear_line(sys.stderr)

    def _draw_until_ended(self) -> None:
        seconds = _FIRST_S
        while not self._ended.wait(seconds):
            seconds = _REPEAT_S
            passed = time.monotonic() - self._began
            with self._lock:
                self._is_drawn = True
                draw_line(sys.stderr, f"{self._describe()}, {passed:.0f} s")
