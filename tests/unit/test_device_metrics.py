"""What is read of Neuron devices, adapters, PCI functions and the host, as metrics: nothing that is
a number is left out unsaid.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tests.looking import CATALOG, Looking, polled
from tests.neuron_tree import TRN2, NeuronTree
from tests.system.test_metrics import complaints
from tests.trees import AMAZON, MELLANOX, Tree
from vitald.collectors.collector import Collector as PolledCollector
from vitald.collectors.discovery import find_collectors
from vitald.collectors.host.clock import Timex
from vitald.collectors.host.collector import Host
from vitald.collectors.host.settings import HostSettings
from vitald.collectors.inventory.collector import ExpectedInventory
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.network.collector import Network
from vitald.collectors.network.port import EFA_COUNTERS
from vitald.collectors.network.settings import NetworkSettings
from vitald.collectors.neuron.collector import Neuron
from vitald.collectors.pci.collector import Pci
from vitald.collectors.pci.settings import PciSettings
from vitald.core.node_state import NodeState
from vitald.metrics import families
from vitald.metrics.families import derive_families
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import ComponentKind
from vitald.topology.fstab import Fstab
from vitald.topology.neuron_locations import NeuronLocations
from vitald.topology.pci_inventory import PciInventory


class Page(Collector):
    """What the port would say of a board."""

    def __init__(self, board: NodeState) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        return families.collect_metrics(self._board)

    def text(self) -> str:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def samples(self) -> dict[str, float]:
        lines = [line for line in self.text().splitlines() if not line.startswith("#")]
        lines = [
            re.sub(r'\b\w+="",?', "", line).replace(",}", "}") for line in lines
        ]  # an empty label is none
        found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
        assert len(found) == len(lines), "a sample is told twice"
        return found


@pytest.fixture
def machine(tmp_path: Path) -> NeuronTree:
    """A Trn2 node with all that the host can have."""
    tree = NeuronTree(tmp_path / "sys")
    adapters(tree)
    for file, content in {
        "devices/system/edac/mc/mc0/ce_noinfo_count": 0,
        "devices/system/edac/mc/mc0/ue_noinfo_count": 0,
        "devices/system/edac/mc/mc0/dimm0/dimm_ce_count": 5,
        "devices/system/edac/mc/mc0/dimm0/dimm_ue_count": 0,
        "devices/system/edac/mc/mc0/dimm0/dimm_label": "CPU_A1",
        "devices/system/edac/mc/mc0/dimm0/dimm_location": "slot 0",
        "devices/system/cpu/online": "0-3",
        "devices/system/cpu/cpu0/topology/physical_package_id": 0,
        "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": 7,
        "devices/system/cpu/cpu0/thermal_throttle/package_throttle_total_time_ms": 1500,
        "class/nvme/nvme0/state": "live",
        "class/nvme/nvme0/model": "Amazon EC2 NVMe Instance Storage",
        "class/nvme/nvme0/serial": "AWS123",
        "class/nvme/nvme0/transport": "pcie",
        "class/nvme/nvme0/hwmon0/temp1_input": 41850,
        "class/nvme/nvme0/hwmon0/temp1_alarm": 0,
    }.items():
        tree.write(file, content)
    return tree


def adapters(tree: Tree) -> None:
    """An EFA, an InfiniBand adapter with two ports, and an interface."""
    efa = tree.pci("0000:9f:00.0", AMAZON, 0xEFA2, 0x020000, "efa")
    tree.link("class/infiniband/efa_0/device", efa)
    for name in ("submitted_cmds", "completed_cmds", "no_completion_cmds", "keep_alive_rcvd"):
        tree.write(f"class/infiniband/efa_0/hw_counters/{name}", 0)
    for name in EFA_COUNTERS:
        tree.write(f"class/infiniband/efa_0/ports/1/hw_counters/{name}", 0)
    mlx5 = tree.pci("0000:1a:00.0", MELLANOX, 0x1021, 0x020700, "mlx5_core")
    tree.link("class/infiniband/mlx5_0/device", mlx5)
    tree.write("class/infiniband/mlx5_0/node_guid", "b83f:d203:0012:3456")
    for port in (1, 2):
        folder = f"class/infiniband/mlx5_0/ports/{port}"
        for name, content in {
            "link_layer": "InfiniBand",
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
        }.items():
            tree.write(f"{folder}/{name}", content)
        for counter in (
            "link_downed",
            "link_error_recovery",
            "symbol_error",
            "port_rcv_errors",
            "port_xmit_discards",
        ):
            tree.write(f"{folder}/counters/{counter}", port)
        for counter in ("local_link_integrity_errors", "excessive_buffer_overrun_errors"):
            tree.write(f"{folder}/counters/{counter}", 0)
        for counter in ("local_ack_timeout_err", "roce_slow_restart"):
            tree.write(f"{folder}/hw_counters/{counter}", 0)
    tree.link(
        "class/net/eth0/device", tree.pci("0000:02:00.0", MELLANOX, 0x1021, 0x020000, "mlx5_core")
    )
    for name, flag in {"flags": "0x1003", "carrier": 1, "carrier_down_count": 2}.items():
        tree.write(f"class/net/eth0/{name}", flag)


def subjects(tree: Tree, folder: Path) -> Iterator[PolledCollector]:
    proc = Tree(folder / "proc").root
    for file, content in {
        "meminfo": "MemAvailable: 1024 kB\nHardwareCorrupted: 4 kB",
        "loadavg": "0.20 0.18 0.12 1/80 11206",
        "sys/kernel/threads-max": 8000,
        "sys/kernel/pid_max": 4000,
        "sys/kernel/osrelease": "6.8.0-aws",
        "1/stat": "1 (init) S",
        "self/mountinfo": "36 35 259:1 / / rw,noatime - ext4 /dev/nvme1n1p1 rw",
    }.items():
        Tree(folder / "proc").write(file, content)
    inventory = PciInventory(tree.root)
    yield Neuron(tree.root, inventory, NeuronLocations())
    yield Network(tree.root, NetworkSettings())
    yield Pci(tree.root, inventory, PciSettings())
    yield ExpectedInventory(
        tree.root,
        proc,
        inventory,
        CATALOG.instances,
        "boot-1",
        ExpectSettings(nvme=1, kernel=("6.8.0-aws",)),
        0,
        lambda: True,
    )
    settings = HostSettings(mounts=("/",), units=("kubelet.service",), units_if_enabled=())
    host = Host(tree.root, proc, folder, settings, Fstab(folder / "fstab"))
    host.units.show = lambda _: (
        "Id=kubelet.service\nLoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=2\nResult=success"
    )
    host.clock.adjtimex = lambda: Timex(maxerror=250_000, offset=100)
    host.filesystems.statvfs = lambda _: os.statvfs_result(
        (4096, 4096, 1000, 600, 500, 100, 90, 80, 0, 255)
    )
    yield host


@pytest.fixture
def board(machine: NeuronTree, tmp_path: Path) -> NodeState:
    """After some looks at all of it."""
    made = NodeState("boot-1", time.time(), device_reset=False)
    for subject in subjects(machine, tmp_path):
        with Looking(polled(subject)) as looking:
            looking.look(4)
            made.sources[subject.name] = SourceHealth(
                name=subject.name, state=SourceState.STARTING, deadline=60.0
            )
            made.replace_readings(subject.name, looking.last.readings)
            made.update_source(subject.name, SourceState.OK)
    return made


def test_each_reading_is_declared(board: NodeState) -> None:
    undeclared = set()
    for collector in find_collectors():
        for readings in board.readings.get(collector.name, ()):
            component = readings.component.kind
            declared = {
                reading.name
                for table in collector.readings
                if table.component in (component, ComponentKind.PCI)
                for reading in table.readings
            }
            undeclared |= {
                (collector.name, component.value, name) for name in {*readings.values} - declared
            }
    assert {source for source in board.readings if board.readings[source]} == {*board.readings}
    assert sorted(undeclared) == []


def test_no_reading_is_declared_twice() -> None:
    tables = [
        (collector.name, table) for collector in find_collectors() for table in collector.readings
    ]
    declared = [
        (source, table.component, table.prefix, reading.name)
        for source, table in tables
        for reading in table.readings
    ]
    assert len(declared) == len(set(declared))
    names = [family.name for _, table in tables for family in derive_families(table)]
    assert len(names) == len(set(names))


def test_samples(board: NodeState, machine: NeuronTree) -> None:
    """One of each table."""
    found = Page(board).samples()
    errors = [
        name
        for name in found
        if name.startswith("vitald_neuron_ecc_errors_total{")
        and f'serial="{machine.serial(3)}"' in name
    ]
    assert len(errors) == 5
    assert all(f'pci_bus_id="{TRN2[3]}"' in name for name in errors)
    assert (
        len([name for name in found if name.startswith("vitald_neuron_core_errors_total{")])
        == 16 * 8 * 6
    )
    for name, value in {
        "vitald_neuron_devices": 16,
        'vitald_pci_link_lanes{component_kind="nic",pci_bus_id="0000:9f:00.0",role="fabric"}': 16,
        'vitald_pci_aer_errors_total{component_kind="neuron",pci_bus_id="0000:cc:00.0",role="neuron",severity="fatal"}': (
            0
        ),
        'vitald_nic_link{adapter_kind="ib",pci_bus_id="0000:1a:00.0",state="up"}': 1,
        'vitald_nic_rate_bytes_per_second{adapter_kind="ib",pci_bus_id="0000:1a:00.0"}': 50e9,
        'vitald_nic_carrier_down_changes_total{adapter_kind="net",pci_bus_id="0000:02:00.0",port="1"}': 2,
        'vitald_infiniband_link_downed_total{adapter_kind="ib",pci_bus_id="0000:1a:00.0",port="2"}': 2,
        'vitald_efa_retrans_bytes_total{adapter_kind="efa",pci_bus_id="0000:9f:00.0"}': 0,
        "vitald_rdma_ports_up": 2,
        'vitald_devices{device_kind="neuron"}': 16,
        'vitald_devices_expected{device_kind="nvme"}': 1,
        'vitald_edac_correctable_errors_total{dimm="MC0.dimm0"}': 5,
        'vitald_cpu_package_throttled_seconds_total{package="package0"}': 1.5,
        'vitald_filesystem_avail_bytes{device="nvme1n1p1"}': 500 * 4096,
        'vitald_nvme_temperature_celsius{device="nvme0",serial="AWS123"}': 41.85,
        "vitald_host_memory_corrupted_bytes": 4096,
        'vitald_host_stuck_process_seconds{driver="neuron"}': 0,
        "vitald_host_clock_error_seconds": 0.25,
        'vitald_unit_restarts_total{unit="kubelet.service"}': 2,
    }.items():
        assert with_labels(found, name) == [value], name


def with_labels(found: dict[str, float], wanted: str) -> list[float]:
    """The samples that have these labels, whatever others they have."""
    name, _, labels = wanted.partition("{")
    needed = set(filter(None, labels.rstrip("}").split(",")))
    parted = ((sample.partition("{"), value) for sample, value in found.items())
    return [
        value
        for (own, _, has), value in parted
        if own == name and needed <= set(has.rstrip("}").split(","))
    ]


def test_promtool_has_nothing_to_say(board: NodeState, promtool: str) -> None:
    assert complaints(promtool, Page(board).text()) == ""


def test_what_is_not_there_has_no_families(board: NodeState) -> None:
    for source in ("neuron", "host"):
        board.replace_readings(source, ())
    assert not [name for name in Page(board).samples() if "neuron_" in name or "edac" in name]
    assert "vitald_edac" not in {metric.name for metric in families.collect_metrics(board)}


def test_what_is_not_looked_at_now_has_no_sample(board: NodeState) -> None:
    board.sources["pci"] = SourceHealth(name="pci", state=SourceState.OK, deadline=-1.0)
    assert not [name for name in Page(board).samples() if name.startswith("vitald_pci")]
