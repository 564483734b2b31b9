"""
rounds: what a look at all devices of a large node costs, for how long it holds up the loop, and
what reads that hang cost.

Fake trees on a disk stand for /sys, so these are our own shares. A real attribute is made at each
read, and some are asked of the device: what that takes comes on top, in the look's thread. The
floor is to open, read and close the same files.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    cpu_s,
    load,
    memory_mib,
    node,
    pid_of,
    scratch,
    spread,
    timed,
)
from tests.harness import POLLED
from tests.looking import batches_of
from tests.network_tree import MLX5, NetworkTree
from tests.neuron_tree import TRN2, NeuronTree
from tests.trees import Tree
from vitald import catalog
from vitald.collectors.collector import Found
from vitald.collectors.neuron.settings import NeuronSettings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.polling import PollingSource
from vitald.collectors.registry import Sources
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread

ROUNDS, WARM = 100, 5
SECONDS = 120.0
HANG_S, HANG_EVERY_S = 60.0, 0.1
_DEVICES = 64
_BRIDGES = 200  # further functions on the bus of a large node
_PROCESSES = 2000
_EFA = [f"0000:{bus:02x}:19.0" for bus in range(0x10, 0x20)]


def run() -> Json:
    with scratch() as folder:
        many = _neuron(folder / "neuron", [f"0000:{bus:02x}:00.0" for bus in range(_DEVICES)])
        whole = Whole(folder / "whole")
        infiniband = _infiniband(folder / "infiniband")
        sources: Json = {
            f"neuron_{_DEVICES}": _costs(lambda: _source("neuron", many.root), lambda: _beat(many)),
            "neuron_16": _costs(lambda: _source("neuron", whole.sysfs), whole.work),
            "efa_16": _costs(lambda: _source("network", whole.sysfs), whole.work),
            "mlx5_8": _costs(lambda: _source("network", infiniband.root), infiniband.traffic),
            **{
                name: _costs(partial(_source, name, whole.sysfs, whole.procfs), whole.work)
                for name in ("pci", "host", "expect")
            },
        }
        inventory = PciInventory(whole.sysfs)
        walks = [timed(inventory.scan_bus)[0] for _ in range(ROUNDS)]
        return {
            "unit": "ms",
            "rounds": ROUNDS,
            "sources": sources,
            "walk_of_pci": {"functions": len(inventory.devices), **spread(walks)},
            "daemon": _daemon(folder, whole),
            "hanging": _hanging(folder),
            "load": load(),
        }


# --- what stands for nodes


class Whole:
    """A trn2.48xlarge at work: 16 Neuron devices, 16 EFA, an ENA, 4 drives, two packages, a bus
    full of bridges, many processes.
    """

    def __init__(self, folder: Path) -> None:
        self.sysfs, self.procfs = folder / "sys", folder / "proc"
        self.neuron = NeuronTree(self.sysfs)
        self.network = NetworkTree(self.sysfs)
        for address in _EFA:
            self.network.efa(address)
        self.network.ena()
        _bridges(self.network)
        tree = Tree(folder)
        for number in range(4):
            _drive(tree, number)
        for cpu in range(192):
            place = f"sys/devices/system/cpu/cpu{cpu}"
            tree.write(f"{place}/topology/physical_package_id", cpu // 96)
            tree.write(f"{place}/thermal_throttle/package_throttle_count", 0)
            tree.write(f"{place}/thermal_throttle/package_throttle_total_time_ms", 0)
        tree.write("sys/devices/system/cpu/online", "0-191")
        _processes(tree)

    def work(self) -> None:
        """What moves from one round to the next."""
        _beat(self.neuron)
        self.network.traffic()


def _neuron(folder: Path, addresses: list[str]) -> NeuronTree:
    tree = NeuronTree(folder, addresses, machine="unknown")
    _bridges(tree)
    return tree


def _infiniband(folder: Path) -> NetworkTree:
    tree = NetworkTree(folder)
    for number, address in enumerate(MLX5):
        tree.mlx5(address, f"ib{number}")
    tree.ena()
    _bridges(tree)
    return tree


def _bridges(tree: Tree) -> None:
    for number in range(_BRIDGES):
        tree.pci(f"0001:{number:02x}:00.0", 0x8086, 0x352A, 0x060400, "pcieport")


def _beat(tree: NeuronTree) -> None:
    """Hearts, power and memory of all devices move."""
    now = int(time.time())
    for index in range(len(tree.addresses)):
        tree.put(
            index, "stats/hardware/health_status/healthcheck_heartbeat", time.monotonic_ns() % 10**9
        )
        tree.put(
            index,
            "stats/power/utilization",
            f"POWER_STATUS_VALID,{now},5.00,60.00,{now % 50}.{index:02d}",
        )
        tree.put(index, "neuron_core0/stats/memory_usage/device_mem/present", now)


def _drive(tree: Tree, number: int) -> None:
    who = {
        "model": "Amazon EC2 NVMe Instance Storage",
        "serial": f"AWS{number:017d}",
        "firmware_rev": "0",
        "transport": "pcie",
    }
    for name, value in {
        **who,
        "address": f"0000:{0xE0 + number:02x}:1f.0",
        "state": "live",
    }.items():
        tree.write(f"sys/class/nvme/nvme{number}/{name}", value)
    tree.write(f"sys/class/nvme/nvme{number}/hwmon{number}/temp1_input", 38850)
    tree.write(f"sys/class/nvme/nvme{number}/hwmon{number}/temp1_alarm", 0)


def _processes(tree: Tree) -> None:
    """So much waits that the host's processes are looked through, in turns; half of them are the
    kernel's.
    """
    for pid in range(1, _PROCESSES + 1):
        flags = 0x00200040 if pid % 2 else 0x00400040
        tree.write(f"proc/{pid}/stat", f"{pid} (worker) S 1 1 1 0 -1 {flags} {'0 ' * 12} 1234 0 0")
    tree.write("proc/loadavg", f"60.00 58.00 40.00 90/{_PROCESSES} 11206")
    tree.write("proc/meminfo", Path("/proc/meminfo").read_text())
    tree.write("proc/1/mountinfo", Path("/proc/self/mountinfo").read_text())
    (tree.root / "proc/sys").symlink_to("/proc/sys")


# --- a source by itself


def _source(
    name: str, sysfs: Path, procfs: Path = Path("/proc"), *, neuron: NeuronSettings | None = None
) -> PollingSource:
    """As the daemon builds it."""
    config = Config(
        Paths(sysfs=sysfs, procfs=procfs, state=sysfs.parent),
        neuron or NeuronSettings(),
        NvmlSettings(enabled=False),
    )
    rules = catalog.load_catalog("nvidia", {})
    sources = Sources(config, rules, "boot", WorkerThread("reader"), lambda: False)
    return next(one for one in sources.polled if one.name == name)


def _costs(make: Callable[[], PollingSource], between: Callable[[], None]) -> Json:
    with Helper(_measured, make, between) as helper:
        figures, files = cast("tuple[Json, list[str]]", helper.ask(seconds=600.0))
    floor = [_bare(files) for _ in range(ROUNDS)]
    return {**figures, "floor": {"files": len(files), "cpu": spread(floor)}}


def _bare(files: list[str]) -> float:
    """As little as can be done. Seconds of CPU."""
    before = time.thread_time()
    for name in files:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        os.read(fd, 4096)
        os.close(fd)
    return time.thread_time() - before


def _measured(
    pipe: Connection, make: Callable[[], PollingSource], between: Callable[[], None]
) -> None:
    """In a process of its own: its CPU is that of the rounds, and nothing else."""
    gc.collect()
    gc.freeze()  # as the daemon does
    pipe.send("ready")
    pipe.send(asyncio.run(_rounds(make(), between)))


async def _rounds(source: PollingSource, between: Callable[[], None]) -> tuple[Json, list[str]]:
    """What each round took, and the files that one opens."""
    stored = 0
    wall, cpu, loop, held, held_cpu = (list[float]() for _ in range(5))
    async with aclosing(batches_of(source)) as batches:
        with _stretches() as stretches:
            for number in range(-WARM, ROUNDS):
                between()
                await asyncio.sleep(
                    0
                )  # what was done up to here is no part of the round's stretches
                stretches.clear()
                before = _Spent()
                source.poll_now()
                batch = await anext(batches)
                spent = _Spent().since(before)
                await asyncio.sleep(0)
                if number < 0:
                    continue
                stored += batch.position is not None
                wall.append(spent.wall)
                cpu.append(spent.process)
                loop.append(spent.thread)
                held.append(max(one.wall for one in stretches))
                held_cpu.append(max(one.thread for one in stretches))
        with _opened() as files:
            source.poll_now()
            await anext(batches)
    figures: Json = {
        "devices": len(batch.readings),
        "state": batch.state.value,
        "wall": spread(wall),
        "cpu": spread(cpu),
        "cpu_in_threads": spread([whole - own for whole, own in zip(cpu, loop)]),
        "cpu_on_loop": spread(loop),
        "longest_stretch_on_loop": spread(held),
        "its_cpu": spread(held_cpu),
        "memory_bytes": len(source.memory),
        "memory_changed_in_rounds": stored,
    }
    return figures, files


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds: on the wall, CPU of the whole process and of this thread."""

    wall: float = field(default_factory=time.perf_counter)
    process: float = field(default_factory=time.process_time)
    thread: float = field(default_factory=time.thread_time)

    def since(self, before: _Spent) -> _Spent:
        return _Spent(
            self.wall - before.wall, self.process - before.process, self.thread - before.thread
        )


