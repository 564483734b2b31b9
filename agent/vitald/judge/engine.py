"""
The judge: evaluates one event at a time, and returns what changed.

Terms
-----

fault       One code of one component, either real or of a drill. Different codes may be names of
            the same fault (`fault =` in the catalogue): they share a device's history.
finding     A fault that is open. It states a requirement: an action, and when it is due. At most
            one finding is open for each fault. It is opened by an event, updated by later events,
            and closed by evidence, by a quiet period, or by a person.
incident    Events with one physical root cause. Its members are codes of components, ordered so
            that the root cause comes first. A correlation rule of the catalogue joins an event to
            an incident; an event that no rule joins begins an incident of its own.
cause, consequence, suppressed consequence
            The roles of a code in a correlation rule. A cause may be the root. A consequence keeps
            its own requirement. A suppressed consequence has no finding while a cause requires at
            least as much.
evidence    What an event proves beyond its own fault: a boot, a reset, a replaced device, a passed
            diagnostic. Evidence closes the findings whose rule names it in `find_clears`.
escalation  A stronger requirement, because the same fault came back on the same device after its
            remedy, or occurred in many processes. It follows a policy of the catalogue and the
            device's history, which moves with the device to another slot.
resolved    A fault whose finding was closed by evidence or by a person. Lines written before that
            time are history: they open nothing.

The requirement of a finding
----------------------------

It is composed of layers, each kept in the finding with its reason:

    base        the catalogue's entry, applied to the strongest event so far
    context     replaces the base, where the catalogue says what other members of the incident
                change about it (co-occurrence)
    implied     the strongest requirement of a suppressed consequence: raises, never lowers
    driver      the driver's own recommended action replaces the catalogue's, in both directions,
                if both are a reset or a reboot
    escalation  raises; only an inspection after a failed remedy replaces that remedy

Stages of one event
-------------------

    expiry          everything that was due before it: quiet periods, drills, acceptances, waits
    evidence        what it proves beyond its own fault closes findings
    shared cause    an event of the last device of its kind becomes one of the node
    correlation     finds the incident, and adds the event to it; a suppressed consequence ends here
    finding         opened, updated, or closed by a state that no longer requires anything
    escalation      the device's history
    driver          the driver's recommendation, for the findings of its device
    confirmation    a second source agrees with a finding that rests on the text of a log only
    regrouping      the new member may explain findings that are open already, or change what they
                    require
    acceptance      a finding that a person accepted counts again if it requires more now

Rules of suppression: a cause suppresses a consequence that its correlation rule lists as
`suppressed` if the rule reaches from one to the other (same device, same process, the fabric, the
node), the consequence lies in the rule's time window, and the cause requires at least as much and,
for a remedy, of the same device. What was suppressed still raises its cause (`implied`), so
suppression never lowers the sum of what is required.

Rules of merging: an event joins the youngest incident about its own device, else the youngest that
a rule reaches from another. Two causes on different devices stay two incidents: two GPUs that are
lost at once are two problems. A boot separates incidents. A drill is never merged with what is
real.

Invariants
----------

1. Pure: no I/O, no clock, no random numbers. Time comes in with the events.
2. Deterministic: the same events in the same order and the same catalogue give the same findings,
   whenever `expire_findings` is called. A change that time alone makes is dated by its rule, not
   by the call that noticed it. A replay of the ledger therefore gives the same result.
3. The stronger requirement wins: a weaker or later event never lowers it. What may lower it (the
   driver, co-occurrence, a person, evidence) says so in the finding.
4. A line that was written before its fault was resolved neither reopens nor raises anything.
5. Hearsay, which a user process wrote, may open a finding of its own and changes nothing else.
6. The cost of an event depends on the open findings of its device and incident, never on the
   history.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from vitald.catalog import Catalog, Clears, Rule
from vitald.judge import findings as life
from vitald.judge.acceptance import Acceptances
from vitald.judge.confirmation import Confirmation
from vitald.judge.correlation import Correlation
from vitald.judge.devices import SlotRegistry
from vitald.judge.escalation import Escalation
from vitald.judge.evidence import EvidenceEvaluation
from vitald.judge.fault_evaluation import DriverRecommendation, FaultEvaluation
from vitald.judge.lifecycle import Expiry
from vitald.judge.shared_cause import SharedCause
from vitald.judge.state import JudgeState
from vitald.model import (
    NODE,
    Action,
    Changes,
    Component,
    Event,
    Finding,
    Incident,
    Memory,
    Transition,
)
from vitald.model.event import CLOCK_STEPPED, DOUBTED, TOO_MANY, UNDATED


class Judge:
    """The open findings, and everything that evaluating events needs to remember.

    Only the methods that return transitions change it.
    """

    def __init__(self, catalog: Catalog, memory: Memory | None = None) -> None:
        self._state = state = JudgeState.from_memory(catalog, memory or Memory())
        self._acceptances = Acceptances(state)
        self._correlation = Correlation(state)
        self._confirmation = Confirmation(state)
        self._escalation = Escalation(state)
        self._driver_word = DriverRecommendation(state)
        self._evidence = EvidenceEvaluation(
            state, self._correlation, self._escalation, self._acceptances
        )
        self._expiry = Expiry(state, self._acceptances)
        self._faults = FaultEvaluation(
            state,
            self._acceptances,
            self._confirmation,
            self._correlation,
            self._driver_word,
            self._escalation,
            SharedCause(state),
        )

    # --- queries

    @property
    def catalog(self) -> Catalog:
        """The catalogue in force."""
        return self._state.catalog

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """The open findings."""
        return tuple(self._state.findings)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The open incidents, and the closed ones that events may still join."""
        return self._state.incidents.all

    @property
    def next_due(self) -> float:
        """When a finding next changes by time alone; seconds since the epoch."""
        return self._expiry.next_due

    @property
    def memory(self) -> Memory:
        """Everything that another judge needs to continue from here."""
        return self._state.memory

    def take_changes(self) -> Changes:
        """The changes since the last call, except those of findings."""
        return self._state.take_changes()

    def find_clears(self, finding: Finding) -> Clears:
        """The evidence that closes this finding."""
        return life.find_clears(finding, self._state.catalog)

    def identify(self, component: Component) -> str:
        """UUID or serial number of the device, which survive a move to another slot; else the
        component's name.
        """
        return self._state.devices.identify(component)

    @property
    def slots(self) -> SlotRegistry:
        """The devices by slot, to be read."""
        return self._state.devices

    def score_devices(self, now: float) -> dict[str, tuple[float, list[tuple[str, int, float]]]]:
        """The lemon scores of devices above 0, with their parts as (kind, count, points)."""
        scored = {}
        for device in self._state.history.devices:
            if device == NODE.name:
                continue
            score, parts = self._state.history.compute_score(device, now, self._state.catalog.lemon)
            if score > 0:
                scored[device] = (
                    score,
                    [(part.kind.value, part.count, part.points) for part in parts],
                )
        return scored

    def accounts_for(self, event: Event) -> bool:
        """Whether a state that is observed needs no event: its finding is open, or suppressed, or
        it requires nothing.
        """
        return self._faults.accounts_for(event)

    def find_contradicted(
        self, source: str, calm: Collection[tuple[Component, str]]
    ) -> list[Finding]:
        """Open findings of a source that it currently observes not to hold.

        `calm`: the codes that are observed not to hold, by component.
        """
        return [
            finding
            for finding in self._state.findings
            if finding.source == source
            and any((component, finding.code) in calm for component in finding.components)
        ]

    def find_refuted(self, calm: Collection[tuple[Component, str]]) -> list[Finding]:
        """Open findings of lines without a date, or perhaps without a record of their own, whose
        fault a source observes not to hold, under any of its codes.
        """
        return [
            finding
            for finding in self._state.findings
            if (UNDATED in finding.fields or DOUBTED in finding.fields)
            and not finding.is_simulated
            and any(
                component == finding.component and self._is_same_fault(code, finding)
                for component, code in calm
            )
            and not any(
                other.code != finding.code and self._is_same_fault(other.code, finding)
                for other in self._state.findings.list_of_component(finding.component)
            )
        ]

    def _is_same_fault(self, code: str, finding: Finding) -> bool:
        find_rule = self._state.catalog.find_rule
        return find_rule(code).fault == find_rule(finding.code).fault

    # --- changes

    def apply_event(self, event: Event) -> list[Transition]:
        """Evaluate one event."""
        stepped = event.fields.get("seconds") if event.code == CLOCK_STEPPED else None
        by_old_clock = stepped if isinstance(stepped, (int, float)) else 0.0
        changes = self._expiry.expire_findings(event.time - by_old_clock)
        if not event.is_trusted:
            return changes
        self._state.incidents.forget_old(event.time)
        rule = self._state.catalog.find_rule(event.code)
        if not event.is_hearsay:
            changes += self._fold_evidence(event, rule)
        is_mute = rule.context and rule.action is Action.NONE and not rule.clears_codes
        if not is_mute or self._state.catalog.correlation.find_roles(event.code):
            changes += self._faults.evaluate_event(event, rule)
        changes += self._acceptances.end_outgrown(changes, event.time, event.identity)
        changes += self._expiry.note_changes(changes, event.time)
        return changes

    def expire_findings(self, now: float) -> list[Transition]:
        """Apply what is due by `now`: ends of quiet periods, drills and acceptances, and escalation
        of findings that waited too long for maintenance.
        """
        return self._expiry.expire_findings(now)

    def adopt_memory(self, remembered: Memory) -> list[Transition]:
        """Add the memory of another ledger. Two findings of the same fault become one, with the
        stronger requirement.
        """
        changes = []
        for finding in remembered.findings:
            current = self._state.findings.get_finding(finding.key)
            if current is None:
                self._state.findings.put_finding(replace(finding, incident=0))
                continue
            joined = life.join_findings(finding, current)
            self._state.findings.put_finding(joined)
            cause = f"goes on as finding {joined.id}: it was seen while this could not be read"
            changes.append(life.close_finding(finding, current.last, cause))
            cause = f"takes up finding {finding.id}"
            changes.append(Transition(time=current.last, finding=joined, cause=cause))
        self._state.history.adopt_marks(remembered.marks)
        self._state.devices.adopt_devices(remembered.devices)
        self._state.findings.adopt_resolved(remembered.resolved)
        self._expiry.next_due = self._expiry.find_next_due()
        return changes

    def reload_catalog(self, catalog: Catalog, now: float) -> list[Transition]:
        """Re-evaluate the open findings with another catalogue, after a reload or a restart."""
        self._state.set_catalog(catalog)
        changes = []
        for finding in self._state.findings:
            changes += self._reevaluate_finding(finding, now)
        self._state.findings.set_catalog(catalog)
        changes += self._acceptances.end_outgrown(changes, now, None)
        self._expiry.next_due = self._expiry.find_next_due()
        return changes

    def _reevaluate_finding(self, finding: Finding, now: float) -> list[Transition]:
        catalog, findings = self._state.catalog, self._state.findings
        rule = catalog.find_rule(finding.code)
        if life.is_carried(finding) and catalog.may_replace(rule):
            return []
        ruling = rule.apply_to(finding.fields)
        if ruling.action is Action.NONE:
            return [
                findings.close_finding(finding, now, "the catalogue no longer asks for anything")
            ]
        if life.is_below_limits(finding, rule):
            return [findings.close_finding(finding, now, "the catalogue's limit is higher now")]
        if finding.code == TOO_MANY:
            return []
        changed = finding
        if ruling.requirement != finding.base:
            changed = replace(
                finding,
                base=ruling.requirement,
                context=None,
                title=ruling.title,
                quiet_s=ruling.clears.quiet_s,
            )
        changed = self._escalation.reevaluate_finding(changed, rule, now)
        if changed is finding:
            return []
        findings.put_finding(changed)
        cause = f"the catalogue changed: {finding.action.value} -> {changed.action.value}"
        return [Transition(time=now, finding=changed, cause=cause)]

    # --- one event

    def _fold_evidence(self, event: Event, rule: Rule) -> list[Transition]:
        changes: list[Transition] = []
        fold = self._evidence.of_code.get(event.code)
        if fold is not None:
            changes += fold(event)
        if event.code == CLOCK_STEPPED:
            self._expiry.next_due = self._expiry.find_next_due()
        if rule.evidence is not None:
            changes += self._evidence.apply_evidence(event, rule.evidence, rule.of)
        return changes
