"""Uevents of this machine's own kernel: heard, and not believed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require
from tests.looking import batches_of
from tests.trees import NVIDIA, Tree
from tests.waiting import until_async
from vitald import catalog
from vitald.collectors import uevents
from vitald.collectors.pci.collector import Pci
from vitald.collectors.pci.settings import PciSettings as Settings
from vitald.collectors.polling import PollingSource
from vitald.collectors.uevents import Uevents
from vitald.model.event import Event
from vitald.topology.pci_inventory import PciInventory

if TYPE_CHECKING:
    import pyudev

REAL = Path("/sys")
GPU = "0000:81:00.0"


@pytest.fixture(scope="module")
def bell() -> Callable[[str], object]:
    """Has the kernel announce something about a PCI function of this machine. None of it is so."""
    devices = sorted((REAL / "bus/pci/devices").glob("*"))
    writable = [one for one in devices if os.access(one / "uevent", os.W_OK)]
    require(writable and os.geteuid() == 0, "root, and a PCI bus whose uevents can be asked for")
    return lambda action: (writable[-1] / "uevent").write_text(action)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each announcement wakes."""
    monkeypatch.setattr(uevents, "_PAUSE_S", 0.0)


@asynccontextmanager
async def listening(
    wake: Mapping[str, Callable[[], object]], kind: type[Uevents] = Uevents
) -> AsyncIterator[Uevents]:
    """The library is found, and everybody was woken once."""
    started = asyncio.Event()
    ears = kind({subsystem: [one, started.set] for subsystem, one in wake.items()})
    task = asyncio.create_task(ears.listen())
    try:
        await until_async(lambda: ears.error or started.is_set())
        require(not ears.error, f"libudev and netlink ({ears.error})")
        yield ears
    finally:
        task.cancel()


@pytest.mark.core
def test_an_announcement_wakes_at_once(
    bell: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the end of a pause, of which each waking begins one."""
    woken = asyncio.Event()

    async def story() -> None:
        async with listening({"pci": woken.set}):
            monkeypatch.setattr(uevents, "_PAUSE_S", 3600.0)
            woken.clear()
            bell("change")
            await woken.wait()

    asyncio.run(story())


def interface_of_software() -> bool:
    """Make a network interface that no hardware has, and remove it. False where this is not
    allowed, or no such thing is known.
    """
    for kind in ("dummy", "ifb", "veth"):
        if (
            subprocess.run(
                ["ip", "link", "add", "vitald-ue", "type", kind], capture_output=True
            ).returncode
            == 0
        ):
            subprocess.run(["ip", "link", "del", "vitald-ue"], check=True)
            return True
    return False


def test_interfaces_made_of_software_are_heard_and_wake_nobody() -> None:
    require(shutil.which("ip") and interface_of_software(), "the right to make a network interface")
    woken: Counter[str] = Counter()

    async def story() -> None:
        async with listening({"net": lambda: woken.update(["net"])}) as ears:
            woken.clear()
            await asyncio.to_thread(interface_of_software)
            await until_async(lambda: ears.heard >= 2)
            assert not woken

    asyncio.run(story())


class Small(Uevents):
    """With a socket that holds next to nothing."""

    def _open_socket(self) -> pyudev.Monitor:
        monitor = super()._open_socket()
        monitor.set_receive_buffer_size(1)
        return monitor


def test_more_than_the_socket_holds_is_noticed(bell: Callable[[str], object]) -> None:
    woken: Counter[str] = Counter()

    async def story() -> None:
        wake = {name: (lambda name=name: woken.update([name])) for name in ("pci", "nvme")}
        async with listening(wake, Small) as ears:
            woken.clear()
            for _ in range(50):  # while the loop is kept from reading
                bell("change")
            await until_async(lambda: ears.lost)
            assert woken["nvme"] and not ears.error
            before = ears.heard
            bell("change")
            await until_async(lambda: ears.heard > before, "it to go on")

    asyncio.run(story())


async def told(source: PollingSource, events: list[Event], looks: Counter[str]) -> None:
    async with aclosing(batches_of(source)) as batches:
        async for batch in batches:
            events += batch.events
            looks["looked"] += 1


def test_a_removal_that_is_only_announced_is_not_believed(bell: Callable[[str], object]) -> None:
    source = PollingSource(
        Pci(REAL, PciInventory(REAL), Settings()),
        catalog.load_catalog(),
        "boot-1",
        every_s=600.0,
        timeout_s=10.0,
    )
    events: list[Event] = []
    looks: Counter[str] = Counter()

    async def story() -> None:
        telling = asyncio.create_task(told(source, events, looks))
        async with listening({"pci": source.poll_now}):
            for _ in range(2):
                before = looks["looked"]
                bell("remove")
                await until_async(lambda before=before: looks["looked"] > before)
        telling.cancel()

    asyncio.run(story())
    assert [event.code for event in events] == []


def test_a_removed_gpu_is_seen_at_once(bell: Callable[[str], object], tmp_path: Path) -> None:
    """The tree is ours, the bell is the kernel's: the next round would come in ten minutes."""
    tree = Tree(tmp_path)
    tree.pci(GPU, NVIDIA, 0x2330, 0x030200, "nvidia")
    source = PollingSource(
        Pci(tmp_path, PciInventory(tmp_path), Settings()),
        catalog.load_catalog(),
        "boot-1",
        every_s=600.0,
        timeout_s=10.0,
    )
    events: list[Event] = []
    looks: Counter[str] = Counter()

    async def story() -> None:
        telling = asyncio.create_task(told(source, events, looks))
        async with listening({"pci": source.poll_now}):
            await until_async(lambda: looks["looked"])
            assert events == []
            tree.remove(f"bus/pci/devices/{GPU}")
            bell("change")
            await until_async(lambda: events)
        telling.cancel()

    asyncio.run(story())
    assert [(event.code, event.component.name) for event in events] == [
        ("pci/removed", f"gpu/{GPU}")
    ]
