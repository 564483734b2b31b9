"""What a person sees on a terminal: each verb fits it, marks what is simulated and no more, shows how
far long work is, and redraws a status in place.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.system.lines import FALLEN, xid
from tests.system.test_cli_waits import pretender
from tests.terminal import Terminal, show_on_terminal
from vitald.cli.render import count_columns
from vitald.simulator.simulated_node import SimulatedNode

WIDE = "訓練プロセス"  # each character takes two columns
HOSTILE = "\x1b[2J\x1b[1;1Hhealthy\u202e"
ASKING = (
    *("gpus", "components", "components --all", "status", "check", "findings", "why", "events"),
    *("findings --cleared", "expect", "diag list"),
)
OFFLINE = (
    *("explain xid/79", "explain nvml", "version", "--help", "scan {log}", "replay {ledger}"),
    *("config check --config {config}", "recovery status --config {config}", "notify show"),
    *(f"{verb} --help" for verb in ("status", "events", "scan", "config", "diag run", "report")),
)
PLAIN = {"NO_COLOR": "1"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Of its GPUs one is lost, one waits for a reset and one has an accepted finding."""
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    folder = tmp_path_factory.mktemp("terminal")
    gpus = SimulatedNode(folder / "gpus", "h100")
    with Node(folder / "node", gpus=gpus) as node:
        node.wait(lambda status: status["status"] == "healthy")
        gpus.set_values(2, {"remap": "0 1 1 0"})
        gpus.lose(5)
        pci = [address.rpartition(".")[0] for address in gpus.addresses]
        hostile = xid(2, code=13, pci=pci[3], message="Graphics SM Warp Exception")
        node.write(xid(1, pci=pci[5]), hostile.replace("python3", HOSTILE))
        wanted = {"nvml/row_remap_pending", "xid/79", "xid/13"}
        node.wait(lambda status: wanted <= {str(found["code"]) for found in list_findings(status)})
        (minor,) = (found["id"] for found in node.findings() if found["code"] == "xid/13")
        reason = f"{WIDE} {WIDE * 8} " * 4
        done = node.cli("accept", str(minor), "--for", "1d", "--reason", reason)
        assert done.returncode == 0, done.stderr
        yield node


def list_findings(status: Json) -> list[Json]:
    return cast("list[Json]", status["findings"])


def show(node: Node, command: str, columns: int = 80) -> list[str]:
    paths = {"log": node.log, "ledger": node.state / "ledger.db", "config": node.config}
    words = [word.format(**paths) for word in command.split()]
    if command in ASKING:
        words += ["--socket", str(node.socket)]
    return show_on_terminal(*words, columns=columns, **PLAIN).rstrip("\n").split("\n")


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", [*ASKING, *OFFLINE])
def test_no_line_is_wider_than_the_terminal(node: Node, command: str, columns: int) -> None:
    """With wide characters, too; and nothing moves the cursor."""
    if columns < 80 and command.endswith("--help"):
        pytest.skip("argparse breaks no list of choices")
    lines = show(node, command, columns)
    assert any(lines)
    assert "Traceback" not in "\n".join(lines)
    for line in lines:
        # A path is not broken, so that it can be copied.
        is_one_path = len(line.split()) <= 2 and "/" in line
        assert count_columns(line) <= columns or is_one_path, line
        assert not set(line) & {"\x1b", "\u202e"}, line


@pytest.mark.core
def test_what_matters_is_there_at_80_columns(node: Node) -> None:
    """The GPU's number beside its address, how it is, and why."""
    gpus = cast("list[Json]", node.get("/v1/gpus")["gpus"])
    lost = str(gpus[5]["pci"])
    _, titles, *rows = show(node, "gpus")
    assert re.split("  +", titles) == [
        *("gpu", "pci", "temp", "power", "memory", "ecc unc", "remap", "nvlink", "status")
    ]
    assert [row.split()[:2] for row in rows[: len(gpus)]] == [
        [str(number), str(gpu["pci"])] for number, gpu in enumerate(gpus)
    ]
    reason = "GPU has fallen off the bus  xid/79"
    assert any(row.startswith(f"  GPU 5 {lost}: {reason}  #") for row in rows)
    components = show(node, "components")
    place = next(n for n, line in enumerate(components) if line.startswith(f"gpu/{lost}"))
    assert re.search("UNHEALTHY  SIMULATED ", components[place])
    assert not any("SIMULATED" in line for line in components if line.startswith("nvswitch/"))
    assert components[place + 1].startswith("    GPU 5, serial ")
    assert components[place + 2].startswith(f"    {reason}  #")
    accepted = [row for row in rows if " (accepted): " in row]
    assert [row.startswith(f"  GPU 3 {gpus[3]['pci']}: ") for row in accepted] == [True]
    for verb in ("status", "findings", "why"):
        assert any(f"gpu/{lost} (GPU 5)" in line for line in show(node, verb)), verb


