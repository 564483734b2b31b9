"""
Who is in which slot, and the record of what a device has done before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vitald.model.component import Component


class MarkKind(Enum):
    """What a device's record is made of."""

    FAULT = "fault"  # a fault of the device itself was the root of an incident
    REMEDY = "remedy"  # what a finding asked for was done
    NOT_HELD = "not_held"  # the fault came back after its remedy
    PROCESS = "process"  # a process died of a fault that may be its own or the device's
    REMOVED = "removed"  # it left its slot with something open that only a replacement ends
    ACCEPTED = (
        "accepted"  # a boot ended what a person lives with until a moment: it may be found again
    )
    JOB_DIED = "job_died"
    DIAGNOSTIC_FAILED = "diagnostic_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry in a device's record. `device` is what survives a move (UUID, serial), else the
    component's name.
    """

    device: str
    time: float
    kind: MarkKind
    fault: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is remembered of the thing in a slot: who it is, and when it was last reset or put
    there.
    """

    component: Component
    uuid: str = ""
    serial: str = ""
    reset_at: float = 0.0
    placed_at: float = 0.0

    @property
    def identity(self) -> str:
        return self.uuid or self.serial
