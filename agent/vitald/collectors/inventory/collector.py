"""
Compares what this node should have with what it has: accelerators, adapters, drives, and versions.

Expected counts come from the configuration, a person, the instance type, or from what was the same
at several healthy boots. Which device is missing is reported by its own collector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitald.catalog.catalog import InstanceType
from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.inventory.device_counts import (
    DeviceCounter,
    LearnedCount,
    learn_count,
    parse_learned,
)
from vitald.collectors.inventory.readings import KINDS, READINGS, VERSIONS
from vitald.collectors.inventory.settings import SECTION, ExpectSettings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.config.paths import Paths
from vitald.model.component import NODE, Component
from vitald.model.source import Readings
from vitald.topology.pci_inventory import (
    PciInventory,
    read_machine_identity,
    read_machine_type,
)

NAME = "expect"

_HEALTHY_S = 600.0  # by then early failures have happened, and slow drivers are loaded


class CountsNotSettled(Exception):
    """The counts cannot be confirmed now; the text says why."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """How many there should be. `confirmed`: fewer are a fault; else they are only worth a note.
    `reason`: where the count comes from. `proven`: not from the configuration alone.
    """

    count: int
    confirmed: bool
    reason: str
    proven: bool = True


class ExpectedInventory:
    """A collector for `PollingSource`. Its one device is the node."""

    name = NAME

    def __init__(
        self,
        sysfs: Path,
        procfs: Path,
        inventory: PciInventory,
        catalog_instances: Mapping[str, InstanceType],
        boot_id: str,
        settings: ExpectSettings,
        gpus: int,
        is_healthy: Callable[[], bool],
        *,
        nvml: bool = True,
        healthy_s: float = _HEALTHY_S,
    ) -> None:
        """`inventory` is scanned at each poll. `gpus`: the configured number, 0 if not configured;
        `nvml`: the NVML collector reports missing GPUs, so this one does not. `is_healthy`: whether
        the node has no fault, called from `healthy_s` after the start.
        """
        self.memory: dict[str, Any] = {}
        self.machine = ""  # the instance type, if there is one
        self.counts: dict[str, int] = {}  # that are settled
        self.uncounted: dict[str, str] = {}  # why there is no count, by kind
        self.versions: dict[str, str] = {}
        self.boots_to_confirm = settings.boots
        # Missing GPUs are NVML's to report.
        self.judged_kinds = tuple(kind for kind in KINDS if kind != "gpus" or not nvml)
        self._sysfs = sysfs
        self._instances = catalog_instances
        self._boot_id = boot_id
        self.configure(settings, gpus)
        self._version_files = _list_version_files(sysfs, procfs)
        self._is_healthy = is_healthy
        self._healthy_at = time.monotonic() + healthy_s
        self._files = Files()
        self._counter = DeviceCounter(sysfs, inventory)
        self._identity = ""

    def configure(self, settings: ExpectSettings, gpus: int) -> None:
        """Use a configuration that was reloaded. `gpus`: the configured number."""
        self._configured = _list_configured(settings, gpus)
        self._allowed_versions = {name: tuple(getattr(settings, name)) for name in VERSIONS}

    # --- reading, in a thread

    def find_devices(self) -> Found:
        if not self._identity:
            self.machine = read_machine_type(self._sysfs)
            self._identity = read_machine_identity(self._sysfs)
        return Found([PolledDevice(NODE, self._read_node)])

    def _read_node(self) -> RawReadings:
        raw = RawReadings()
        remembered = self._list_remembered_rdma() if self._is_same_machine() else []
        self._counter.add_counts(raw, remembered)
        for name, path in self._version_files.items():
            self._files.read_text(raw, name, path)
        # If nothing is configured, the present version is the expected one: that resolves findings
        # of another configuration.
        raw.values |= {
            f"{name}_expected": ",".join(self._allowed_versions[name]) or raw.values.get(name, "")
            for name in VERSIONS
        }
        for kind in self.judged_kinds:
            expectation = self.find_expectation(kind) or Expectation(0, False, "")
            raw.values[f"{kind}_expected"] = float(expectation.count)
            raw.values[f"{kind}_confirmed"] = float(expectation.confirmed)
            raw.values[f"{kind}_proven"] = float(expectation.proven)
        self._add_max_efa(raw)
        return raw

    def _add_max_efa(self, raw: RawReadings) -> None:
        """How many EFA adapters the type can have. Not if there are none: then they are not used
        here.
        """
        max_efa = self._instances.get(self.machine, InstanceType()).efa
        if max_efa and raw.values.get("efa") and raw.values.get("efa_confirmed") != 1.0:
            raw.values["efa_most"] = float(max_efa)

    # --- what is expected

    def find_expectation(self, kind: str) -> Expectation | None:
        """How many of a kind there should be; None if unknown. What a person confirmed on this node
        takes precedence over the instance type.
        """
        if configured := self._configured[kind]:
            key = "[nvml] expected_gpus" if kind == "gpus" else f"[expect] {kind}"
            proven = configured <= max(self._get_most(kind), self._get_type_count(kind))
            return Expectation(configured, True, f"configuration: {key}", proven)
        learned = self._find_judged(kind)
        if learned is not None and learned.by:
            day = time.strftime("%Y-%m-%d", time.localtime(learned.at))
            reason = f"confirmed by {learned.by} on {day}: {learned.reason}"
            return Expectation(learned.count, True, reason)
        if type_count := self._get_type_count(kind):
            return Expectation(type_count, True, f"instance type {self.machine}")
        if learned is None or not self.boots_to_confirm:
            return None
        if learned.is_confirmed(self.boots_to_confirm):
            reason = f"the same at {learned.boots} healthy boots in a row"
            return Expectation(learned.count, True, reason)
        reason = f"learning: {learned.boots} of {self.boots_to_confirm} healthy boots in a row"
        return Expectation(learned.count, False, reason)

    def has_all_expected(self, *kinds: str) -> bool:
        """Whether the configuration or a person set how many of these there should be, and so many
        are present.
        """
        required = {kind: self._get_required(kind) for kind in kinds}
        return any(required.values()) and all(
            self._counter.get_last_count(kind) >= count for kind, count in required.items()
        )

    def _get_required(self, kind: str) -> int:
        """The number that the configuration or a person set; 0 if none did."""
        learned = self._find_judged(kind)
        confirmed = learned.count if learned is not None and learned.by else 0
        return self._configured[kind] or confirmed

    def list_allowed_versions(self, name: str) -> tuple[str, ...]:
        """The versions that the configuration allows; none if it names none."""
        return self._allowed_versions[name]

    def _get_type_count(self, kind: str) -> int:
        """How many each instance of this type has; 0 if unknown. The number of EFA adapters is
        chosen at launch.
        """
        instance = self._instances.get(self.machine, InstanceType())
        return {"gpus": instance.gpus, "neuron": instance.neuron}.get(kind, 0)

    # --- memory

    def _is_same_machine(self) -> bool:
        """Whether the memory is of this machine. A disk, or a copy of it, may come from another
        one.
        """
        return not self._identity or self.memory.get("machine", self._identity) == self._identity

    def _list_remembered_rdma(self) -> list[str]:
        stored = self.memory.get("rdma")
        if not isinstance(stored, list):
            return []
        return [address for address in stored if isinstance(address, str)]

    def _get_most(self, kind: str) -> int:
        """The most of a kind that were ever counted here together."""
        most = self.memory.get("most") if self._is_same_machine() else None
        count = most.get(kind) if isinstance(most, dict) else None
        return max(count if isinstance(count, int) else 0, self._get_count(kind))

    def _find_learned(self, kind: str) -> LearnedCount | None:
        counts = self.memory.get("counts") if self._is_same_machine() else None
        return parse_learned(counts.get(kind)) if isinstance(counts, dict) else None

    def _find_judged(self, kind: str) -> LearnedCount | None:
        """None also for a kind that another collector judges."""
        return self._find_learned(kind) if kind in self.judged_kinds else None

    def _collect_learned(self) -> dict[str, LearnedCount]:
        found = {kind: self._find_learned(kind) for kind in self.judged_kinds}
        return {kind: learned for kind, learned in found.items() if learned is not None}

    def _update_memory(self, counts: Mapping[str, LearnedCount]) -> None:
        rdma = self._counter.rdma
        self.memory = {
            "machine": self._identity,
            "counts": {kind: asdict(learned) for kind, learned in counts.items()},
            "most": {kind: self._get_most(kind) for kind in KINDS},
            "rdma": sorted(rdma if rdma is not None else self._list_remembered_rdma()),
        }

    # --- learning, on the loop

    def combine_readings(
        self,
        read: Mapping[Component, Readings],
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """No further readings: updates the memory."""
        readings = read.get(NODE)
        if readings is None or readings.unknown_reason:
            return ()
        values = readings.values
        self.counts = {
            kind: int(count) for kind in KINDS if isinstance(count := values.get(kind), float)
        }
        self.uncounted = {
            kind: reason for kind, reason in readings.missing.items() if kind in KINDS
        }
        self.versions = {name: str(values[name]) for name in VERSIONS if name in values}
        if not self._is_same_machine():
            self.memory = {}
        # A person confirmed fewer devices than the type has; now all are present again, so that
        # confirmation no longer applies.
        learned = {
            kind: known
            for kind, known in self._collect_learned().items()
            if not known.by or not known.count < self._get_type_count(kind) <= self._get_count(kind)
        }
        self._update_memory(learned | self._learn_boot(learned))
        return ()

    def _get_count(self, kind: str) -> int:
        return self.counts.get(kind, 0)

    def _learn_boot(self, learned: Mapping[str, LearnedCount]) -> dict[str, LearnedCount]:
        """The counts of this boot that are learned now: once it is known to be healthy."""
        new = [
            kind
            for kind in self.counts
            if kind in self.judged_kinds
            and (kind not in learned or learned[kind].boot != self._boot_id)
        ]
        if not new or not self.boots_to_confirm:
            return {}
        if time.monotonic() < self._healthy_at or not self._is_healthy():
            return {}
        return {
            kind: learn_count(
                learned.get(kind), self.counts[kind], self._boot_id, self.boots_to_confirm
            )
            for kind in new
        }

    def confirm_counts(self, by: str, reason: str) -> dict[str, int]:
        """A person confirms the present counts. Returns those that were confirmed: not what the
        configuration sets, nor what another collector judges. Raises CountsNotSettled.
        """
        if not self.counts:
            raise CountsNotSettled("nothing has been counted yet")
        for kind in self.judged_kinds:
            if self._counter.has_counted(kind) and kind in self.uncounted:
                raise CountsNotSettled(f"{KINDS[kind]}: {self.uncounted[kind]}")
        counts = {
            kind: count
            for kind, count in self.counts.items()
            if kind in self.judged_kinds and not self._configured[kind]
        }
        now = time.time()
        confirmed = {
            kind: LearnedCount(count=count, boot=self._boot_id, by=by, reason=reason, at=now)
            for kind, count in counts.items()
        }
        self._update_memory(self._collect_learned() | confirmed)
        return counts

    @property
    def is_boot_counted(self) -> bool:
        """Whether this boot has been counted as a healthy one."""
        return any(
            learned is not None and learned.boot == self._boot_id
            for learned in map(self._find_learned, KINDS)
        )


def _list_configured(settings: ExpectSettings, gpus: int) -> dict[str, int]:
    return {
        "gpus": gpus,
        "neuron": settings.neuron,
        "efa": settings.efa,
        "nics": settings.nics,
        "nvme": settings.nvme,
    }


def _list_version_files(sysfs: Path, procfs: Path) -> dict[str, Path]:
    return {
        "gpu_driver": sysfs / "module/nvidia/version",
        "neuron_driver": sysfs / "module/neuron/version",
        "efa_driver": sysfs / "module/efa/version",
        "kernel": procfs / "sys/kernel/osrelease",
    }


def _build_inventory(context: CollectorContext) -> ExpectedInventory:
    paths, nvml = context.config[Paths], context.config[NvmlSettings]
    return ExpectedInventory(
        paths.sysfs,
        paths.procfs,
        PciInventory(paths.sysfs),  # of its own, as it scans at other times than the others
        context.catalog.instances,
        context.boot_id,
        context.config[ExpectSettings],
        nvml.expected_gpus,
        context.is_healthy,
        nvml=nvml.enabled,
    )


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=(NAME,),
    subsystems=("pci", "infiniband", "nvme"),
    build_collector=_build_inventory,
    every_s=60.0,
    deadline_s=10.0,
)
