"""
The open findings, and what was dealt with: the judge's only store of findings, with its indexes.

Owns     which finding is open, found by its key, its component, its incident and its fault; the
         numbers of new ones; the time at which each fault of each component was last dealt with.
Refuses  deciding: what a finding says is made by those who put it here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from vitald.catalog import Catalog
from vitald.judge import findings as life
from vitald.judge.incidents import IncidentStore
from vitald.model import Component, Finding, FindingKey, Memory, Transition

MAX_FINDINGS = 4096  # open findings; hostile input may name devices and codes without end
MAX_RESOLVED = 4096  # faults that were dealt with, by component and code; the ledger keeps as many
Fault = tuple[
    Component, str, bool
]  # a component, one of its faults by the catalogue's name, and whether it is a drill's


class OpenFindings:
    """Iterating gives the findings in the order in which they were opened. Closes and reopens their
    incidents.
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
        self._settled = {(component, code): time for component, code, time in memory.resolved}
        self._newly_settled: dict[tuple[Component, str], None] = {}
        for finding in memory.findings:
            self._of_incident.setdefault(finding.incident, set()).add(finding.key)
            self._of_component.setdefault(finding.component, set()).add(finding.key)
        self.set_catalog(catalog)

    def set_catalog(self, catalog: Catalog) -> None:
        """Tell faults by other rules."""
        self._catalog = catalog
        self._of_fault = {
            self._make_fault_key(finding): finding.key for finding in self if not finding.on_trial
        }

    # --- looking

    def __iter__(self) -> Iterator[Finding]:
        return iter(tuple(self._open.values()))

    def __getitem__(self, key: FindingKey) -> Finding:
        return self._open[key]

    def __contains__(self, key: FindingKey) -> bool:
        return key in self._open

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another one."""
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
            key=lambda one: one.id,
        )

    def list_of_incident(self, incident: int) -> list[Finding]:
        """The oldest first."""
        return [self._open[key] for key in self.list_keys_of_incident(incident)]

    def list_keys_of_incident(self, incident: int) -> list[FindingKey]:
        """The oldest first; for who changes some of the findings while going through them."""
        return sorted(self._of_incident.get(incident, ()), key=lambda key: self._open[key].id)

    @property
    def incidents(self) -> Collection[int]:
        """The incidents of which any finding is open; 0 may stand for none."""
        return self._of_incident.keys()

    def has_incident(self, incident: int) -> bool:
        """Whether any finding of the incident is open."""
        return incident in self._of_incident

    def find_by_fault(self, fault: Fault) -> Finding | None:
        """The finding, not on trial, that tells of this fault by whatever code; the one opened
        last.
        """
        key = self._of_fault.get(fault)
        return self._open.get(key) if key is not None else None

    # --- changing

    def take_id(self) -> int:
        """A number for a new finding."""
        self._next_id += 1
        return self._next_id - 1

    def put_finding(self, finding: Finding) -> None:
        """Open a finding, or replace the one of its key."""
        key = finding.key
        known = self._open.get(key)
        self._open[key] = finding
        if known is not None and known.incident == finding.incident:
            return
        if known is None and not finding.on_trial:
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
        settled: bool = False,
    ) -> Transition:
        """`resolved`: the end shows that what was written before it was dealt with."""
        del self._open[finding.key]
        if self._of_fault.get(fault := self._make_fault_key(finding)) == finding.key:
            del self._of_fault[fault]
        own = self._of_component[finding.component]
        own.discard(finding.key)
        if not own:
            del self._of_component[finding.component]
        if settled and not (finding.is_simulated or finding.on_trial):
            self._note_resolved((finding.component, finding.code), time)
        keys = self._of_incident.get(finding.incident)
        if keys is not None:
            keys.discard(finding.key)
            if not keys:
                del self._of_incident[finding.incident]
                self._incidents.close_incident(finding.incident, time)
        return life.close_finding(finding, time, cause, event)

    # --- what was dealt with

    @property
    def resolved(self) -> tuple[tuple[Component, str, float], ...]:
        return tuple((component, code, time) for (component, code), time in self._settled.items())

    def find_resolved_at(self, component: Component, code: str) -> float:
        """When it was last dealt with: lines from before are history. Minus infinity where it never
        was.
        """
        return self._settled.get((component, code), -life.NEVER)

    def take_newly_resolved(self) -> tuple[tuple[Component, str, float], ...]:
        """What was settled since this was last asked."""
        taken = tuple(
            (*key, self._settled[key]) for key in self._newly_settled if key in self._settled
        )
        self._newly_settled = {}
        return taken

    def adopt_resolved(self, settled: Iterable[tuple[Component, str, float]]) -> None:
        """Take up what was remembered elsewhere, where nothing newer is known."""
        self._settled = {
            **{(component, code): time for component, code, time in settled},
            **self._settled,
        }

    def shift_resolved(self, seconds: float) -> None:
        """The clock was stepped."""
        self._settled = {key: time + seconds for key, time in self._settled.items()}

    def _note_resolved(self, key: tuple[Component, str], time: float) -> None:
        for known in (self._settled, self._newly_settled):
            known.pop(key, None)  # the latest stands last
        self._settled[key], self._newly_settled[key] = time, None
        if len(self._settled) > MAX_RESOLVED:
            del self._settled[next(iter(self._settled))]

    def _make_fault_key(self, finding: Finding) -> Fault:
        return finding.component, self._catalog.find_rule(finding.code).fault, finding.is_simulated
