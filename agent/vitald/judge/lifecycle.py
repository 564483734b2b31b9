"""
The steps of one finding as pure functions: opened, updated, closed.

    (none) --event--> open --stronger event--> open, raised --remedy begun--> in remedy
    --evidence--> cleared

A weaker or later event never lowers the requirement of a finding. The driver's recommendation and
co-occurrence may, each with its reason in the finding. A finding ends by age only if its rule
says so.
"""

from __future__ import annotations

import json
from dataclasses import replace

from vitald.catalog import CLEARS_OF, Catalog, Clears, Rule, Ruling
from vitald.catalog.threshold import Comparison
from vitald.model.changed import copy_with
from vitald.model.event import DOUBTED, VOUCHED, Event, Fields, Trust
from vitald.model.finding import (
    Acceptance,
    Finding,
    FindingKey,
    FindingState,
    Member,
    Requirement,
    Transition,
)
from vitald.model.words import Action, When

NEVER = float("inf")
BY_PERSON = "cleared by"  # start of the cause if a person cleared the finding
# Start of the cause if the fault persists, and is suppressed under its root cause
SUPPRESSED = "suppressed as a consequence of"
MOVED = "the board"  # start of the reason if a board came from another slot with a finding open
_WITNESS_S = 30.0  # longest time between two reports of the same occurrence
_OF_HEARSAY = (VOUCHED, "facility", DOUBTED)


def open_finding(id_: int, key: FindingKey, event: Event, ruling: Ruling, incident: int) -> Finding:
    component, code, _ = key
    return Finding(
        id=id_,
        component=component,
        code=code,
        kind=code.partition("/")[0],
        base=ruling.requirement,
        since=event.time,
        last=event.time,
        count=1,
        boot_id=event.boot_id,
        title=ruling.title,
        raw=event.raw,
        fields=event.fields,
        source=event.source,
        incident=incident,
        read_since=_read_gap_end(event),
        quiet_s=ruling.clears.quiet_s,
        confirmed_by=event.vouched_by,
        simulated_until=event.simulated_until,
    )


def is_second_hand(fields: Fields) -> bool:
    """Whether this is a second report of something that the kernel log reports with more detail."""
    return "witness" in fields


def is_counted(event: Event, known: Finding | Member | None) -> bool:
    """Whether the event is one more occurrence: not a continued record, nor a second report."""
    if event.follows is not None:
        return False
    if known is None or abs(event.time - known.last) > _WITNESS_S:
        return True
    return not is_second_hand(event.fields) and not (
        isinstance(known, Finding) and is_second_hand(known.fields)
    )


def update_finding(
    current: Finding, event: Event, ruling: Ruling, *, boot_id: str, latest: bool
) -> Finding:
    """The finding after one more event.

    `boot_id`: boot in which it was seen last. `latest`: a state, whose last event decides alone.
    """
    if current.is_hearsay and not event.is_hearsay:
        current = replace(
            current,
            fields={
                name: value for name, value in current.fields.items() if name not in _OF_HEARSAY
            },
        )
    seen = copy_with(
        current,
        last=max(current.last, event.time),
        count=current.count + is_counted(event, current),
        boot_id=boot_id,
        read_since=max(current.read_since, _read_gap_end(event)),
        simulated_until=event.simulated_until,
    )
    if current.remedy_at is not None and event.time >= current.remedy_at:
        seen = replace(seen, state=FindingState.OPEN, remedy_at=None)
    is_own_report = is_second_hand(current.fields) and not is_second_hand(event.fields)
    if is_own_report:
        seen = replace(seen, source=event.source)
    if latest or is_own_report or ruling.requirement.is_stronger_than(current.base):
        seen = _apply_ruling(seen, current, event, ruling, latest=latest)
    elif ruling.unusable and not current.unusable:
        seen = replace(seen, base=replace(current.base, unusable=True))
    if seen.driver is not None and seen.driver.action.rank < seen.catalog_requirement.action.rank:
        # The driver recommended it before this event, and the recommendation no longer applies.
        seen = replace(seen, driver=None)
    seen = limit_confirmation(current, seen, event)
    if event.vouched_by:
        seen = confirm_finding(seen, event.vouched_by, ruling.action, same_fault=True)
    return seen


