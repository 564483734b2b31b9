"""
What the judge's functions work on: the state of one judge, and one event on its way through the
stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vitald.catalog import Catalog, Rule, Ruling
from vitald.judge import lifecycle
from vitald.judge.device_history import DeviceHistory
from vitald.judge.devices import SlotRegistry
from vitald.judge.incidents import IncidentStore
from vitald.judge.open_findings import OpenFindings
from vitald.model.event import Event
from vitald.model.finding import Changes, Finding, FindingKey, Incident, Memory, Transition
from vitald.model.words import Action


@dataclass(slots=True)
class JudgeState:
    """The state of one judge: the catalogue, and everything that is remembered."""

    catalog: Catalog
    findings: OpenFindings
    incidents: IncidentStore
    history: DeviceHistory
    devices: SlotRegistry
    next_due: float = 0.0  # when time alone next changes a finding, or earlier; kept by `expiry`

    @staticmethod
    def from_memory(catalog: Catalog, memory: Memory) -> JudgeState:
        incidents = IncidentStore(catalog, memory.incidents, memory.next_incident)
        findings = OpenFindings(catalog, incidents, memory)
        return JudgeState(
            catalog, findings, incidents, DeviceHistory(memory.marks), SlotRegistry(memory.devices)
        )

    @property
    def memory(self) -> Memory:
        """Everything that another judge needs to continue from here."""
        return Memory(
            findings=tuple(self.findings),
            incidents=self.incidents.all,
            marks=self.history.marks,
            devices=self.devices.all,
            resolved=self.findings.resolved,
            next_finding=self.findings.next_id,
            next_incident=self.incidents.next_id,
        )

    def take_changes(self) -> Changes:
        """The changes since the last call, except those of findings."""
        return replace(
            self.history.take_changes(),
            incidents=self.incidents.take_touched(),
            devices=self.devices.take_changes(),
            resolved=self.findings.take_newly_resolved(),
        )

    def set_catalog(self, catalog: Catalog) -> None:
        """Use another catalogue from now on."""
        self.catalog = catalog
        self.incidents.set_catalog(catalog)


@dataclass(slots=True)
class Evaluation:
    """One event on its way through the stages: each reads what the stages before it have set."""

    state: JudgeState
    event: Event  # the stage `shared cause` may make it one of the node
    rule: Rule
    # The event changes nothing about its own fault: only the stages that always apply remain.
    is_over: bool = False
    changes: list[Transition] = field(default_factory=list)

    # Set by `set_event`, which the stage `relevance` calls first
    key: FindingKey = field(init=False)  # of the finding that the event opens or updates
    current: Finding | None = field(init=False)  # that finding before the event, if it is open
    ruling: Ruling = field(init=False)  # what the rule requires for the event
    # Set by later ones
    incident: Incident | None = None  # the event's, with the event in it
    is_suppressed: bool = False  # a cause in the incident takes over what the event requires
    finding: Finding | None = None  # the event's, as opened or updated so far
    remark: str = ""  # to append to the cause of an opened finding

    def set_event(self, event: Event) -> None:
        """Go on with this event: find its finding, if one is open, and what its rule requires."""
        self.event = event
        self.key = (event.component, event.code, event.is_simulated)
        self.current = self.state.findings.get_finding(self.key)
        self.ruling = self.rule.apply_to(lifecycle.merge_fields(event, self.current))

    def put_finding(self, finding: Finding, cause: str, *, opened: bool = False) -> None:
        """Store a finding that the event opened or changed; `cause` is empty for a mere count."""
        self.state.findings.put_finding(finding)
        event = self.event
        self.changes.append(
            Transition(
                time=event.time, finding=finding, cause=cause, event=event.identity, opened=opened
            )
        )

    def replace_finding(self, before: Finding, after: Finding) -> None:
        """Store what the event made of a finding; the cause follows from the difference."""
        self.state.findings.put_finding(after)
        self.changes.append(lifecycle.make_transition(before, after, self.event))

    def close_finding(self, finding: Finding, cause: str, *, resolved: bool = False) -> None:
        """Close a finding. `resolved`: its fault is resolved, so older lines are history."""
        event, findings = self.event, self.state.findings
        self.changes.append(
            findings.close_finding(finding, event.time, cause, event.identity, resolved=resolved)
        )

    @property
    def requires_action(self) -> bool:
        """Whether the event's fault requires anything."""
        return self.ruling.action is not Action.NONE
