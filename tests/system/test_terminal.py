"""What a person sees: every verb fits the terminal, and a status that is watched is redrawn in
place.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import PYTHON, ROOT, Json, Node
from tests.pace import patient
from tests.terminal import HOME, Terminal, remove_sequences, run_on_terminal
from vitald.cli.layout import count_columns
from vitald.simulator.node import SimulatedNode

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"
WIDE = "\u8a13\u7df4\u30d7\u30ed\u30bb\u30b9"  # characters of two columns
HOSTILE = "\x1b[2J\x1b[1;1Hhealthy\u202e"
LINE = "NVRM: Xid (PCI:{pci}): {code}, pid=1234, name={name}, {text}"
ASKING = (
    "gpus",
    "components",
    "components --all",
    "status",
    "check",
    "findings",
    "findings --cleared",
    "why",
    "events",
    "expect",
    "diag list",
)
OFFLINE = (
    "explain xid/79",
    "explain nvml",
    "version",
    "--help",
    *(f"{verb} --help" for verb in ("status", "events", "scan", "config", "diag run", "report")),
    "scan {log}",
    "replay {ledger}",
    "config check --config {config}",
    "recovery --config {config}",
)


@pytest.fixture(scope="module", params=[8, 16])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """Of its GPUs one is lost, one is hot and one waits for a reset."""
    require(shutil.which("cc") or shutil.which("gcc"), "a C compiler")
    folder = tmp_path_factory.mktemp("terminal")
    gpus = SimulatedNode(folder / "gpus", "h100", gpus=request.param)
    with Node(folder / "node", gpus=gpus) as node:
        node.wait(lambda status: status["status"] == "healthy", 15.0)
        gpus.set_values(2, {"remap": "0 1 1 0"})
        gpus.lose(5)
        pci = [address.rpartition(".")[0] for address in gpus.addresses]
        node.write(
            LINE.format(pci=pci[5], code=79, name="python3", text="GPU has fallen off the bus."),
            LINE.format(pci=pci[3], code=13, name=HOSTILE, text="Graphics SM Warp Exception"),
        )
        wanted = {"nvml/row_remap_pending", "xid/79", "xid/13"}
        node.wait(lambda status: wanted <= {str(one["code"]) for one in _list(status)}, 20.0)
        (minor,) = (one["id"] for one in node.findings() if one["code"] == "xid/13")
        done = node.cli("accept", str(minor), "--for", "1d", "--reason", f"{WIDE} {WIDE * 8} " * 4)
        assert done.returncode == 0, done.stderr
        yield node


def _list(status: Json) -> list[Json]:
    return cast("list[Json]", status["findings"])


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(node: Node, columns: int) -> None:
    """Not with wide characters in a process's name either, and nothing moves the cursor."""
    for command in ASKING:
        lines = run_on_terminal(*command.split(), "--socket", str(node.socket), columns=columns)
        _check_lines(command, lines, columns)
    paths = {"log": node.log, "ledger": node.state / "ledger.db", "config": node.config}
    for command in OFFLINE:
        if columns < 80 and command.endswith(" --help"):
            continue  # argparse breaks no list of choices
        words = [word.format(**paths) for word in command.split()]
        _check_lines(command, run_on_terminal(*words, columns=columns), columns)


def _check_lines(command: str, lines: list[str], columns: int) -> None:
    assert any(lines), command
    assert "Traceback" not in "".join(lines), command
    for line in lines:
        # A word that is too long stays whole, so that a path can be copied.
        is_whole_word = len(line.split()) <= 2 and "/" in line
        assert count_columns(line) <= columns or is_whole_word, (command, columns, line)
        assert "\x1b" not in line and "\u202e" not in line, (command, line)


def test_what_matters_is_there_at_80_columns(node: Node) -> None:
    """The number beside the address, how it is, and why."""
    gpus = cast("list[Json]", node.get("/v1/gpus")["gpus"])
    lost = str(gpus[5]["pci"])
    titles, *rows = run_on_terminal("gpus", "--socket", str(node.socket))[1:]
    assert titles.split() == [
        *("gpu", "pci", "temp", "power", "memory", "ecc", "unc", "remap", "nvlink", "status")
    ]
    assert [row.split()[:2] for row in rows[: len(gpus)]] == [
        [str(number), str(gpu["pci"])] for number, gpu in enumerate(gpus)
    ]
    assert any(
        row.startswith(f"  gpu 5 {lost}: ") and "GPU has fallen off the bus" in row for row in rows
    )
    components = run_on_terminal("components", "--kind", "gpu", "--socket", str(node.socket))
    at = next(
        number
        for number, line in enumerate(components)
        if line.startswith(f"gpu/{lost} (gpu 5)") and "UNHEALTHY" in line
    )
    reasons = components[at + 1 : at + 3]
    assert any("GPU has fallen off the bus  xid/79" in reason for reason in reasons)
    for verb in ("status", "findings", "why", "events"):
        shown = run_on_terminal(verb, "--socket", str(node.socket))
        assert f"gpu/{lost} (gpu 5)" in "\n".join(shown), verb


