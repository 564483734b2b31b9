"""Actions that findings require, when they are due, and the node's status that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What must be done. The members' order is the order of strength.

    `inspect` is not a step between its neighbours: a person or a diagnostic must examine the
    node. For the node as a whole it outranks actions for the job, and any remedy outranks it.
    """

    NONE = "none"
    OBSERVE = "observe"
    RESTART_WORKLOAD = "restart_workload"
    INSPECT = "inspect"
    RESET_DEVICE = "reset_device"
    REBOOT_NODE = "reboot_node"
    REPLACE_NODE = "replace_node"

    # Attributes and not properties, since they are read several times for every log line
    rank: int
    makes_unfit: bool  # whether an open finding that requires this now makes the node unfit

    @property
    def phrase(self) -> str:
        """The action as an instruction: `reset the device`."""
        return _WORDS[self]

    def choose_repair(self, *, device_reset: bool) -> Repair | None:
        """The repair of the node that the action requires, if any. Resetting a device requires a
        reboot, unless the site resets devices itself (`device_reset`).
        """
        if self is Action.RESET_DEVICE and device_reset:
            return None
        return _REPAIRS.get(self)

    @staticmethod
    def find_strongest(actions: Iterable[Action]) -> Action:
        return max(actions, key=lambda action: action.rank, default=Action.NONE)


class Repair(Enum):
    """What is done to a node as a whole. A replacement outranks a reboot."""

    REBOOT = "reboot"
    REPLACE = "replace"


for _rank, _action in enumerate(Action):
    _action.rank = _rank
for _action in Action:
    _action.makes_unfit = _action.rank >= Action.RESET_DEVICE.rank

_REPAIRS = {
    Action.RESET_DEVICE: Repair.REBOOT,
    Action.REBOOT_NODE: Repair.REBOOT,
    Action.REPLACE_NODE: Repair.REPLACE,
}

_WORDS = {
    Action.NONE: "nothing to do",
    Action.OBSERVE: "keep an eye on it",
    Action.INSPECT: "inspect by hand, or with vitald diag",
    Action.RESTART_WORKLOAD: "restart the workload",
    Action.RESET_DEVICE: "reset the device",
    Action.REBOOT_NODE: "reboot the node",
    Action.REPLACE_NODE: "replace the node",
}


class When(Enum):
    """When the action is due. The members' order is the order of urgency.

    `maintenance` changes no fitness, no flag and no advice to jobs: it waits until the node is
    taken out of service anyway.
    """

    MAINTENANCE = "maintenance"
    AFTER_JOB = "after_job"  # when the work that runs has ended
    NOW = "now"

    urgency: int

    @property
    def phrase(self) -> str:
        """Text that follows the phrase of an action; empty for `now`."""
        return _WHEN_WORDS[self]


for _urgency, _when in enumerate(When):
    _when.urgency = _urgency
_WHEN_WORDS = {
    When.NOW: "",
    When.AFTER_JOB: " after the running job",
    When.MAINTENANCE: " at the next maintenance",
}


class Status(Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The node's status and flags, derived from open findings and the freshness of sources."""

    status: Status
    action: Action
    reboot_required: bool
    reboot_confirmed: bool  # a confirmed finding requires it
    replacement_required: bool
    replacement_confirmed: bool
    simulated: bool  # an open finding is of a drill, or readings are simulated
    reasons: tuple[str, ...]
