"""
The life of one finding, step by step: opened, seen again, asked for something else, closed. Pure functions.

    (none) --event--> open --stronger event--> open, raised --somebody begins--> in remedy --evidence--> cleared

The stronger stands: a weaker or later event never lowers what a finding asks for. The driver's own word may, and so
may the company of its incident, each with its reason in the finding. Nothing ends by growing old unless its rule says so.
"""

from __future__ import annotations

from dataclasses import replace

from agent.catalog import CLEARS_OF, Catalog, Clears, Rule, Ruling
from agent.model import Asked, Event, Fields, Finding, FindingKey, FindingState, Transition, When

NEVER = float("inf")


def opened(id_: int, key: FindingKey, event: Event, ruling: Ruling, incident: int) -> Finding:
    component, code, _, shadow = key
    return Finding(
        id=id_,
        component=component,
        code=code,
        kind=code.partition("/")[0],
        ruled=ruling.asked,
        since=event.time,
        last=event.time,
        count=1,
        boot_id=event.boot_id,
        title=ruling.title,
        raw=event.raw,
        fields=event.fields,
        source=event.source,
        incident=incident,
        quiet_s=ruling.clears.quiet_s,
        shadow=shadow,
        simulated_until=event.simulated_until,
    )


def seen_again(current: Finding, event: Event, ruling: Ruling, *, latest: bool) -> Finding:
    """`latest`: a state, whose last event decides alone."""
    seen = replace(
        current,
        last=max(current.last, event.time),
        count=current.count + (event.follows is None),
        boot_id=event.boot_id,
        simulated_until=event.simulated_until,
    )
    if current.remedy_at is not None and event.time >= current.remedy_at:
        seen = replace(seen, state=FindingState.OPEN, remedy_at=None)
    if latest or stronger(ruling.asked, current.ruled):
        # A stronger event must not shorten the wait: it ends by quiet only if all that was seen may, after the longest of them.
        quiet = ruling.clears.quiet_s
        if not latest:
            quiet = None if quiet is None or current.quiet_s is None else max(quiet, current.quiet_s)
        raw = event.raw if event.follows is None else current.raw
        fields = merged(event, current)
        seen = replace(seen, ruled=ruling.asked, context=None, title=ruling.title, raw=raw, fields=fields, quiet_s=quiet)
    base = seen.context or seen.ruled
    if seen.driver is not None and seen.driver.action.rank < base.action.rank:
        seen = replace(seen, driver=None)  # the word was given before this; it no longer speaks for what stands now
    return seen


def stronger(one: Asked, other: Asked) -> bool:
    return (one.action.rank, one.when is When.NOW) > (other.action.rank, other.when is When.NOW)


def merged(event: Event, current: Finding | None) -> Fields:
    """A record that continues another one adds to what that one said."""
    if event.follows is None or current is None:
        return event.fields
    return {**event.fields, **current.fields}


def closed(finding: Finding, time: float, cause: str, event: str | None = None) -> Transition:
    gone = replace(finding, state=FindingState.CLEARED, cleared_at=time, cleared_by=cause)
    return Transition(time=time, finding=gone, cause=cause, event=event)


def moved(before: Finding, after: Finding, event: Event) -> Transition:
    """The transition between two values. Without a cause where nothing was decided: it was only counted."""
    cause = ""
    if (before.action, before.when) != (after.action, after.when):
        asked = after.asked
        cause = f"{event.code}: {before.action.value} ({before.when.value}) -> {asked.action.value} ({asked.when.value})"
        cause += f": {asked.because}" if asked.because else ""
    elif before.state is not after.state:
        cause = f"{event.code} seen again during the remedy"
    return Transition(time=event.time, finding=after, cause=cause, event=event.identity)


def rule_of(finding: Finding, catalog: Catalog) -> Rule:
    rule = catalog.rule(finding.code)
    return (rule.shadow or rule) if finding.shadow else rule


def clears_of(finding: Finding, catalog: Catalog) -> Clears:
    """What closes it. It follows what is asked for, where that is not the table's; what the driver made light of still ends as before, too."""
    ruling = rule_of(finding, catalog).rule_on(finding.fields)
    if finding.action is ruling.action:
        return ruling.clears
    clears = CLEARS_OF[finding.action]
    return clears if finding.asked is not finding.driver else clears.or_by(ruling.clears)


def due_of(finding: Finding) -> float:
    """When it ends by itself: by quiet, counted while its source was listened to, or with its drill."""
    quiet_s = finding.quiet_s if finding.action is finding.ruled.action else CLEARS_OF[finding.action].quiet_s
    quiet = max(finding.last, finding.heard_since) + quiet_s if quiet_s is not None else NEVER
    return min(quiet, finding.simulated_until if finding.simulated_until is not None else NEVER)
