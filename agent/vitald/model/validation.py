"""
Validation before return: after what a node must pass a diagnostic before it is used again, and how
far that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Trigger(Enum):
    """What validation follows. The members' order is the order of weight: a pending validation
    keeps the heaviest.
    """

    REBOOT = "reboot"
    RESET = "reset"  # of a GPU
    REPLACEMENT = "replacement"  # another GPU or NVSwitch in the slot
    CLEARED = "cleared"  # a fault of the hardware that made the node unfit is over

    @property
    def weight(self) -> int:
        return _WEIGHT[self]

    @property
    def follows_fault(self) -> bool:
        """Whether the hardware was known to be bad: only a passed diagnostic speaks for it then."""
        return self in (Trigger.REPLACEMENT, Trigger.CLEARED)


_WEIGHT = {trigger: weight for weight, trigger in enumerate(Trigger)}


class ValidationStage(Enum):
    OFF = "off"  # it is not required here, or cannot be carried out
    NONE = "none"  # nothing is to be validated
    PENDING = "pending"
    FAILED = "failed"  # it failed, or came to nothing: a person is required


class ValidationEnd(Enum):
    """Why a validation ends without a pass."""

    IMPOSSIBLE = "impossible"  # diagnostics cannot run here
    NO_VERDICT = "no_verdict"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedValidation:
    """A validation that ended without a pass. `because`: what required it; `reason`: why no
    diagnostic proved it. Times in seconds since the epoch.
    """

    level: int
    after: Trigger
    because: str
    reason: str
    since: float  # when it was required
    ended: float
    is_impossible: bool  # else three runs had no verdict
    obstacle: str = ""  # why no run could begin; "" if one could
    returned: bool = False  # it had been required again after such an end already

    def describe(self) -> str:
        return f"{self.because}, and level {self.level} did not pass: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How far validation is. `level`: that must pass; 0 if none. `detail`: why it is off, what it
    waits for, or what failed. `missed`: the last one, if it ended without a pass.
    """

    stage: ValidationStage
    level: int = 0
    after: str = ""  # a Trigger's value; "" if nothing is to be validated
    since: float | None = None  # seconds since the epoch
    detail: str = ""
    missed: MissedValidation | None = None
