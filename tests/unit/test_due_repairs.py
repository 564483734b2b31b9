"""Which repair of the node is due now, for one finding and for all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.builders import finding
from vitald.judge.repairs import find_due_repair, find_due_repairs
from vitald.model import Action, FindingState, Repair, When

SIMULATED: dict[str, Any] = {"simulated_until": 9.0, "confirmed_by": ""}


@pytest.mark.parametrize(
    ("action", "when", "changes", "how", "due"),
    [
        (Action.REBOOT_NODE, When.NOW, {}, {}, Repair.REBOOT),
        (Action.REPLACE_NODE, When.NOW, {}, {}, Repair.REPLACE),
        (Action.RESET_DEVICE, When.NOW, {}, {}, Repair.REBOOT),
        (Action.RESET_DEVICE, When.NOW, {}, {"device_reset": True}, None),
        (Action.INSPECT, When.NOW, {}, {}, None),
        (Action.REBOOT_NODE, When.AFTER_JOB, {}, {}, None),
        (Action.REBOOT_NODE, When.AFTER_JOB, {}, {"idle": True}, Repair.REBOOT),
        (Action.REBOOT_NODE, When.MAINTENANCE, {}, {"idle": True}, None),
        (Action.REBOOT_NODE, When.NOW, {"confirmed_by": ""}, {}, None),
        (Action.REBOOT_NODE, When.NOW, {"state": FindingState.IN_REMEDY}, {}, None),
        (Action.REBOOT_NODE, When.NOW, SIMULATED, {}, None),
        (Action.REBOOT_NODE, When.NOW, SIMULATED, {"drills": True}, Repair.REBOOT),
    ],
)
def test_which_repair_is_due(
    action: Action,
    when: When,
    changes: dict[str, Any],
    how: dict[str, bool],
    due: Repair | None,
) -> None:
    how = {"device_reset": False, "idle": False, **how}
    one = finding(action, when, **changes)
    assert find_due_repair(one, **how) is due
    assert find_due_repairs([one], **how) == ({} if due is None else {due: one})
