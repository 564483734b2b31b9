"""What this node should have: the real daemon on a Trainium machine with a card too few, and the
person who says that it is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.harness import PYTHON, Json, Node
from tests.neuron_tree import NeuronTree
from tests.system.document import conforms
from tests.system.people import cli_as_nobody, request_as_nobody
from tests.waiting import until

EXPECT = "/v1/expect"
CONFIRM = f"{EXPECT}/confirm"
WHY = "card 15 is out until Monday, ticket 4711"
# A count is told after three looks, a minute apart: tests do not wait for that.
HURRY = (
    "import sys; from dataclasses import replace; from vitald.collectors.inventory import collector;"
    " collector.COLLECTOR = replace(collector.COLLECTOR, every_s={}); from vitald.cli import main;"
    " sys.exit(main())"
)


class Machine(Node):
    """A trn2.48xlarge. Its devices are counted every `every_s` seconds, and nothing else is looked
    at.
    """

    def __init__(self, folder: Path, every_s: float = 0.1, extra: str = "") -> None:
        self.tree = NeuronTree(folder / "sys")
        super().__init__(folder, sysfs=self.tree.root, extra=extra)
        self.command = [PYTHON, "-c", HURRY.format(every_s), *self.command[3:]]

    def expect(self) -> Json:
        told = self.get(EXPECT)
        conforms("Expected", told)
        return told

    def count(self, kind: str = "neuron") -> Json:
        return next(
            one for one in cast("list[Json]", self.expect()["counts"]) if one["kind"] == kind
        )

    def settle(self, here: int) -> None:
        until(lambda: self.count()["found"] == here, f"{here} Neuron devices")

    def codes(self) -> list[object]:
        return [one["code"] for one in self.findings()]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Of its 16 cards, 15 are here."""
    made = Machine(tmp_path)
    made.tree.unplug(15)
    with made:
        made.wait(lambda status: status["rebootRequired"])
        yield made


@pytest.mark.core
def test_a_card_too_few(machine: Machine) -> None:
    assert machine.codes() == ["expect/neuron"]
    one = machine.count()
    assert (one["found"], one["expected"], one["confirmed"], one["source"]) == (
        15,
        16,
        True,
        "instance type trn2.48xlarge",
    )
    assert machine.metric('vitald_devices{device_kind="neuron"}') == 15
    assert machine.metric('vitald_devices_expected{device_kind="neuron"}') == 16
    shown = machine.cli("expect")
    assert (shown.returncode, shown.stderr) == (0, "")
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("Neuron devices")]
    assert " ".join(row.split()) == "Neuron devices 15 16 1 FEWER instance type trn2.48xlarge"
    assert "vitald expect --confirm --reason TEXT" in shown.stdout
    assert "not found, and not expected: GPUs, EFA adapters" in shown.stdout


@pytest.mark.core
def test_a_person_says_that_it_is_right(machine: Machine) -> None:
    done = machine.cli("expect", "--confirm", "--reason", WHY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("confirmed: 15 Neuron devices\n")
    assert f"confirmed by root (uid 0) on {time.strftime('%Y-%m-%d')}: {WHY}" in done.stdout
    machine.wait(lambda status: status["status"] == "healthy")
    (event,) = machine.events("&code=vitald/confirmed")
    fields = cast("Json", event["fields"])
    assert (fields["neuron"], fields["efa"], fields["by"], fields["reason"]) == (
        15,
        0,
        "root (uid 0)",
        WHY,
    )
    assert event["raw"] == f"expect: root (uid 0) confirmed 15 Neuron devices: {WHY}"
    machine.restart()
    machine.settle(15)
    assert (machine.count()["expected"], machine.status()["status"]) == (15, "healthy")


def test_it_is_stored_before_it_is_answered(machine: Machine) -> None:
    assert machine.request("POST", CONFIRM, {"reason": WHY})[0] == 200
    machine.kill()
    machine.start()
    machine.settle(15)
    assert (machine.count()["expected"], len(machine.events("&code=vitald/confirmed"))) == (15, 1)
    machine.wait(lambda status: status["status"] == "healthy")


@pytest.mark.core
def test_all_are_back(machine: Machine) -> None:
    """What was allowed was for a time."""
    status, answer = machine.request("POST", CONFIRM, {"reason": WHY})
    assert status == 200
    conforms("Confirmed", answer)
    machine.tree.add(15)
    machine.settle(16)
    until(
        lambda: machine.count()["source"] == "instance type trn2.48xlarge",
        "the instance type's word",
    )
    machine.tree.unplug(15)
    machine.wait(lambda status: status["rebootRequired"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "reason"),
        ({"reason": " "}, "reason"),
        ({"reason": "x", "neuron": 15}, "neuron"),
        ([], "object"),
    ],
    ids=str,
)
def test_without_a_reason_nothing_is_confirmed(machine: Machine, body: object, said: str) -> None:
    status, answer = machine.request("POST", CONFIRM, body)
    assert (status, said in str(answer["error"])) == (400, True), answer
    assert machine.count()["expected"] == 16


def test_others_may_look_and_not_confirm(machine: Machine) -> None:
    group = (machine.socket.stat().st_gid,)
    assert request_as_nobody(machine, "GET", EXPECT, groups=group)[0] == 200
    assert "Neuron devices" in cli_as_nobody(machine, "expect", groups=group).stdout
    status, answer = request_as_nobody(machine, "POST", CONFIRM, {"reason": "mine"}, groups=group)
    assert (status, "may not change" in str(answer["error"])) == (403, True), answer
    refused = cli_as_nobody(machine, "expect", "--confirm", "--reason", "mine", groups=group)
    assert (refused.returncode, "may not change" in refused.stderr) == (69, True)
    assert (machine.count()["expected"], machine.events("&code=vitald/confirmed")) == (16, [])


def test_not_before_the_count_has_settled(tmp_path: Path) -> None:
    """A driver that is loaded again takes its devices away for a moment."""
    with Machine(tmp_path, every_s=3600.0) as machine:
        status, answer = machine.request("POST", CONFIRM, {"reason": WHY})
        assert (status, "vitald expect shows" in str(answer["hint"])) == (409, True), answer
        one = machine.count()
        assert one["found"] is None
        assert "16 so far" in str(one["notObservable"])
        assert "not counted yet: Neuron devices: 16 so far" in machine.cli("expect").stdout
        assert machine.status()["status"] == "healthy"


def test_what_the_configuration_says_is_changed_there(tmp_path: Path) -> None:
    numbers = "\n".join(
        f"{kind} = {count}"
        for kind, count in {"neuron": 17, "efa": 1, "nics": 1, "nvme": 1}.items()
    )
    with Machine(tmp_path, extra=f"[expect]\n{numbers}\nneuron_driver = ['2.24.7.0']") as machine:
        machine.settle(16)
        status, answer = machine.request("POST", CONFIRM, {"reason": WHY})
        assert (status, "the configuration says" in str(answer["error"])) == (409, True), answer
        shown = machine.cli("expect").stdout
        assert "1 FEWER  configuration: [expect] neuron" in shown
        (row,) = [line for line in shown.splitlines() if line.startswith("Neuron driver")]
        assert " ".join(row.split()) == "Neuron driver 2.30.2.0 2.24.7.0 DIFFERS"
