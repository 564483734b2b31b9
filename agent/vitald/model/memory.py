"""
What judging remembers, and what it changed of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitald.model.component import Component
from vitald.model.device import Device, Mark
from vitald.model.finding import Finding
from vitald.model.incident import Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What judging changed beside the findings, to be stored with them."""

    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    forgotten: tuple[Mark, ...] = ()  # marks that had to make room
    devices: tuple[Device, ...] = ()
    resolved: tuple[tuple[Component, str, float], ...] = ()
    renamed: tuple[
        tuple[str, str], ...
    ] = ()  # a device's record goes on under another name: (former, new)
    shifted: float = (
        0.0  # seconds by which all remembered times are told anew, before what else is here
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that judging needs to know of the past: the fold so far."""

    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    devices: tuple[Device, ...] = ()
    resolved: tuple[
        tuple[Component, str, float], ...
    ] = ()  # when a component's code was last dealt with: older lines are history
    next_finding: int = 1
    next_incident: int = 1
