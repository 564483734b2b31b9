"""
The node as diagnostics see it: open findings, GPUs, users of the devices, releases. Read-only.

A tool's GPU number is mapped to a component by the serial number if the tool prints it, else by the
driver's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from fnmatch import fnmatch
from pathlib import Path

from vitald.catalog import Clears
from vitald.collectors.neuron.collector import NAME as NEURON
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.core.node_state import NodeState
from vitald.judge.verdict import sort_by_strength
from vitald.ledger.queries import read_last_runs
from vitald.model.component import Component
from vitald.model.diagnostic import Run
from vitald.model.finding import Finding
from vitald.model.source import Readings
from vitald.model.words import ComponentKind, When
from vitald.topology.pci_inventory import PciInventory

MAX_PAST_RUNS = 10  # runs of each check and level: as many as the schedule considers


class NodeView:
    """Reads the node's state and the inventory. `describe_release`: who released the devices; ""
    if they are not released.
    """

    def __init__(
        self,
        node_state: NodeState,
        inventory: PciInventory,
        ledger: Path,
        released: Callable[[], str],
        work: Callable[[float], Awaitable[Mapping[str, Sequence[float]] | None]] | None = None,
        exclude: Sequence[str] = (),
    ) -> None:
        """`work` makes the driver list the processes on each GPU, within a timeout in seconds; None
        if no driver is read. `exclude`: patterns of PCI addresses to leave alone.
        """
        self._work = work
        self._exclude = exclude
        self._node_state = node_state
        self._inventory = inventory
        self._ledger = ledger
        self.describe_release = released

    def list_findings(self) -> Sequence[Finding]:
        """The open findings, the strongest first."""
        return sort_by_strength(self._node_state.findings)

    def get_clears(self, finding: Finding) -> Clears:
        """What would resolve the finding."""
        return self._node_state.find_clears(finding)

    def find_gpu(self, index: int, serial: str = "", address: str = "") -> Component | None:
        """The GPU that a tool calls by this number, or by the serial number or PCI address if it
        prints one.
        """
        readings = self._get_readings()
        if serial:
            for component, reading in readings.items():
                if reading.values.get("serial") == serial:
                    return component
        numbered = dict(enumerate(self._list_numbered()))
        at_address = Component(ComponentKind.GPU, address)
        is_here = address and at_address in self.list_gpus()
        found = at_address if is_here else numbered.get(index)
        ours = readings[found].values.get("serial") if found and found in readings else None
        if serial and ours and ours != serial:
            # The tool counts otherwise than the driver does now: better none than another one
            return None
        return found

    def find_number(self, gpu: Component) -> int | None:
        """The number by which tools call a GPU; None if they do not know it."""
        numbered = self._list_numbered()
        return numbered.index(gpu) if gpu in numbered else None

    def _list_numbered(self) -> list[Component]:
        """DCGM and NVML number GPUs in the order of their PCI addresses; one that fell off the bus
        keeps its number until a reboot.
        """
        numbered = [gpu for gpu, reading in self._get_readings().items() if _has_number(reading)]
        known = numbered or self._on_pci()
        return sorted(known, key=lambda component: (len(component.id), component.id))

    def _get_readings(self) -> Mapping[Component, Readings]:
        return {
            reading.component: reading
            for reading in self._node_state.readings.get(NVML, ())
            if reading.component.kind is ComponentKind.GPU
        }

    def list_gpus(self) -> Set[Component]:
        """All that are here, or should be: on PCI, known to the driver, or with something wrong
        that is not over.
        """
        ill = {
            component
            for finding in self._node_state.findings
            if not finding.is_simulated
            for component in finding.components
            if component.kind is ComponentKind.GPU and component.id
        }
        return self._list_present() | ill

    def _list_present(self) -> Set[Component]:
        return self._get_readings().keys() | self._on_pci()

    async def read_pci(self) -> str:
        """Reads which devices are on PCI now. Returns why they could not be read, else ""."""
        await asyncio.to_thread(self._inventory.scan_bus)
        return self._inventory.error

    def list_testable_gpus(self) -> Set[Component]:
        """Those on PCI or known to the driver that a diagnostic must test: without those that an
        open finding takes out of use, that the driver excludes, or that are configured to be left
        alone.
        """
        out_of_use = {
            component
            for finding in self._node_state.findings
            if not finding.is_simulated and _takes_out_of_use(finding)
            for component in finding.components
        }
        excluded = {
            gpu
            for gpu, reading in self._get_readings().items()
            if reading.values.get("excluded") == 1.0
        }
        return {
            gpu
            for gpu in self._list_present() - out_of_use - excluded
            if not any(fnmatch(gpu.id, pattern) for pattern in self._exclude)
        }

    @property
    def has_accelerators(self) -> bool:
        """Whether PCI shows a GPU or a Neuron device."""
        return any(
            device.kind in (ComponentKind.GPU, ComponentKind.NEURON)
            for device in self._inventory.devices.values()
        )

    def get_identity(self, component: Component) -> str:
        """Of the device, wherever it is: its UUID where that is known."""
        return self._node_state.get_identity(component)

    def _on_pci(self) -> Set[Component]:
        return {
            Component(device.kind, device.address)
            for device in self._inventory.list_accelerators(ComponentKind.GPU)
        }

    def list_compute_users(self) -> Mapping[str, Sequence[float]]:
        """Process ids of the compute users of each GPU that answered recently. The driver reports
        them, those of other containers too.
        """
        pids = (
            (reading.component.name, reading.values.get("process_pids"))
            for reading in self._node_state.list_readings(NVML)
        )
        return {name: value for name, value in pids if isinstance(value, tuple)}

    async def read_compute_users(self, seconds: float) -> Mapping[str, Sequence[float]]:
        """The same, read from the driver now. Raises asyncio.TimeoutError if it does not answer in
        time.
        """
        users = await self._work(seconds) if self._work is not None else None
        return self.list_compute_users() if users is None else users

    def list_memory_use(self) -> Mapping[str, float]:
        """Bytes in use on each Neuron device that answered recently."""
        used = (
            (reading.component.name, reading.values.get("memory_used_bytes"))
            for reading in self._node_state.list_readings(NEURON)
        )
        return {name: value for name, value in used if isinstance(value, float)}

    def list_jobs(self) -> Set[str]:
        """Running jobs, as their scheduler reported."""
        return self._node_state.jobs.running.keys()

    def read_runs(self) -> Sequence[Run]:
        """The last runs of each check and level, the oldest first. Blocks; raises LedgerError."""
        return read_last_runs(self._ledger, MAX_PAST_RUNS)


def _has_number(reading: Readings) -> bool:
    """Whether NVML lists the GPU, or did before it was lost."""
    return not any(reading.values.get(fault) == 1.0 for fault in ("not_initialised", "excluded"))


def _takes_out_of_use(finding: Finding) -> bool:
    """Whether the device needs a repair now, and not by the text of a log alone. A person may have
    accepted that.
    """
    needs_repair = finding.action.makes_unfit and finding.when is not When.MAINTENANCE
    return finding.is_confirmed and (finding.unusable or needs_repair)