def limit_confirmation(before: Finding, after: Finding, event: Event) -> Finding:
    """The finding after an event that is not an observation. If it raised what is required, only
    what was required before stays confirmed.
    """
    former = before.requirement_before_escalation.action
    if event.vouched_by or after.requirement_before_escalation.action.rank <= former.rank:
        return after
    limit = min(after.confirmed_action, former, key=lambda action: action.rank)
    return replace(after, confirmed_action=limit)


def confirm_finding(finding: Finding, by: str, action: Action, *, same_fault: bool) -> Finding:
    """The finding after an observation that requires `action` itself, which is as much as it
    confirms. `same_fault`: the fault itself was observed, so that what its history adds is
    confirmed, too, unless text requires more than the observation.
    """
    if same_fault and action.rank >= finding.requirement_before_escalation.action.rank:
        action = Action.REPLACE_NODE
    if finding.confirmed_by and action.rank <= finding.confirmed_action.rank:
        return finding
    return replace(finding, confirmed_by=by, confirmed_action=action)


def _apply_ruling(
    seen: Finding, current: Finding, event: Event, ruling: Ruling, *, latest: bool
) -> Finding:
    """The finding with what the rule requires for this event as its base."""
    # A stronger event must not shorten the quiet period: the longest one of all events counts,
    # and there is none if one of them has none.
    quiet = ruling.clears.quiet_s
    if not latest:
        quiet = None if quiet is None or current.quiet_s is None else max(quiet, current.quiet_s)
    raw = event.raw if event.follows is None else current.raw
    fields = merge_fields(event, current)
    unusable = ruling.unusable or (current.base.unusable and not latest)
    asked = replace(ruling.requirement, unusable=unusable)
    return replace(
        seen,
        base=asked,
        context=None,
        title=ruling.title,
        raw=raw,
        fields=fields,
        quiet_s=quiet,
    )


def is_below_limits(finding: Finding, rule: Rule) -> bool:
    """Whether the rise of a counter that it reports is less than its rule's limits are now."""
    rise = finding.fields.get("rise")
    limits = [
        threshold.limit
        for threshold in rule.thresholds
        if threshold.test is Comparison.RISES and threshold.of in finding.fields
    ]
    return (
        isinstance(rise, (int, float))
        and bool(limits)
        and all(not isinstance(limit, str) and rise < limit for limit in limits)
    )


def is_carried(finding: Finding) -> bool:
    """Whether it came with its board from another slot, where a replacement was required."""
    return finding.escalation is not None and finding.escalation.reason.startswith(MOVED)


def is_worse_than_accepted(finding: Finding) -> bool:
    """Whether it requires more than when a person accepted it."""
    if finding.accepted is None:
        return False
    then = finding.accepted.required
    return finding.requirement.is_stronger_than(then) or (finding.unusable and not then.unusable)


def shift_finding(finding: Finding, seconds: float) -> Finding:
    """The finding with its times shifted after a step of the clock."""
    accepted, remedy_at, over_at = finding.accepted, finding.remedy_at, finding.simulated_until
    if accepted is not None:
        accepted = replace(accepted, since=accepted.since + seconds, until=accepted.until + seconds)
    return replace(
        finding,
        since=finding.since + seconds,
        last=finding.last + seconds,
        read_since=finding.read_since + seconds if finding.read_since else 0.0,
        remedy_at=remedy_at + seconds if remedy_at is not None else None,
        simulated_until=over_at + seconds if over_at is not None else None,
        accepted=accepted,
    )


def format_acceptance(accepted: Acceptance, now: float) -> str:
    """An acceptance as the detail of a mark. Times are relative to the mark's, so that a step of
    the clock shifts them, too.
    """
    asked = accepted.required
    requirement = [asked.action.value, asked.when.value, asked.unusable]
    return json.dumps(
        [accepted.since - now, accepted.until - now, requirement, accepted.by, accepted.reason]
    )


def parse_acceptance(detail: str, time: float) -> Acceptance:
    """The acceptance in the detail of a mark of that time."""
    since, until, (action, when, unusable), by, reason = json.loads(detail)
    asked = Requirement(Action(action), When(when), unusable=unusable)
    return Acceptance(by=by, reason=reason, since=time + since, until=time + until, required=asked)


