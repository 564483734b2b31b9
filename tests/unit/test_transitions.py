"""What a transition is called: opened, escalated, in remedy, cleared."""

from __future__ import annotations

import pytest

from tests.unit.builders import finding
from vitald.ledger import FindingChange
from vitald.ledger.rows import PastTransition
from vitald.model import Action, Device, FindingState
from vitald.server.routes.transitions import _identify_device, _name_change

OPEN, IN_REMEDY, CLEARED = FindingState.OPEN, FindingState.IN_REMEDY, FindingState.CLEARED
RESET, REBOOT = Action.RESET_DEVICE, Action.REBOOT_NODE


@pytest.mark.parametrize(
    ("former", "state", "action", "name"),
    [
        (None, OPEN, RESET, "opened"),
        ((OPEN, RESET), OPEN, REBOOT, "escalated"),
        ((OPEN, REBOOT), OPEN, RESET, "other"),
        ((OPEN, RESET), OPEN, RESET, "other"),
        ((OPEN, RESET), IN_REMEDY, RESET, "in_remedy"),
        ((IN_REMEDY, RESET), IN_REMEDY, REBOOT, "escalated"),
        ((IN_REMEDY, RESET), OPEN, RESET, "other"),
        ((OPEN, REBOOT), CLEARED, REBOOT, "cleared"),
    ],
)
def test_what_a_transition_is_called(
    former: tuple[FindingState, Action] | None, state: FindingState, action: Action, name: str
) -> None:
    past = PastTransition(time=0.0, state=state.value, action=action.value, cause="c", event=None)
    change = FindingChange(1, past, finding(), former)
    assert _name_change(change) == name


@pytest.mark.parametrize(
    ("placed_at", "identity"),
    [(0.0, ("GPU-a", "1")), (10.0, ("GPU-a", "1")), (10.5, ("", ""))],
)
def test_a_former_device_is_not_given_the_identity_of_the_present_one(
    placed_at: float, identity: tuple[str, str]
) -> None:
    about = finding(since=10.0)
    device = Device(component=about.component, uuid="GPU-a", serial="1", placed_at=placed_at)
    assert _identify_device(about, device) == identity
