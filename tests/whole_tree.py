"""All sources that look at a node, as production builds them, over a folder that stands for the
machine.

`Proc` is a /proc of our own. `Watching` drives every source by hand, and reads kernel records as
from /dev/kmsg. Time is turned on by a `Clock`, so that minutes pass at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import cast

import pytest

from tests.looking import CATALOG, Looking
from tests.network_tree import EFA, MLX5, NetworkTree
from tests.neuron_tree import NeuronTree
from tests.trees import Tree
from tests.waiting import until
from vitald.collectors.host.clock import Timex
from vitald.collectors.host.collector import Host
from vitald.collectors.host.settings import HostSettings
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.collectors.network.settings import NetworkSettings
from vitald.collectors.neuron.settings import NeuronSettings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.pci.settings import PciSettings
from vitald.collectors.polling import PollingSource
from vitald.collectors.registry import Sources
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.model.event import Event, Trust
from vitald.model.source import Readings, SourceState
from vitald.model.words import Action
from vitald.worker_thread import WorkerThread

ROOT = "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw,errors=remount-ro"


class Proc(Tree):
    """What procfs says of a calm machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("sys/kernel/random/boot_id", "5f1e1d4a-0000-4000-8000-000000000001")
        self.write("sys/kernel/osrelease", "6.8.0-1021-aws")
        self.write(
            "meminfo",
            "MemTotal: 2097152000 kB\nMemAvailable: 1048576000 kB\nHardwareCorrupted: 0 kB",
        )
        self.write("loadavg", "0.20 0.18 0.12 1/800 11206")
        self.write("1/stat", "1 (systemd) S 0 1 1 0 -1 4194560 0")
        self.write("1/mountinfo", ROOT)


class Clock:
    """The real one, and what was turned on."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        for name, module in list(sys.modules.items()):
            if name.startswith("vitald.collectors.") and getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", self)

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def clock_gettime(self, clock: int) -> float:
        return time.clock_gettime(clock) + self.ahead


class Watching:
    """Every source of one run of the daemon. `after`: what was stored by the run before."""

    def __init__(
        self,
        sysfs: Path,
        proc: Proc,
        clock: Clock,
        after: Watching | None = None,
        *,
        boot_id: str = "boot-1",
    ) -> None:
        self._clock = clock
        config = Config(
            Paths(
                sysfs=sysfs, procfs=proc.root, state=proc.root / "state", runtime=proc.root / "run"
            ),
            KernelLogSettings(source="file", path=proc.root / "kernel.log", userspace="ignore"),
            NvmlSettings(enabled=False),
            *(section(deadline_s=5.0) for section in _POLLED),
            ExpectSettings(settle_s=0.0),  # each state is told once
            # Those of the tests' machine are none of the tree's
            HostSettings(deadline_s=5.0, units=(), units_if_enabled=()),
        )
        no_lane = cast("WorkerThread", None)  # only what reads the real kernel log needs one
        self.node = Sources(config, CATALOG, boot_id, no_lane, lambda: True)
        stored = (
            {name: one.position for name, one in after.looking.items()} if after is not None else {}
        )
        self.node.restore_memory(stored.get, [])
        self.looking: dict[str, Looking] = {
            one.name: Looking(_calm(one), stored.get(one.name)) for one in self.node.polled
        }
        self.hanging: set[str] = set()  # devices whose reads do not come back
        self._records = 0

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.looking.values():
            one.__exit__()

    def rounds(self, *gaps: float, of: Collection[str] = ()) -> list[Event]:
        """A look of every source, or of some, after each of these seconds. What was said, without
        who is who and what is over.
        """
        said: list[Event] = []
        for gap in gaps:
            self.settle()
            self._clock.ahead += gap
            for name in of or self.looking:
                said += self.looking[name].look()
        return [
            event
            for event in said
            if event.kind != "device" and event.fields.get("recovered") is not True
        ]

    def settle(self) -> None:
        """Wait until no read is under way but those of `hanging`: to turn the clock on would make
        it late.
        """

        def busy() -> set[tuple[str, str]]:
            return {
                (name, key)
                for name, one in self.looking.items()
                for key in one.source._poller.readers.under_way
                if key not in self.hanging
            }

        until(lambda: not busy(), lambda: f"the end of {busy()}")

    def kernel(self, records: Iterable[tuple[int, str]]) -> list[Event]:
        """The faults that these records of /dev/kmsg report. Each is its priority and its text."""
        said: list[Event] = []
        interpreter = self.node.interpreter
        for priority, text in records:
            self._records += 1
            if (sighting := interpreter.parse_record(text.encode())) is not None:
                said.append(
                    interpreter.make_event(
                        sighting,
                        text.encode(),
                        priority >> 3,
                        identity=f"kmsg:{self._records}",
                        time=self._clock.time(),
                        boot_id="boot-1",
                        usec=0,
                    )
                )
        return [
            event
            for event in said
            if CATALOG.find_rule(event.code).apply_to(event.fields).action is not Action.NONE
        ]

    @property
    def states(self) -> dict[str, tuple[SourceState, str]]:
        return {name: (one.last.state, one.last.detail) for name, one in self.looking.items()}

    @property
    def well(self) -> bool:
        """Whether every source could look, or has nothing to look at."""
        return all(
            state in (SourceState.OK, SourceState.ABSENT) for state, _ in self.states.values()
        )

    def readings(self, source: str, component: str) -> Readings:
        return self.looking[source].readings(component)


_HALF_FULL = os.statvfs_result((4096, 4096, 1000, 500, 500, 1000, 500, 500, 0, 255))
_POLLED = (NeuronSettings, NetworkSettings, PciSettings)


def _calm(source: PollingSource) -> PollingSource:
    """This machine's own disks and clock are none of the tree's."""
    if isinstance(source.collector, Host):
        source.collector.filesystems.statvfs = lambda _: _HALF_FULL
        source.collector.clock.adjtimex = lambda: Timex(maxerror=1000)
    return source


def believed(events: Sequence[Event]) -> list[Event]:
    """Those that are judged: not what a user's process wrote into the kernel log."""
    return [event for event in events if event.trust is not Trust.UNTRUSTED]


