"""Drills on the real kernel log: announced, taken once, marked wherever they show, over by
themselves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import is_read_only, require
from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import about, fresh_pci
from tests.system.people import cli_as_nobody
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.kmsg
Write = Callable[[str], object]

# A command whose own descriptor has used up what the kernel's limit gives it: the limit counts per
# open file.
_EXHAUSTED = """
import os, sys
opened = os.open
def open_and_exhaust(path, *rest, **named):
    fd = opened(path, *rest, **named)
    if str(path).startswith("/proc/self/fd/"):
        for number in range(20):
            os.write(fd, b"<6>vitald-test: filler\\n")
    return fd
os.open = open_and_exhaust
from vitald.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    with Node(tmp_path_factory.mktemp("node"), kernel_log="kmsg", userspace="ignore") as node:
        node.wait(lambda status: status["sources"][0]["state"] == "ok")
        yield node


@pytest.fixture
def careful(production: Node, kmsg: Write) -> Node:
    """A node as in production: it does not believe what processes write. The kernel's limit on
    writers is off.
    """
    return production


def drill(node: Node, pci: str, *more: str) -> int:
    """Starts a drill with Xid 79. Returns the number of its finding."""
    done = node.cli("drill", "xid", "79", "--device", pci, *more)
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    return next(
        int(str(finding["id"])) for finding in about(node.findings(), pci) if finding["simulated"]
    )


@pytest.mark.core
def test_marked_wherever_it_shows(careful: Node) -> None:
    node, pci = careful, fresh_pci()
    number = drill(node, pci)
    status = node.status()
    assert (status["status"], status["rebootRequired"], status["simulated"]) == (
        "unhealthy",
        True,
        True,
    )
    assert str(status["reasons"][0]).startswith("SIMULATED")
    (finding,) = about(node.findings(), pci)
    assert (finding["simulated"], finding["count"], finding["id"]) == (True, 1, number)
    assert finding["simulatedUntil"]
    (event,) = about(node.events(), pci)
    assert (event["simulated"], event["trust"]) == (True, "announced")
    assert node.metric("vitald_simulated") == 1
    labels = (
        f'accepted="false",action="reboot_node",code="79",component="gpu/{pci}.0",kind="xid"'
        f',pci_bus_id="{pci}.0",simulated="true",when="now"'
    )
    assert node.metric(f"vitald_findings{{{labels}}}") == 1
    assert (
        node.metric('vitald_events_total{code="79",kind="xid",simulated="true",trust="announced"}')
        == 1
    )
    for verb in ("status", "findings", "events", "check"):
        assert "SIMULATED" in node.cli(verb).stdout, verb
    shown = json.loads(node.cli("status", "--json").stdout)
    assert (shown["simulated"], shown["findings"][0]["simulated"]) == (True, True)

    assert node.cli("clear", str(number), "--reason", "drill over").returncode == 0
    status = node.status()
    assert (status["rebootRequired"], status["simulated"]) == (False, False)
    assert node.metric("vitald_simulated") == 0
    assert node.metric(f"vitald_findings{{{labels}}}") is None


def test_over_by_itself(careful: Node) -> None:
    """Also when the daemon was killed meanwhile."""
    node, pci = careful, fresh_pci()
    number = drill(node, pci, "--for", "2s")
    node.restart(signal.SIGKILL)
    until(lambda: not about(node.findings(), pci), "the drill's end")
    (cleared,) = [one for one in node.findings("&state=cleared") if one["id"] == number]
    assert cleared["clearedBy"] == "the drill is over"
    assert cleared["clearedAt"] == cleared["simulatedUntil"]
    assert not node.status()["simulated"]


@pytest.mark.core
def test_only_the_announced_record_is_taken(careful: Node, kmsg: Write) -> None:
    """The same text again, during the drill and after it, is any process's: shown, and judged by
    nobody.
    """
    node, pci = careful, fresh_pci()
    number = drill(node, pci)
    line = str(about(node.events(), pci)[0]["raw"])
    kmsg(f"<4>{line}")
    until(lambda: len(about(node.events(), pci)) == 2, "the second record")
    assert [finding["count"] for finding in about(node.findings(), pci)] == [1]
    node.request("POST", f"/v1/findings/{number}/clear", {"reason": "drill over"})
    kmsg(f"<4>{line}")
    until(lambda: len(about(node.events(), pci)) == 3, "the third record")
    assert [event["trust"] for event in about(node.events(), pci)] == [
        "announced",
        "untrusted",
        "untrusted",
    ]
    assert about(node.findings(), pci) == []


def test_a_drill_hides_no_fault(careful: Node, kmsg: Write) -> None:
    """A real Xid of the same code on the same device stands when the drill ends."""
    node, pci = careful, fresh_pci()
    node.configure('userspace = "ignore"', 'userspace = "confirmed"')
    node.reload()
    try:
        kmsg(f"<3>NVRM: Xid (PCI:{pci}): 79, pid=1, name=real, GPU has fallen off the bus.")
        until(lambda: about(node.findings(), pci), "the fault")
    finally:
        node.configure('userspace = "confirmed"', 'userspace = "ignore"')
        node.reload()
    number = drill(node, pci)
    assert [finding["simulated"] for finding in about(node.findings(), pci)] == [False, True]
    node.request("POST", f"/v1/findings/{number}/clear", {"reason": "drill over"})
    assert node.status()["rebootRequired"]
    (fault,) = about(node.findings(), pci)
    assert not fault["simulated"]
    node.request("POST", f"/v1/findings/{fault['id']}/clear", {"reason": "end of the test"})


def test_the_kernel_dropped_it(careful: Node) -> None:
    """Its rate limit says nothing to the writer; the command says so in its place."""
    pci = fresh_pci()
    setting = Path("/proc/sys/kernel/printk_devkmsg")
    require(not is_read_only(setting), f"{setting} to be writable")
    setting.write_text("ratelimit\n")  # the fixture puts back what was there
    command = [
        PYTHON,
        "-c",
        _EXHAUSTED,
        "drill",
        "xid",
        "79",
        "--device",
        pci,
        "--timeout",
        "0.5",
        "--socket",
        str(careful.socket),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 69, done.stdout
    assert "never came back" in done.stderr
    assert "rate limit" in done.stderr
    assert "Traceback" not in done.stderr
    assert about(careful.events(), pci) == []


def test_root_only(careful: Node) -> None:
    """Refused by the command, and by the daemon whatever the command says."""
    careful.socket.chmod(0o666)
    done = cli_as_nobody(careful, "drill", "xid", "79")
    assert done.returncode == 69
    assert "only root" in done.stderr
    assert not careful.status()["simulated"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["line", "all is well"], 69, "no rule recognises it"),
    ],
)
def test_what_cannot_be_a_drill(
    shared_node: Node, arguments: list[str], code: int, said: str
) -> None:
    done = shared_node.cli("drill", *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert shared_node.events() == []
