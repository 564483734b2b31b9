"""The nouns: the order of actions, and names that can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import event
from vitald.model.component import NODE, Component
from vitald.model.event import Trust
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import Action, ComponentKind


def test_the_order_of_actions() -> None:
    words = [
        "none",
        "observe",
        "restart_workload",
        "inspect",
        "reset_device",
        "reboot_node",
        "replace_node",
    ]
    assert [action.value for action in sorted(Action, key=lambda action: action.rank)] == words
    assert [action.value for action in Action if action.makes_unfit] == words[4:]


def test_the_strongest_of_nothing_is_nothing() -> None:
    assert Action.find_strongest([]) is Action.NONE
    assert (
        Action.find_strongest(iter([Action.OBSERVE, Action.REPLACE_NODE, Action.INSPECT]))
        is Action.REPLACE_NODE
    )


def test_every_action_has_words_of_its_own() -> None:
    assert len({action.phrase for action in Action}) == len(Action)


@given(st.sampled_from(list(ComponentKind)), st.text(max_size=20))
def test_components_are_read_back_from_their_names(kind: ComponentKind, id_: str) -> None:
    component = Component(kind, id_)
    assert Component.parse_name(component.name) == component


@pytest.mark.parametrize("name", ["", "gpus/0000:01:00.0", "GPU/0", "/0"])
def test_a_kind_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid ComponentKind"):
        Component.parse_name(name)


def test_the_node_has_no_number() -> None:
    assert NODE.name == "node"


def test_only_what_a_process_wrote_uninvited_is_not_judged() -> None:
    assert [trust for trust in Trust if not event(trust=trust).is_trusted] == [Trust.UNTRUSTED]


@pytest.mark.parametrize(
    ("state", "looked", "fresh"),
    [
        (SourceState.OK, 70.0, True),
        (SourceState.OK, 69.0, False),
        (SourceState.OK, 100.0, True),
        (SourceState.STARTING, 100.0, False),
        (SourceState.FAILED, 100.0, False),
    ],
)
def test_a_source_is_fresh_within_its_deadline(
    state: SourceState, looked: float, fresh: bool
) -> None:
    assert (
        SourceHealth(
            name="x", state=state, deadline=30.0, last_seen=5.0, polled_at=looked
        ).is_fresh(100.0)
        is fresh
    )
