"""One line of progress on a terminal, redrawn; nothing elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from vitald.cli import layout, render

_FIRST_S, _REPEAT_S = 0.5, 0.25  # what is short shows nothing


def can_redraw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def draw_line(stream: TextIO, line: str) -> None:
    """Instead of what the line of the cursor shows."""
    columns = max(10, shutil.get_terminal_size((80, 24)).columns - 1)
    stream.write(f"\r{layout.cut_text(render.escape_text(line), columns)}\x1b[K")
    stream.flush()


def clear_line(stream: TextIO) -> None:
    stream.write("\r\x1b[K")
    stream.flush()


class WorkProgress:
    """Shows on standard error how far the work of its context has come.

    Owns     the thread that draws, while the context lasts.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        """`describe`: what is being done and how far it is, called from another thread."""
        self._describe = describe
        self._began = time.monotonic()
        self._is_drawn = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_until_ended, daemon=True)

    def __enter__(self) -> WorkProgress:
        if can_redraw(sys.stderr):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._clear()

    @contextmanager
    def give_way(self) -> Iterator[None]:
        """No progress is drawn while something else is printed, maybe to the same terminal."""
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
