"""
What all parts of the judge work on: the catalogue, and all that is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitald.catalog import Catalog
from vitald.judge.device_history import History
from vitald.judge.devices import Devices
from vitald.judge.incidents import Incidents
from vitald.judge.open_findings import OpenFindings
from vitald.model import Changes, Memory


@dataclass(slots=True)
class State:
    """One for each judge. Nothing but the parts of that judge changes it."""

    catalog: Catalog
    findings: OpenFindings
    incidents: Incidents
    history: History
    devices: Devices

    @staticmethod
    def remembered(catalog: Catalog, memory: Memory) -> State:
        incidents = Incidents(catalog, memory.incidents, memory.next_incident)
        findings = OpenFindings(catalog, incidents, memory)
        return State(catalog, findings, incidents, History(memory.marks), Devices(memory.devices))

    @property
    def memory(self) -> Memory:
        """All that another judge needs to go on from here."""
        return Memory(
            findings=tuple(self.findings),
            incidents=self.incidents.all,
            marks=self.history.marks,
            devices=self.devices.all,
            resolved=self.findings.settled,
            next_finding=self.findings.next_id,
            next_incident=self.incidents.next_id,
        )

    def take_changes(self) -> Changes:
        """What changed beside the findings since this was last asked."""
        return replace(
            self.history.take_changes(),
            incidents=self.incidents.take_touched(),
            devices=self.devices.take_changed(),
            resolved=self.findings.take_newly_settled(),
        )

    def configure(self, catalog: Catalog) -> None:
        """Judge by another catalogue from here on."""
        self.catalog = catalog
        self.incidents.configure(catalog)
