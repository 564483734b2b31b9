"""
The life cycle of findings: opened by an event, raised by a stronger one, closed by evidence.

    (none) --event--> open --stronger event--> open, raised
    open --new boot id | quiet time | recovery | drill over | a named person--> cleared

A finding is kept per component, code, and whether it is a drill's. The stronger stands: a weaker or later event never
lowers the action, and nothing ends by growing old unless its rule says so. Every change carries its cause. The same
events in the same order give the same findings; the time of a quiet end is computed, not the time somebody looked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.catalog import Catalog, Clears, Ruling
from agent.model import NODE, Action, Event, Fields, Finding, FindingKey, FindingState, Transition, When

BOOT = "vitald/boot"
MOST = 4096  # open findings; hostile input may name devices without end


class Findings:
    """The open findings. Mutated only by the methods below, each of which returns what changed."""

    def __init__(self, catalog: Catalog, opened: Iterable[Finding] = (), next_id: int = 1) -> None:
        self._catalog = catalog
        self._open: dict[FindingKey, Finding] = {finding.key: finding for finding in opened}
        self._next_id = next_id
        self._due = self._earliest()

    @property
    def opened(self) -> tuple[Finding, ...]:
        return tuple(self._open.values())

    @property
    def due(self) -> float:
        """When `expire` will next have something to do."""
        return self._due

    def apply(self, event: Event) -> list[Transition]:
        """Fold one event in."""
        changes = self.expire(event.time)
        if not event.judged:
            return changes
        if event.code == BOOT:
            return changes + self._booted(event)
        rule = self._catalog.rule(event.code)
        key = (event.component, event.code, event.simulated)
        current = self._open.get(key)
        ruling = rule.rule_on(_fields(event, current))
        if current is None and len(self._open) >= MOST:
            key = (NODE, event.code, event.simulated)
            current = self._open.get(key)
        if ruling.action is Action.NONE:
            if current is not None and rule.state and current.component == event.component:
                changes.append(self._close(current, event.time, f"{event.code}: {ruling.title}", event.identity))
            return changes
        if current is None:
            changes.append(self._opened(key, event, ruling))
        else:
            changes.append(self._again(current, event, ruling, follow_latest=rule.state))
        self._due = min(self._due, self._due_of(self._open[key]))
        return changes

    def adopt(self, remembered: Iterable[Finding]) -> None:
        """Take up findings that were opened before, where the same fault is not open already."""
        for finding in remembered:
            self._open.setdefault(finding.key, finding)
        self._due = self._earliest()

    def expire(self, now: float) -> list[Transition]:
        """Close what has been quiet for as long as its rule asks, and the drills that are over."""
        if now < self._due:
            return []
        changes = []
        for finding in sorted(self._open.values(), key=self._due_of):
            due = self._due_of(finding)
            if due <= now:
                over = finding.simulated_until is not None and due == finding.simulated_until
                changes.append(self._close(finding, due, "the drill is over" if over else "quiet for as long as its rule asks"))
        self._due = self._earliest()
        return changes

    def clear(self, id_: int, now: float, by: str, reason: str) -> Transition | None:
        """A named person closes a finding. None where no such finding is open."""
        for finding in self._open.values():
            if finding.id == id_:
                return self._close(finding, now, f"cleared by {by}: {reason}")
        return None

    def recatalogue(self, catalog: Catalog, now: float) -> list[Transition]:
        """Judge the open findings by other rules: the catalogue was reloaded, or changed while the daemon was down."""
        self._catalog = catalog
        changes = []
        for finding in self.opened:
            ruling = catalog.rule(finding.code).rule_on(finding.fields)
            if ruling.action is Action.NONE:
                changes.append(self._close(finding, now, "the catalogue no longer asks for anything"))
            elif (ruling.action, ruling.when) != (finding.action, finding.when):
                changed = replace(finding, action=ruling.action, when=ruling.when, title=ruling.title)
                self._open[finding.key] = changed
                changes.append(
                    Transition(time=now, finding=changed, cause=f"the catalogue changed: {finding.action.value} -> {ruling.action.value}")
                )
        self._due = self._earliest()
        return changes

    def clears(self, finding: Finding) -> Clears:
        """What closes this finding."""
        return self._catalog.rule(finding.code).rule_on(finding.fields).clears

    def _opened(self, key: FindingKey, event: Event, ruling: Ruling) -> Transition:
        finding = Finding(
            id=self._next_id,
            component=key[0],
            code=event.code,
            kind=event.kind,
            action=ruling.action,
            when=ruling.when,
            since=event.time,
            last=event.time,
            count=1,
            boot_id=event.boot_id,
            title=ruling.title,
            raw=event.raw,
            fields=event.fields,
            simulated_until=event.simulated_until,
        )
        self._next_id += 1
        self._open[key] = finding
        return Transition(time=event.time, finding=finding, cause=f"{event.code} seen", event=event.identity, opened=True)

    def _again(self, current: Finding, event: Event, ruling: Ruling, *, follow_latest: bool) -> Transition:
        seen = replace(
            current,
            last=max(current.last, event.time),
            count=current.count + (event.follows is None),
            boot_id=event.boot_id,
            simulated_until=event.simulated_until,
        )
        cause = ""
        if follow_latest or _stronger(ruling, current):
            raw = event.raw if event.follows is None else current.raw
            seen = replace(seen, action=ruling.action, when=ruling.when, title=ruling.title, raw=raw, fields=_fields(event, current))
            if (current.action, current.when) != (seen.action, seen.when):
                cause = f"{event.code}: {current.action.value} ({current.when.value}) -> {seen.action.value} ({seen.when.value})"
        self._open[current.key] = seen
        return Transition(time=event.time, finding=seen, cause=cause, event=event.identity)

    def _booted(self, event: Event) -> list[Transition]:
        """A reboot cures what its rule says, in every finding last seen in an earlier boot."""
        changes = [
            self._close(finding, event.time, f"the node was rebooted (boot {event.boot_id[:8]})", event.identity)
            for finding in self.opened
            if finding.boot_id != event.boot_id and self.clears(finding).reboot
        ]
        self._due = self._earliest()
        return changes

    def _close(self, finding: Finding, time: float, cause: str, event: str | None = None) -> Transition:
        del self._open[finding.key]
        closed = replace(finding, state=FindingState.CLEARED, cleared_at=time, cleared_by=cause)
        return Transition(time=time, finding=closed, cause=cause, event=event)

    def _due_of(self, finding: Finding) -> float:
        quiet_s = self.clears(finding).quiet_s
        quiet = finding.last + quiet_s if quiet_s is not None else float("inf")
        return min(quiet, finding.simulated_until if finding.simulated_until is not None else float("inf"))

    def _earliest(self) -> float:
        return min(map(self._due_of, self._open.values()), default=float("inf"))


def _fields(event: Event, current: Finding | None) -> Fields:
    """A record that continues another one adds to what that one said."""
    if event.follows is None or current is None:
        return event.fields
    return {**event.fields, **current.fields}


def _stronger(ruling: Ruling, current: Finding) -> bool:
    return (ruling.action.rank, ruling.when is When.NOW) > (current.action.rank, current.when is When.NOW)
