"""`vitald replay`: the same events judged once more, by the rules in force or by others, from a
ledger or a saved log.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Json, Node
from tests.system.lines import about, dbe, fallen_with_company, ordinary, remap, wait_for_pid, xid
from tests.waiting import WAIT_S, until

Done = subprocess.CompletedProcess[str]


def replay(node: Node, *arguments: object, file: Path | None = None) -> Done:
    """Of the node's ledger, by the node's rules, unless something else is said."""
    done = node.cli(
        "replay",
        str(file or node.state / "ledger.db"),
        "--config",
        str(node.config),
        *map(str, arguments),
    )
    assert "Traceback" not in done.stderr
    return done


def summary(done: Done) -> tuple[list[Json], Json]:
    """The differences, and the last line."""
    *differences, last = (json.loads(line) for line in done.stdout.splitlines())
    assert last["type"] == "summary"
    assert all(one["type"] == "difference" for one in differences)
    return differences, last


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a GPU off the bus, a remap that waits on another and an application's fault on a
    third.
    """
    with Node(tmp_path_factory.mktemp("told")) as node:
        node.write(
            *fallen_with_company(1),
            remap(2, "0000:66:00"),
            xid(3, code=13, pci="0000:67:00", message="Graphics Exception"),
        )
        wait_for_pid(node, 3)
        yield node


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A folder that makes the GPU off the bus a matter of looking at it."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "ours.toml").write_text(
        '[xid.79]\naction = "inspect"\n[xid.154]\naction = "observe"\nclears = ["quiet:1h"]\ncases'
        " = []\n"
    )
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved log of several forms."""
    path = tmp_path / "kernel.log"
    lines = (
        ordinary(1),
        f"[    1.0] {xid(7)}",
        f"Nov 20 13:48:08 node17 myjob[7]: {xid(8)}",
        f"3,812,5123456,-;{remap(9, '0000:66:00')}",
    )
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.core
def test_it_agrees_with_the_daemon(told: Node) -> None:
    """While that runs: the fold over what is stored is what is remembered."""
    done = replay(told)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(told.events())} events judged" in done.stdout
    for part in (
        "xid/79 on gpu/0000:65:00.0: reboot_node, seen once",
        "xid/63 on gpu/0000:66:00.0: reset_device at the next maintenance, seen once",
    ):
        assert part in done.stdout
    differences, last = summary(replay(told, "--json"))
    assert (differences, last["differences"], last["events"]) == ([], 0, len(told.events()))
    assert last["inForce"] == last["other"] == last["remembered"]
    assert len(last["remembered"]) == told.status()["openFindings"]


def test_it_agrees_after_all_that_people_do(node: Node) -> None:
    """Cleared, begun, replaced, drilled, killed and started again: each of it is an event that a
    replay sees too.
    """
    node.write(
        xid(1),
        dbe(2, "0000:66:00"),
        remap(3, "0000:67:00"),
        xid(4, code=31, pci="0000:68:00", message="-"),
    )
    wait_for_pid(node, 4)
    number = {one["component"]: one["id"] for one in node.findings()}
    node.request(
        "POST",
        f"/v1/findings/{number['gpu/0000:65:00.0']}/clear",
        {"reason": "new board", "replaced": True},
    )
    node.request(
        "POST", f"/v1/findings/{number['gpu/0000:66:00.0']}/remedy", {"reason": "reset at 15:00"}
    )
    node.request(
        "POST", f"/v1/findings/{number['gpu/0000:68:00.0']}/clear", {"reason": "their bug"}
    )
    drill = xid(4001, pci="0000:69:00")
    node.request("POST", "/v1/drills", {"line": drill, "holdSeconds": 3600})
    node.write(drill)
    wait_for_pid(node, 4001)
    for ending in (signal.SIGKILL, signal.SIGTERM):
        node.restart(ending)
        node.write(xid(5), xid(6, code=31, pci="0000:68:00", message="-"))
    until(lambda: about(node.findings(), "0000:68:00")[0]["count"] == 2, "the last lines")
    done = replay(node)
    assert done.returncode == 0, done.stdout


def test_it_agrees_when_a_drill_has_ended_by_itself(node: Node) -> None:
    """No event says so: a finding that was due has ended for the replay too, although nothing was
    seen after it.
    """
    drill = xid(4001)
    node.request("POST", "/v1/drills", {"line": drill, "holdSeconds": 1})
    node.write(drill)
    wait_for_pid(node, 4001)
    until(lambda: not node.findings(), "the drill's end")
    done = replay(node)
    assert done.returncode == 0, done.stdout


def test_it_agrees_while_lines_come_in(node: Node) -> None:
    """Events and findings are read as of one moment: what is committed between the two is no
    disagreement.
    """
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            node.write(*(xid(number + one, pci=f"0000:{one:02x}:00") for one in range(20)))
            number += 20
            stop.wait(0.1)

    node.write(*(xid(number, pci=f"0000:{number % 20:02x}:00") for number in range(600)))
    wait_for_pid(node, 599)
    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        codes = [replay(node).returncode for _ in range(2)]
    finally:
        stop.set()
        writer.join()
    until(
        lambda: node.events("&newest=true")[-1]["raw"] == node.log.read_text().splitlines()[-1],
        "the last line",
    )
    assert replay(node).returncode == 0
    assert codes == [0, 0]


def test_a_ledger_that_nobody_writes(node: Node) -> None:
    """Of a stopped daemon: read as it is, not a byte of it changed, and nothing left beside it."""
    node.write(*fallen_with_company(1))
    wait_for_pid(node, 1)
    node.stop()
    before = hashlib.sha256((node.state / "ledger.db").read_bytes()).digest()
    assert replay(node).returncode == 0
    assert hashlib.sha256((node.state / "ledger.db").read_bytes()).digest() == before
    assert [path.name for path in node.state.glob("ledger.db*")] == ["ledger.db"]


def test_another_profile(told: Node) -> None:
    """What HyperPod's rules would have said, and at which line they begin to differ."""
    done = replay(told, "--profile", "hyperpod")
    assert (done.returncode, done.stderr) == (10, "")
    assert (
        "unhealthy reboot_node rebootRequired  ->  unhealthy replace_node replacementRequired"
        in done.stdout
    )
    assert "NVRM: Xid (PCI:0000:65:00): 79" in done.stdout
    differences, last = summary(replay(told, "--profile", "hyperpod", "--json"))
    assert last["differences"] == len(differences) > 0
    first = differences[0]
    assert first["event"] == xid(1)
    assert first["inForce"] == {
        "status": "unhealthy",
        "action": "reboot_node",
        "rebootRequired": True,
        "replacementRequired": False,
    }
    assert first["other"]["replacementRequired"]
    assert "xid/79 on gpu/0000:65:00.0: replace_node, seen once" in last["other"]
    assert "xid/79 on gpu/0000:65:00.0: reboot_node, seen once" in last["inForce"]
    assert last["inForce"] == last["remembered"]


