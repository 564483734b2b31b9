"""What a transition is called: opened, escalated, in remedy, cleared."""

from __future__ import annotations

import pytest

from tests.unit.builders import finding
from vitald.ledger.queries import FindingChange
from vitald.ledger.schema import PastTransition
from vitald.model.finding import FindingState
from vitald.model.words import Action
from vitald.server.routes.events import _name_change

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
    past = PastTransition(0.0, 1, state, action, "c", None)
    change = FindingChange(1, past, finding(), former)
    assert _name_change(change) == name