def test_a_time_has_its_age_beside_it(node: Node) -> None:
    """On one line or broken between the two."""
    for verb, least in (("status", 2), ("findings", 4), ("why", 4)):
        lines = [line for line in show(node, verb) if not re.match(r" +line |    \d{4}-", line)]
        text = " ".join(" ".join(lines).split())
        clocks = re.findall(r"\d\d:\d\d:\d\d(.{9})", text)
        assert len(clocks) >= least, text
        for after in clocks:
            assert re.match(r" \((in )?\d+ ", after), (verb, after, text)


def test_a_pipe_gets_whole_lines(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever COLUMNS says: readline sets it for all children of a shell."""
    monkeypatch.setenv("COLUMNS", "40")
    assert f"name=python3, {FALLEN}" in node.cli("findings").stdout


def test_a_drill_marks_its_own_rows(make_node: Callable[..., Node]) -> None:
    """A real finding beside it keeps its own."""
    node = make_node()
    node.start()
    node.write(xid(1, code=79, pci="0000:65:00"))
    node.wait(lambda status: status["openFindings"] == 1)
    drill = f"drill xid 48 --device 0000:66:00.0 --config {node.config} --socket {node.socket}"
    said = show_on_terminal(*drill.split(), columns=80, **PLAIN)
    assert said.startswith("written: ")
    assert max(map(len, said.splitlines())) <= 80
    node.wait(lambda status: status["openFindings"] == 2)
    for verb in ("status", "findings"):
        lines = show(node, verb)
        marked = {line for line in lines if "SIMULATED" in line}
        assert {"gpu/0000:66:00.0" in line for line in marked} == {True}, (verb, lines)
    assert show(node, "status")[0].endswith(", partly simulated")


# --- progress


def test_a_long_scan_shows_how_far_it_is(tmp_path: Path) -> None:
    """On one line, which is gone when something else is printed."""
    saved = tmp_path / "kernel.log"
    os.mkfifo(saved)
    with Terminal("scan", str(saved), **PLAIN) as terminal:
        with saved.open("w") as file:
            file.write("[    1.000000] usb 1-1: new device\n" * 10_000)
            file.flush()
            terminal.wait_for(lambda: "scan: 10000 lines read, " in terminal.written)
            assert terminal.screen[0].startswith("scan: 10000 lines read, ")
            file.write(f"[    2.000000] {xid(1)}\n")
        assert terminal.wait_for_end() == 20
        assert terminal.screen[0] == f"   10001  xid/79             {xid(1)[:50]}…"
        assert terminal.screen[1] == ""  # that was one line
        assert "lines read" not in "\n".join(terminal.screen)


@pytest.mark.parametrize(
    ("options", "part"), [((), "status.json, "), (("--html",), "the answers of the daemon, ")]
)
def test_a_long_report_shows_what_it_waits_for(
    tmp_path: Path, options: tuple[str, ...], part: str
) -> None:
    with pretender(tmp_path / "sock", lambda client: None) as silent:
        command = ("report", "--socket", str(silent), "--timeout", "600", *options)
        with Terminal(*command, "--output", str(tmp_path), **PLAIN) as terminal:
            terminal.wait_for(lambda: f"report: {part}" in terminal.written)
            terminal.press("\x03")
            assert terminal.wait_for_end() == 130
            assert "report: " not in "\n".join(terminal.screen)


def test_a_demo_shows_what_comes_next(node: Node) -> None:
    with Terminal("demo", "--pause", "3600", rows=60, **PLAIN) as terminal:
        terminal.wait_for(lambda: "next: 2. A GPU runs hot, " in terminal.written)
        terminal.press("\x03")
        assert terminal.wait_for_end() == 130


@pytest.mark.parametrize("takes", ["pipe", "file"])
def test_a_pager_is_left_alone(tmp_path: Path, takes: str) -> None:
    """It draws on the same terminal; a file does not."""
    saved, output = tmp_path / "kernel.log", tmp_path / "output"
    os.mkfifo(saved)
    reader, writer = os.pipe()
    with output.open("wb") as file:
        stdout = writer if takes == "pipe" else file.fileno()
        with Terminal("scan", str(saved), stdout=stdout, **PLAIN) as terminal:
            with saved.open("w") as log:
                log.write("[    1.000000] usb 1-1: new device\n")
                log.flush()
                if takes == "file":
                    terminal.wait_for(lambda: "scan: " in terminal.written)
                time.sleep(1.0)  # in a pipe, progress would have begun
            assert terminal.wait_for_end() == 0
            assert ("scan: " in terminal.written) == (takes == "file")
    os.close(reader)
    os.close(writer)


# --- a watched status


@pytest.fixture
def watched(node: Node) -> Iterator[Terminal]:
    command = ("status", "--watch", "0.2", "--socket", str(node.socket))
    with Terminal(*command, rows=24) as terminal:
        terminal.wait_for(lambda: "q ends" in terminal.screen[-1])
        yield terminal


@pytest.mark.core
@pytest.mark.parametrize(("key", "code"), [("q", 20), ("\x03", 130)])
def test_a_watched_status_is_redrawn_in_place(watched: Terminal, key: str, code: int) -> None:
    """On a screen of its own, which is left at the end."""
    shown = watched.screen
    assert "UNHEALTHY  reboot required" in shown[0]
    assert re.fullmatch(r"… \d+ more lines: vitald status; \d\d:\d\d:\d\d; q ends", shown[-1])
    watched.wait_for(lambda: watched.screen[-1] != shown[-1])
    assert watched.screen[0] == shown[0]
    assert "\x1b[?1049h" in watched.written  # xterm's other screen
    assert "\x1b[?1049l" not in watched.written
    watched.press(key)
    assert watched.wait_for_end() == code
    assert "\x1b[?1049l" in watched.written


def test_a_watched_status_follows_the_size(watched: Terminal) -> None:
    watched.resize(60, 12)
    watched.wait_for(lambda: "q ends" in watched.screen[-1])
    watched.resize(100, 60)
    watched.wait_for(lambda: any(re.match(r"\d\d:\d\d:\d\d; q ends", s) for s in watched.screen))
    watched.resize(20, 5)  # the last line is cut, and nothing scrolls
    watched.wait_for(lambda: watched.screen[-1].endswith("…"))
    assert "UNHEALTHY" in watched.screen[0]
    assert watched.process.poll() is None


def test_a_watched_status_has_its_colours(watched: Terminal) -> None:
    assert "\x1b[31m" in watched.written.partition("UNHEALTHY")[0]
    assert HOSTILE not in watched.written


def test_a_watched_status_survives_a_restart(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.start()
    command = ("status", "--watch", "0.2", "--socket", str(node.socket))
    with Terminal(*command, **PLAIN) as terminal:
        terminal.wait_for(lambda: "  HEALTHY" in terminal.screen[0])
        assert "\x1b[32m" not in terminal.written
        node.stop()
        terminal.wait_for(lambda: terminal.screen[0].startswith("UNKNOWN  "))
        assert any("last answer " in line for line in terminal.screen)
        node.start()
        terminal.wait_for(lambda: "  HEALTHY" in terminal.screen[0])


def test_a_status_is_watched_on_a_terminal_only(node: Node) -> None:
    done = node.cli("status", "--watch")
    assert (done.returncode, "vitald events --follow" in done.stderr) == (2, True)
    command = ("status", "--watch", "--socket", str(node.socket))
    for name in ("dumb", "no-such-terminal"):
        with Terminal(*command, TERM=name) as terminal:
            assert terminal.wait_for_end() == 2
            assert "vitald: --watch " in terminal.written
