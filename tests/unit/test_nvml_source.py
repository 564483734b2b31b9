"""NVML's source on a node without a GPU: it costs next to nothing, and sees one that comes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from tests.looking import CATALOG, batches_of
from tests.trees import Tree
from vitald.collectors.nvml.collector import Nvml
from vitald.collectors.nvml.settings import NvmlSettings as Settings
from vitald.model.source import SourceState
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread


class Counted(PciInventory):
    """How often the bus was walked."""

    reads = 0

    def scan_bus(self) -> None:
        self.reads += 1
        super().scan_bus()


def test_pci_is_walked_when_something_is_announced_and_not_all_the_time(tmp_path: Path) -> None:
    inventory = Counted(Tree(tmp_path).root)
    source = Nvml(Settings(), CATALOG, inventory, "boot-1", WorkerThread("nvml"))
    source.deadline_s = 0.03  # it says every third of this that it has looked

    async def run() -> None:
        async with aclosing(batches_of(source)) as batches:
            for _ in range(5):
                assert (await batches.__anext__()).state is SourceState.ABSENT
            assert inventory.reads == 1
            source.poll_now()
            for _ in range(3):
                await batches.__anext__()
            assert inventory.reads == 2

    asyncio.run(run())


def test_a_bus_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.remove("bus/pci/devices")
    tree.write("bus/pci/devices", "no folder")
    inventory = Counted(tree.root)
    source = Nvml(Settings(), CATALOG, inventory, "boot-1", WorkerThread("nvml"))

    async def run() -> None:
        async with aclosing(batches_of(source)) as batches:
            assert (await batches.__anext__()).state is SourceState.FAILED
            tree.remove("bus/pci/devices")
            (tree.root / "bus/pci/devices").mkdir()
            source.poll_now()
            assert (await batches.__anext__()).state is SourceState.ABSENT

    asyncio.run(run())
