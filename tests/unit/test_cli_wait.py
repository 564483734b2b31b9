"""`vitald wait --until change`: what counts as a change after a restart of the daemon."""

from __future__ import annotations

import copy

import pytest

from vitald.cli import wait
from vitald.server import examples, schema
from vitald.timestamps import format_rfc3339

STARTED = 1_700_000_000.0


def make_status(status: str, *, started: float = STARTED, age: float = 3600.0) -> schema.NodeStatus:
    """Of a daemon that started then, so long after its start."""
    made = copy.deepcopy(examples.STATUS)
    made["status"] = status  # type: ignore[typeddict-item]
    made["startedAt"] = format_rfc3339(started)
    made["time"] = format_rfc3339(started + age)
    for source in made["sources"]:
        source["state"] = "ok"  # type: ignore[typeddict-item]
    return made


def make_starting(age: float) -> schema.NodeStatus:
    """A daemon that was restarted and has not read one of its sources."""
    made = make_status("unknown", started=STARTED + 7200, age=age)
    made["sources"][0]["state"] = "starting"  # type: ignore[typeddict-item]
    return made


def test_a_restart_is_no_change() -> None:
    change = wait._StatusChange()
    assert not change.has_come(make_status("healthy"))
    for age in (0.0, 5.0, 30.0, 59.0):
        assert not change.has_come(make_starting(age))
    assert not change.has_come(make_status("healthy", started=STARTED + 7200, age=61.0))


@pytest.mark.parametrize(
    "later",
    [
        make_status("unknown"),  # the same daemon
        make_status("unknown", started=STARTED + 7200, age=11.0),
        make_starting(61.0),  # a source that cannot be read is a change after all
    ],
)
def test_what_changed_over_a_restart_is_a_change(later: schema.NodeStatus) -> None:
    change = wait._StatusChange()
    assert not change.has_come(make_status("healthy"))
    assert not change.has_come(make_starting(1.0))
    assert change.has_come(later)
