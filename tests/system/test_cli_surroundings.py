"""
Every verb as a bare machine starts it, with nothing in the environment but a path: with the daemon
and without, and with an output that is a pipe which nobody reads, a full disk, or closed. No
traceback, and never exit code 1 or 120, which are Python's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import wait_for_pid, xid
from tests.waiting import WAIT_S
from vitald.cli import VERBS

BARE = {"PATH": "/usr/bin:/bin"}  # PYTHONUNBUFFERED of this machine would hide what is found here
LISTS = {"events", "findings", "why", "gpus", "components", "explain"}
USAGE, NO_INPUT, UNAVAILABLE, IO_ERROR, CONFIG, READER_GONE = 2, 66, 69, 74, 78, 141
ABSENT = "/nonexistent/vitald.sock"


@dataclass(frozen=True)
class Call:
    """How a verb is called, what it ends with on a node that is not fit, and whether that is told
    on standard output.
    """

    words: str
    code: int = 0
    heard: bool = True


ASKS = "--socket SOCKET"
CALLS = {
    "status": Call(f"status {ASKS}", 20),
    "check": Call(f"check {ASKS}", 20),
    "findings": Call(f"findings {ASKS}"),
    "why": Call(f"why 1 {ASKS}"),
    "events": Call(f"events {ASKS}"),
    "gpus": Call(f"gpus {ASKS}"),
    "components": Call(f"components {ASKS}"),
    "expect": Call(f"expect {ASKS}"),
    "recovery": Call("recovery status --config /nonexistent"),
    "recovery run": Call("recovery run --dry-run --config /nonexistent"),
    "page": Call(f"page --port 0 {ASKS}", READER_GONE),
    "accept": Call(f"accept 2 --for 7d --reason x {ASKS}"),
    "clear": Call(f"clear #NUMBER --reason x {ASKS}"),
    "remedy": Call(f"remedy 1 --reason x {ASKS}"),
    "release": Call(f"release --reason x {ASKS}", UNAVAILABLE, heard=False),
    "report": Call("report --output - --no-logs --timeout 1 --socket SOCKET"),
    "diag": Call(f"diag list {ASKS}"),
    "drill": Call(f"drill xid/94 --device 01:00 --config CONFIG {ASKS}"),
    # Its story is told elsewhere; here there is no compiler.
    "demo": Call("demo --pause 0", UNAVAILABLE, heard=False),
    "scan": Call("scan LOG", 20),
    "replay": Call("replay LOG"),
    "explain": Call("explain xid 79"),
    "slurm": Call("slurm epilog --config /nonexistent", heard=False),
    "config": Call("config check --json CONFIG"),
    "run": Call("run --config /nonexistent", CONFIG, heard=False),
    "publish": Call("publish --config /nonexistent", CONFIG, heard=False),
    "notify": Call("notify show --config CONFIG"),
    "version": Call("version"),
}
NO_COMPILER = {"demo": {"PATH": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}}


def vitald(words: list[str], verb: str = "", **files: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **files,
    }
    command = [PYTHON, "-m", "vitald", *words]
    return subprocess.run(
        command, cwd=ROOT, env=NO_COMPILER.get(verb, BARE), text=True, timeout=WAIT_S, **given
    )


@contextmanager
def closed_pipe() -> Iterator[int]:
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


def closed(*fds: int) -> Callable[[], None]:
    return lambda: [os.close(fd) for fd in fds] and None


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a few findings."""
    with Node(tmp_path_factory.mktemp("node")) as node:
        node.write(*(xid(number, pci=f"0000:{number:02x}:00") for number in range(1, 9)))
        wait_for_pid(node, 8)
        yield node


def words_of(call: Call, node: Node, number: int) -> list[str]:
    known = {
        "SOCKET": str(node.socket),
        "#NUMBER": f"#{number}",
        "LOG": str(node.log),
        "CONFIG": str(node.config),
    }
    return [known.get(word, word) for word in call.words.split()]


def test_every_verb_is_here() -> None:
    assert {called.split()[0] for called in CALLS} == set(VERBS)


