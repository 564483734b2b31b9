"""
The open findings and the resolved faults: the judge's only store of findings, with its indexes.

Owns     the open findings, by key, component, incident and fault; the ids of new ones; the time at
         which each fault of each component was last resolved.
Refuses  deciding anything about a finding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from vitald.catalog import Catalog
from vitald.judge import lifecycle
from vitald.judge.incidents import IncidentStore
from vitald.model.component import Component
from vitald.model.finding import Finding, FindingKey, Memory, ResolvedFault, Transition

MAX_FINDINGS = 4096  # open findings; hostile input may name devices and codes without end
MAX_RESOLVED = 4096  # resolved faults, by component and code; the ledger keeps as many
# Component, name of the fault in the catalogue, whether it is a drill
Fault = tuple[Component, str, bool]


class OpenFindings:
    """The open findings; iteration is in the order in which they were opened.

    Closes and reopens their incidents.
    """

    def __init__(self, catalog: Catalog, incidents: IncidentStore, memory: Memory) -> None:
        self._catalog = catalog
        self._incidents = incidents
        self._open: dict[FindingKey, Finding] = {
            finding.key: finding for finding in memory.findings
        }
        self._next_id = memory.next_finding
        self._of_component: dict[Component, set[FindingKey]] = {}
        self._of_incident: dict[int, set[FindingKey]] = {}
        self._of_fault: dict[Fault, FindingKey] = {}
        self._resolved = {(component, code): time for component, code, time in memory.resolved}
        self._newly_resolved: dict[tuple[Component, str], None] = {}
        for finding in memory.findings:
            self._of_incident.setdefault(finding.incident, set()).add(finding.key)
            self._of_component.setdefault(finding.component, set()).add(finding.key)
        self.set_catalog(catalog)

    def set_catalog(self, catalog: Catalog) -> None:
        """Index the faults by another catalogue."""
        self._catalog = catalog
        self._of_fault = {self._make_fault_key(finding): finding.key for finding in self}

    # --- queries

    def __iter__(self) -> Iterator[Finding]:
        return iter(tuple(self._open.values()))

    def __getitem__(self, key: FindingKey) -> Finding:
        return self._open[key]

    def __contains__(self, key: FindingKey) -> bool:
        return key in self._open

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of findings is open."""
        return len(self._open) >= MAX_FINDINGS

    @property
    def next_id(self) -> int:
        return self._next_id

    def get_finding(self, key: FindingKey) -> Finding | None:
        return self._open.get(key)

    def list_of_component(self, component: Component) -> list[Finding]:
        """The oldest first."""
        return sorted(
            (self._open[key] for key in self._of_component.get(component, ())),
            key=lambda finding: finding.id,
        )

    def list_of_incident(self, incident: int) -> list[Finding]:
        """The oldest first."""
        return [self._open[key] for key in self.list_keys_of_incident(incident)]

    def list_keys_of_incident(self, incident: int) -> list[FindingKey]:
        """The oldest first; for callers that change findings while iterating."""
        return sorted(self._of_incident.get(incident, ()), key=lambda key: self._open[key].id)

    @property
    def incidents(self) -> Collection[int]:
        """The incidents of which any finding is open; 0 may stand for none."""
        return self._of_incident.keys()

    def has_incident(self, incident: int) -> bool:
        """Whether any finding of the incident is open."""
        return incident in self._of_incident

    def find_by_fault(self, fault: Fault) -> Finding | None:
        """The finding of this fault under any code; the one opened last."""
        key = self._of_fault.get(fault)
        return self._open.get(key) if key is not None else None

    # --- changes

    def take_id(self) -> int:
        """The id for a new finding."""
        self._next_id += 1
        return self._next_id - 1

    def put_finding(self, finding: Finding) -> None:
        """Add a finding, or replace the one with its key."""
        key = finding.key
        known = self._open.get(key)
        self._open[key] = finding
        if known is not None and known.incident == finding.incident:
            return
        if known is None:
            self._of_fault[self._make_fault_key(finding)] = key
        self._of_component.setdefault(finding.component, set()).add(key)
        if finding.incident:
            keys = self._of_incident.setdefault(finding.incident, set())
            if not keys:
                self._incidents.reopen_incident(finding.incident)
            keys.add(key)

    def close_finding(
        self,
        finding: Finding,
        time: float,
        cause: str,
        event: str | None = None,
        *,
        resolved: bool = False,
    ) -> Transition:
        """Close a finding. `resolved`: its fault is resolved, so older lines are history."""
        del self._open[finding.key]
        if self._of_fault.get(fault := self._make_fault_key(finding)) == finding.key:
            del self._of_fault[fault]
        own = self._of_component[finding.component]
        own.discard(finding.key)
        if not own:
            del self._of_component[finding.component]
        if resolved and not finding.is_simulated:
            self._note_resolved((finding.component, finding.code), time)
        keys = self._of_incident.get(finding.incident)
        if keys is not None:
            keys.discard(finding.key)
            if not keys:
                del self._of_incident[finding.incident]
                self._incidents.close_incident(finding.incident, time)
        return lifecycle.close_finding(finding, time, cause, event)

    # --- resolved faults

    @property
    def resolved(self) -> tuple[ResolvedFault, ...]:
        return tuple(ResolvedFault(*key, time) for key, time in self._resolved.items())

    def find_resolved_at(self, component: Component, code: str) -> float:
        """When the fault was last resolved: older lines are history. Minus infinity if never."""
        return self._resolved.get((component, code), -lifecycle.NEVER)

    def take_newly_resolved(self) -> tuple[ResolvedFault, ...]:
        """The faults that were resolved since the last call."""
        taken = tuple(
            ResolvedFault(*key, self._resolved[key])
            for key in self._newly_resolved
            if key in self._resolved
        )
        self._newly_resolved = {}
        return taken

    def adopt_resolved(self, resolved: Iterable[ResolvedFault]) -> None:
        """Add resolved faults from another ledger, where nothing newer is known."""
        self._resolved = {
            **{(component, code): time for component, code, time in resolved},
            **self._resolved,
        }

    def shift_resolved(self, seconds: float) -> None:
        """Shift all times after a step of the clock."""
        self._resolved = {key: time + seconds for key, time in self._resolved.items()}

    def _note_resolved(self, key: tuple[Component, str], time: float) -> None:
        for known in (self._resolved, self._newly_resolved):
            known.pop(key, None)  # keeps the latest at the end
        self._resolved[key], self._newly_resolved[key] = time, None
        if len(self._resolved) > MAX_RESOLVED:
            del self._resolved[next(iter(self._resolved))]

    def _make_fault_key(self, finding: Finding) -> Fault:
        return finding.component, self._catalog.find_rule(finding.code).fault, finding.is_simulated
