"""
What diagnostics must know of the node: what is wrong, which GPU is which, who is at work, whether
the devices are released.

Owns     that a tool's GPU number is the right component: by serial number where the tool says it,
         else by the driver's order.
Refuses  changing anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from pathlib import Path

from vitald.catalog import Clears
from vitald.collectors.neuron.collector import NAME as NEURON
from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState
from vitald.judge.verdict import by_strength
from vitald.ledger import read_last_runs
from vitald.model import Component, ComponentKind, Finding
from vitald.model.diagnostic import Run

PAST = 10  # runs of each check and level: as many as the schedule looks back on


class Node:
    """Reads the board and the inventory. `released`: who asked us to let go of the devices, in
    words.
    """

    def __init__(
        self,
        board: NodeState,
        inventory: PciInventory,
        ledger: Path,
        released: Callable[[], str],
        work: Callable[[float], Awaitable[Mapping[str, Sequence[float]] | None]] | None = None,
    ) -> None:
        """`work` asks the driver who is at work, within so many seconds; None where no driver is
        asked.
        """
        self._work = work
        self._board = board
        self._inventory = inventory
        self._ledger = ledger
        self.released = released

    def findings(self) -> Sequence[Finding]:
        """The open ones, the strongest first."""
        return by_strength(self._board.findings)

    def clears(self, finding: Finding) -> Clears:
        """What would close it."""
        return self._board.find_clears(finding)

    def gpu(self, index: int, serial: str = "") -> Component | None:
        """DCGM and NVML number GPUs in the order of their PCI addresses; one that fell off the bus
        keeps its number until a reboot.
        """
        readings = {
            one.component: one
            for one in self._board.readings.get(NVML, ())
            if one.component.kind is ComponentKind.GPU
        }
        if serial:
            for component, one in readings.items():
                if one.values.get("serial") == serial:
                    return component
        known = sorted(
            readings or self._on_pci(), key=lambda component: (len(component.id), component.id)
        )
        found = known[index] if 0 <= index < len(known) else None
        ours = readings[found].values.get("serial") if found in readings else None
        if serial and ours and ours != serial:
            # The tool counts otherwise than the driver does now: better none than another one
            return None
        return found

    def gpus(self) -> Set[Component]:
        """All that are here, or should be: on PCI, known to the driver, or with something wrong
        that is not over.
        """
        read = {one.component for one in self._board.readings.get(NVML, ())}
        ill = {one.component for one in self._board.findings if not one.simulated}
        return {
            one for one in read | ill | self._on_pci() if one.kind is ComponentKind.GPU and one.id
        }

    def identity(self, component: Component) -> str:
        """Of the device, wherever it is: its UUID where that is known."""
        return self._board.get_identity(component)

    def _on_pci(self) -> Set[Component]:
        devices = self._inventory.devices.values()
        return {
            Component(ComponentKind.GPU, one.address)
            for one in devices
            if one.kind is ComponentKind.GPU
        }

    def compute(self) -> Mapping[str, Sequence[float]]:
        """Process ids at work on each GPU that answered lately, as the driver says: it sees into
        other containers.
        """
        pids = (
            (one.component.name, one.values.get("process_pids"))
            for one in self._board.list_readings(NVML)
        )
        return {name: told for name, told in pids if isinstance(told, tuple)}

    async def compute_now(self, seconds: float) -> Mapping[str, Sequence[float]]:
        """The same, asked for now. Raises asyncio.TimeoutError where the driver does not answer in
        time.
        """
        told = await self._work(seconds) if self._work is not None else None
        return self.compute() if told is None else told

    def memory(self) -> Mapping[str, float]:
        """Bytes in use on each Neuron device that answered lately."""
        used = (
            (one.component.name, one.values.get("memory_used_bytes"))
            for one in self._board.list_readings(NEURON)
        )
        return {name: told for name, told in used if isinstance(told, float)}

    def jobs(self) -> Set[str]:
        """That run, as their scheduler told."""
        return self._board.jobs.running.keys()

    def runs(self) -> Sequence[Run]:
        """The last runs of each check and level, the oldest first. Blocks; raises LedgerError."""
        return read_last_runs(self._ledger, PAST)
