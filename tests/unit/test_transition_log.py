"""What happens to findings, as the daemon's log has it."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.builders import finding
from vitald.core.pipeline import log_transitions
from vitald.judge.verdict import get_component_name
from vitald.model.event import VOUCHED
from vitald.model.finding import Finding, FindingState, Requirement, Transition
from vitald.model.words import Action, When

RAW = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
UNKNOWN = Requirement(Action.INSPECT, When.NOW, unknown=True)
UNUSABLE = Requirement(Action.INSPECT, When.NOW, unusable=True)


def log_one(found: Finding, *, opened: bool = True, later_s: float = 0.0) -> tuple[str, str]:
    """Level and message. `later_s`: how long ago it was."""
    change = Transition(time=1e9, finding=found, cause="the reason", opened=opened)
    with capture_logs() as lines:
        log_transitions([change], 1e9 + later_s, get_component_name)
    (line,) = lines
    return str(line.get("level", line["log_level"])), str(line["message"])


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (finding(Action.REPLACE_NODE), "error"),
        (finding(base=UNUSABLE), "error"),
        (finding(Action.REPLACE_NODE, When.AFTER_JOB), "warning"),
        (finding(Action.REPLACE_NODE, When.MAINTENANCE), "warning"),
        (finding(Action.OBSERVE), "warning"),
        (finding(base=UNKNOWN), "warning"),
        (finding(simulated_until=9.0), "error"),
        (finding(state=FindingState.IN_REMEDY), "error"),
        (finding(state=FindingState.CLEARED), "notice"),
    ],
)
def test_the_level_is_what_the_finding_does_to_the_node(found: Finding, level: str) -> None:
    assert log_one(found)[0] == level


@pytest.mark.parametrize(
    ("changes", "opened", "message"),
    [
        (
            {},
            True,
            f"finding #1 opened: gpu/0000:01:00.0: a title (xid/79): reboot the node: {RAW}",
        ),
        (
            {"confirmed_by": ""},
            True,
            "finding #1 opened: gpu/0000:01:00.0: a title (xid/79): reboot the node (unconfirmed):"
            f" {RAW}",
        ),
        (
            {"confirmed_by": "", "fields": {VOUCHED: False}},
            True,
            "finding #1 opened: gpu/0000:01:00.0: a title (xid/79): reboot the node (unconfirmed,"
            f" written by a process): {RAW}",
        ),
        (
            {"simulated_until": 9.0},
            False,
            "finding #1 changed: SIMULATED: gpu/0000:01:00.0: a title (xid/79): reboot the node:"
            " the reason",
        ),
        (
            {"base": UNUSABLE},
            False,
            "finding #1 changed: gpu/0000:01:00.0: a title (xid/79): it cannot be used:"
            f" {Action.INSPECT.phrase}: the reason",
        ),
        (
            {"state": FindingState.CLEARED},
            False,
            "finding #1 cleared: gpu/0000:01:00.0: a title (xid/79): the reason",
        ),
    ],
)
def test_the_message_is_what_the_person_on_call_needs(
    changes: dict[str, Any], opened: bool, message: str
) -> None:
    assert log_one(finding(raw=RAW, **changes), opened=opened)[1] == message


def test_what_was_before_the_start_says_when() -> None:
    assert log_one(finding(), later_s=3600.0)[1].endswith(" (at 2001-09-09T01:46:40Z)")
    assert "2001" not in log_one(finding(), later_s=1.0)[1]


def test_counts_alone_are_no_line() -> None:
    with capture_logs() as lines:
        log_transitions(
            [Transition(time=0.0, finding=finding(), cause="")], 0.0, get_component_name
        )
    assert lines == []
