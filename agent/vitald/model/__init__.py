"""
The data model: observations, findings, incidents, actions and the verdict.

Owns     the types that all other modules use, and the order of actions. Those of diagnostics are in
         `model.diagnostic`.
Refuses  I/O, clocks, and the meaning of codes, which is in the catalogue.

All times are seconds since the epoch (UTC), as floats. PCI addresses are written as the kernel's
sysfs writes them: lower-case `dddd:bb:dd.f`, the domain at least four digits.
"""

from __future__ import annotations

from vitald.model.action import Action, Repair, Status, Verdict, When
from vitald.model.changed import copy_with
from vitald.model.component import (
    NODE,
    Component,
    ComponentKind,
    Device,
    DeviceNames,
    Mark,
    MarkKind,
)
from vitald.model.event import VOUCHED, Event, Fields, Trust, Value, is_hearsay
from vitald.model.finding import (
    Acceptance,
    Changes,
    Finding,
    FindingKey,
    FindingState,
    Incident,
    Member,
    Memory,
    Requirement,
    ResolvedFault,
    Transition,
    make_single_incident,
)
from vitald.model.source import (
    KERNEL_LOG,
    Batch,
    Position,
    Readings,
    Sample,
    Source,
    SourceFailed,
    SourceHealth,
    SourceState,
)

__all__ = [
    "KERNEL_LOG",
    "NODE",
    "VOUCHED",
    "Acceptance",
    "Action",
    "Batch",
    "Changes",
    "Component",
    "ComponentKind",
    "Device",
    "DeviceNames",
    "Event",
    "Fields",
    "Finding",
    "FindingKey",
    "FindingState",
    "Incident",
    "Mark",
    "MarkKind",
    "Member",
    "Memory",
    "Position",
    "Readings",
    "Repair",
    "Requirement",
    "ResolvedFault",
    "Sample",
    "Source",
    "SourceFailed",
    "SourceHealth",
    "SourceState",
    "Status",
    "Transition",
    "Trust",
    "Value",
    "Verdict",
    "When",
    "copy_with",
    "is_hearsay",
    "make_single_incident",
]
