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

`STAGES` is this table as code. Each stage is one function of its module, and each applies to the
event as the stages before it have left it. A star marks those that apply to every event; the others
end with the first that finds that the event changes nothing about its own fault. An event that is
not trusted passes the starred ones only: it shows that time has passed.

    expiry*         what was due before the event: quiet periods, drills, acceptances, waits
    evidence        what it proves beyond its own fault closes findings
    relevance       its open finding; context that belongs to no correlation rule, hearsay about
                    what was observed, and history end here
    shared cause    an event of the last device of its kind becomes one of the node
    order           a state that was read after a newer one is counted, and ends here
    limit           past the maximum of open findings, one of the node stands for all others
    incident        found or begun, with the event as a member
    driver          the driver's recommendation, for the findings of its device
    recovery        a state that requires nothing any more closes findings
    suppression     a cause in the incident that requires as much takes over; no finding is opened
    finding         opened, or updated
    escalation      by the device's history
    context         what other members of the incident change about what is required
    acceptance      one from before a boot applies to the same fault again
    record          the finding is stored
    history         a mark of the fault in the device's history
    confirmation    a second source agrees with a finding that rests on the text of a log only
    regrouping      the new member may explain findings that are open already, or change what they
                    require
    outgrown*       an acceptance ends if the finding requires more now
    due*            when something is due next

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

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from vitald.catalog import Catalog, Clears
from vitald.judge import (
    acceptance,
    confirmation,
    correlation,
    driver,
    escalation,
    evidence,
    expiry,
    lifecycle,
    observation,
    own_finding,
    shared_cause,
)
from vitald.judge.devices import SlotRegistry
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import NODE, Component
from vitald.model.event import TOO_MANY, Event
from vitald.model.finding import Changes, Finding, Incident, Memory, Transition
from vitald.model.words import Action


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the evaluation of an event. `always`: it applies to every event."""

    name: str
    apply: Callable[[Evaluation], None]
    always: bool = False


STAGES = (
    Stage("expiry", expiry.expire_due, always=True),
    Stage("evidence", evidence.apply_evidence),
    Stage("relevance", own_finding.find_own_finding),
    Stage("shared cause", shared_cause.lift_event),
    Stage("order", own_finding.count_late_state),
    Stage("limit", own_finding.limit_findings),
    Stage("incident", correlation.join_incident),
    Stage("driver", driver.apply_recommendation),
    Stage("recovery", own_finding.close_recovered),
    Stage("suppression", correlation.suppress_consequence),
    Stage("finding", own_finding.open_or_update),
    Stage("escalation", escalation.apply_history),
    Stage("context", correlation.apply_context),
    Stage("acceptance", acceptance.restore_acceptance),
    Stage("record", own_finding.record_finding),
    Stage("history", escalation.note_fault),
    Stage("confirmation", confirmation.confirm_findings),
    Stage("regrouping", correlation.regroup_findings),
    Stage("outgrown", acceptance.end_outgrown, always=True),
    Stage("due", expiry.note_due, always=True),
)


class Judge:
    """The open findings, and everything that evaluating events needs to remember.

    Only the methods that return transitions change it.
    """

    def __init__(self, catalog: Catalog, memory: Memory | None = None) -> None:
        self._state = JudgeState.from_memory(catalog, memory or Memory())
        self._state.next_due = expiry.find_next_due(self._state)

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
        return self._state.next_due

    @property
    def memory(self) -> Memory:
        """Everything that another judge needs to continue from here."""
        return self._state.memory

    def take_changes(self) -> Changes:
        """The changes since the last call, except those of findings."""
        return self._state.take_changes()

    def find_clears(self, finding: Finding) -> Clears:
        """The evidence that closes this finding."""
        return lifecycle.find_clears(finding, self._state.catalog)

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
        """As `observation.accounts_for`."""
        return observation.accounts_for(self._state, event)

    def find_contradicted(
        self, source: str, calm: Collection[tuple[Component, str]]
    ) -> list[Finding]:
        """As `observation.find_contradicted`."""
        return observation.find_contradicted(self._state, source, calm)

    def find_refuted(self, calm: Collection[tuple[Component, str]]) -> list[Finding]:
        """As `observation.find_refuted`."""
        return observation.find_refuted(self._state, calm)

    # --- changes

    def apply_event(self, event: Event) -> list[Transition]:
        """Evaluate one event."""
        rule = self._state.catalog.find_rule(event.code)
        evaluation = Evaluation(self._state, event, rule, is_over=not event.is_trusted)
        for stage in STAGES:
            if stage.always or not evaluation.is_over:
                stage.apply(evaluation)
        return evaluation.changes

    def expire_findings(self, now: float) -> list[Transition]:
        """Apply what is due by `now`: ends of quiet periods, drills and acceptances, and escalation
        of findings that waited too long for maintenance.
        """
        return expiry.expire_findings(self._state, now)

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
            joined = lifecycle.join_findings(finding, current)
            self._state.findings.put_finding(joined)
            cause = f"goes on as finding {joined.id}: it was seen while this could not be read"
            changes.append(lifecycle.close_finding(finding, current.last, cause))
            cause = f"takes up finding {finding.id}"
            changes.append(Transition(time=current.last, finding=joined, cause=cause))
        self._state.history.adopt_marks(remembered.marks)
        self._state.devices.adopt_devices(remembered.devices)
        self._state.findings.adopt_resolved(remembered.resolved)
        self._state.next_due = expiry.find_next_due(self._state)
        return changes

    def reload_catalog(self, catalog: Catalog, now: float) -> list[Transition]:
        """Re-evaluate the open findings with another catalogue, after a reload or a restart."""
        self._state.set_catalog(catalog)
        changes = []
        for finding in self._state.findings:
            changes += self._reevaluate_finding(finding, now)
        self._state.findings.set_catalog(catalog)
        changes += acceptance.end_acceptances(self._state, changes, now, None)
        self._state.next_due = expiry.find_next_due(self._state)
        return changes

    def _reevaluate_finding(self, finding: Finding, now: float) -> list[Transition]:
        catalog, findings = self._state.catalog, self._state.findings
        rule = catalog.find_rule(finding.code)
        if lifecycle.is_carried(finding) and catalog.may_replace(rule):
            return []
        ruling = rule.apply_to(finding.fields)
        if ruling.action is Action.NONE:
            return [
                findings.close_finding(
                    finding, now, "the catalogue requires nothing for it any more"
                )
            ]
        if lifecycle.is_below_limits(finding, rule):
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
        changed = escalation.reevaluate_finding(self._state, changed, rule, now)
        if changed is finding:
            return []
        findings.put_finding(changed)
        cause = f"the catalogue changed: {finding.action.value} -> {changed.action.value}"
        return [Transition(time=now, finding=changed, cause=cause)]
