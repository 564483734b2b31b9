"""
The judge: one event in, what changes out. Pure: no I/O, no clocks; time comes in with the events.

A *fault* is one code of one component, real or a drill's; at most one finding of it is open. A
*finding* says what its fault asks for: an action, and when that is due. An *incident* is one
physical story, made of members: codes of components, the cause first.

What one event goes through, in this order:

    expiry          what was due before it: quiet times, drills, acceptances, waits
    evidence        what it proves beyond its own fault: a boot, a reset, another board in the slot,
                    a passed diagnostic, a named person; findings end
    correlation     the incident that it belongs to; a fault which its cause explains has no finding
                    of its own
    the finding     opened, seen again, or closed by a state that asks for nothing any more
    escalation      what the device's record adds: remedies that did not hold, process after process
    driver_word     what the driver itself says of the device stands in for the catalogue's table
    confirmation    a second witness for what rests on text alone
    acceptance      what a person lives with counts again when it gets worse

Three rules hold throughout:

1. The same events in the same order give the same findings, whenever somebody looks: what time
   alone does has the time at which it was due.
2. The stronger stands: a weaker or later event never lowers what a finding asks for. What may (the
   driver's word, the company in the incident, a person, evidence) says so in the finding.
3. What was dealt with stays so: a line that was written before a fault was settled is history, and
   opens nothing.

What an event costs grows with the open findings of its device and incident, never with the history.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from vitald.catalog import Catalog, Clears, Rule, Ruling
from vitald.judge import findings as life
from vitald.judge.acceptance import Acceptances
from vitald.judge.confirmation import Confirmation
from vitald.judge.correlation import Correlation, is_below
from vitald.judge.driver_recommendation import DriverWord
from vitald.judge.escalation import Escalation
from vitald.judge.evidence import Evidence
from vitald.judge.lifecycle import Expiry
from vitald.judge.state import State
from vitald.model import (
    NODE,
    Action,
    Changes,
    Component,
    ComponentKind,
    Event,
    Finding,
    FindingKey,
    Incident,
    Memory,
    Transition,
)
from vitald.model.codes import CLOCK_STEPPED, TOO_MANY

_ABOUT_S = 60.0  # how far the time of a record found at the start may be off


class Judge:
    """What is wrong now, and all that judging must remember. Changed only by the methods that
    return transitions.
    """

    def __init__(self, catalog: Catalog, memory: Memory | None = None) -> None:
        self._state = state = State.remembered(catalog, memory or Memory())
        self._acceptances = Acceptances(state)
        self._correlation = Correlation(state)
        self._confirmation = Confirmation(state)
        self._escalation = Escalation(state)
        self._driver_word = DriverWord(state)
        self._evidence = Evidence(state, self._correlation, self._escalation, self._acceptances)
        self._expiry = Expiry(state, self._acceptances)

    # --- what is known

    @property
    def opened(self) -> tuple[Finding, ...]:
        """The open findings, those of rules on trial included."""
        return tuple(self._state.findings)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The open ones, and those that are over but could still be joined."""
        return self._state.incidents.all

    @property
    def due(self) -> float:
        """When `expire` will next have something to do; seconds since the epoch."""
        return self._expiry.due

    @property
    def memory(self) -> Memory:
        """All that another judge needs to go on from here."""
        return self._state.memory

    def take_changes(self) -> Changes:
        """What changed beside the findings since this was last asked."""
        return self._state.take_changes()

    def clears(self, finding: Finding) -> Clears:
        """What closes this finding."""
        return life.clears_of(finding, self._state.catalog)

    def identity(self, component: Component) -> str:
        """What survives a move of the device to another slot: its UUID or serial, else the
        component's name.
        """
        return self._state.devices.identity(component)

    def suspects(self, now: float) -> dict[str, tuple[float, list[tuple[str, int, float]]]]:
        """Every device with a lemon score: the score, and its parts as kind, count, points."""
        scored = {}
        for device in self._state.history.devices:
            if device == NODE.name:
                continue
            score, parts = self._state.history.score(device, now, self._state.catalog.lemon)
            if score > 0:
                scored[device] = score, [(one.kind.value, one.count, one.points) for one in parts]
        return scored

    def accounts_for(self, event: Event) -> bool:
        """Whether what is observed to hold is open, or told under its cause, or asks for
        nothing.
        """
        rule = self._state.catalog.rule(event.code)
        key = (event.component, event.code, event.simulated, False)
        if key in self._state.findings or self._state.findings.full:
            return True
        ruling = rule.rule_on(event.fields)
        if ruling.action is Action.NONE or self._is_history(event, ruling):
            return True
        if rule.word and self._driver_word.stands_for(event):
            return True
        told = [
            one for one in self._incidents_with_findings(event) if self._is_told(one, event, ruling)
        ]
        borne_out = (self._confirmation.find_borne_out(one, event, ruling) for one in told)
        return bool(told) and not any(borne_out)

    def contradicted_by(
        self, source: str, calm: Collection[tuple[Component, str]]
    ) -> list[Finding]:
        """Open findings of a source which says that it does not observe them."""
        return [
            finding
            for finding in self._state.findings
            if finding.source == source
            and not finding.shadow
            and (finding.component, finding.code) in calm
        ]

    # --- what changes it

    def apply(self, event: Event) -> list[Transition]:
        """Fold one event in."""
        stepped = event.fields.get("seconds") if event.code == CLOCK_STEPPED else None
        by_old_clock = stepped if isinstance(stepped, (int, float)) else 0.0
        changes = self._expiry.expire(event.time - by_old_clock)
        if not event.judged:
            return changes
        self._state.incidents.forget(event.time)
        rule = self._state.catalog.rule(event.code)
        if not event.hearsay:
            changes += self._fold_evidence(event, rule)
        if rule.shadow is not None:
            changes += self._fold_fault(event, rule.shadow, shadow=True)
        if not rule.context or self._state.catalog.stories.places(event.code):
            changes += self._fold_fault(event, rule, shadow=False)
        changes += self._acceptances.end_outgrown(changes, event.time, event.identity)
        changes += self._expiry.end_overdue(changes, event.time)
        self._expiry.note_changes(changes)
        return changes

    def expire(self, now: float) -> list[Transition]:
        """Do what time alone does: end what has been quiet for long enough, drills, acceptances;
        raise what has waited too long.
        """
        return self._expiry.expire(now)

    def adopt(self, remembered: Memory) -> list[Transition]:
        """Take up what was remembered elsewhere. Where the same fault is open already, the two go
        on as one, and the stronger stands.
        """
        changes = []
        for finding in remembered.findings:
            current = self._state.findings.get(finding.key)
            if current is None:
                self._state.findings.put(replace(finding, incident=0))
                continue
            one = life.joined(finding, current)
            self._state.findings.put(one)
            cause = f"goes on as finding {one.id}: it was seen while this could not be read"
            changes.append(life.closed(finding, current.last, cause))
            cause = f"takes up finding {finding.id}"
            changes.append(Transition(time=current.last, finding=one, cause=cause))
        self._state.history.adopt(remembered.marks)
        self._state.devices.adopt(remembered.devices)
        self._state.findings.adopt_settled(remembered.settled)
        self._expiry.due = self._expiry.find_earliest()
        return changes

    def recatalogue(self, catalog: Catalog, now: float) -> list[Transition]:
        """Judge the open findings by other rules: the catalogue was reloaded, or changed while the
        daemon was down.
        """
        self._state.configure(catalog)
        changes = []
        for finding in self._state.findings:
            changes += self._judge_anew(finding, now)
        self._state.findings.configure(catalog)
        changes += self._acceptances.end_outgrown(changes, now, None)
        self._expiry.due = self._expiry.find_earliest()
        return changes

    def _judge_anew(self, finding: Finding, now: float) -> list[Transition]:
        catalog, findings = self._state.catalog, self._state.findings
        if finding.shadow and catalog.rule(finding.code).shadow is None:
            return [findings.close(finding, now, "the rule is no longer on trial")]
        ruling = life.rule_of(finding, catalog).rule_on(finding.fields)
        if ruling.action is Action.NONE:
            return [findings.close(finding, now, "the catalogue no longer asks for anything")]
        if ruling.asked == finding.ruled or finding.code == TOO_MANY:
            return []
        changed = replace(
            finding,
            ruled=ruling.asked,
            context=None,
            title=ruling.title,
            quiet_s=ruling.clears.quiet_s,
        )
        findings.put(changed)
        cause = f"the catalogue changed: {finding.action.value} -> {changed.action.value}"
        return [Transition(time=now, finding=changed, cause=cause)]

    # --- one event

    def _fold_evidence(self, event: Event, rule: Rule) -> list[Transition]:
        changes: list[Transition] = []
        fold = self._evidence.of_code.get(event.code)
        if fold is not None:
            changes += fold(event)
        if event.code == CLOCK_STEPPED:
            self._expiry.due = self._expiry.find_earliest()
        if rule.cures is not None:
            changes += self._evidence.cure(event, rule.cures, rule.of)
        return changes

    def _fold_fault(self, event: Event, rule: Rule, *, shadow: bool) -> list[Transition]:
        """What the event changes about the finding of its fault, and about those beside it."""
        key = (event.component, event.code, event.simulated, shadow)
        current = self._state.findings.get(key)
        ruling = rule.rule_on(life.merged(event, current))
        asks = ruling.action is not Action.NONE
        if self._is_history(event, ruling):
            return []
        if event.hearsay and current is not None and not current.hearsay:
            return []  # it adds nothing to what others have seen
        if rule.state and current is not None and event.time < current.last:
            return self._count_late(event, ruling, current)
        if current is None and asks and self._state.findings.full:
            key = (NODE, TOO_MANY, event.simulated, shadow)
            current = self._state.findings.get(key)
        changes: list[Transition] = []
        grown = None if shadow else self._grow_incident(event, current, asks=asks)
        if rule.word and not (shadow or event.hearsay):
            changes += self._driver_word.apply(event, ruling)
        if not asks:
            changes += self._recover(event, rule, ruling, current)
        elif grown is not None and current is None and self._is_told(grown, event, ruling):
            member = grown.member(event.component, event.code)
            self._escalation.note_dead_work(grown, event)
            changes += self._correlation.tell_under(grown, event.code, member, ruling.asked, event)
        else:
            incident = grown.id if grown is not None else 0
            changes.append(self._see(key, current, event, rule, ruling, incident))
        if grown is not None:
            opened = any(change.opened for change in changes)
            changes += self._confirmation.confirm_findings(grown, event, ruling, opened=opened)
            changes += self._correlation.regroup(grown, event)
        return changes

    def _grow_incident(
        self, event: Event, current: Finding | None, *, asks: bool
    ) -> Incident | None:
        member = self._state.incidents.member(event)
        incident = self._correlation.find_incident(member, current, event, asks=asks)
        if incident is None:
            return None
        known = current or incident.member(event.component, event.code)
        return self._correlation.grow(incident, member, counts=life.counts(event, known))

    def _count_late(self, event: Event, ruling: Ruling, current: Finding) -> list[Transition]:
        """A state that was read after a newer one: it counts, and decides nothing."""
        if ruling.action is Action.NONE:
            return []
        incident = self._state.incidents.get(current.incident)
        if incident is not None and not current.shadow:
            member = self._state.incidents.member(event)
            self._correlation.grow(incident, member, counts=event.follows is None)
        counted = replace(current, count=current.count + (event.follows is None))
        self._state.findings.put(counted)
        return [life.moved(current, counted, event)]

    def _recover(
        self, event: Event, rule: Rule, ruling: Ruling, current: Finding | None
    ) -> list[Transition]:
        """A state that asks for nothing any more ends its finding, and those of the codes that it
        speaks for.
        """
        if event.hearsay:
            return []
        if not event.simulated:
            for code in (event.code, *rule.ends):
                self._acceptances.forget(event.component, code)
        findings, ended = self._state.findings, list[Finding]()
        if current is not None and rule.state and current.component == event.component:
            ended.append(current)
        keys = ((event.component, code, event.simulated, False) for code in rule.ends)
        ended += [found for key in keys if (found := findings.get(key)) is not None]
        if event.component.kind is ComponentKind.PCI and rule.ends:
            ended += self._find_below(event, rule)
        cause = f"{event.code}: {ruling.title}"
        return [
            findings.close(finding, event.time, cause, event.identity, settled=True)
            for finding in ended
            if finding.last <= event.time
        ]

    def _find_below(self, port: Event, rule: Rule) -> list[Finding]:
        """A port speaks for what is below it."""
        return [
            found
            for found in self._state.findings
            if found.code in rule.ends
            and found.component != port.component
            and found.simulated == port.simulated
            and not found.shadow
            and is_below(found, port.component)
        ]

    def _see(
        self,
        key: FindingKey,
        current: Finding | None,
        event: Event,
        rule: Rule,
        ruling: Ruling,
        incident: int,
    ) -> Transition:
        """Open the finding, or count the event in."""
        if current is None:
            return self._open(key, event, rule, ruling, incident)
        # A line may be an older boot's, read late.
        of_this_boot = current.boot_id == self._state.devices.boot
        boot_id = current.boot_id if of_this_boot else event.boot_id
        joined = (
            replace(current, incident=incident) if incident and not current.incident else current
        )
        finding = life.seen_again(joined, event, ruling, boot_id=boot_id, latest=rule.state)
        fresh = self._escalation.note_process(finding, rule, event)
        survived = self._escalation.survived(current, event)
        more = finding.count > current.count or finding.ruled != current.ruled
        if fresh or more or survived:
            finding = self._escalation.escalate(finding, rule, event, survived=survived)
        finding = self._finish(finding, key)
        self._state.findings.put(finding)
        if current.hearsay and not finding.hearsay:
            self._escalation.note_fault(finding, rule, event)
        return life.moved(current, finding, event)

    def _open(
        self, key: FindingKey, event: Event, rule: Rule, ruling: Ruling, incident: int
    ) -> Transition:
        if key[1] == TOO_MANY:
            ruling = replace(ruling, title=self._state.catalog.rule(TOO_MANY).title)
        finding = life.opened(self._state.findings.take_id(), key, event, ruling, incident)
        self._escalation.note_process(finding, rule, event)
        finding = self._escalation.escalate(finding, rule, event, survived=False)
        finding = self._finish(finding, key)
        again, because = event.fields.get("again"), finding.asked.because
        cause = f"{again}; still observed" if isinstance(again, str) else f"{event.code} seen"
        cause += f"; {because}" if because else ""
        if not (finding.simulated or finding.shadow):
            finding, still = self._acceptances.restore(finding, event.time, state=rule.state)
            cause += still
        self._state.findings.put(finding)
        self._escalation.note_fault(finding, rule, event)
        return Transition(
            time=event.time, finding=finding, cause=cause, event=event.identity, opened=True
        )

    def _finish(self, finding: Finding, key: FindingKey) -> Finding:
        """What its incident changes; and of many in one, of which one may be no more than text,
        none is confirmed.
        """
        finding = self._correlation.apply_company(finding)
        return replace(finding, confirmed_by="") if key[1] == TOO_MANY else finding

    # --- questions

    def _is_history(self, event: Event, ruling: Ruling) -> bool:
        """Whether a line tells of something that was dealt with after it was written: it must
        neither reopen nor raise it.
        """
        devices = self._state.devices
        if ruling.clears.reboot and event.boot_id == devices.former_boot:
            return True
        # Rather told again than not at all.
        written = event.time + (_ABOUT_S if event.fields.get("approximate") else 0.0)
        settled_at = self._state.findings.settled_at(event.component, event.code)
        if written < settled_at and not event.simulated:
            return True
        placed_at = devices.placed_at(event.component)
        if placed_at and written < placed_at:
            return True
        reset_at = devices.reset_at(event.component) if ruling.clears.device_reset else None
        return reset_at is not None and written < reset_at

    def _is_told(self, incident: Incident, event: Event, ruling: Ruling) -> bool:
        """Whether a cause in the incident explains the event and asks for as much."""
        member = incident.member(event.component, event.code)
        return self._correlation.is_told(incident, member, ruling.asked)

    def _incidents_with_findings(self, event: Event) -> list[Incident]:
        """Those of the event's kind, real or a drill's, that have an open finding."""
        incidents = map(self._state.incidents.get, self._state.findings.incidents)
        return [one for one in incidents if one is not None and one.simulated is event.simulated]