def test_a_wide_terminal_gets_every_column(node: Node) -> None:
    shown = run_on_terminal("gpus", "--socket", str(node.socket), columns=220)
    assert {"model", "serial", "util", "pcie"} <= {*shown[1].split()}


def test_a_pipe_gets_whole_lines_whatever_columns_says(node: Node) -> None:
    command = [PYTHON, "-m", "vitald", "findings", "--socket", str(node.socket)]
    named = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(command, cwd=ROOT, env=named, capture_output=True, text=True)
    assert "pid=1234, name=python3, GPU has fallen off the bus." in done.stdout


# --- progress


def test_long_work_shows_how_far_it_is(tmp_path: Path) -> None:
    """On a terminal one line, which is gone at the end; in a pipe nothing."""
    saved = tmp_path / "kernel.log"
    fault = LINE.format(pci="0000:65:00", code=79, name="python3", text="GPU has fallen off")
    plain = "".join(f"[{number}.000000] usb 1-1: new device\n" for number in range(400_000))
    saved.write_text(f"{plain}[400000.000000] {fault}\n")
    with Terminal("scan", str(saved)) as terminal:
        terminal.wait_for(" lines read, ", 60.0)
        assert terminal.wait_for_end(60.0) == 20
        _, _, after = terminal.shown.rpartition(" lines read, ")
    assert "\r\x1b[K" in after and "xid/79" in after
    lines = remove_sequences(after).replace("\r", "\n").split("\n")
    assert all(count_columns(line) <= 80 for line in lines)
    command = [PYTHON, "-m", "vitald", "scan", str(saved)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stderr, "lines read" in done.stdout) == ("", False)


# --- watched


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_watched_status_is_redrawn_in_place(node: Node, number: int, code: int) -> None:
    """On the other screen, which is left however it ends."""
    options = ("--watch", "0.2", "--socket", str(node.socket))
    with Terminal("status", *options) as terminal:
        terminal.wait_for("UNHEALTHY")
        assert terminal.shown.startswith(ENTER)
        _wait_for_frames(terminal, 3)
        assert len(terminal.frame) == 24
        assert all(count_columns(line) <= 80 for line in terminal.frame)
        assert "more lines: vitald status" in terminal.frame[-1]
        # Each frame replaces the one before: nothing is cleared first, nothing scrolls.
        assert terminal.shown.count("\x1b[2J") == 1
        if number == signal.SIGINT:
            terminal.press(b"\x03")
        else:
            terminal.process.send_signal(number)
        assert terminal.wait_for_end() == code
        assert terminal.shown.endswith(LEAVE)


def test_a_watched_status_follows_the_size(node: Node) -> None:
    """At once: the next frame is an hour away."""
    with Terminal("status", "--watch", "3600", "--socket", str(node.socket)) as terminal:
        terminal.wait_for("more lines")
        terminal.forget()
        terminal.resize(60, 12)
        terminal.wait_for("more lines")
        frame = terminal.shown.split(HOME)[-1]
        assert len(terminal.frame) == 12
        assert all(count_columns(line) <= 60 for line in terminal.frame), frame


def test_a_watched_status_survives_a_restart(tmp_path: Path) -> None:
    with Node(tmp_path / "node") as node:
        node.wait(lambda status: status["status"] == "healthy", 10.0)
        options = ("--watch", "0.2", "--socket", str(node.socket))
        with Terminal("status", *options, columns=100, rows=40) as terminal:
            terminal.wait_for("HEALTHY")
            node.stop()
            terminal.wait_for("waiting for the daemon, its last answer was at")
            terminal.forget()
            node.start()
            terminal.wait_for("the daemon was restarted at")
            assert "HEALTHY" in terminal.shown


def test_a_stopped_watch_gives_the_screen_back(node: Node) -> None:
    """Ctrl-Z, then fg."""
    with Terminal("status", "--watch", "0.2", "--socket", str(node.socket)) as terminal:
        _wait_for_frames(terminal, 2)
        terminal.press(b"\x1a")
        terminal.wait_for(LEAVE)
        _wait_until_stopped(terminal.process.pid)
        terminal.forget()
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(ENTER)
        _wait_for_frames(terminal, 2)


def test_a_pipe_gets_one_status_below_the_other(node: Node) -> None:
    command = [PYTHON, "-m", "vitald", "status", "--watch", "0.1", "--socket", str(node.socket)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        heads = 0
        for line in running.stdout:
            assert "\x1b" not in line
            heads += "UNHEALTHY" in line
            if heads == 3:
                break
        running.stdout.close()
        assert running.wait(patient(10.0)) == 141  # as its reader has gone


def _wait_until_stopped(pid: int) -> None:
    until = time.monotonic() + patient(10.0)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until
        time.sleep(0.01)


def _wait_for_frames(terminal: Terminal, count: int) -> None:
    until = time.monotonic() + patient(10.0)
    while terminal.read().count(HOME) < count + 1:
        assert time.monotonic() < until, terminal.shown[-1000:]
