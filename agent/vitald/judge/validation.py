"""
Validation before return: which event requires that a diagnostic passes before the node is used
again, and what proves that it did.

Owns     what counts as a trigger, and how one that follows another joins it.
Refuses  settings and the means to run a diagnostic: who asks knows them. A pending validation is
         opened by an event, so that a replay repeats it without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vitald.catalog import Catalog, FaultClass
from vitald.judge.findings import SUPPRESSED
from vitald.model import (
    ComponentKind,
    Device,
    Event,
    Fields,
    Finding,
    FindingState,
    Transition,
)
from vitald.model.codes import (
    BOOT,
    DIAGNOSTIC_PASSED,
    IDENTITY,
    REPLACED,
    RESET,
    VALIDATION_FAILED,
    VALIDATION_PENDING,
)
from vitald.model.validation import Trigger

# What DCGM's diagnostic tests, and the classes of faults that it may find
_TESTED = (
    *(ComponentKind.NODE, ComponentKind.PCI),
    *(ComponentKind.GPU, ComponentKind.NVSWITCH),
)
# Kinds and codes of the node that are about its GPUs
_OF_THE_NODE = ("nvml", "uvm", "dcgm", "dcgm_health", "expect/gpus")
_OF_HARDWARE = (FaultClass.HARDWARE, FaultClass.DRIVER, FaultClass.FABRIC, FaultClass.THERMAL)
_CODES = (VALIDATION_PENDING, VALIDATION_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What requires validation: the heaviest trigger of one event, and what happened in words."""

    trigger: Trigger
    words: str


def find_cause(
    event: Event,
    changes: Iterable[Transition],
    former: Device | None,
    catalog: Catalog,
    level: int,
) -> Cause | None:
    """What this event requires to be validated at `level`; None if nothing.

    `changes`: those that it caused. `former`: the device in its slot before it, for an event that
    may name another.
    """
    for change in changes:
        is_over = _is_disproved(event, change, level) or _was_seen_once(event, change)
        if _was_hardware_fault(change, catalog) and not is_over:
            finding = change.finding
            words = f"{finding.code} of {finding.component.name} is over"
            return Cause(trigger=Trigger.CLEARED, words=words)
    if event.is_simulated or not event.is_judged or event.is_hearsay:
        return None
    name = event.component.name
    if event.code == BOOT:
        return Cause(trigger=Trigger.REBOOT, words="the node was rebooted")
    if event.code == RESET and event.fields.get("persistent") is not False:
        return Cause(trigger=Trigger.RESET, words=f"{name} was reset")
    if event.component.kind not in (ComponentKind.GPU, ComponentKind.NVSWITCH):
        return None
    if event.code == REPLACED or (event.code == IDENTITY and _is_another(event, former)):
        return Cause(trigger=Trigger.REPLACEMENT, words=f"{name} was replaced by another")
    return None


def make_pending_fields(cause: Cause, pending: Finding | None, level: int) -> Fields:
    """The fields of the event that requires validation. `pending`: the open finding, if one is:
    its heavier trigger stays, and validation begins again.
    """
    trigger, words = cause.trigger, cause.words
    known = read_trigger(pending.fields) if pending is not None else None
    if pending is not None and known is not None and known.weight > trigger.weight:
        trigger, words = known, str(pending.fields.get("because", words))
    return {"level": level, "first": level, "after": trigger.value, "because": words}


def read_trigger(fields: Fields) -> Trigger | None:
    """The trigger in the fields of a pending validation."""
    after = fields.get("after")
    return next((trigger for trigger in Trigger if trigger.value == after), None)


def is_about_validation(finding: Finding) -> bool:
    """Whether only a passed diagnostic of the whole node closes the finding, and no other kind of
    evidence.
    """
    return finding.code in _CODES


def proves_validation(event: Event, finding: Finding) -> bool:
    """Whether the event is the pass of a diagnostic that began after everything that it is to
    validate.
    """
    began = event.fields.get("began")
    return (
        event.code == DIAGNOSTIC_PASSED
        and event.component == finding.component
        and isinstance(began, (int, float))
        and began >= finding.last
    )


def _was_hardware_fault(change: Transition, catalog: Catalog) -> bool:
    """Whether a real fault that made the node unfit, and that a diagnostic may find, is over."""
    finding = change.finding
    return (
        finding.state is FindingState.CLEARED
        and not (finding.is_simulated or finding.on_trial or finding.is_hearsay)
        and finding.code not in _CODES
        and finding.component.kind in _TESTED
        and (
            finding.component.kind is not ComponentKind.NODE
            or finding.kind in _OF_THE_NODE
            or finding.code in _OF_THE_NODE
        )
        and finding.makes_unfit(between_jobs=True)
        and catalog.find_rule(finding.code).fault_class in _OF_HARDWARE
        # It goes on, as a consequence of another.
        and not change.cause.startswith(SUPPRESSED)
    )


def _is_disproved(event: Event, change: Transition, level: int) -> bool:
    """Whether a diagnostic at this level found that the fault is over: no other is needed then."""
    tested = event.fields.get("level")
    return (
        change.event == event.identity
        and "run" in event.fields
        and isinstance(tested, int)
        and tested >= level
    )


def _was_seen_once(event: Event, change: Transition) -> bool:
    """Whether only one answer of a watch had the fault, and the next one had not."""
    return change.event == event.identity and event.fields.get("once") is True


def _is_another(event: Event, former: Device | None) -> bool:
    if former is None:
        return False
    named = {"uuid": former.uuid, "serial": former.serial}
    return any(
        known and isinstance(found := event.fields.get(name), str) and found and found != known
        for name, known in named.items()
    )


def may_name_another(event: Event) -> bool:
    """Whether the event says which device is in a slot."""
    return event.code == IDENTITY
