"""
What the judge remembers, and the changes of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vitald.model.component import Component
from vitald.model.device import Device, Mark
from vitald.model.finding import Finding
from vitald.model.incident import Incident


class ResolvedFault(NamedTuple):
    """When the fault of a component was last resolved: lines from before are history."""

    component: Component
    code: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the judge changed in addition to findings, to be stored with them."""

    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    forgotten: tuple[Mark, ...] = ()  # marks that were removed
    devices: tuple[Device, ...] = ()
    resolved: tuple[ResolvedFault, ...] = ()
    # A device's history continues under another name: (former, new)
    renamed: tuple[tuple[str, str], ...] = ()
    # Seconds by which all stored times are shifted, before the other changes are applied
    shifted: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Everything that the judge needs to know of the past."""

    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    devices: tuple[Device, ...] = ()
    resolved: tuple[ResolvedFault, ...] = ()
    next_finding: int = 1
    next_incident: int = 1
