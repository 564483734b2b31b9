"""How far long work is: a line on a terminal, which makes room for what is printed."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from tests.waiting import until
from vitald.catalog import load_catalog
from vitald.cli import progress, replay
from vitald.cli.progress import WorkProgress, describe_reading
from vitald.scan.opened_log import open_log

CLEARED = "\r\x1b[K"


class TerminalText(io.StringIO):
    """As standard error. Not of a fixture: pytest sets its own before the test begins."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_FIRST_S", 0.001)
    monkeypatch.setattr(progress, "_REPEAT_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")


def test_what_is_printed_stands_on_a_line_of_its_own() -> None:
    with redirect_stderr(TerminalText()) as terminal:
        with WorkProgress(lambda: "reads") as work:
            until(lambda: "reads, 0 s" in terminal.getvalue())
            with work.give_way():
                shown = terminal.getvalue()
                assert shown.endswith(CLEARED)
            until(lambda: len(terminal.getvalue()) > len(shown))
        assert terminal.getvalue().endswith(CLEARED)


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stderr(TerminalText()) as terminal:
        monkeypatch.setattr(progress, "_FIRST_S", 3600.0)
        with WorkProgress(lambda: "reads"):
            pass
        assert terminal.getvalue() == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_is_drawn_where_a_line_cannot_be_redrawn(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    with redirect_stderr(TerminalText()) as terminal:
        monkeypatch.setenv("TERM", "dumb")
        if not is_terminal:
            monkeypatch.setenv("TERM", "xterm")
            terminal.isatty = lambda: False  # type: ignore[method-assign]
        with WorkProgress(lambda: "reads") as work:
            assert not work._thread.is_alive()
        assert terminal.getvalue() == ""


def test_hostile_names_do_not_move_the_cursor() -> None:
    with redirect_stderr(TerminalText()) as terminal:
        with WorkProgress(lambda: "reads \x1b[2J" + "x" * 200):
            until(lambda: "reads " in terminal.getvalue())
        assert "\x1b[2J" not in terminal.getvalue()


def test_a_replay_shows_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stderr(TerminalText()) as terminal:

        def wait_for_progress() -> Iterator[tuple[None, None, None]]:
            yield None, None, None
            until(lambda: "replay: 0 events, " in terminal.getvalue())

        catalog = load_catalog("nvidia")
        pairs = wait_for_progress()
        code = replay._compare_rules(
            argparse.Namespace(json=False, catalog=None, profile=None),
            catalog,
            catalog,
            pairs,
            None,
            device_reset=True,
            until=lambda: 0.0,
            describe=lambda judged: f"{judged} events",
        )
        assert code == 0
        assert terminal.getvalue().endswith(CLEARED)


def test_how_much_of_a_file_was_read(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.write_bytes(b"x" * 4_000_000)
    with open_log(str(path)) as opened:
        opened.stream.read(100)
        assert 0.0 < (opened.measure_share() or 0.0) < 0.5
        opened.stream.read()
        assert opened.measure_share() == 1.0
    path.write_bytes(b"")
    with open_log(str(path)) as opened:
        assert opened.measure_share() is None
    assert describe_reading(1, None) == "1 line read"
    assert describe_reading(12000, 0.455) == "12000 lines read (46%)"
