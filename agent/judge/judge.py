"""
The judge: one event in, what changes out. Pure: no I/O, no clocks; time comes in with the events.

    event -> what it is evidence of    boots, resets, replaced boards, passed diagnostics, a named person: findings end
          -> its incident              what it belongs to, cause or consequence
          -> its finding               opened, seen again, raised
          -> what the company, the driver's word and the device's record change about what is asked for

The same events in the same order give the same findings, whenever somebody looks: a quiet end has the time at which it
was due. What an event costs grows with the open findings, never with the history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from agent.catalog import Catalog, Clears, Cure, FaultClass, Rule, Ruling
from agent.catalog.ladder import Step
from agent.catalog.story import Reach, Story
from agent.judge import findings as life
from agent.judge.devices import Devices
from agent.judge.history import History, ladder_places, process_of, span
from agent.judge.incidents import Incidents
from agent.model import (
    NODE,
    Acceptance,
    Action,
    Asked,
    Changes,
    Component,
    ComponentKind,
    Device,
    Event,
    Finding,
    FindingKey,
    FindingState,
    Incident,
    Mark,
    MarkKind,
    Member,
    Memory,
    Transition,
    Trust,
    When,
)

BOOT = "vitald/boot"
CLEARED = "vitald/cleared"
REMEDY_BEGUN = "vitald/remedy_begun"
ACCEPTED = "vitald/accepted"
CLOCK_STEPPED = "vitald/clock_stepped"
SOURCE_FAILED = "vitald/source_failed"
IDENTITY = "device/identity"
REPLACED = "device/replaced"
JOB_DIED = "job/died"
DIAGNOSTIC_FAILED = "diagnostic/failed"
TOO_MANY = "vitald/too_many"
BY_PERSON = "cleared by"  # how the cause of an end begins that a named person is
TOLD = "told as a consequence of"  # how the cause of an end begins that is none: the fault is told with what explains it

_NO_KEY: FindingKey = (NODE, "", False, False)
MOST = 4096  # open findings; hostile input may name devices and codes without end
SETTLED = 4096  # faults that were dealt with, by component and code; the ledger keeps as many
_ABOUT_S = 60.0  # how far the time of a record found at the start may be off
# Whose faults count in a device's record: not those of applications, nor what only informs.
_OF_THE_DEVICE = (FaultClass.HARDWARE, FaultClass.DRIVER, FaultClass.FABRIC, FaultClass.THERMAL)
_CURING = (Action.RESET_DEVICE, Action.REBOOT_NODE)
# So long after a boot a fault is the one from before it: a line of the kernel's, and a state, whose source may begin to look later.
_LINE_AGAIN_S, _STATE_AGAIN_S = 3600.0, 86400.0
_LOAD_S = 30.0  # a driver's load, from its first probe to its banner


class Judge:
    """What is wrong now, and all that judging must remember. Mutated only by the methods that return transitions."""

    def __init__(self, catalog: Catalog, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self._catalog = catalog
        self._open: dict[FindingKey, Finding] = {finding.key: finding for finding in memory.findings}
        self._next_id = memory.next_finding
        self._incidents = Incidents(catalog, memory.incidents, memory.next_incident)
        self._history = History(memory.marks)
        self._devices = Devices(memory.devices)
        self._settled = {(component, code): time for component, code, time in memory.settled}
        self._newly_settled: dict[tuple[Component, str], None] = {}
        self._of: dict[Component, set[FindingKey]] = {}  # the open findings of each component
        self._in: dict[int, set[FindingKey]] = {}  # the open findings of each incident
        self._faults: dict[tuple[Component, str, bool], FindingKey] = {}  # an open finding of each fault of each component
        for finding in memory.findings:
            if not finding.shadow:
                self._faults[self._fault_of(finding)] = finding.key
            self._in.setdefault(finding.incident, set()).add(finding.key)
            self._of.setdefault(finding.component, set()).add(finding.key)
        self._due = self._earliest()

    @property
    def opened(self) -> tuple[Finding, ...]:
        """The open findings, those of rules on trial included."""
        return tuple(self._open.values())

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The open ones, and those that are over but could still be joined."""
        return self._incidents.all

    @property
    def due(self) -> float:
        """When `expire` will next have something to do."""
        return self._due

    @property
    def memory(self) -> Memory:
        """All that another judge needs to go on from here."""
        return Memory(
            findings=self.opened,
            incidents=self.incidents,
            marks=self._history.marks,
            devices=self._devices.all,
            settled=tuple((component, code, time) for (component, code), time in self._settled.items()),
            next_finding=self._next_id,
            next_incident=self._incidents.next_id,
        )

    def take_changes(self) -> Changes:
        """What changed beside the findings since this was last asked."""
        settled = tuple((*key, self._settled[key]) for key in self._newly_settled if key in self._settled)
        self._newly_settled = {}
        return replace(
            self._history.take_changes(), incidents=self._incidents.take_touched(), devices=self._devices.take_changed(), settled=settled
        )

    def apply(self, event: Event) -> list[Transition]:
        """Fold one event in."""
        stepped = event.fields.get("seconds") if event.code == CLOCK_STEPPED else None
        changes = self.expire(event.time - stepped if isinstance(stepped, (int, float)) else event.time)
        if not event.judged:
            return changes
        self._incidents.forget(event.time)
        rule = self._catalog.rule(event.code)
        own = _OWN.get(event.code)
        if own is not None and not event.hearsay:
            changes += own(self, event)
        if rule.cures is not None and not event.hearsay:
            changes += self._cured(event, rule.cures, rule.of)
        changes += self._fault(event, rule)
        changes += self._no_longer_accepted(changes, event.time, event.identity)
        # A finding that closed or was put off leaves this too early, which costs one look; the whole is gone through then.
        self._due = min([self._due, *(self._moves_at(change.finding) for change in changes)])
        return changes

    def accounts_for(self, event: Event) -> bool:
        """Whether what is observed to hold is open, or told under its cause, or asks for nothing."""
        rule = self._catalog.rule(event.code)
        if (event.component, event.code, event.simulated, False) in self._open or len(self._open) >= MOST:
            return True
        ruling = rule.rule_on(event.fields)
        if ruling.action is Action.NONE or self._is_history(event, ruling):
            return True
        if rule.word and self._has_word(event):
            return True
        told = [
            incident
            for number in self._in
            if (incident := self._incidents.get(number)) is not None
            and incident.simulated is event.simulated
            and self._is_told(incident, incident.member(event.component, event.code), ruling.asked)
        ]
        return bool(told) and not any(self._borne_out(incident, event, ruling) for incident in told)

    def _has_word(self, event: Event) -> bool:
        """Whether the driver's word on the device stands: it holds one value, whoever told it."""
        own = (self._open[key] for key in self._of.get(event.component, ()))
        return any(one.simulated is event.simulated and life.rule_of(one, self._catalog).word for one in own)

    def contradicted_by(self, source: str, calm: Collection[tuple[Component, str]]) -> list[Finding]:
        """Open findings of a source which says that it does not observe them."""
        return [
            finding
            for finding in self._open.values()
            if finding.source == source and not finding.shadow and (finding.component, finding.code) in calm
        ]

    def adopt(self, remembered: Memory) -> list[Transition]:
        """Take up what was remembered elsewhere. Where the same fault is open already, the two go on as one, and the stronger stands."""
        changes = []
        for finding in remembered.findings:
            current = self._open.get(finding.key)
            if current is None:
                self._put(replace(finding, incident=0))
                continue
            one = life.joined(finding, current)
            self._put(one)
            changes.append(life.closed(finding, current.last, f"goes on as finding {one.id}: it was seen while this could not be read"))
            changes.append(Transition(time=current.last, finding=one, cause=f"takes up finding {finding.id}"))
        self._history.adopt(remembered.marks)
        self._devices.adopt(remembered.devices)
        self._settled = {**{(component, code): time for component, code, time in remembered.settled}, **self._settled}
        self._due = self._earliest()
        return changes

    def expire(self, now: float) -> list[Transition]:
        """Do what time alone does: end what has been quiet for long enough, drills, acceptances; raise what has waited too long."""
        if now < self._due:
            return []
        changes = []
        for finding in sorted(self._open.values(), key=self._moves_at):
            changes += self._moved_by_time(finding, now)
        self._due = self._earliest()
        return changes

    def _moved_by_time(self, finding: Finding, now: float) -> list[Transition]:
        changes = []
        due = self._due_of(finding)
        if finding.accepted is not None and finding.accepted.until <= min(now, due):
            changes.append(self._end_acceptance(finding, finding.accepted.until, "its time is over", None))
        current = changes[-1].finding if changes else finding
        waited_at, step = self._waits_until(current)
        if step is not None and waited_at <= min(now, due):
            waited = f"it has waited {span(step.waited_s)} for maintenance"
            current = replace(current, escalated=Asked(step.action, step.when, waited))
            self._put(current)
            changes.append(Transition(time=waited_at, finding=current, cause=waited))
        if due <= now:
            over = finding.simulated_until is not None and due == finding.simulated_until
            changes.append(self._close(current, due, "the drill is over" if over else "quiet for as long as its rule asks"))
        return changes

    def _waits_until(self, finding: Finding) -> tuple[float, Step | None]:
        """When what is left to maintenance has waited too long, and what it asks for then."""
        if finding.when is not When.MAINTENANCE or finding.simulated or finding.shadow:
            return life.NEVER, None
        steps = self._catalog.ladder(self._catalog.rule(finding.code), finding.table.action).steps
        waits = [(finding.since + step.waited_s, step) for step in steps if step.waited_s]
        return min(waits, key=lambda one: one[0], default=(life.NEVER, None))

    def recatalogue(self, catalog: Catalog, now: float) -> list[Transition]:
        """Judge the open findings by other rules: the catalogue was reloaded, or changed while the daemon was down."""
        self._catalog = catalog
        self._incidents.configure(catalog)
        changes = []
        for finding in self.opened:
            if finding.shadow and catalog.rule(finding.code).shadow is None:
                changes.append(self._close(finding, now, "the rule is no longer on trial"))
                continue
            ruling = life.rule_of(finding, catalog).rule_on(finding.fields)
            if ruling.action is Action.NONE:
                changes.append(self._close(finding, now, "the catalogue no longer asks for anything"))
            elif ruling.asked != finding.ruled and finding.code != TOO_MANY:
                changed = replace(finding, ruled=ruling.asked, context=None, title=ruling.title, quiet_s=ruling.clears.quiet_s)
                self._put(changed)
                cause = f"the catalogue changed: {finding.action.value} -> {changed.action.value}"
                changes.append(Transition(time=now, finding=changed, cause=cause))
        self._faults = {self._fault_of(finding): finding.key for finding in self.opened if not finding.shadow}
        changes += self._no_longer_accepted(changes, now, None)
        self._due = self._earliest()
        return changes

    def clears(self, finding: Finding) -> Clears:
        """What closes this finding."""
        return life.clears_of(finding, self._catalog)

    def suspects(self, now: float) -> dict[str, tuple[float, list[tuple[str, int, float]]]]:
        """Every device with a lemon score: the score, and its parts as kind, count, points."""
        scored = {}
        for device in self._history.devices:
            if device == NODE.name:
                continue
            score, parts = self._history.score(device, now, self._catalog.lemon)
            if score > 0:
                scored[device] = score, [(part.kind.value, part.count, part.points) for part in parts]
        return scored

    def identity(self, component: Component) -> str:
        """What survives a move of the device to another slot: its UUID or serial, else the component's name."""
        return self._devices.identity(component)

    # --- a fault

    def _fault(self, event: Event, rule: Rule) -> list[Transition]:
        changes: list[Transition] = []
        if rule.shadow is not None:
            changes += self._judged(event, rule.shadow, shadow=True)
        if not rule.context or self._catalog.stories.places(event.code):
            changes += self._judged(event, rule, shadow=False)
        return changes

    def _judged(self, event: Event, rule: Rule, *, shadow: bool) -> list[Transition]:
        key = (event.component, event.code, event.simulated, shadow)
        current = self._open.get(key)
        ruling = rule.rule_on(life.merged(event, current))
        if self._is_history(event, ruling):
            return []
        if event.hearsay and current is not None and not current.hearsay:
            return []  # it adds nothing to what others have seen
        if rule.state and current is not None and event.time < current.last:
            return self._late(event, ruling, current)
        if current is None and ruling.action is not Action.NONE and len(self._open) >= MOST:
            key = (NODE, TOO_MANY, event.simulated, shadow)
            current = self._open.get(key)
        changes: list[Transition] = []
        grown: Incident | None = None
        member = self._incidents.member(event)
        if not shadow:
            incident = self._incident(member, current, event, asks=ruling.action is not Action.NONE)
            known = current or (incident.member(event.component, event.code) if incident is not None else None)
            grown = self._grow(incident, member, counts=life.counts(event, known)) if incident is not None else None
        if rule.word and not (shadow or event.hearsay):
            changes += self._driver_says(event, ruling)
        if ruling.action is Action.NONE:
            changes += self._recovered(event, rule, ruling, current)
        elif grown is not None and current is None and self._is_told(grown, grown.member(event.component, event.code), ruling.asked):
            self._died_with(grown, event)
            changes += self._told_under(grown, event.code, grown.member(event.component, event.code), ruling.asked, event)
        else:
            changes.append(self._seen(key, current, event, rule, ruling, grown.id if grown is not None else 0))
        if grown is not None:
            opened = any(change.opened for change in changes)
            changes += self._confirm_findings(grown, event, ruling, opened=opened)
            changes += self._regrouped(grown, event)
        return changes

    def _late(self, event: Event, ruling: Ruling, current: Finding) -> list[Transition]:
        """A state that was read after a newer one: it counts, and decides nothing."""
        if ruling.action is Action.NONE:
            return []
        incident = self._incidents.get(current.incident)
        if incident is not None and not current.shadow:
            self._grow(incident, self._incidents.member(event), counts=event.follows is None)
        counted = replace(current, count=current.count + (event.follows is None))
        self._put(counted)
        return [life.moved(current, counted, event)]

    def _recovered(self, event: Event, rule: Rule, ruling: Ruling, current: Finding | None) -> list[Transition]:
        """A state that asks for nothing any more ends its finding, and those of the codes that it speaks for."""
        if event.hearsay:
            return []
        if not event.simulated:
            for code in (event.code, *rule.ends):
                self._take_acceptance(event.component, code)
        ended = [current] if current is not None and rule.state and current.component == event.component else []
        ended += [found for code in rule.ends if (found := self._open.get((event.component, code, event.simulated, False))) is not None]
        if event.component.kind is ComponentKind.PCI and rule.ends:  # a port speaks for what is below it
            ended += [
                found
                for found in self.opened
                if found.code in rule.ends
                and found.component != event.component
                and found.simulated == event.simulated
                and not found.shadow
                and _is_below(found, event.component)
            ]
        return [
            self._close(finding, event.time, f"{event.code}: {ruling.title}", event.identity, settled=True)
            for finding in ended
            if finding.last <= event.time
        ]

    def _seen(self, key: FindingKey, current: Finding | None, event: Event, rule: Rule, ruling: Ruling, incident: int) -> Transition:
        if current is None:
            if key[1] == TOO_MANY:
                ruling = replace(ruling, title=self._catalog.rule(TOO_MANY).title)
            finding = life.opened(self._next_id, key, event, ruling, incident)
            self._next_id += 1
        else:
            # A line may be an older boot's, read late.
            boot_id = current.boot_id if current.boot_id == self._devices.boot else event.boot_id
            seen_in = replace(current, incident=incident) if incident and not current.incident else current
            finding = life.seen_again(seen_in, event, ruling, boot_id=boot_id, latest=rule.state)
        fresh = self._remember_process(finding, rule, event)
        more = current is None or finding.count > current.count
        if current is None or fresh or more or finding.ruled != current.ruled or self._survived(current, event):
            finding = self._escalate(finding, rule, event, survived=current is not None and self._survived(current, event))
        finding = self._in_company(finding)
        if key[1] == TOO_MANY:
            finding = replace(finding, confirmed_by="")  # it stands for many, of which one may be no more than text
        if current is not None:
            self._put(finding)
            if current.hearsay and not finding.hearsay:
                self._remember_fault(finding, rule, event)
            return life.moved(current, finding, event)
        again = event.fields.get("again")
        cause = f"{again}; still observed" if isinstance(again, str) else f"{event.code} seen"
        cause += f"; {finding.asked.because}" if finding.asked.because else ""
        if not (finding.simulated or finding.shadow):
            finding, still = self._still_accepted(finding, event.time, state=rule.state)
            cause += still
        self._put(finding)
        self._remember_fault(finding, rule, event)
        return Transition(time=event.time, finding=finding, cause=cause, event=event.identity, opened=True)

    def _is_history(self, event: Event, ruling: Ruling) -> bool:
        """Whether a line tells of something that was dealt with after it was written: it must neither reopen nor raise it."""
        if ruling.clears.reboot and event.boot_id == self._devices.former_boot:
            return True
        written = event.time + (_ABOUT_S if event.fields.get("approximate") else 0.0)  # rather told again than not at all
        if written < self._settled.get((event.component, event.code), -life.NEVER) and not event.simulated:
            return True
        placed_at, reset_at = self._devices.placed_at(event.component), self._devices.reset_at(event.component)
        return bool(placed_at and written < placed_at) or bool(ruling.clears.device_reset and reset_at and written < reset_at)

    def _survived(self, current: Finding, event: Event) -> bool:
        """Whether a finding that stands is seen again after a reset of its device or a boot, which nobody made for another reason."""
        reset_at = self._devices.reset_at(event.component)
        booted = current.boot_id != event.boot_id and event.boot_id == self._devices.boot and not _is_lived_with(current)
        return booted or (reset_at is not None and current.last < reset_at <= event.time)

    # --- its incident

    def _incident(self, member: Member, current: Finding | None, event: Event, *, asks: bool) -> Incident | None:
        if current is not None and (known := self._incidents.get(current.incident)) is not None:
            return known
        found = None if event.hearsay else self._incidents.find(member, simulated=event.simulated) or self._same_fault(event)
        if found is not None and not (found.closed_at is not None and asks and self._over(found)):
            return found
        if asks or self._incidents.causes(member):
            return self._incidents.begin(member, simulated=event.simulated)
        return None

    def _same_fault(self, event: Event) -> Incident | None:
        """The open incident of the same fault of the same device, told by another code."""
        finding = self._open.get(self._faults.get((event.component, self._catalog.rule(event.code).fault, event.simulated), _NO_KEY))
        return self._incidents.get(finding.incident) if finding is not None and not finding.hearsay else None

    def _over(self, incident: Incident) -> bool:
        """Whether it had findings and they are all closed: what asks for something now is a new incident."""
        return self._catalog.rule(incident.root.code).action is not Action.NONE

    def _grow(self, incident: Incident, member: Member, *, counts: bool = True) -> Incident:
        grown = self._incidents.add(incident, member, counts=counts)
        if grown.id not in self._in:
            self._incidents.close(grown.id, grown.last)  # until a finding of its own is opened
        return grown

    def _is_told(self, incident: Incident, member: Member | None, asked: Asked) -> bool:
        """Whether this is the echo of a cause that asks for as much: it needs no finding of its own."""
        causes = self._incidents.causes_of(incident, member) if member is not None else []
        return any(self._covers(cause, story, member, incident, asked) for cause, story in causes if member is not None)

    def _covers(self, cause: Member, story: Story, member: Member, incident: Incident, asked: Asked) -> bool:
        """Whether the cause asks for as much. A remedy for one device is no remedy for another: that one keeps its finding.

        That a process was killed explains its end, whatever the killing itself asks for.
        """
        if story.reach is Reach.PROCESS and not asked.action.unfit:
            return True
        causes = [self._open[key].asked for key in self._in.get(incident.id, ()) if key[:2] == (cause.component, cause.code)]
        here = not asked.action.unfit or not cause.places.isdisjoint(member.places)
        return here and any(not asked.stronger(one) and (one.action.unfit or one.unusable or not asked.unusable) for one in causes)

    def _told_under(self, incident: Incident, code: str, member: Member | None, asked: Asked, event: Event) -> list[Transition]:
        """A cause that covers a fault may not ask for less than that one did: not when its company or its rule would let it wait."""
        changes: list[Transition] = []
        if member is None or not asked.action.unfit:
            return changes
        causes = {(cause.component, cause.code) for cause, _ in self._incidents.causes_of(incident, member)}
        for key in sorted((key for key in self._in.get(incident.id, ()) if key[:2] in causes), key=lambda key: self._open[key].id):
            finding = self._open[key]
            if not asked.stronger(finding.asked) and (finding.told is None or asked.stronger(finding.told)):
                told = replace(finding, told=Asked(asked.action, asked.when, f"{code} is told under it and asks for it"))
                self._put(told)
                changes.append(life.moved(finding, told, event))
        return changes

    def _regrouped(self, incident: Incident, event: Event) -> list[Transition]:
        """The incident has a member more: that may explain others of its findings, or change what they ask for."""
        member = incident.member(event.component, event.code)
        if member is None or member.count > 1 or event.follows is not None:
            return []
        changes = []
        for key in sorted(self._in.get(incident.id, ()), key=lambda key: self._open[key].id):
            finding = self._open[key]
            own = incident.member(finding.component, finding.code)
            if own is None or own is member:
                continue
            causes = self._incidents.causes_of(incident, own)
            if any(cause is member and self._covers(cause, story, own, incident, finding.asked) for cause, story in causes):
                told = f"{TOLD} {incident.root.code} on {incident.root.component.name}"
                changes += self._told_under(incident, finding.code, own, finding.asked, event)
                changes.append(self._close(finding, event.time, told, event.identity))
                continue
            changed = self._in_company(finding)
            if changed is not finding:
                self._put(changed)
                changes.append(life.moved(finding, changed, event))
        return changes

    # --- a second witness

    def _confirm_findings(self, incident: Incident, event: Event, ruling: Ruling, *, opened: bool) -> list[Transition]:
        """What rests on the text of a log is confirmed where another source tells of the same device in the same story."""
        speaks = event.trust is Trust.DAEMON
        if not (speaks or opened):
            return []
        by = {finding.key: f"{event.source} ({event.code})" for finding in self._borne_out(incident, event, ruling)} if speaks else {}
        changes = []
        for finding in self._unconfirmed(incident):
            witness = by.get(finding.key) or self._witness_of(finding, incident)
            if witness:
                confirmed = replace(finding, confirmed_by=witness)
                self._put(confirmed)
                changes.append(life.moved(finding, confirmed, event))
        return changes

    def _unconfirmed(self, incident: Incident) -> list[Finding]:
        """Its findings that a second source may confirm. What stands for many may stand for text, too."""
        own = sorted((self._open[key] for key in self._in.get(incident.id, ())), key=lambda one: one.id)
        return [one for one in own if not (one.confirmed or one.hearsay or one.code == TOO_MANY)]

    def _borne_out(self, incident: Incident, event: Event, ruling: Ruling) -> list[Finding]:
        """The unconfirmed findings of the incident that agree with what a source saw itself."""
        own = incident.member(event.component, event.code)
        return [one for one in self._unconfirmed(incident) if own is not None and self._is_witness(own, ruling.asked, one, incident)]

    def _witness_of(self, finding: Finding, incident: Incident) -> str:
        """Who has confirmed another finding of the incident, which bears this one out."""
        for key in sorted(self._in.get(incident.id, ()), key=lambda key: self._open[key].id):
            other = self._open[key]
            told = incident.member(other.component, other.code)
            if told is not None and other.confirmed and other.key != finding.key and self._is_witness(told, other.ruled, finding, incident):
                by = other.confirmed_by
                return by if by.endswith(")") else f"{by} ({other.code})"
        return ""

    def _is_witness(self, member: Member, asked: Asked, finding: Finding, incident: Incident) -> bool:
        """Whether what was seen bears the finding out: the same fault by another name, or damage that needs a remedy itself.

        What applications do to themselves anybody can bring about, and what only asks to look has not seen the fault.
        """
        rule = self._catalog.rule(member.code)
        same = rule.fault == self._catalog.rule(finding.code).fault and asked.action is not Action.NONE
        damage = rule.fault_class is not FaultClass.APPLICATION and asked.when is not When.MAINTENANCE
        if not (same or (damage and (asked.action.unfit or asked.unusable))):
            return False
        own = incident.member(finding.component, finding.code)
        places = own.places if own is not None else frozenset({finding.component.id})
        if False in (finding.fields.get("on_pci"), finding.fields.get("on_node")):  # no more than a name that somebody wrote
            return finding.component.id in member.places
        if NODE in (finding.component, member.component) or finding.component.kind is ComponentKind.NVSWITCH:
            return True  # counts are the node's; switches are seen through the GPUs at their links
        return not places.isdisjoint(member.places)

    # --- what is asked for

    def _in_company(self, finding: Finding) -> Finding:
        """What other members of its incident change for it."""
        incident = self._incidents.get(finding.incident)
        if incident is None or finding.shadow:
            return finding
        for place in self._catalog.stories.places(finding.code):
            for company in place.story.companies:
                # It came with the fault. One that comes long after does not make light of what has stood since.
                came = any(
                    member.code in company.beside
                    and (member.component == finding.component or _is_below(finding, member.component))
                    and abs(member.first - finding.since) <= place.story.within_s
                    for member in incident.members
                )
                if company.code == finding.code and came:
                    asked = Asked(company.action or finding.ruled.action, company.when or finding.ruled.when, company.because)
                    return finding if asked == finding.context else replace(finding, context=asked)
        return finding

    # --- the driver's own word

    def _driver_says(self, event: Event, ruling: Ruling) -> list[Transition]:
        """The driver's word on a device stands in for what the table asks for, in both directions; the difference is said."""
        action = ruling.action if ruling.action is not Action.NONE else Action.OBSERVE
        changes = []
        for key in sorted(self._of.get(event.component, ()), key=lambda key: self._open[key].id):
            finding = self._open[key]
            if finding.simulated != event.simulated or finding.shadow or finding.last > event.time:
                continue
            if life.rule_of(finding, self._catalog).word:
                if finding.code != event.code:  # the driver holds one value: whoever told the former one
                    changes.append(self._close(finding, event.time, f"{event.code}: {ruling.title}", event.identity, settled=True))
                continue
            table = finding.table
            said: Asked | None = None  # peers, other nodes: not about what this device needs, so the catalogue's word stands
            if ruling.action in (Action.NONE, *_CURING) and table.action in _CURING and (table.action, table.when) != (action, ruling.when):
                because = (
                    f"the driver's own word ({event.code}: {ruling.title}); the catalogue says {table.action.value} ({table.when.value})"
                )
                said = Asked(action, ruling.when, because)
            if said != finding.driver:
                changed = replace(finding, driver=said)
                self._put(changed)
                changes.append(life.moved(finding, changed, event))
        return changes

    # --- the device's record

    def _escalate(self, finding: Finding, rule: Rule, event: Event, *, survived: bool) -> Finding:
        """Whether the fault has come back often enough to ask for more than its rule does."""
        if finding.simulated or finding.shadow or finding.hearsay or finding.code == TOO_MANY:
            return finding
        base = finding.driver or finding.table
        steps = self._catalog.ladder(rule, base.action).steps
        device = self.identity(finding.component)
        if finding.escalated is not None and not any(step.asks.stronger(finding.escalated) for step in steps):
            return finding
        fault = rule.fault or rule.code
        asked = self._history.escalated(
            device, finding.component, fault, event.fields, event.time, steps, survived=survived, times=finding.count
        )
        if asked is None or (finding.escalated is not None and not asked.stronger(finding.escalated)):
            return finding
        return replace(finding, escalated=asked)

    def _remember_fault(self, finding: Finding, rule: Rule, event: Event) -> None:
        if finding.simulated or finding.shadow or finding.hearsay or rule.fault_class not in _OF_THE_DEVICE:
            return
        if "again" in event.fields:
            return  # the same fault, which somebody had cleared while it stood: no second one in the device's record
        device, fault = self.identity(finding.component), rule.fault or rule.code
        window = max((step.within_s for step in self._catalog.ladder(rule, finding.ruled.action).steps), default=0.0)
        one = f"incident {finding.incident}"
        if self._history.returned(device, fault, event.time, window):
            self._history.add(device, event.time, MarkKind.NOT_HELD, fault, one)
        incident = self._incidents.get(finding.incident)
        rooted = incident is not None and (incident.root.code, incident.root.component) == (finding.code, finding.component)
        if rooted and event.code != DIAGNOSTIC_FAILED:
            self._history.add(device, event.time, MarkKind.FAULT, fault, one)
            lemon = self._catalog.lemon
            for death in tuple(self._history.of(NODE.name)):
                if death.kind is MarkKind.JOB_DIED and 0 <= event.time - death.time <= lemon.job_before_s:
                    self._history.add(device, event.time, MarkKind.JOB_DIED, fault, f"{one} {death.detail}")

    def _remember_process(self, finding: Finding, rule: Rule, event: Event) -> bool:
        """Whether this process is a new one for this fault on this device."""
        if finding.simulated or finding.shadow or event.hearsay or event.follows is not None:
            return False
        steps = self._catalog.ladder(rule, finding.ruled.action).steps
        if not any(step.processes for step in steps):
            return False
        who = process_of(event.fields, event.boot_id, ladder_places(self._catalog, rule.code))
        device, fault = self.identity(finding.component), rule.fault or rule.code
        return bool(who) and self._history.add(device, event.time, MarkKind.PROCESS, fault, who)

    def _died_with(self, incident: Incident, event: Event) -> None:
        """Work that died with a fault of a device counts in that device's record, once an incident."""
        rule = self._catalog.rule(incident.root.code)
        if rule.fault_class in _OF_THE_DEVICE and event.fields.get("pid") is not None and not event.simulated:
            self._history.add(
                self.identity(incident.root.component), event.time, MarkKind.JOB_DIED, rule.fault or rule.code, f"incident {incident.id}"
            )

    # --- evidence

    def _cured(self, event: Event, cure: Cure, of: tuple[ComponentKind, ...]) -> list[Transition]:
        """Something was done: it ends the findings that it cures, and is remembered as their remedy."""
        level = event.fields.get("level")
        if cure is Cure.DEVICE_RESET and not event.simulated:
            for component in [event.component] if event.component != NODE else [Component(kind) for kind in of]:
                self._devices.reset(component, event.time)
        changes = []
        for finding in self.opened:
            if not self._touches(event, cure, of, finding) or finding.simulated != event.simulated:
                continue
            if self.clears(finding).by(cure, level if isinstance(level, int) else 0):
                self._remember_remedy(finding, cure, event.time)
                if cure is Cure.REBOOT:
                    self._keep_acceptance(finding, event.time)
                # Of a reboot, lines of the former boot are known by its id; those of this one may be older than we are.
                settled = cure is not Cure.REBOOT
                changes.append(self._close(finding, event.time, self._said(event, cure), event.identity, settled=settled))
        return changes

    def _touches(self, event: Event, cure: Cure, of: tuple[ComponentKind, ...], finding: Finding) -> bool:
        if cure is Cure.REBOOT:
            return finding.boot_id != event.boot_id
        if finding.last > event.time:
            return False
        rule = self._catalog.rule(finding.code)
        if cure is Cure.DEVICE_RESET and rule.at_probe and event.component == NODE and event.time - finding.last < _LOAD_S:
            return False  # the banner at the end of the load in which the probe failed
        if cure is Cure.DEVICE_RESET and finding.component == NODE and rule.component is event.component.kind:
            return True  # its line named no device: the first one of the kind that is reset is taken for it
        return finding.component == event.component or (event.component == NODE and finding.component.kind in of)

    def _remember_remedy(self, finding: Finding, cure: Cure, time: float) -> None:
        """Only what an open finding asked for: a reboot for another reason says nothing about a device. So does one while a fault is accepted."""
        if cure is Cure.REBOOT and _is_lived_with(finding):
            return
        unreal = finding.simulated or finding.shadow or finding.hearsay
        if cure in (Cure.REBOOT, Cure.DEVICE_RESET) and finding.action in _CURING and not unreal:
            rule = self._catalog.rule(finding.code)
            # A reset is no reboot, though it may end what asked for one: only what was done can have failed to hold.
            done = Action.RESET_DEVICE if cure is Cure.DEVICE_RESET else finding.action
            self._history.add(self.identity(finding.component), time, MarkKind.REMEDY, rule.fault or rule.code, done.value)

    def _said(self, event: Event, cure: Cure) -> str:
        if cure is Cure.REBOOT:
            return f"the node was rebooted (boot {event.boot_id[:8]})"
        if cure is Cure.DIAGNOSTIC:
            return f"a level {event.fields.get('level')} diagnostic passed"
        return f"{event.code}: {self._catalog.rule(event.code).title}"

    def _booted(self, event: Event) -> list[Transition]:
        former = self._devices.boot or next((found.boot_id for found in self._open.values() if found.boot_id != event.boot_id), "")
        if event.boot_id != self._devices.boot:
            self._devices.put(Device(component=NODE, uuid=event.boot_id, serial=former, reset_at=event.time))
        return []

    def _identified(self, event: Event) -> list[Transition]:
        """Who is in a slot. Another one than before: the former was taken out, and what only a replacement ends goes with it."""
        uuid, serial = (value if isinstance(value := event.fields.get(name), str) else "" for name in ("uuid", "serial"))
        if event.simulated or not (uuid or serial):
            return []
        known, changes = self._devices.get(event.component), list[Transition]()
        if (known.uuid and uuid and known.uuid != uuid) or (known.serial and serial and known.serial != serial):
            changes += self._taken_out(event, known)
            known = Device(component=event.component, placed_at=event.time)
        elif not known.identity:
            self._history.rename(event.component.name, uuid or serial)
        elif known.identity != (uuid or known.identity):
            self._history.rename(known.identity, uuid)  # only its serial number was known
        for former in self._devices.elsewhere(event.component, uuid, serial):  # it was moved here; nobody has said who took its place
            changes += self._taken_out(event, former)
            self._devices.put(Device(component=former.component, placed_at=event.time))
        met = replace(known, uuid=uuid or known.uuid, serial=serial or known.serial)
        if met != self._devices.get(event.component):
            self._devices.put(met)
        return changes + self._brought_along(event, met.identity)

    def _taken_out(self, event: Event, device: Device) -> list[Transition]:
        changes = []
        own = self._of.get(device.component, ())
        for key in sorted(own, key=lambda key: self._open[key].id):
            finding = self._open[key]
            if finding.simulated or finding.last > event.time:
                continue
            if finding.action is Action.REPLACE_NODE and device.identity and not finding.shadow:
                self._history.add(device.identity, event.time, MarkKind.REMOVED, finding.code, device.component.name)
            cause = f"the device in {device.component.name} was replaced by another"
            changes.append(self._close(finding, event.time, cause, event.identity, settled=True))
        return changes

    def _brought_along(self, event: Event, identity: str) -> list[Transition]:
        """What was wrong with a board when it was taken out of its slot is wrong with it here."""
        changes = []
        for mark in [mark for mark in self._history.of(identity) if mark.kind is MarkKind.REMOVED and mark.detail != event.component.name]:
            key = (event.component, mark.fault, False, False)
            if key in self._open or mark.time < self._settled.get((event.component, mark.fault), 0.0):
                continue
            rule = self._catalog.rule(mark.fault)
            carried = replace(rule.rule_on({}), action=Action.REPLACE_NODE)
            member = self._incidents.member(replace(event, code=mark.fault))
            incident = self._grow(self._incidents.begin(member, simulated=False), member)
            finding = replace(life.opened(self._next_id, key, event, carried, incident.id), confirmed_by="")  # nobody saw it here yet
            self._next_id += 1
            cause = f"the board {identity} was moved here from {mark.detail} with this open"
            # Not only as its rule's word: the table may ask for less, and what its record asked for must outlast a new catalogue.
            self._put(replace(finding, quiet_s=None, escalated=Asked(Action.REPLACE_NODE, carried.when, cause)))
            changes.append(Transition(time=event.time, finding=self._open[key], cause=cause, event=event.identity, opened=True))
        return changes

    def _replaced(self, event: Event) -> list[Transition]:
        """Another device is in the slot. Where nobody can say which, the slot's record is put away under the old one's name."""
        if not event.simulated:
            if self.identity(event.component) == event.component.name:
                self._history.rename(event.component.name, f"{event.component.name} until {event.time:.0f}")
            said = {name: value for name in ("uuid", "serial") if isinstance(value := event.fields.get(name), str)}
            self._devices.put(Device(component=event.component, reset_at=event.time, placed_at=event.time, **said))
        return []

    def _person_cleared(self, event: Event) -> list[Transition]:
        finding = self._meant(event)
        if finding is None:
            return []
        cause = f"{BY_PERSON} {event.fields.get('by')}: {event.fields.get('reason')}"
        return [self._close(finding, event.time, cause, event.identity, settled=True)]

    def _remedy_begun(self, event: Event) -> list[Transition]:
        finding = self._meant(event)
        if finding is None:
            return []
        begun = replace(finding, state=FindingState.IN_REMEDY, remedy_at=event.time)
        self._put(begun)
        cause = f"remedy begun by {event.fields.get('by')}: {event.fields.get('reason')}"
        return [Transition(time=event.time, finding=begun, cause=cause, event=event.identity)]

    def _person_accepted(self, event: Event) -> list[Transition]:
        """A person lives with a finding until a moment; one that has passed ends what was accepted before."""
        finding, until = self._meant(event), event.fields.get("until")
        if finding is None or not isinstance(until, (int, float)):
            return []
        if until <= event.time:
            return [self._end_acceptance(finding, event.time, f"ended by {event.fields.get('by')}", event.identity)]
        by, reason = str(event.fields.get("by")), str(event.fields.get("reason"))
        asked = replace(finding.asked, unusable=finding.unusable)
        accepted = Acceptance(by=by, reason=reason, since=event.time, until=float(until), asked=asked)
        finding = replace(finding, accepted=accepted)
        self._put(finding)
        return [Transition(time=event.time, finding=finding, cause=f"accepted by {by}: {reason}", event=event.identity)]

    def _keep_acceptance(self, finding: Finding, time: float) -> None:
        """A boot ends the finding, and not what a person said of the fault: that holds where the same fault is found again."""
        accepted = finding.accepted
        if accepted is None or accepted.until <= time or not _is_lived_with(finding) or finding.simulated or finding.shadow:
            return
        self._take_acceptance(finding.component, finding.code)
        self._history.add(self.identity(finding.component), time, MarkKind.ACCEPTED, finding.code, life.noted(accepted, time))

    def _still_accepted(self, finding: Finding, now: float, *, state: bool) -> tuple[Finding, str]:
        """A finding that was just opened, as a person accepted it before the boot; and what is to be said of that."""
        mark = self._take_acceptance(finding.component, finding.code)
        if mark is None or now - mark.time > (_STATE_AGAIN_S if state else _LINE_AGAIN_S):
            return finding, ""
        accepted = life.accepted_of(mark.detail, mark.time)
        again = replace(finding, accepted=accepted)
        if accepted.until <= now:
            return finding, ""
        if life.is_worse_than_accepted(again):
            return finding, f"; no longer accepted by {accepted.by}: it asks for more now"
        return again, f"; still accepted by {accepted.by}: {accepted.reason}"

    def _take_acceptance(self, component: Component, code: str) -> Mark | None:
        """What a person said of this fault before the boot. It is said of one finding, and not of the next."""
        kept = [mark for mark in self._history.of(self.identity(component)) if mark.kind is MarkKind.ACCEPTED and mark.fault == code]
        for mark in kept:
            self._history.forget(mark)
        return kept[-1] if kept else None

    def _no_longer_accepted(self, changes: Iterable[Transition], time: float, event: str | None) -> list[Transition]:
        """What was accepted and asks for more now counts at once."""
        touched = {change.finding.key for change in changes if change.finding.accepted is not None}
        worse = [finding for key in touched if (finding := self._open.get(key)) is not None and life.is_worse_than_accepted(finding)]
        return [self._end_acceptance(finding, time, "it asks for more now", event) for finding in sorted(worse, key=lambda one: one.id)]

    def _end_acceptance(self, finding: Finding, time: float, why: str, event: str | None) -> Transition:
        by = finding.accepted.by if finding.accepted is not None else "nobody"
        counts = replace(finding, accepted=None)
        self._put(counts)
        return Transition(time=time, finding=counts, cause=f"no longer accepted by {by}: {why}", event=event)

    def _meant(self, event: Event) -> Finding | None:
        fields = event.fields
        return self._open.get((event.component, str(fields.get("code")), fields.get("drill") is True, fields.get("shadow") is True))

    def _clock_stepped(self, event: Event) -> list[Transition]:
        """What lies behind is told by the new clock, so that no quiet time and no window is cut short or stretched."""
        seconds = event.fields.get("seconds")
        if not isinstance(seconds, (int, float)):
            return []
        changes = []
        for finding in self.opened:
            shifted = replace(
                finding,
                since=finding.since + seconds,
                last=finding.last + seconds,
                heard_since=finding.heard_since + seconds if finding.heard_since else 0.0,
                remedy_at=finding.remedy_at + seconds if finding.remedy_at is not None else None,
                simulated_until=finding.simulated_until + seconds if finding.simulated_until is not None else None,
                accepted=life.shifted(finding.accepted, seconds),
            )
            self._put(shifted)
            changes.append(Transition(time=event.time, finding=shifted, cause="", event=event.identity))
        self._settled = {key: time + seconds for key, time in self._settled.items()}
        self._devices.shift(seconds)
        self._incidents.shift(seconds)
        self._history.shift(seconds)
        self._due = self._earliest()
        return changes

    def _source_changed(self, event: Event) -> list[Transition]:
        """While a source is deaf, silence proves nothing: what it would have seen again begins its quiet time anew."""
        if event.fields.get("recovered") is not True:
            return []
        changes = []
        for finding in self.opened:
            if finding.source == event.component.id:
                heard = replace(finding, heard_since=event.time)
                self._put(heard)
                changes.append(Transition(time=event.time, finding=heard, cause="", event=event.identity))
        return changes

    def _job_died(self, event: Event) -> list[Transition]:
        """It counts in the record of what was faulty near its end: of a device seen so already, or within the next minutes."""
        lemon = self._catalog.lemon
        job = f"job {event.fields.get('job') or event.identity}"
        self._history.add(NODE.name, event.time, MarkKind.JOB_DIED, event.code, job)
        for device in self._history.devices:
            if device == NODE.name or (event.component != NODE and device != self.identity(event.component)):
                continue
            for mark in tuple(self._history.of(device)):
                if mark.kind is MarkKind.FAULT and -lemon.job_before_s <= event.time - mark.time <= lemon.job_after_s:
                    self._history.add(device, event.time, MarkKind.JOB_DIED, mark.fault, f"{mark.detail} {job}")
        return []

    def _diagnostic_failed(self, event: Event) -> list[Transition]:
        if not event.simulated:
            self._history.add(
                self.identity(event.component), event.time, MarkKind.DIAGNOSTIC_FAILED, event.code, str(event.fields.get("test") or "")
            )
        return []

    # --- what is kept

    def _fault_of(self, finding: Finding) -> tuple[Component, str, bool]:
        return finding.component, self._catalog.rule(finding.code).fault, finding.simulated

    def _put(self, finding: Finding) -> None:
        key = finding.key
        known = self._open.get(key)
        self._open[key] = finding
        if known is not None and known.incident == finding.incident:
            return
        if known is None and not finding.shadow:
            self._faults[self._fault_of(finding)] = key
        self._of.setdefault(finding.component, set()).add(key)
        if finding.incident:
            keys = self._in.setdefault(finding.incident, set())
            if not keys:
                self._incidents.reopen(finding.incident)
            keys.add(key)

    def _close(self, finding: Finding, time: float, cause: str, event: str | None = None, *, settled: bool = False) -> Transition:
        """`settled`: the end shows that what was written before it was dealt with."""
        del self._open[finding.key]
        if self._faults.get(fault := self._fault_of(finding)) == finding.key:
            del self._faults[fault]
        own = self._of[finding.component]
        own.discard(finding.key)
        if not own:
            del self._of[finding.component]
        if settled and not (finding.simulated or finding.shadow):
            self._settle((finding.component, finding.code), time)
        keys = self._in.get(finding.incident)
        if keys is not None:
            keys.discard(finding.key)
            if not keys:
                del self._in[finding.incident]
                self._incidents.close(finding.incident, time)
        return life.closed(finding, time, cause, event)

    def _settle(self, key: tuple[Component, str], time: float) -> None:
        for known in (self._settled, self._newly_settled):
            known.pop(key, None)  # the latest stands last
        self._settled[key], self._newly_settled[key] = time, None
        if len(self._settled) > SETTLED:
            del self._settled[next(iter(self._settled))]

    def _due_of(self, finding: Finding) -> float:
        if not finding.open:
            return life.NEVER
        deaf = (Component(ComponentKind.NODE, finding.source), SOURCE_FAILED, False, False) in self._open
        due = life.due_of(finding)
        if deaf and (finding.simulated_until is None or due != finding.simulated_until):
            return finding.simulated_until if finding.simulated_until is not None else life.NEVER
        return due

    def _moves_at(self, finding: Finding) -> float:
        """When time alone will next change it."""
        if not finding.open:
            return life.NEVER
        accepted_until = finding.accepted.until if finding.accepted is not None else life.NEVER
        return min(self._due_of(finding), accepted_until, self._waits_until(finding)[0])

    def _earliest(self) -> float:
        return min(map(self._moves_at, self._open.values()), default=life.NEVER)


def _is_lived_with(finding: Finding) -> bool:
    """Whether a person accepted it and has not begun its remedy: what is done meanwhile is done for another reason."""
    return finding.accepted is not None and finding.state is FindingState.OPEN


def _is_below(finding: Finding, port: Component) -> bool:
    """Whether the port is the one above the finding's device, or the one that reported it."""
    return port.kind is ComponentKind.PCI and port.id in (finding.fields.get("port"), finding.fields.get("reporter"))


# What an event means beyond its rule: facts about the node, its devices and its people.
_OWN: dict[str, Callable[[Judge, Event], Iterable[Transition]]] = {
    BOOT: Judge._booted,
    CLEARED: Judge._person_cleared,
    REMEDY_BEGUN: Judge._remedy_begun,
    ACCEPTED: Judge._person_accepted,
    CLOCK_STEPPED: Judge._clock_stepped,
    SOURCE_FAILED: Judge._source_changed,
    IDENTITY: Judge._identified,
    REPLACED: Judge._replaced,
    JOB_DIED: Judge._job_died,
    DIAGNOSTIC_FAILED: Judge._diagnostic_failed,
}
