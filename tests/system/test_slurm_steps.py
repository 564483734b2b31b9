"""Slurm drains and resumes at once, and the times of each step: a real Slurm and the real daemon.

The path unit is stood in for by a thread (tests/path_unit.py); tests/booted has the real one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import cast

import pytest

from tests.harness import Json, Node
from tests.pace import patient
from tests.path_unit import PathUnit
from tests.system.lines import wait_for_pid, xid
from tests.system.test_slurm import FALLEN, Slurm, installed, slurm
from vitald.model.response import Step

__all__ = ["installed", "slurm"]  # fixtures

Make = Callable[..., Node]
Begin = Callable[..., Node]


@pytest.fixture
def begin(slurm: Slurm, make_node: Make) -> Iterator[Begin]:
    """A running node that only the path unit connects with Slurm."""

    def begin(**settings: str) -> Node:
        node = make_node(**settings)
        slurm.config.unlink(missing_ok=True)
        slurm.config.symlink_to(node.config)
        node.start()
        node.wait(lambda status: status["status"] in ("healthy", "degraded"), 15.0)
        node.until((node.runtime / "fitness").exists, 10.0, "the file")
        path = node.runtime / "fitness"
        units.enter_context(PathUnit(path, lambda: slurm.by_hand("healthcheck")))
        return node

    with ExitStack() as units:
        yield begin


def response(node: Node, *, simulated: bool = False) -> Json:
    responses = cast("list[Json]", node.status()["responses"])
    found = [each for each in responses if each["simulated"] is simulated]
    return found[0] if found else {"steps": {}}


def steps(node: Node, *, simulated: bool = False) -> dict[str, float]:
    return cast("dict[str, float]", response(node, simulated=simulated)["steps"])


def check_order(reached: dict[str, float], *expected: Step) -> None:
    """In the order in which they are defined, and later or equal each."""
    assert list(reached) == [step.value for step in expected]
    assert [*reached.values()] == sorted(reached.values())
    assert min(reached.values()) >= 0.0


def clear_all(node: Node) -> None:
    for finding in node.findings():
        path = f"/v1/findings/{finding['id']}/clear"
        assert node.request("POST", path, {"reason": "repaired"})[0] == 200


def test_slurm_drains_at_once_and_each_step_is_timed(
    slurm: Slurm, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    node = begin()
    begun = time.monotonic()
    node.write(xid(1))
    drained = slurm.wait(lambda known: known.held, "the node to be drained")
    took = time.monotonic() - begun
    assert drained.reason == FALLEN
    node.until(lambda: "drained" in steps(node), 10.0, "the report")
    check_order(steps(node), Step.DETECTED, Step.UNFIT, Step.DRAINED)
    # A few seconds, where the interval of the health check is one minute.
    assert took < patient(5.0) and steps(node)["drained"] < patient(5.0)
    assert not response(node)["over"]
    assert (response(node)["component"], response(node)["code"]) == ("gpu/0000:65:00.0", "xid/79")

    before = response(node)
    node.kill()  # what happened before is known from the ledger
    node.start()
    assert response(node) == before

    clear_all(node)
    slurm.wait(lambda known: known.states == {"IDLE"}, "the node to be resumed")
    node.until(lambda: response(node)["over"], 10.0, "the report")
    check_order(steps(node), Step.DETECTED, Step.UNFIT, Step.DRAINED, Step.BACK)
    assert steps(node) == {**before["steps"], "back": steps(node)["back"]}
    codes = [event["code"] for event in node.events("&kind=scheduler")]
    assert codes == ["scheduler/drained", "scheduler/in_service"]
    assert [event["code"] for event in node.events("&code=vitald/fit")] == ["vitald/fit"]

    sample = 'vitald_incident_step_seconds{simulated="false",step="drained"}'
    [line] = [line for line in node.metrics().splitlines() if line.startswith(sample)]
    assert float(line.split()[-1]) == pytest.approx(steps(node)["drained"], abs=0.01)
    why = node.cli("why", str(response(node)["finding"])).stdout
    assert "response after the fault: detected " in why and "; not back yet" not in why
    with capsys.disabled():
        print(f"\nDRAIN in Slurm {took:.2f} s after the line; steps {json.dumps(steps(node))}")


def test_a_fault_that_returns_during_the_pause_of_the_unit_is_not_missed(
    slurm: Slurm, begin: Begin
) -> None:
    """Cleared and back within seconds: the daemon writes the file again until Slurm has acted."""
    node = begin()
    node.write(xid(1))
    slurm.wait(lambda known: known.held, "the node to be drained")
    node.until(lambda: "drained" in steps(node), 10.0, "the report")
    clear_all(node)
    assert node.status()["status"] == "healthy"
    node.write(xid(2))
    wait_for_pid(node, 2)
    assert "drained" in steps(node)  # it still was
    clear_all(node)
    node.until(lambda: not slurm.known().held, 40.0, "the node to be resumed")
    node.until(lambda: response(node)["over"], 10.0, "the report")


@pytest.mark.kmsg
def test_a_drill_by_the_kernel_log_is_timed_apart(
    slurm: Slurm, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vitald inject` writes to /dev/kmsg: the record's own time is the kernel's."""
    node = begin(kernel_log="kmsg", userspace="ignore")
    done = node.cli("inject", "xid", "79")
    assert done.returncode == 0, done.stderr
    slurm.wait(lambda known: known.held, "the node to be drained")
    node.until(lambda: "drained" in steps(node, simulated=True), 10.0, "the report")
    assert steps(node) == {}
    clear_all(node)
    slurm.wait(lambda known: known.states == {"IDLE"}, "the node to be resumed")
    node.until(lambda: response(node, simulated=True)["over"], 10.0, "the report")
    reached = steps(node, simulated=True)
    check_order(reached, Step.DETECTED, Step.UNFIT, Step.DRAINED, Step.BACK)
    assert reached["detected"] < patient(2.0)
    assert 'vitald_incident_step_seconds{simulated="true",step="back"}' in node.metrics()
    with capsys.disabled():
        print(f"\na drill by /dev/kmsg, steps: {json.dumps(reached)}")