def test_other_files(told: Node, rules: Path) -> None:
    """A folder laid over the catalogue: what would be different is told."""
    done = replay(told, "--catalog", rules)
    assert done.returncode == 10
    assert "xid/79 on gpu/0000:65:00.0: inspect, seen once" in done.stdout
    (rules / "ours.toml").write_text("[xid.13]\naction = 'restart_workload'\n")
    assert replay(told, "--catalog", rules).returncode == 0


def test_a_saved_log(told: Node, saved: Path, rules: Path) -> None:
    """Its lines, without a daemon: those that a process wrote are not believed."""
    done = replay(told, file=saved)
    assert (done.returncode, "remembers" in done.stdout) == (0, False), done.stdout
    for part in (
        "2 events judged",
        "xid/79 on gpu/0000:65:00.0: reboot_node, seen once",
        "xid/63 on gpu/0000:66:00.0",
    ):
        assert part in done.stdout, part
    differences, last = summary(replay(told, "--catalog", rules, "--json", file=saved))
    assert (len(differences) > 0, "remembered" in last) == (True, False)
    assert replay(told, "--profile", "hyperpod", file=saved).returncode == 10


def test_a_code_that_only_the_other_rules_know(told: Node, tmp_path: Path, saved: Path) -> None:
    """A new line shape is tried on a saved log before it is put in force: that is what it
    is for.
    """
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "lustre.toml").write_text("""[fs.lustre_evicted]
title = "Lustre client was evicted"
meaning = "The file server dropped this client."
class = "fabric"
action = "reboot_node"
clears = ["reboot"]
escalation = "none"
source = "our storage team"
match = ['LustreError: .*This client was evicted by (?P<device>[\\w\\-]+)']
""")
    saved.write_text(
        "LustreError: 167-0: fs-MDT0000: This client was evicted by fs-MDT0000; in progress"
        " operations will fail.\n"
    )
    done = replay(told, "--catalog", folder, file=saved)
    assert (done.returncode, "fs/lustre_evicted" in done.stdout) == (10, True), done.stdout


