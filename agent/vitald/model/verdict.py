"""
What all findings and sources come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vitald.model.action import Action


class Status(Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The fold of all open findings and of how fresh the sources are. Derived, never stored."""

    status: Status
    action: Action
    reboot_required: bool
    reboot_confirmed: bool  # and a confirmed finding asks for it
    replacement_required: bool
    replacement_confirmed: bool
    simulated: bool  # at least one open finding is a drill's, or what is read is simulated
    reasons: tuple[str, ...]