@pytest.mark.parametrize("verb", CALLS)
def test_an_output_that_takes_nothing(ill: Node, verb: str) -> None:
    call = CALLS[verb]
    # Whoever reads has gone: quiet, with the verb's own code; 141 where there was more to say than
    # fits a buffer.
    with closed_pipe() as pipe:
        gone = vitald(words_of(call, ill, 6), verb, stdout=pipe)
    assert gone.returncode == (READER_GONE if verb == "report" else call.code), gone.stderr
    assert not call.heard or gone.stderr == ""
    with Path("/dev/full").open("w") as full:
        lost = vitald(words_of(call, ill, 7), verb, stdout=full)
    shut = vitald(words_of(call, ill, 8), verb, stdout=None, preexec_fn=closed(1))
    for one, why in ((lost, "No space left on device"), (shut, "Bad file descriptor")):
        assert one.returncode == (IO_ERROR if call.heard else call.code), one.stderr
        assert one.stderr == f"vitald: standard output cannot be written: {why}\n" or not call.heard
    for one in (gone, lost, shut):
        assert "Traceback" not in one.stderr
        assert "Exception ignored" not in one.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], USAGE),
        (["--help"], 0),
        (["check", "--help"], 0),
        (["stauts"], USAGE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_without_a_verb_or_a_place_to_write(words: list[str], code: int) -> None:
    """Help is output like any other; what is said to a wrong use is not."""
    with Path("/dev/full").open("w") as full, closed_pipe() as pipe:
        for stdout, expected in ((full, IO_ERROR), (pipe, 0)):
            done = vitald(words, stdout=stdout)
            assert (done.returncode, "Traceback" in done.stderr) == (code or expected, False), (
                done.stderr
            )
        # A remark that nobody gets changes no error into another.
        assert vitald(words, stderr=full).returncode == code
    assert vitald(words, stderr=None, preexec_fn=closed(2)).returncode == code
    assert vitald(
        words, stdin=None, stdout=None, stderr=None, preexec_fn=closed(0, 1, 2)
    ).returncode == (code or IO_ERROR)


def test_remarks_that_are_lost(ill: Node) -> None:
    """They were all that there was to say: told by the exit code. Slurm drains a node whose epilog
    fails, so that stays 0.
    """
    with Path("/dev/full").open("w") as full:
        nothing = vitald(["events", "--kind", "sxid", "--socket", str(ill.socket)], stderr=full)
        assert (nothing.returncode, nothing.stdout) == (IO_ERROR, "")
        assert vitald(["slurm", "epilog", "--socket", ABSENT], stderr=full).returncode == 0
        idle = ["recovery", "run", "--config", str(ill.config)]
        assert vitald(idle, stderr=full).returncode == 0


def test_standard_input_that_is_closed() -> None:
    """No log was read, so there is no verdict: an empty one would have none to complain of."""
    done = vitald(["scan", "-"], stdin=None, preexec_fn=closed(0))
    assert (done.returncode, done.stdout, done.stderr) == (
        NO_INPUT,
        "",
        "vitald: -: Bad file descriptor\n",
    )


def test_an_output_that_does_not_block() -> None:
    """As a terminal that another program left so: all of it arrives."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with subprocess.Popen(
        ["sh", "-c", "sleep 1; wc -c"], stdin=read, stdout=subprocess.PIPE, text=True
    ) as reader:
        os.close(read)
        done = vitald(["explain", "xid", "--json"], stdout=write)
        os.close(write)
        assert reader.stdout is not None
        assert (done.returncode, int(reader.stdout.read()) > 1 << 16) == (0, True)


def test_events_that_nobody_follows(ill: Node) -> None:
    follow = ["events", "--follow", "--socket", str(ill.socket)]
    with closed_pipe() as pipe:
        done = vitald(follow, stdout=pipe)
    assert (done.returncode, done.stderr) == (0, "")
    with Path("/dev/full").open("w") as full:
        assert vitald(follow, stdout=full).returncode == IO_ERROR


def test_what_there_is_not(ill: Node) -> None:
    """Said on standard error: whoever counts lines counts none."""
    asks = ("--socket", str(ill.socket))
    none = vitald(["events", "--code", "xid/1", *asks])
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "no events\n")
    as_json = vitald(["events", "--code", "xid/1", "--json", *asks])
    assert (as_json.returncode, as_json.stdout, as_json.stderr) == (0, "", "")
    misspelt = vitald(["events", "--kind", "xidd", *asks])
    assert (misspelt.returncode, misspelt.stdout, misspelt.stderr) == (
        UNAVAILABLE,
        "",
        "vitald: there is no kind 'xidd', did you mean xid?\n",
    )
    refused = vitald(["release", "--reason", "x", *asks])
    assert (
        refused.returncode,
        "this node has no GPU on PCI: nothing is released" in refused.stderr,
    ) == (UNAVAILABLE, True)
    assert "released" not in [source["state"] for source in ill.status()["sources"]]


def test_a_daemon_with_nothing_open(tmp_path: Path) -> None:
    """Its descriptors are no one's: what it opens first does not become its standard output."""
    node = Node(tmp_path)
    node.command = [
        "sh",
        "-c",
        'exec env -i PATH=/usr/bin:/bin "$0" "$@" <&- >&- 2>&-',
        *node.command,
    ]
    with node:
        assert node.process is not None
        held = [str(Path(f"/proc/{node.process.pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)]
        assert held == [os.devnull] * 3
        assert node.cli("check").returncode == 0