ADAPTER = "0000:c1:00.0"  # a plain network adapter
DRIVE = "nvme0"


class WholeTree:
    """A machine that has something for every source: `sys` and `proc` below a folder of our own.

    16 Trainium2, or the Neuron devices that are given as to a `NeuronTree`; EFA, InfiniBand, a
    plain adapter, memory controllers and a drive. No such machine is sold.
    """

    def __init__(
        self,
        folder: Path,
        addresses: list[str] | None = None,
        *,
        efa: Sequence[str] = EFA,
        **neuron: str,
    ) -> None:
        self.proc = Proc(folder / "proc")
        self.neuron = NeuronTree(folder / "sys", addresses, **neuron)
        self.network = NetworkTree(folder / "sys")
        self.root = self.neuron.root
        for address in efa:
            self.network.efa(address)
        for number, address in enumerate(MLX5[:3]):
            self.network.mlx5(address, f"ib{number}")
        self.add_adapter()
        for controller in (0, 1):
            for name in (
                "ce_noinfo_count",
                "ue_noinfo_count",
                "dimm0/dimm_ce_count",
                "dimm0/dimm_ue_count",
            ):
                self.neuron.write(f"{self.edac(controller)}/{name}", 0)
            self.neuron.write(
                f"{self.edac(controller)}/dimm0/dimm_label", f"CPU{controller}_DIMM_A1"
            )
            self.neuron.write(f"{self.edac(controller)}/dimm0/dimm_location", "channel 0 slot 0")
        who = {
            "model": "Amazon EC2 NVMe Instance Storage",
            "serial": "AWS22DD0011",
            "firmware_rev": "0",
            "transport": "pcie",
            "state": "live",
        }
        for file, value in who.items():
            self.neuron.write(f"class/nvme/{DRIVE}/{file}", value)
        (self.root / f"class/nvme/{DRIVE}/nvme0n1/nvme0n1p1").mkdir(parents=True)
        self.neuron.link("dev/block/259:1", f"class/nvme/{DRIVE}/nvme0n1/nvme0n1p1")

    def add_adapter(self) -> None:
        self.network.interface(
            "enp193s0", self.network.pci(ADAPTER, 0x8086, 0x1593, 0x020000, "ice")
        )

    def edac(self, controller: int) -> str:
        return f"devices/system/edac/mc/mc{controller}"

    def function(self, address: str) -> str:
        return f"devices/pci{address[:7]}/{address}"
