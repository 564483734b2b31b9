"""
The words of the data model that the command line needs, too: the closed sets of values of findings,
components and runs, as the API, the ledger and the metrics write them. Those of one noun alone are
beside it.

Imports nothing of ours: each import is paid for at every job that a scheduler starts.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        return _PHRASES[self]

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

_PHRASES = {
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
        return _WHEN_PHRASES[self]


for _urgency, _when in enumerate(When):
    _when.urgency = _urgency
_WHEN_PHRASES = {
    When.NOW: "",
    When.AFTER_JOB: " after the running job",
    When.MAINTENANCE: " at the next maintenance",
}


class WorkPhase(Enum):
    """The phase of a job that a verdict is for. Between jobs, actions `after_job` are due."""

    PROLOG = "prolog"  # one is about to begin
    EPILOG = "epilog"  # one has just ended
    RUNNING = "running"  # a job is on the node


class Status(Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class ComponentKind(Enum):
    NODE = "node"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NEURON = "neuron"
    NIC = "nic"
    PCI = "pci"
    CPU = "cpu"
    DIMM = "dimm"
    DISK = "disk"

    @property
    def noun(self) -> str:
        """`GPU`, `disk`: in a text."""
        return _NOUNS.get(self, self.value)


_NOUNS = {
    ComponentKind.GPU: "GPU",
    ComponentKind.NVSWITCH: "NVSwitch",
    ComponentKind.NEURON: "Neuron device",
    ComponentKind.NIC: "NIC",
    ComponentKind.PCI: "PCI device",
    ComponentKind.CPU: "CPU",
    ComponentKind.DIMM: "DIMM",
}


class Outcome(Enum):
    """Outcome of a run. Only `pass` means that the hardware is healthy, and only `fail` that it is
    not.
    """

    PASS = "pass"  # noqa: S105 - every mandatory test of the request passed
    FAIL = "fail"  # at least one fault of the hardware
    CONFIG = "config"  # only settings or the environment are wrong
    INCONCLUSIVE = (  # nothing failed, but a mandatory test was skipped or has no result
        "inconclusive"
    )
    ERROR = "error"  # no usable verdict: it did not run, or not to its end
    NOT_APPLICABLE = "not_applicable"  # the node cannot be tested in its present mode

    @property
    def is_conclusive(self) -> bool:
        return self in (Outcome.PASS, Outcome.FAIL)

    @property
    def is_verdict(self) -> bool:
        """Whether the run was completed."""
        return self.is_conclusive or self is Outcome.CONFIG


class Remedy(Enum):
    """What a result requires. The members' order is the order of strength."""

    NONE = "none"
    RETRY = "retry"
    MONITOR = "monitor"
    FIX_CONFIG = "fix_config"
    EXCLUSIVE_RERUN = "exclusive_rerun"  # again, with no other work on the node
    INVESTIGATE = "investigate"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {remedy: rank for rank, remedy in enumerate(Remedy)}
