"""How long each step after a fault took, and what begins and ends an incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.builders import finding
from vitald.core.incident_steps import IncidentSteps
from vitald.core.publisher_reports import SinkReport
from vitald.model.finding import Finding, Transition
from vitald.model.words import Action
from vitald.publish.kubernetes.settings import TAINT_SINK

FAULT = finding(since=100.0)
DRILL = finding(number=2, since=100.0, simulated_until=9e9)
HARMLESS = finding(Action.OBSERVE, number=3)


def open_at(time: float, *findings: Finding) -> list[Transition]:
    return [Transition(time=time, finding=each, cause="event", opened=True) for each in findings]


def sink(last_success: float | None, *, up: bool = True, name: str = TAINT_SINK) -> SinkReport:
    return SinkReport(
        name=name,
        up=up,
        last_success=last_success,
        error="",
        refused=(),
        waiting=0,
        waiting_since=None,
        writes=1,
        failures=0,
    )


class Incidents:
    """What a test does with the steps; `read` and `now` are seconds after the fault."""

    def __init__(self) -> None:
        self.steps = IncidentSteps()

    def publish(
        self,
        *findings: Finding,
        changes: Sequence[Transition] = (),
        read: float = 0.0,
        now: float = 0.0,
    ) -> None:
        self.steps.compare_findings(findings, changes, 100.0 + read, 100.0 + now)

    def show(self, *, simulated: bool = False) -> dict[str, float]:
        return {
            step.value: seconds
            for is_simulated, step, seconds in self.steps.list_seconds()
            if is_simulated is simulated
        }


@pytest.fixture
def incidents() -> Incidents:
    return Incidents()


def test_the_steps_of_an_incident(incidents: Incidents) -> None:
    incidents.publish(HARMLESS, changes=open_at(90.0, HARMLESS))
    assert incidents.show() == {}, "the node is fit"
    incidents.publish(HARMLESS, FAULT, changes=open_at(100.0, FAULT), read=0.5, now=0.75)
    assert incidents.show() == {"detected": 0.5, "unfit": 0.75}
    incidents.steps.note_drained(103.0)
    incidents.steps.note_drained(163.0)  # the next health check
    incidents.publish(HARMLESS, FAULT, now=50.0)
    incidents.publish(HARMLESS, now=600.0)
    four = {"detected": 0.5, "unfit": 0.75, "drained": 3.0, "remedied": 600.0}
    assert incidents.show() == four
    incidents.steps.note_drained(750.0)  # a health check that read the verdict before
    incidents.steps.note_in_service(760.0)
    assert incidents.show() == {**four, "back": 660.0}
    another = replace(FAULT, id=9, since=2000.0)
    incidents.publish(another, changes=open_at(2000.0, another), read=1901.0, now=1902.0)
    assert incidents.show() == {"detected": 1.0, "unfit": 2.0}


def test_a_node_that_nobody_drains_is_back_when_it_is_fit(incidents: Incidents) -> None:
    incidents.publish(FAULT, changes=open_at(100.0, FAULT), read=1.0, now=1.0)
    incidents.publish(now=5.0)
    assert incidents.show() == {"detected": 1.0, "unfit": 1.0, "remedied": 5.0, "back": 5.0}


def test_a_finding_that_was_open_becomes_worse(incidents: Incidents) -> None:
    """The fault is the change that made the node unfit, not the first line about the device."""
    early = finding(Action.OBSERVE, since=10.0)
    incidents.publish(early, changes=open_at(10.0, early))
    worse = finding(since=10.0)
    change = Transition(time=100.0, finding=worse, cause="event")
    incidents.publish(worse, changes=[change], read=0.25, now=0.5)
    assert incidents.show() == {"detected": 0.25, "unfit": 0.5}


def test_after_a_restart_the_finding_says_when_it_began(incidents: Incidents) -> None:
    """A boot closes it; Slurm has the node drained, which the daemon no longer knows."""
    incidents.publish(FAULT, now=300.0)
    assert incidents.show() == {}
    incidents.publish(now=301.0)
    assert incidents.show() == {"remedied": 301.0, "back": 301.0}
    incidents.steps.note_in_service(430.0)
    assert incidents.show() == {"remedied": 301.0, "back": 330.0}


def test_drills_have_steps_of_their_own(incidents: Incidents) -> None:
    incidents.publish(DRILL, changes=open_at(100.0, DRILL), read=1.0, now=1.0)
    incidents.publish(DRILL, FAULT, changes=open_at(100.0, FAULT), read=4.0, now=5.0)
    incidents.steps.note_drained(110.0)
    incidents.publish(FAULT, now=20.0)
    assert incidents.show() == {"detected": 4.0, "unfit": 5.0, "drained": 10.0}
    assert incidents.show(simulated=True) == {
        "detected": 1.0,
        "unfit": 1.0,
        "drained": 10.0,
        "remedied": 20.0,
    }


def test_clocks_of_different_origin_make_no_step_shorter(incidents: Incidents) -> None:
    incidents.publish(FAULT, changes=open_at(100.0, FAULT), read=-3.0, now=2.0)
    incidents.steps.note_drained(101.0)
    assert incidents.show() == {"detected": 0.0, "unfit": 2.0, "drained": 2.0}


def test_the_publishers_taint_drains_the_node(incidents: Incidents) -> None:
    incidents.publish(FAULT, changes=open_at(100.0, FAULT), read=1.0, now=2.0)
    for sinks in (
        [sink(101.0)],  # of the state before
        [sink(None), sink(110.0, up=False), sink(110.0, name="kubernetes-soft-taint")],
    ):
        incidents.steps.note_publication(sinks)
        assert "drained" not in incidents.show()
    incidents.steps.note_publication([sink(103.0)])
    incidents.steps.note_publication([sink(118.0)])
    assert incidents.show()["drained"] == 3.0
    incidents.publish(now=60.0)
    incidents.steps.note_publication([sink(150.0)])
    assert "back" not in incidents.show()
    incidents.steps.note_publication([sink(161.0)])
    incidents.steps.note_publication([sink(176.0)])
    assert incidents.show()["back"] == 61.0
