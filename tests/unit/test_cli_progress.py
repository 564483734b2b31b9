"""The line of progress of long work, which shares a terminal with what the work prints."""

from __future__ import annotations

import io
import time

import pytest

from tests.harness import Node
from vitald.cli import progress
from vitald.cli.progress import WorkProgress


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_into_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line drawn between the clearing and the printing would stay before the printed text."""
    terminal = TerminalText()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_FIRST_S", 0.001)
    monkeypatch.setattr(progress, "_REPEAT_S", 0.001)
    with WorkProgress(lambda: "work") as work:
        Node.until(lambda: "work, 0 s" in terminal.getvalue(), 10.0, "its first line")
        with work.give_way():
            assert terminal.getvalue().endswith("\r\x1b[K")
            before = terminal.getvalue()
            time.sleep(0.05)  # fifty times its period
            assert terminal.getvalue() == before
        Node.until(lambda: len(terminal.getvalue()) > len(before), 10.0, "its next line")
    assert terminal.getvalue().endswith("\r\x1b[K")
