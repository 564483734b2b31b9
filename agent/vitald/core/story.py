"""
What else happened on the node when its work stopped: the strongest fault of hardware, driver,
fabric or storage around the beginning of a notice, or that there was none.

It is told to people only; nothing of it goes to the verdict. That two things happened at a time
does not prove that one caused the other, and the text does not say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vitald.catalog import Catalog, FaultClass
from vitald.model import Action, Event, Finding
from vitald.model.notice import JOB_STALLED, WAITING, Notice

TOLD_CODES = (WAITING, JOB_STALLED)
BEFORE_S, AFTER_S = 600.0, 120.0  # of the notice's beginning
_CLASSES = (FaultClass.HARDWARE, FaultClass.DRIVER, FaultClass.FABRIC, FaultClass.THERMAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the node, at its first time in the window."""

    component: str
    code: str
    title: str
    action: Action
    time: float


def tell_story(
    notice: Notice,
    events: Iterable[Event],
    findings: Iterable[Finding],
    catalog: Catalog,
    *,
    known_since: float,
    is_observed: bool = True,
) -> str:
    """One or two sentences; empty for a notice that needs none. `known_since`: from when on
    `events` are complete, in seconds since the epoch. `is_observed`: whether all that must be read
    on this node is read: silence is not health.
    """
    if notice.code not in TOLD_CODES:
        return ""
    begin = notice.since - BEFORE_S
    opened = [fault for finding in findings if (fault := _read_finding(finding, catalog))]
    found = [*_list_events(events, catalog), *opened]
    faults = _sort_faults(fault for fault in found if begin <= fault.time <= notice.since + AFTER_S)
    if faults:
        others = [f"with {_name_fault(fault)}." for fault in faults[1:2]]
        return " ".join([f"{_tell_when(faults[0], notice.since)}.", *others])
    if earlier := _sort_faults(fault for fault in opened if fault.time < begin):
        more = f", and {len(earlier) - 1} more" if len(earlier) > 1 else ""
        return (
            "No fault of this node began in the 10 minutes before. Open since earlier:"
            f" {_name_fault(earlier[0])}{more}."
        )
    if not is_observed:
        return (
            "No fault of this node was observed in the 10 minutes before, but not all of it is"
            " observed: see the sources in vitald status."
        )
    if known_since > begin:
        return "What happened before it began is not known: vitald started later."
    return (
        "This node looks well: no fault of it was observed in the 10 minutes before. Look at the"
        " nodes that do not wait."
    )


def _list_events(events: Iterable[Event], catalog: Catalog) -> Iterable[Fault]:
    for event in events:
        if not event.is_judged or event.is_simulated or event.is_hearsay:
            continue
        rule = catalog.find_rule(event.code)
        ruling = rule.apply_to(event.fields)
        if rule.fault_class in _CLASSES and ruling.action is not Action.NONE:
            yield Fault(
                component=event.component.name,
                code=event.code,
                title=ruling.title,
                action=ruling.action,
                time=event.time,
            )


def _read_finding(finding: Finding, catalog: Catalog) -> Fault | None:
    if finding.is_simulated or finding.is_hearsay:
        return None
    if catalog.find_rule(finding.code).fault_class not in _CLASSES:
        return None
    return Fault(
        component=finding.component.name,
        code=finding.code,
        title=finding.title,
        action=finding.action,
        time=finding.since,
    )


def _sort_faults(found: Iterable[Fault]) -> list[Fault]:
    """Each fault once, the strongest action first, then the earliest."""
    ordered = sorted(found, key=lambda fault: (-fault.action.rank, fault.time))
    first: dict[tuple[str, str], Fault] = {}
    for fault in ordered:
        first.setdefault((fault.component, fault.code), fault)
    return list(first.values())


def _tell_when(fault: Fault, since: float) -> str:
    seconds = abs(since - fault.time)
    span = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    side = "before" if fault.time <= since else "after"
    return f"{span} {side} it began: {_name_fault(fault)}"


def _name_fault(fault: Fault) -> str:
    return f"{fault.component}: {fault.title} ({fault.code})"
