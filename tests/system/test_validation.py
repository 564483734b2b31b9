"""Validation before return, end to end: the real daemon, a new boot id, and a recorded dcgmi."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.dcgmi import Answer, Dcgmi, Fault, diag
from tests.harness import Json, Node
from tests.system.lines import wait_for_pid, xid
from tests.system.machine import Machine
from vitald.simulator.node import SimulatedNode

VERSION = "4.4.2"  # the last one whose level 3 needs no NCCL tests


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )


@pytest.fixture
def dcgmi(tmp_path: Path) -> Iterator[Dcgmi]:
    with Dcgmi(tmp_path / "bin", version=VERSION, gpus=8) as made:
        yield made


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path / "gpus", "h100")


@pytest.fixture
def make(
    make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> Callable[..., Machine]:
    """A machine with eight GPUs, on which nothing runs but what validation asks for."""

    def made(validation: str = "") -> Machine:
        extra = f"""
[diagnostics]
idle = "1h"
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
[dcgm_health]
enabled = false
[validation]
{validation}
"""
        machine = Machine(make_node(gpus=gpus, extra=extra))
        machine.node.start()
        machine.node.wait(lambda status: status["status"] == "healthy", 15.0)
        return machine

    return made


def validation(node: Node) -> Json:
    found: Json = node.get("/v1/diagnostics")["validation"]
    return found


def levels(dcgmi: Dcgmi) -> list[int]:
    return [call.level for call in dcgmi.runs()]


def open_codes(node: Node) -> set[str]:
    return {str(finding["code"]) for finding in node.findings()}


def wait_until_validated(node: Node) -> None:
    node.wait(lambda status: status["status"] == "healthy", 30.0)


@pytest.mark.smoke
def test_a_repaired_node_is_unfit_until_level_2_passes(
    make: Callable[..., Machine], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    """At no time between the fault and the pass does an answer say that the node is fit."""
    machine = make()
    node = machine.node
    assert validation(node)["stage"] == "none", "a first start requires nothing"
    node.write(xid(1, pci=gpus.addresses[2]))
    wait_for_pid(node, 1)
    node.wait(lambda status: status["status"] == "unhealthy")
    dcgmi.answer("diag -r 2", diag(VERSION, level=2, delay_s=2.0))
    machine.reboot()
    status = node.status()
    assert (status["status"], status["rebootRequired"], open_codes(node)) == (
        "unhealthy",
        False,
        {"validation/pending"},
    )
    assert "validation/pending): it cannot be used until then" in status["reasons"][0]
    shown = validation(node)
    assert (shown["stage"], shown["level"], shown["after"]) == ("pending", 2, "cleared")
    wait_until_validated(node)
    assert levels(dcgmi) == [2]
    (closed,) = [
        one for one in node.findings("&state=cleared") if one["code"] == "validation/pending"
    ]
    assert closed["clearedBy"] == "a level 2 diagnostic passed"
    (response,) = node.status()["responses"]
    steps = response["steps"]
    assert list(steps) == ["detected", "unfit", "validated", "back"] and response["over"]
    assert list(steps.values()) == sorted(steps.values())
    assert steps["validated"] >= 2.0, "as long as the diagnostic took"
    node.restart()
    assert node.status()["responses"] == [response]
    assert (open_codes(node), validation(node)["stage"]) == (set(), "none"), "nor does a restart"


def test_a_failure_goes_one_level_up_by_itself(make: Callable[..., Machine], dcgmi: Dcgmi) -> None:
    machine = make()
    dcgmi.answer("diag -r 2", diag(VERSION, level=2, faults=[Fault(58, gpu=3, test="memory")]))
    machine.reboot()
    wait_until_validated(machine.node)
    assert levels(dcgmi) == [2, 3]


def test_what_fails_twice_stays_out_until_a_person_clears_it(
    make: Callable[..., Machine], dcgmi: Dcgmi
) -> None:
    machine = make()
    node = machine.node
    for level in (2, 3):
        dcgmi.answer(
            f"diag -r {level}", diag(VERSION, level=level, faults=[Fault(58, gpu=3, test="memory")])
        )
    machine.reboot()
    node.until(lambda: "validation/failed" in open_codes(node), 30.0, "the verdict")
    assert open_codes(node) == {"validation/pending", "validation/failed", "dcgm/58"}
    assert (validation(node)["stage"], levels(dcgmi)) == ("failed", [2, 3])
    (pending,) = [one for one in node.findings() if one["code"] == "validation/pending"]
    node.cli("clear", str(pending["id"]), "--reason", "known")
    node.until(lambda: "validation/failed" not in open_codes(node), 30.0, "the end")


def test_a_node_without_dcgm_is_not_held_back(make: Callable[..., Machine], dcgmi: Dcgmi) -> None:
    machine = make()
    dcgmi.path.unlink()
    machine.reboot()
    node = machine.node
    assert (node.status()["status"], open_codes(node)) == ("healthy", set())
    shown = validation(node)
    assert shown["stage"] == "off" and "dcgmi" in str(shown["detail"])
    assert "validation: off" in node.cli("diag", "list").stdout


def test_it_ends_when_it_is_turned_off(make: Callable[..., Machine], dcgmi: Dcgmi) -> None:
    machine = make("level = 2")
    node = machine.node
    dcgmi.answer("diag -r 2", Answer(exit_code=139))
    machine.reboot()
    node.until(lambda: "try 1" in str(node.findings()[0]["raw"]), 30.0, "a run without a verdict")
    node.configure("[validation]\nlevel = 2", "[validation]\nlevel = 0")
    assert node.reload()["applied"] == ["[validation] level"]
    wait_until_validated(node)
    assert validation(node)["detail"] == "[validation] level = 0"


def test_a_drill_requires_none(
    make: Callable[..., Machine], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    machine = make('after = ["cleared"]')
    node = machine.node
    assert node.cli("inject", "xid", "79", "--device", gpus.addresses[1]).returncode == 0
    node.wait(lambda status: status["status"] == "unhealthy")
    (drill,) = node.findings()
    assert node.cli("clear", str(drill["id"]), "--reason", "drill over").returncode == 0
    assert (open_codes(node), levels(dcgmi)) == (set(), [])


def test_a_run_that_waits_says_for_what(make: Callable[..., Machine], dcgmi: Dcgmi) -> None:
    machine = make()
    node = machine.node
    machine.node.request("POST", "/v1/jobs", {"event": "begin", "job": "12", "user": "alice"})
    dcgmi.answer("diag -r 2", diag(VERSION, level=2, delay_s=3.0))
    machine.reboot()
    node.request("POST", "/v1/jobs", {"event": "begin", "job": "13", "user": "alice"})
    node.until(
        lambda: "waits for idle devices: job 13" in str(node.findings()[0]["raw"]), 30.0, "a note"
    )
    assert "job 13" in str(validation(node)["detail"])
    node.request("POST", "/v1/jobs", {"event": "end", "job": "13", "user": "alice", "exitCode": 0})
    wait_until_validated(node)
