"""When a finding changed last, and what subscribers get of a stop."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.builders import finding
from vitald.core.node_state import NodeState, StreamEnd
from vitald.judge.devices import SlotRegistry
from vitald.judge.engine import Judge
from vitald.model.finding import Finding, Transition
from vitald.model.words import Action, When

STARTED = 1000.0


def board() -> NodeState:
    return NodeState("boot", STARTED, device_reset=False)


def publish(state: NodeState, findings: Sequence[Finding], *changes: Transition) -> float:
    """The time of the last change after this was published."""
    judge = SimpleNamespace(open_findings=findings, incidents=(), slots=SlotRegistry())
    state.publish_changes(cast("Judge", judge), transitions=changes)
    return state.changed_at


def change(time: float, cause: str = "xid/79 seen", **more: bool) -> Transition:
    return Transition(time=time, finding=finding(**more), cause=cause)


def test_without_findings_it_is_the_start() -> None:
    assert publish(board(), []) == STARTED


def test_after_a_start_it_is_the_newest_open_finding() -> None:
    """So that it stays the same over restarts."""
    state = board()
    assert publish(state, [finding(since=400.0), finding(number=2, since=700.0)]) == 700.0
    assert publish(state, [finding(since=400.0)]) == 700.0  # nothing changed: only counts did


def test_then_it_is_the_last_transition() -> None:
    state = board()
    publish(state, [finding(since=400.0)])
    assert publish(state, [], change(1500.0), change(1400.0)) == 1500.0
    assert publish(state, []) == 1500.0


def test_what_is_no_change() -> None:
    """More of the same."""
    state = board()
    publish(state, [finding(since=400.0)])
    assert publish(state, [finding(since=400.0)], change(1500.0, cause="")) == 400.0


def test_a_stop_comes_behind_what_happened_before() -> None:
    state = board()
    subscription = state.add_subscription()
    publish(state, [finding()], change(1500.0))
    state.announce_stop()
    told = [subscription.queue.get_nowait() for _ in range(2)]
    assert isinstance(told[0], Transition) and told[1] is StreamEnd.STOPPING


def test_a_stop_for_a_subscriber_that_lags() -> None:
    """It is told that it missed something, and reads again."""
    state = board()
    subscription = state.add_subscription()
    while not subscription.lagged:
        subscription.offer_change(None)
    state.announce_stop()
    assert subscription.lagged


@pytest.mark.parametrize(("action", "waits"), [(Action.REBOOT_NODE, True), (Action.INSPECT, False)])
def test_whether_a_repair_waits(action: Action, waits: bool) -> None:
    state = board()
    publish(state, [finding(action, When.AFTER_JOB)])
    assert state.waits_for_idle() is waits
