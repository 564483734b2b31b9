"""What publishers write: `/v1/summary`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from vitald.server.schema.value_types import (
    Action,
    Code,
    ComponentKind,
    ComponentName,
    Keywords,
    Moment,
    Status,
    When,
    _Count,
    _Positive,
)

_REASON = Keywords(pattern=r"^[A-Z][A-Za-z0-9]{0,127}$", examples=("Xid79",))


class SummarizedFinding(TypedDict):
    """An open finding in short."""

    id: _Positive
    """Its number."""
    component: ComponentName
    code: Code
    reason: Annotated[str, _REASON]
    """The stable word for its code."""
    action: Action
    when: When
    since: Moment
    """First seen."""
    confirmed: bool
    """Another source than the text of the kernel log reports it, too."""
    accepted: bool
    """A person accepted it for a time."""
    simulated: bool
    """It is a drill's, or was read from a simulated library."""
    due: bool
    """The node is to be rebooted or replaced for it now, as for `rebootDue`."""
    device: str
    """UUID or serial number of the device; its slot where neither is known."""


class NodeSummary(TypedDict):
    """The node's state in the words that other systems match, and which repairs are due now."""

    status: Status
    action: Action
    reason: Annotated[str, _REASON]
    """Why the status is what it is: `Healthy`, `Degraded`, `SourceNotRead`, `SimulatedReadings`, or
    the word for the code of the worst incident's cause."""
    reasons: Annotated[list[str], Keywords(max_items=100)]
    """Why, in sentences, the strongest first, 100 at most."""
    rebootRequired: bool
    """A finding requires a reboot, confirmed or not, and perhaps after the running job only."""
    replacementRequired: bool
    """The same for a replacement."""
    rebootDue: Annotated[str, _REASON] | None
    """The word for the finding for which the node is to be rebooted now; null where none is. The
    finding is confirmed, and requires it now, or after the running job while the node is idle."""
    replacementDue: Annotated[str, _REASON] | None
    """The same for a replacement."""
    changedAt: Moment
    """When a finding changed last."""
    findings: Annotated[list[SummarizedFinding], Keywords(max_items=100)]
    """The open findings, 100 at most: those first for which a repair is due, then the strongest."""
    openFindings: _Count
    """How many are open altogether."""
    ignoredDrills: _Count
    """Open findings of drills, which this answer leaves out; 0 with `drills=true`."""
    complete: bool
    """Everything that is watched was read lately, and every device answered. Otherwise there may be
    faults that are not known."""
    accelerators: list[ComponentKind]
    """Kinds of accelerators on PCI: `gpu`, `neuron`."""
    bootId: str
    """This boot."""
    time: Moment
    """Time of this answer."""
