"""Text and tables as a terminal of some width shows them, and a pipe."""

from __future__ import annotations

import os
import pty
import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from vitald.cli import render

WIDE = "訓練プロセス"  # a character takes two columns


@pytest.mark.parametrize("columns", [40, 80])
def test_long_lines_are_broken_between_words(columns: int) -> None:
    text = " ".join(f"word{number}" for number in range(60))
    for line, hang in (
        (f"      line   {text}", 13),
        (f"      and    {text}", 13),
        (f"  not present: {text}", 6),
        (text, 4),
    ):
        parts = [*render.fold_line(line, columns)]
        assert max(map(len, parts)) <= columns
        assert " ".join(" ".join(parts).split()) == " ".join(line.split())
        assert {len(part) - len(part.lstrip()) for part in parts[1:]} == {hang}
    table = "gpu           model  serial"
    assert [*render.fold_line(table, 80)] == [table]
    coloured = f"\x1b[1m{'x' * 70}\x1b[0m yy"
    assert [*render.fold_line(coloured, 80)] == [coloured]  # what colours take is not seen
    assert [*render.fold_line("x" * 200, 80)] == ["x" * 200]  # an address can be copied


@pytest.mark.parametrize("columns", [1, 20, 41])
def test_wide_characters_take_two_columns(columns: int) -> None:
    assert render.count_columns(f"\x1b[1m{WIDE}\x1b[0m e\u0301") == 14
    parts = [*render.fold_line(WIDE * 20, columns)]
    assert "".join(parts) == WIDE * 20
    assert max(map(render.count_columns, parts)) <= max(2, columns)
    coloured = [*render.fold_line(f"\x1b[2m{WIDE * 20}\x1b[0m", columns)]
    assert "".join(coloured) == f"\x1b[2m{WIDE * 20}\x1b[0m"
    assert [part.count("\x1b") for part in coloured] == [part.count("m") for part in coloured]
    cut = render.cut_text(WIDE * 20, columns)
    assert cut.endswith("…")
    assert render.count_columns(cut) <= columns


def test_a_time_has_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local, and with the date unless it is today."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        now = datetime.now(timezone.utc)
        for seconds, age in ((-300, "5 min ago"), (300, "in 5 min"), (-86400 * 3, "3 d ago")):
            moment = now + timedelta(seconds=seconds + 0.1)
            local = moment + timedelta(hours=9)
            is_today = local.date() == (datetime.now(timezone.utc) + timedelta(hours=9)).date()
            clock = local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
            assert render.describe_time(moment.isoformat()) == f"{clock} ({age})"
        assert render.describe_time(None) == "never"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_only_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert (render.colour_text("x", "red") != "x") == coloured
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert render.colour_text("x", "red") == "x"


def test_a_terminal_gets_them_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb", 0) as screen:
        monkeypatch.setattr("sys.stdout", terminal)
        render.print_line("  not present: " + "neuron (no Neuron device on PCI), " * 5)
        terminal.flush()
        lines = screen.read(1 << 16).decode().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("columns", "lines"), [(24, 6), (80, 3)])
def test_a_table_is_whole_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, lines: int
) -> None:
    """Cells without room on their line follow on further ones; colours take none."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    rows = [
        ("gpu/0", "\x1b[1mUNFIT\x1b[0m", "", "7"),
        ("nvswitch/1", "fit", "GPU 0, serial 1", "12"),
    ]
    shown = [*render.format_table(("component", "is", "device", "n"), rows, right=(3,))]
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown]
    assert (len(plain), max(map(len, plain)) <= columns) == (lines, True), plain
    cells = [cell for row in (("component", "is", "device", "n"), *rows) for cell in row]
    assert " ".join(plain).split() == re.sub(r"\x1b\[[0-9;]*m", "", " ".join(cells)).split()


def test_the_number_of_an_xid_is_never_cut() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    for columns in range(-10, 100):
        assert render.cut_line(line, columns).startswith(line[:48])


def test_a_pipe_gets_them_whole(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_line("word " * 100)
    assert capsys.readouterr().out.count("\n") == 1
