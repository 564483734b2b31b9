"""The command line on a real daemon: exit codes, protocols, JSON, and text that is safe and
short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Json, Node
from tests.system.lines import (
    FALLEN,
    about,
    dbe,
    fallen_with_company,
    fresh_pci,
    ordinary,
    remap,
    wait_for_pid,
    xid,
)
from tests.terminal import show_on_terminal
from tests.waiting import until

# Status -> exit codes of check, check --strict, status, and of check with --as npd, nagios, slurm.
CODES = {
    "healthy": (0, 0, 0, 0, 0, 0),
    "degraded": (0, 10, 10, 0, 1, 0),
    "unhealthy": (20, 20, 20, 1, 2, 1),
    "unknown": (30, 30, 30, 2, 3, 1),
}
NAGIOS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


IN_TROUBLE = pytest.mark.parametrize("state", ["unhealthy"], indirect=True, scope="module")


@pytest.fixture(scope="module", params=[*CODES])
def state(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Node]]:
    """A node in each state."""
    node = Node(tmp_path_factory.mktemp("node"))
    if request.param == "unknown":
        node.log.unlink()
    with node:
        if request.param == "degraded":
            node.write(xid(1, code=13, message="Graphics Exception"))
        elif request.param == "unhealthy":
            node.write(xid(1), xid(2, pci="0000:66:00"))
        node.wait(lambda status: status["status"] == request.param)
        yield request.param, node


@pytest.mark.core
def test_exit_codes(state: tuple[str, Node]) -> None:
    """One line on standard output says why, whoever asks."""
    status, node = state
    asked = [
        ("check",),
        ("check", "--strict"),
        ("status",),
        *(("check", "--as", who) for who in ("npd", "nagios", "slurm")),
    ]
    done = [node.cli(*arguments) for arguments in asked]
    assert tuple(one.returncode for one in done) == CODES[status]
    for one in (done[0], done[1], *done[3:]):
        assert (one.stdout.count("\n"), one.stderr) == (1, "")
    assert done[0].stdout.startswith(f"{status}: ")
    assert done[4].stdout.startswith(f"VITALD {NAGIOS[CODES[status][4]]} - {status}: ")
    assert done[2].stdout.splitlines()[0].split()[1] == status.upper()
    if status == "degraded":
        assert [
            node.cli("check", "--strict", "--as", who).returncode
            for who in ("npd", "nagios", "slurm")
        ] == [1, 1, 1]
    if status == "unhealthy":
        assert FALLEN.rstrip(".") in done[0].stdout
        assert "(and 1 more)" in done[0].stdout


@pytest.mark.core
@IN_TROUBLE
def test_every_reading_verb_speaks_json(state: tuple[str, Node]) -> None:
    status, node = state
    for arguments in (
        ("status",),
        ("check",),
        ("findings",),
        ("findings", "--cleared"),
        ("explain", "xid/79"),
        ("version",),
        ("why",),
        ("why", "1"),
        ("gpus",),
    ):
        assert isinstance(json.loads(node.cli(*arguments, "--json").stdout), dict), arguments
    assert json.loads(node.cli("check", "--json").stdout)["status"] == status
    assert json.loads(node.cli("status", "--json").stdout).keys() == node.status().keys()
    entries = [json.loads(line) for line in node.cli("events", "--json").stdout.splitlines()]
    assert [each for each in entries if "change" not in each] == node.events()
    changes = [each for each in entries if "change" in each]
    assert changes == node.get("/v1/transitions?newest=true")["transitions"]
    assert json.loads(node.cli("config", "check", str(node.config), "--json").stdout) == {
        "file": str(node.config),
        "ok": True,
        "errors": [],
    }


@IN_TROUBLE
def test_no_colour_in_a_pipe(state: tuple[str, Node]) -> None:
    _, node = state
    for arguments in (
        ("status",),
        ("findings",),
        ("events",),
        ("explain", "xid/79"),
        ("why",),
        ("gpus",),
    ):
        done = node.cli(*arguments)
        assert "\x1b" not in done.stdout + done.stderr, arguments


def on_terminal(node: Node, *arguments: str, **more: Any) -> str:
    """What a person sees on a terminal of 100 columns."""
    return show_on_terminal(*arguments, "--socket", str(node.socket), **more)


@pytest.mark.parametrize("state", ["unhealthy", "unknown"], indirect=True, scope="module")
def test_colour_on_a_terminal(state: tuple[str, Node]) -> None:
    status, node = state
    colours = {"healthy": "32", "degraded": "33", "unhealthy": "31", "unknown": "35"}
    assert f"\x1b[1;{colours[status]}m{status.upper()}\x1b[0m" in on_terminal(node, "status")
    plain = on_terminal(node, "status", NO_COLOR="1")
    assert "\x1b" not in plain
    assert status.upper() in plain


def test_trouble_fits_a_screen(node: Node) -> None:
    """Forty findings: the worst in full, and all within a screen of 48 rows; each says what, which
    device, since when, the line, what to do.
    """
    lines = [
        xid(number, code=13 if number % 2 else 79, pci=f"0000:{number:02x}:00", message=FALLEN * 3)
        for number in range(40)
    ]
    node.write(*lines)
    node.wait(lambda status: status["openFindings"] == 40)
    shown = on_terminal(node, "status", NO_COLOR="1").splitlines()
    assert len(shown) <= 48
    assert max(map(len, shown)) <= 100
    text = "\n".join(shown)
    for part in (
        "UNHEALTHY",
        "reboot required",
        "gpu/0000:00:00.0",
        "GPU has fallen off the bus",
        "since ",
        "NVRM: Xid (PCI:0000:00:00)",
        "reboot the node",
        "more incidents: vitald findings",
    ):
        assert part in text, part


def test_hostile_text_does_not_drive_the_terminal(shared_node: Node) -> None:
    """A process may be named anything, and its name stands in the line."""
    node = shared_node
    node.write(
        "NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=\x1b]0;owned\x07\x1b[2J\u202eevil, GPU has"
        " fallen off the bus."
    )
    node.wait(lambda status: status["rebootRequired"])
    for verb in ("status", "check", "findings", "events", "why"):
        shown = on_terminal(node, verb, NO_COLOR="1") + node.cli(verb).stdout
        assert not set(shown) & {"\x1b", "\x07", "\u202e"}, verb


@pytest.mark.core
def test_scan(tmp_path: Path, shared_node: Node) -> None:
    """A file and standard input say the same; a verdict at the end, and the exit code of it."""
    job = xid(9, code=13, pci="0000:66:00", message="Graphics Exception")
    saved = f"{ordinary(1)}\n[    1.0] {xid(7)}\nNov 20 13:48:08 node17 myjob[7]: {xid(8)}\n{job}"
    (tmp_path / "log").write_text(saved)
    done = [
        shared_node.cli("scan", "--json", str(tmp_path / "log")),
        shared_node.cli("scan", "--json", "-", stdin=saved.encode()),
    ]
    assert [one.returncode for one in done] == [20, 20]
    (*events, verdict), (*piped, _) = (
        [json.loads(line) for line in one.stdout.splitlines()] for one in done
    )
    assert events == piped
    assert [
        (event["type"], event["line"], event["kind"], event["code"], event["pid"], event["pci"])
        for event in events
    ] == [
        ("event", 2, "xid", 79, 7, "0000:65:00.0"),
        ("event", 4, "xid", 13, 9, "0000:66:00.0"),
    ]
    assert (
        verdict["type"],
        verdict["status"],
        verdict["rebootRequired"],
        len(verdict["findings"]),
    ) == ("verdict", "unhealthy", True, 2)
    shown = shared_node.cli("scan", "-", stdin=saved.encode())
    assert (shown.returncode, "UNHEALTHY" in shown.stdout, "\x1b" in shown.stdout) == (
        20,
        True,
        False,
    )


@pytest.mark.core
def test_explain(shared_node: Node) -> None:
    """Asks no daemon; a misspelt code is told, an unknown one is said to be so."""
    shown = shared_node.cli("explain", "xid/79").stdout
    for part in ("GPU has fallen off the bus", "reboot_node", "a reboot", "NVIDIA Xid catalogue"):
        assert part in shown
    assert "replace_node" in shared_node.cli("explain", "xid/79", "--profile", "hyperpod").stdout
    assert "not in the catalogue" in shared_node.cli("explain", "xid/9999").stdout
    by_case = shared_node.cli("explain", "lockup/soft").stdout
    assert "reboot_node (escalation device) where seconds above 899" in by_case
    assert "inspect instead of a replacement" in shared_node.cli("explain", "xid/119").stdout


@pytest.mark.core
def test_config_check(tmp_path: Path, shared_node: Node) -> None:
    """Every mistake at once, each with its line and a suggestion; the daemon refuses the same file
    with the same words.
    """
    wrong = tmp_path / "config.toml"
    wrong.write_text(
        '[kernel_log]\nsorce = "kmsg"\nuserspace = "yes"\n\n[metric]\nlisten = "nowhere"\n'
    )
    done = shared_node.cli("config", "check", str(wrong))
    assert (done.returncode, done.stdout) == (78, "")
    said = done.stderr.splitlines()
    assert len(said) == 3
    assert f"{wrong}:2:" in said[0] and "did you mean source?" in said[0]
    assert f"{wrong}:3:" in said[1] and "must be one of unconfirmed, confirmed, ignore" in said[1]
    assert f"{wrong}:5:" in said[2] and "did you mean metrics?" in said[2]
    run = shared_node.cli("run", "--config", str(wrong))
    assert (run.returncode, run.stderr) == (78, "".join(f"vitald: {line}\n" for line in said))
    report = json.loads(shared_node.cli("config", "check", str(wrong), "--json").stdout)
    assert (report["ok"], report["errors"]) == (False, said)
    for text in ("[kernel_log\n", '[catalog.overrides."xid/79"]\nactoin = "none"\n'):
        wrong.write_text(text)
        done = shared_node.cli("config", "check", str(wrong))
        assert (done.returncode, "Traceback" in done.stderr) == (78, False), text
    assert shared_node.cli("config", "check", str(tmp_path / "absent")).returncode == 78


@pytest.mark.core
def test_version(shared_node: Node) -> None:
    assert shared_node.cli("version").stdout.startswith(
        f"vitald {shared_node.status()['version']} "
    )


@pytest.mark.core
def test_clear(node: Node) -> None:
    node.write(xid(1))
    wait_for_pid(node, 1)
    done = node.cli("clear", "1", "--reason", "replaced the riser", "--json")
    cleared: Json = json.loads(done.stdout)["finding"]
    assert (done.returncode, cleared["state"]) == (0, "cleared")
    assert node.cli("check").returncode == 0
    assert "replaced the riser" in node.cli("findings", "--cleared").stdout
    again = node.cli("clear", "1", "--reason", "again")
    assert (again.returncode, "no open finding 1" in again.stderr) == (69, True)


@pytest.mark.core
def test_remedy(node: Node) -> None:
    """Said, shown as begun, and still not fit for work."""
    node.write(xid(1))
    wait_for_pid(node, 1)
    done = node.cli("remedy", "1", "--reason", "reboot at 15:00")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "in remedy #1: gpu/0000:65:00.0  GPU has fallen off the bus  xid/79",
            "  open until a reboot; a named person, with a reason",
        ],
    )
    assert (
        json.loads(node.cli("remedy", "1", "--reason", "now", "--json").stdout)["finding"]["state"]
        == "in_remedy"
    )
    assert node.cli("check").returncode == 20
    again = node.cli("remedy", "7", "--reason", "again")
    assert (again.returncode, "no open finding 7" in again.stderr) == (69, True)


@pytest.mark.core
def test_clear_many(node: Node) -> None:
    """By ID, code, component, or all; first only listed."""
    node.write(*(xid(pid, pci=f"0000:{60 + pid}:00") for pid in range(1, 5)), dbe(5, "0000:64:00"))
    wait_for_pid(node, 5)

    def act(*words: str) -> tuple[int, list[str]]:
        done = node.cli(*words, "--reason", "test")
        remarks = [line for line in done.stderr.splitlines() if line]
        return done.returncode, [line.split("  ")[0] for line in done.stdout.splitlines()] + remarks

    every = {finding["id"]: finding["component"] for finding in node.findings()}
    by_code = {str(f["code"]): str(f["id"]) for f in node.findings("&component=gpu/0000:64:00.0")}
    assert len(every) == 5 and set(by_code) == {"xid/48", "xid/79"}
    listed = act("clear", "--all", "--dry-run")
    assert listed[0] == 0
    assert sorted(listed[1]) == [f"would clear #{n}: {name}" for n, name in sorted(every.items())]
    assert act("clear", by_code["xid/48"], "9", "--dry-run") == (
        69,
        [
            f"would clear #{by_code['xid/48']}: gpu/0000:64:00.0",
            "vitald: no finding 9 (vitald findings shows the open ones, vitald findings --cleared"
            " the others)",
        ],
    )
    assert len(node.findings()) == 5
    assert {*map(int, node.cli("findings", "--ids").stdout.split())} == set(every)
    code, shown = act(
        "accept", "--code", "xid/79", "--component", "gpu/0000:64:00.0", "--for", "1h"
    )
    assert (code, shown[0]) == (0, f"accepted #{by_code['xid/79']}: gpu/0000:64:00.0")
    assert act("accept", "--end", "--all") == (
        0,
        [f"no longer accepted #{by_code['xid/79']}: gpu/0000:64:00.0"],
    )
    code, shown = act("remedy", "--code", "xid/48")
    assert (code, shown[0]) == (0, f"in remedy #{by_code['xid/48']}: gpu/0000:64:00.0")
    assert act("clear", "1", "1", "77", "2") == (
        69,
        [
            "cleared #1: gpu/0000:61:00.0",
            "cleared #2: gpu/0000:62:00.0",
            "vitald: no open finding 77 (vitald findings shows the open ones)",
        ],
    )
    assert act("clear", "--component", "gpu/0000:64:00.0")[0] == 0
    assert [finding["component"] for finding in node.findings()] == ["gpu/0000:63:00.0"]
    assert act("clear", "--code", "xid/31") == (0, ["vitald: no such finding is open"])
    assert act("clear", "--code", "xidd/31")[1] == [
        "vitald: there is no kind 'xidd', did you mean xid?"
    ]
    assert act("clear", "--all") == (0, ["cleared #3: gpu/0000:63:00.0"])
    assert node.findings() == []
    last = json.loads(node.cli("findings", "--cleared", "--limit", "1", "--json").stdout)
    assert "test" in last["findings"][0]["clearedBy"]


def test_clear_replaced(node: Node) -> None:
    """Every finding of the board that is gone."""
    node.write(xid(1), dbe(2), dbe(3, "0000:66:00"))
    wait_for_pid(node, 3)
    replaced = ("clear", "--component", "gpu/0000:65:00.0", "--replaced", "--reason", "new board")
    listed = node.cli(*replaced, "--dry-run").stdout.splitlines()
    assert [line.split(" #")[0] for line in listed] == [
        "would clear, with all others of its device,"
    ] * 2
    assert len(node.findings()) == 3
    done = node.cli(*replaced)
    assert (done.returncode, done.stdout.count("cleared")) == (0, 1)
    assert "no open finding" in done.stderr, "the other was closed with it"
    assert [finding["component"] for finding in node.findings()] == ["gpu/0000:66:00.0"]


@pytest.mark.core
def test_why(node: Node) -> None:
    """The line, the incident, the rule, the layers with the one that decides, the flags, the history;
    one chain for each open incident.
    """
    node.write(*fallen_with_company(1), remap(2, "0000:66:00"))
    wait_for_pid(node, 2)
    (number,) = [finding["id"] for finding in node.findings("&code=xid/79")]
    shown = node.cli("why", str(number)).stdout
    for part in (
        f"#{number} gpu/0000:65:00.0  GPU has fallen off the bus  xid/79",
        xid(1),
        "open: A GPU was lost from PCIe",
        "cause ",
        "xid/45 on gpu/0000:65:00.0, seen 3 times",
        "rule     xid/79: GPU has fallen off the bus",
        "-> base       reboot_node",
        "flags    reboot required",
        "xid/79 seen",
        "cleared by a reboot",
    ):
        assert part in shown, part
    assert node.cli("why", f"#{number}").stdout == shown
    both = node.cli("why").stdout
    assert (shown in both, "xid/63" in both, both.count("\n  rule ")) == (True, True, 2)
    node.cli("clear", str(number), "--reason", "wrong \U0001f41b slot")
    cleared = node.cli("why", str(number)).stdout
    assert (
        "wrong \U0001f41b slot" in cleared,
        "flags    none" in cleared,
        "cleared by a reboot" in cleared,
    ) == (True, True, False)


@pytest.mark.parametrize(
    "number",
    [
        "first",
        "1 2",
        "1/../2",
        "../status",
        "1?x=1",
        "1#2",
        "%31",
        "\u0661x",
        "caf\xe9",
        "1\n",
        "\x1b[2J",
        "9" * 30,
        "0",
        "999999",
    ],
)
def test_why_of_what_is_not_there(shared_node: Node, number: str) -> None:
    """Refused or a usage error, in a line or two: no traceback, no silence of a daemon that
    answers, nothing that drives the terminal.
    """
    done = shared_node.cli("why", number)
    assert (done.returncode in (2, 69), done.stdout, "Traceback" in done.stderr) == (
        True,
        "",
        False,
    ), done
    assert done.stderr
    assert "\x1b" not in done.stderr


def test_nothing_to_explain(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.start()
    assert node.cli("why").stdout == "no open findings: nothing to explain\n"
    assert json.loads(node.cli("why", "--json").stdout) == {"why": []}


@pytest.mark.core
def test_events_narrowed(shared_node: Node) -> None:
    node, pci = shared_node, fresh_pci()
    node.write(*(xid(number, code=79 if number % 2 else 13, pci=pci) for number in range(60)))
    until(lambda: len(about(node.events(), pci)) == 60, "all lines")

    def shown(*arguments: str) -> list[object]:
        done = node.cli("events", "--json", "--component", f"gpu/{pci}.0", *arguments)
        entries = [json.loads(line) for line in done.stdout.splitlines()]
        return [each["change"] if "change" in each else each["fields"]["pid"] for each in entries]

    every = shown("--since", "1h")
    assert [each for each in every if isinstance(each, int)] == [*range(60)]
    assert every.count("opened") == 2, "one of each code"
    assert shown("--since", "0", "--limit", "3", "--kind", "xid") == every[:3]
    assert shown() == every[-50:]
    assert shown("--code", "xid/79", "--limit", "2") == [57, 59]
    middle = node.get(f"/v1/events?component=gpu/{pci}.0&limit=40")["events"][-1]["id"]
    assert shown("--since", str(middle)) == [*range(40, 60)]
    node.cli("clear", "--component", f"gpu/{pci}.0", "--reason", "test")
    assert shown("--code", "xid/79", "--since", "1h")[-1] == "cleared"


@pytest.mark.core
def test_events_show_what_became_of_a_finding(node: Node) -> None:
    """Opened, accepted, put in remedy, cleared, with the action, and by whom."""
    node.write(xid(1, code=94, message="Contained error"))
    wait_for_pid(node, 1)
    (finding,) = node.findings()
    number = str(finding["id"])
    node.cli("accept", number, "--for", "1h", "--reason", "ticket 1")
    node.cli("remedy", number, "--reason", "ticket 2")
    node.cli("clear", number, "--reason", "ticket 3")
    lines = node.cli("events").stdout.splitlines()
    changes = [line.split("  ", 1)[1] for line in lines if f"  #{number} " in line]
    about = f"gpu/0000:65:00.0  {finding['title']} (xid/94)"
    assert changes == [
        f"#{number} opened  {about}, {finding['action']}: xid/94 seen",
        f"#{number} changed  {about}, {finding['action']}: accepted by root (uid 0): ticket 1",
        f"#{number} in remedy  {about}, {finding['action']}: remedy begun by root (uid 0): ticket 2",
        f"#{number} cleared  {about}: cleared by root (uid 0): ticket 3",
    ]
    assert lines.index(next(line for line in lines if "opened" in line)) == 1, "after its line"
    follow = node.cli("events", "--kind", "vitald").stdout
    assert "opened" not in follow and "vitald/cleared" in follow
