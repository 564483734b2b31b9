"""
The device in a slot, and the marks of a device's history.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vitald.model.component import Component


class MarkKind(Enum):
    """Kinds of marks in a device's history."""

    FAULT = "fault"  # a fault of the device itself was the root of an incident
    REMEDY = "remedy"  # the action that a finding required was done
    NOT_HELD = "not_held"  # the fault came back after its remedy
    PROCESS = "process"  # a process died of a fault that may be its own or the device's
    REMOVED = "removed"  # it left its slot with an open finding that only a replacement clears
    ACCEPTED = "accepted"  # a boot closed an accepted finding, which may be found again
    JOB_DIED = "job_died"
    DIAGNOSTIC_FAILED = "diagnostic_failed"
    # A job stalled while this GPU took no part. Never in the history, see `core.suspicion`
    JOB_STALLED_HERE = "job_stalled_here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry of a device's history. `device` is its UUID or serial number, else the component's
    name.
    """

    device: str
    time: float
    kind: MarkKind
    fault: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is known of the device in a slot: its identity, and the times of its last reset and of
    its installation (0 if unknown).
    """

    component: Component
    uuid: str = ""
    serial: str = ""
    reset_at: float = 0.0
    placed_at: float = 0.0

    @property
    def identity(self) -> str:
        return self.uuid or self.serial
