"""
The node's status, as computed from all findings and sources.
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
    """The node's status and flags, derived from open findings and the freshness of sources."""

    status: Status
    action: Action
    reboot_required: bool
    reboot_confirmed: bool  # a confirmed finding requires it
    replacement_required: bool
    replacement_confirmed: bool
    simulated: bool  # an open finding is of a drill, or readings are simulated
    reasons: tuple[str, ...]