def test_hostile_text(told: Node, tmp_path: Path) -> None:
    """Neither a process's name nor bytes that are no text reach the terminal as they are."""
    path = tmp_path / "hostile.log"
    name = "\x1b]0;owned\x07\x1b[2J\u202eevil"
    fault = f"NVRM: Xid (PCI:0000:65:00): 79, pid=1, name={name}, GPU has fallen off the bus.\n"
    path.write_bytes(fault.encode() + b"\x00\xff\xfe\x80\n" + b"x" * 3_000_000 + b"\n")
    done = replay(told, "--profile", "hyperpod", file=path)
    assert done.returncode == 10
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x07", "\u202e", "\x00"}
    assert "1 events judged" in done.stdout


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 30, "the log is empty"),
        (os.urandom(100_000).replace(b"NVRM", b"nvrm"), 30, "has the shape of a kernel"),
        (b"SQLite format 3\0" + os.urandom(8000), 66, "not a database"),
        (b"SQLite format 3\0", 66, ""),
        (b"\x1f\x8b\x08\x00" + os.urandom(5000), 30, "cut short or damaged"),
    ],
    ids=["nothing", "noise", "a damaged ledger", "a header", "compressed"],
)
def test_a_file_that_is_neither(
    told: Node, tmp_path: Path, content: bytes, code: int, said: str
) -> None:
    """Told in one line, or found to hold no event; never a traceback."""
    path = tmp_path / "file"
    path.write_bytes(content)
    done = replay(told, file=path)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
    if code == 66:
        assert (done.stdout, done.stderr.count("\n"), str(path) in done.stderr) == ("", 1, True)


def test_a_database_that_is_no_ledger(told: Node, tmp_path: Path) -> None:
    """Another program's, and a ledger with rows that no vitald wrote."""
    other, broken = tmp_path / "other.db", tmp_path / "broken.db"
    with closing(sqlite3.connect(other)) as made:
        made.execute("CREATE TABLE bookmarks (url)")
    with (
        closing(sqlite3.connect(told.state / "ledger.db")) as ledger,
        closing(sqlite3.connect(broken)) as copy,
    ):
        ledger.backup(copy)
        copy.execute("UPDATE events SET fields = 'no JSON'")
        copy.commit()
    for path in (other, broken):
        done = replay(told, file=path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (66, "", 1), done


def test_what_cannot_be_read(told: Node, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path, tmp_path / "a" / "b"):
        done = replay(told, file=path)
        assert (done.returncode, done.stdout, str(path) in done.stderr) == (66, "", True), done


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[xid.79\n", "ours.toml"),
        ('[xid.79]\naction = "repair"\n', "action"),
        ('[xid.79]\nactoin = "none"\n', "did you mean action"),
        ("xid = 79\n", "expected tables"),
        ('[xid.9999]\ntitle = "x"\n', "missing"),
        (None, "no *.toml file"),
        (b"\xff\xfe\x00", "ours.toml"),
    ],
    ids=["syntax", "value", "key", "no table", "incomplete", "empty folder", "no text"],
)
def test_a_wrong_catalogue(told: Node, rules: Path, text: str | bytes | None, said: str) -> None:
    """Told with file and entry, before anything is judged."""
    path = rules / "ours.toml"
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = replay(told, "--catalog", rules)
    assert (done.returncode, done.stdout, said in done.stderr) == (78, "", True), done


def test_a_wrong_choice_of_rules(told: Node, tmp_path: Path) -> None:
    for arguments in (("--catalog", tmp_path / "absent"), ("--config", tmp_path / "absent")):
        done = replay(told, *arguments)
        assert (done.returncode, done.stdout, bool(done.stderr)) == (78, "", True), done


def test_rules_that_have_changed_since(node: Node) -> None:
    """The findings were judged by other rules than those in force: the difference is shown, with
    its likely reason.
    """
    node.write(xid(1))
    wait_for_pid(node, 1)
    node.stop()
    node.config.write_text(f'{node.settings}[catalog.overrides."xid/79"]\naction = "inspect"\n')
    done = replay(node)
    assert done.returncode == 10
    assert "THE LEDGER REMEMBERS SOMETHING ELSE" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), 0), (("--json",), 0), (("--profile", "hyperpod"), 10)],
    ids=["text", "json", "differences"],
)
def test_a_reader_that_goes_away(told: Node, arguments: tuple[str, ...], code: int) -> None:
    """`vitald replay FILE | head -0` is no error, and no other answer."""
    command = [
        PYTHON,
        "-m",
        "vitald",
        "replay",
        str(told.state / "ledger.db"),
        "--config",
        str(told.config),
        *arguments,
    ]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, timeout=WAIT_S
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (code, "")