@contextmanager
def _stretches() -> Iterator[list[_Spent]]:
    """Each time that the loop is held: between one callback's begin and its end nobody else gets a
    turn.
    """
    stretches: list[_Spent] = []
    plain = asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        before = _Spent()
        plain(handle)
        stretches.append(_Spent().since(before))

    asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
    try:
        yield stretches
    finally:
        asyncio.Handle._run = plain  # type: ignore[method-assign]


@contextmanager
def _opened() -> Iterator[list[str]]:
    """The small files that are opened meanwhile. The hook stays: nothing may be measured in this
    process afterwards.
    """
    seen: list[str] = []
    files: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            seen.append(os.fspath(arguments[0]))

    sys.addaudithook(note)
    yield files
    files += [name for name in seen if Path(name).is_file() and not name.startswith("/usr/")]


# --- the daemon as it runs


def _daemon(folder: Path, whole: Whole) -> Json:
    """Two beside each other at the default cadence: with all sources, and with none of those that
    look in rounds.

    A pipe that stays silent stands for /dev/kmsg: what others write there meanwhile would be
    measured too.
    """
    stack = ExitStack()
    on, off = (
        "\n".join(f"[{section}]\nenabled = {word}" for section in POLLED)
        for word in ("true", "false")
    )
    daemons = {
        name: node(folder, kernel_log="kmsg", extra=extra, name=name)
        for name, extra in (("all", on), ("without", off))
    }
    for one in daemons.values():
        settings = one.settings.replace(
            "[paths]", f'[paths]\nsysfs = "{whole.sysfs}"\nprocfs = "{whole.procfs}"'
        )
        one.config.write_text(
            settings.replace('source = "kmsg"', f'source = "kmsg"\npath = "{one.folder / "kmsg"}"')
        )
        os.mkfifo(one.folder / "kmsg")
        stack.callback(os.close, os.open(one.folder / "kmsg", os.O_RDWR))
    with stack, daemons["all"], daemons["without"]:
        time.sleep(5 * SETTLE_S)
        before = {name: cpu_s(pid_of(one)) for name, one in daemons.items()}
        rss = {name: memory_mib(pid_of(one)) for name, one in daemons.items()}
        _while_working(whole)
        used = {name: cpu_s(pid_of(one)) - before[name] for name, one in daemons.items()}
        states = {str(one["name"]): one["state"] for one in daemons["all"].status()["sources"]}
        figures: Json = {
            name: {
                "cpu_percent": round(100 * used[name] / SECONDS, 4),
                "memory_mib": memory_mib(pid_of(one)),
                "memory_mib_at_begin": rss[name],
            }
            for name, one in daemons.items()
        }
    more = 100 * (used["all"] - used["without"]) / SECONDS
    return {"seconds": SECONDS, "sources": states, **figures, "cpu_percent_more": round(more, 4)}


