"""A reboot: what it cures is closed, what it does not cure stands, and nobody is told twice."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.harness import Node
from tests.system.lines import wait_for_pid, xid
from tests.system.machine import Machine


@pytest.fixture
def machine(make_node: Callable[..., Node]) -> Machine:
    made = Machine(make_node())
    made.node.start()
    return made


@pytest.mark.core
def test_a_reboot_cures(machine: Machine) -> None:
    """Closed by the new boot id, which is said; the old line, still in the file, opens nothing."""
    node = machine.node
    node.write(xid(1), xid(2, code=13, pci="0000:66:00", message="Graphics Exception"))
    wait_for_pid(node, 2)
    first = node.status()["bootId"]
    boot_id = machine.reboot()
    status = node.status()
    assert (status["bootId"], status["status"], status["rebootRequired"]) == (
        boot_id,
        "healthy",
        False,
    )
    assert boot_id != first
    cleared = node.findings("&state=cleared")
    assert {finding["code"] for finding in cleared} == {"xid/79", "xid/13"}
    assert all(
        f"the node was rebooted (boot {boot_id[:8]})" in str(finding["clearedBy"])
        for finding in cleared
    )
    assert node.metric("vitald_reboot_required") == 0
    assert machine.boots() == 1
    assert len(node.events("&kind=xid")) == 2
    machine.reboot()  # told too when nothing is open
    assert machine.boots() == 2


@pytest.mark.core
def test_it_came_back_after_the_reboot(machine: Machine) -> None:
    """A finding of its own, seen in this boot; the reboot that it asked for did not hold, so
    another one is not asked for.
    """
    node = machine.node
    node.write(xid(1))
    wait_for_pid(node, 1)
    boot_id = machine.reboot(signal.SIGKILL)
    assert not node.status()["rebootRequired"]
    node.write(xid(2))
    status = node.wait(lambda status: status["status"] == "unhealthy")
    assert (status["rebootRequired"], status["replacementRequired"]) == (False, True)
    (finding,) = node.findings()
    assert (finding["id"], finding["count"], finding["bootId"]) == (2, 1, boot_id)
    assert "it came back after its remedy" in str(finding["actionReason"])
    assert node.metric("vitald_findings_escalated") == 1


@pytest.fixture
def lasting(make_node: Callable[..., Node]) -> Machine:
    """A machine with a finding that a reboot does not cure."""
    made = Machine(make_node(extra='[catalog]\nprofile = "hyperpod"'))
    made.node.start()
    made.node.write(xid(1))
    made.node.wait(lambda status: status["replacementRequired"])
    return made


@pytest.mark.core
def test_what_a_reboot_does_not_cure(lasting: Machine) -> None:
    """Replacement stays asked for."""
    (before,) = lasting.node.findings()
    lasting.reboot()
    assert lasting.node.status()["replacementRequired"]
    assert lasting.node.findings() == [before]
    assert lasting.boots() == 1


def test_a_boot_is_told_once(lasting: Machine) -> None:
    """However often the daemon is restarted in it."""
    lasting.reboot()
    lasting.node.restart(signal.SIGKILL)
    assert lasting.boots() == 1


def test_a_line_from_before_that_nobody_had_read(machine: Machine) -> None:
    """The daemon was down when it came, and the node was booted since: it is not passed over in
    silence.
    """
    node = machine.node
    node.write(xid(1))
    wait_for_pid(node, 1)
    node.stop()
    node.write(xid(2, pci="0000:66:00"))
    machine.reboot()
    wait_for_pid(node, 2)
    assert [event["fields"]["pid"] for event in node.events("&kind=xid")] == [1, 2]


def test_no_boot_id(make_node: Callable[..., Node]) -> None:
    """Without it no record can be told from another boot's: a clear word, and no start."""
    node = make_node()
    node.configure("[paths]", f'[paths]\nprocfs = "{node.folder}"')
    done = node.cli("run", "--config", str(node.config))
    assert (done.returncode, "boot id" in done.stderr, "Traceback" in done.stderr) == (
        69,
        True,
        False,
    )