def join_findings(former: Finding, current: Finding) -> Finding:
    """One finding from two of the same fault, with the stronger requirement and both counts."""
    base = former if former.requirement.is_stronger_than(current.requirement) else current
    confirmed = current if current.confirmed_by else former
    return replace(
        base,
        id=current.id,
        incident=current.incident,
        since=min(former.since, current.since),
        last=max(former.last, current.last),
        count=former.count + current.count,
        boot_id=current.boot_id,
        confirmed_by=confirmed.confirmed_by,
        confirmed_action=confirmed.confirmed_action,
        state=current.state,
        remedy_at=current.remedy_at,
    )


def _read_gap_end(event: Event) -> float:
    """End of a gap in the log: before it, the absence of lines proves nothing."""
    until = event.fields.get("before")
    return until if event.trust is Trust.DAEMON and isinstance(until, float) else 0.0


def merge_fields(event: Event, current: Finding | None) -> Fields:
    """The fields of an event; of a continued record together with those of its first part."""
    if event.follows is None or current is None:
        return event.fields
    return {**event.fields, **current.fields}


def close_finding(
    finding: Finding, time: float, cause: str, event: str | None = None
) -> Transition:
    gone = replace(finding, state=FindingState.CLEARED, cleared_at=time, cleared_by=cause)
    return Transition(time=time, finding=gone, cause=cause, event=event)


def make_transition(before: Finding, after: Finding, event: Event) -> Transition:
    """The transition between two values, with an empty cause if nothing was decided."""
    cause = ""
    if _is_only_counted(before, after):
        pass
    elif (before.action, before.when) != (after.action, after.when):
        asked = after.requirement
        cause = (
            f"{event.code}: {before.action.value} ({before.when.value}) -> {asked.action.value}"
            f" ({asked.when.value})"
        )
        cause += f": {asked.reason}" if asked.reason else ""
    elif after.is_confirmed and not before.is_confirmed:
        cause = f"confirmed by {after.confirmed_by}"
    elif before.unusable is not after.unusable:
        cause = f"{event.code}: the device {'cannot' if after.unusable else 'can'} be used"
    elif before.state is not after.state:
        cause = f"{event.code} seen again during the remedy"
    return Transition(time=event.time, finding=after, cause=cause, event=event.identity)


def _is_only_counted(before: Finding, after: Finding) -> bool:
    """Whether nothing but counts and times changed, as with most lines."""
    layers = (
        before.base is after.base
        and before.context is after.context
        and before.implied is after.implied
    )
    others = before.driver is after.driver and before.escalation is after.escalation
    return (
        layers
        and others
        and before.state is after.state
        and before.confirmed_by == after.confirmed_by
        and before.confirmed_action is after.confirmed_action
    )


def find_clears(finding: Finding, catalog: Catalog) -> Clears:
    """The evidence that closes the finding. It follows the required action, if that is not its
    entry's own; if the driver lowered it, the entry's evidence closes the finding as well. After a
    failed remedy another reset or reboot proves nothing.

    A diagnostic of a lower level than the one that found the fault cannot disprove it.
    """
    rule = catalog.find_rule(finding.code)
    ruling = rule.apply_to(finding.fields)
    clears = ruling.clears
    if finding.has_failed_remedy:
        joined = CLEARS_OF[finding.action].join_evidence(rule.clears)
        clears = replace(joined, reboot=False, device_reset=False)
    elif finding.action is not ruling.action:
        asked = CLEARS_OF[finding.action]
        clears = asked if finding.requirement is not finding.driver else asked.join_evidence(clears)
    found_at = finding.fields.get("level")
    if clears.diagnostic is not None and isinstance(found_at, int) and found_at > clears.diagnostic:
        clears = replace(clears, diagnostic=found_at)
    return clears


def compute_end(finding: Finding) -> float:
    """When the finding ends by itself: after its quiet period, in which its source must have been
    read, or with its drill. Infinity if never.
    """
    quiet_s = (
        finding.quiet_s
        if finding.action is finding.base.action
        else CLEARS_OF[finding.action].quiet_s
    )
    quiet = max(finding.last, finding.read_since) + quiet_s if quiet_s is not None else NEVER
    return min(quiet, finding.simulated_until if finding.simulated_until is not None else NEVER)
