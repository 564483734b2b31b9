"""
The state that all parts of the judge share: the catalogue, and everything that is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitald.catalog import Catalog
from vitald.judge.device_history import DeviceHistory
from vitald.judge.devices import SlotRegistry
from vitald.judge.incidents import IncidentStore
from vitald.judge.open_findings import OpenFindings
from vitald.model import Changes, Memory


@dataclass(slots=True)
class JudgeState:
    """The state of one judge. Only the parts of that judge change it."""

    catalog: Catalog
    findings: OpenFindings
    incidents: IncidentStore
    history: DeviceHistory
    devices: SlotRegistry

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