def _while_working(whole: Whole) -> None:
    end = time.monotonic() + SECONDS
    while (left := end - time.monotonic()) > 0:
        whole.work()
        time.sleep(min(left, 30.0))


# --- what hangs


def _hanging(folder: Path) -> Json:
    """Each read of all devices hangs, and goes on hanging."""
    tree = NeuronTree(folder / "hanging")
    for index in range(len(TRN2)):
        tree.hang(tree.path(index, "info/architecture/instance_type"))
    with Helper(_hung, tree.root) as helper:
        figures = helper.ask(seconds=HANG_S + 60.0)
    assert isinstance(figures, dict)
    return {"devices": len(TRN2), "every_s": HANG_EVERY_S, "seconds": HANG_S, **figures}


def _hung(pipe: Connection, sysfs: Path) -> None:
    pipe.send("ready")
    pipe.send(asyncio.run(_rounds_that_hang(sysfs)))


async def _rounds_that_hang(sysfs: Path) -> Json:
    source = _source("neuron", sysfs, neuron=NeuronSettings(every_s=HANG_EVERY_S, deadline_s=0.5))
    plain, rounds = source.collector.find_devices, 0

    def find() -> Found:
        nonlocal rounds
        rounds += 1  # each begins with it
        return plain()

    source.collector.find_devices = find  # type: ignore[method-assign]
    began, cpu = time.monotonic(), time.process_time()
    seen: list[Json] = []
    async for batch in source.read_batches(None):
        after = time.monotonic() - began
        if after >= (len(seen) * HANG_S / 4 or 5.0):  # at first when all hang
            facts = {
                "threads": threading.active_count(),
                "rss_mib": memory_mib("self")["rss"],
                "state": batch.state.value,
            }
            seen.append(
                {
                    "after_s": round(after, 1),
                    "rounds": rounds,
                    **facts,
                    "memory_bytes": len(source.memory),
                }
            )
        if after >= HANG_S:
            break
    used = time.process_time() - cpu
    return {"rounds": rounds, "cpu_ms_a_round": round(used / rounds * 1e3, 3), "seen": seen}
