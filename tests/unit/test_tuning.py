"""How a node is set up, from trees that stand for /sys, /proc, /boot and /run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.looking import Looking, polled, told
from tests.trees import AMAZON, MELLANOX, NVIDIA, Tree
from tests.unit.smbios import memory_device
from tests.whole_tree import Clock
from vitald.collectors.pci.inventory import PciInventory
from vitald.collectors.root_file import read_clock
from vitald.collectors.tuning.collector import Tuning
from vitald.collectors.tuning.pci_paths import NotShown, find_acs_control, find_switch_ports
from vitald.collectors.tuning.software import find_newest, parse_release

ROOT_PORT, UPSTREAM = "0000:80:01.0", "0000:81:00.0"
GPU_PORT, NIC_PORT = "0000:82:00.0", "0000:82:01.0"
GPU, NIC = "0000:83:00.0", "0000:84:00.0"
SWITCH = f"devices/pci0000:80/{ROOT_PORT}/{UPSTREAM}"
REDIRECT = 0x0004 | 0x0008  # PCI_ACS_RR, PCI_ACS_CR of Linux pci_regs.h
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build"
    "  (dvs-builder@U22)\nGCC version:  gcc version 12.3.0"
)
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Tue Apr 28 2026"


def config_space(control: int | None) -> bytes:
    """The 4096 bytes of a port: an AER capability, then ACS with this control register."""
    space = bytearray(4096)
    following = 0x148 if control is not None else 0
    space[0x100:0x104] = (0x0001 | 1 << 16 | following << 20).to_bytes(4, "little")
    if control is not None:
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


class Machine:
    """A bare-metal x86 node: one GPU and one adapter below one PCIe switch, all set up well."""

    def __init__(self, root: Path) -> None:
        self.root = Tree(root)
        self.sys, self.proc = Tree(root / "sys"), Tree(root / "proc")
        self._add_function(f"devices/pci0000:80/{ROOT_PORT}", 0x8086, 0x060400)
        self._add_function(SWITCH, 0x1000, 0x060400)
        for port in (GPU_PORT, NIC_PORT):
            self._add_function(f"{SWITCH}/{port}", 0x1000, 0x060400)
            self.set_acs(port, 0)
        gpu = self._add_function(f"{SWITCH}/{GPU_PORT}/{GPU}", NVIDIA, 0x030200, "nvidia")
        nic = self._add_function(f"{SWITCH}/{NIC_PORT}/{NIC}", MELLANOX, 0x020700, "mlx5_core")
        self.sys.link("class/infiniband/mlx5_0/device", nic)
        for number, folder in enumerate((gpu, nic)):
            self.sys.write(f"kernel/iommu_groups/{number}/type", "identity")
            self.sys.link(f"{folder}/iommu_group", f"kernel/iommu_groups/{number}")
        self.sys.module("nvidia_peermem")
        for policy in (0, 1):
            self.set_governor(policy, "performance")
            zone = f"class/powercap/intel-rapl:{policy}"
            self.sys.write(f"{zone}/name", f"package-{policy}")
            self.sys.write(f"{zone}/constraint_0_name", "long_term")
            self.sys.write(f"{zone}/constraint_0_power_limit_uw", 350_000_000)
            self.sys.write(f"{zone}/constraint_0_max_power_uw", 350_000_000)
            for module in (0, 1):
                self.set_module(policy, module, 65536)
        self.proc.write("sys/kernel/osrelease", "6.8.0-124-generic")
        self.proc.write("cpuinfo", "processor\t: 0\nflags\t\t: fpu vme sse2")
        self.proc.write("driver/nvidia/version", PROPRIETARY)
        self.root.write("boot/vmlinuz-6.8.0-124-generic", "")
        (root / "run").mkdir()
        (root / "var/lib/dpkg").mkdir(parents=True)

    def _add_function(self, folder: str, vendor: int, class_: int, driver: str = "") -> str:
        address = folder.rpartition("/")[2]
        self.sys.write(f"{folder}/vendor", f"{vendor:#06x}")
        self.sys.write(f"{folder}/device", "0x2330")
        self.sys.write(f"{folder}/class", f"{class_:#08x}")
        if driver:
            (self.sys.root / "bus/pci/drivers" / driver).mkdir(parents=True)
            self.sys.link(f"{folder}/driver", f"bus/pci/drivers/{driver}")
        self.sys.link(f"bus/pci/devices/{address}", folder)
        return folder

    def set_acs(self, port: str, control: int) -> None:
        self.sys.write(f"{SWITCH}/{port}/config", config_space(control))

    def set_governor(self, policy: int, governor: str) -> None:
        self.sys.write(f"devices/system/cpu/cpufreq/policy{policy}/scaling_governor", governor)

    def set_module(self, controller: int, module: int, mebibytes: int) -> None:
        folder = f"devices/system/edac/mc/mc{controller}/dimm{module}"
        self.sys.write(f"{folder}/size", mebibytes)
        self.sys.write(f"{folder}/dimm_mem_type", "Registered-DDR5")

    def build(self, machine: str = "x86_64") -> Tuning:
        sysfs, root = self.sys.root, self.root.root
        return Tuning(sysfs, self.proc.root, PciInventory(sysfs), root, machine)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    return Machine(tmp_path)


def find_faults(node: Machine, machine: str = "x86_64") -> set[str]:
    """The codes that one poll reports."""
    with Looking(polled(node.build(machine))) as looking:
        return {code for code, _ in told(looking.look())}


def test_a_node_that_is_set_up_well_has_no_finding(node: Machine) -> None:
    with Looking(polled(node.build())) as looking:
        assert looking.look() == []
        readings = looking.readings("node")
    assert list(readings.missing) == ["memory_modules_listed"]  # root only
    assert readings.values == {
        "has_accelerator": 1.0,
        "iommu_judged": 1.0,
        "iommu_mode": "passthrough",
        "acs_redirecting_ports": 0.0,
        "acs_ports": "",
        "cpu_governor": "performance",
        "cpu_power_limit_ratio": 1.0,
        "gpudirect_rdma": "nvidia_peermem",
        "kernel_newest": "6.8.0-124-generic",
        "newer_kernel": 0.0,
        "memory_by_controller": "mc0 131072, mc1 131072",
        "memory_modules": 4.0,
        "memory_types": "Registered-DDR5",
        "memory_unbalanced": 0.0,
        "reboot_pending": 0.0,
    }


def test_each_difference_is_its_own_finding_and_ends(node: Machine) -> None:
    with Looking(polled(node.build())) as looking:
        looking.look()
        node.set_governor(1, "powersave")
        node.sys.write("class/powercap/intel-rapl:1/constraint_0_power_limit_uw", 300_000_000)
        node.sys.write("kernel/iommu_groups/1/type", "DMA-FQ")
        node.set_acs(NIC_PORT, REDIRECT)
        node.set_module(1, 1, 0)
        node.root.write("boot/vmlinuz-6.8.0-130-generic", "")
        node.root.write("run/reboot-required", "*** System restart required ***")
        node.root.write("run/reboot-required.pkgs", "linux-base\nlibc6\nlinux-base")
        faults = looking.look()
        assert {(code, name) for code, name in told(faults)} == {
            ("tuning/cpu_governor", "node"),
            ("tuning/cpu_power_limit", "node"),
            ("tuning/iommu_translates", "node"),
            ("tuning/acs_redirects", "node"),
            ("tuning/memory_unbalanced", "node"),
            ("tuning/newer_kernel", "node"),
            ("tuning/reboot_pending", "node"),
        }
        fields = {event.code: event.fields for event in faults}
        assert fields["tuning/cpu_governor"]["cpu_governor"] == "performance,powersave"
        assert fields["tuning/acs_redirects"]["acs_ports"] == NIC_PORT
        assert fields["tuning/memory_unbalanced"]["memory_by_controller"] == "mc0 131072, mc1 65536"
        assert fields["tuning/memory_unbalanced"]["memory_modules"] == 3
        assert fields["tuning/newer_kernel"]["kernel_newest"] == "6.8.0-130-generic"
        assert fields["tuning/reboot_pending"]["reboot_packages"] == "libc6, linux-base"
        node.set_governor(1, "performance")
        (over,) = looking.look()
    assert (over.code, over.fields["recovered"]) == ("tuning/cpu_governor", True)


def test_a_node_without_accelerators_is_not_judged_for_them(node: Machine) -> None:
    node.sys.remove(f"bus/pci/devices/{GPU}")
    node.set_governor(0, "powersave")
    node.sys.write("kernel/iommu_groups/1/type", "DMA")
    assert find_faults(node) == set()


def test_a_gpu_that_is_passed_to_a_guest_is_none_of_the_nodes(node: Machine) -> None:
    node.sys.link(f"{SWITCH}/{GPU_PORT}/{GPU}/driver", "bus/pci/drivers/vfio-pci")
    node.set_governor(0, "powersave")
    assert find_faults(node) == set()


@pytest.mark.parametrize("where", ["virtual", "arm"])
def test_the_iommu_is_judged_on_bare_x86_only(node: Machine, where: str) -> None:
    node.sys.write("kernel/iommu_groups/0/type", "DMA-FQ")
    node.set_acs(GPU_PORT, REDIRECT)
    if where == "virtual":
        node.proc.write("cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor sse2")
        assert find_faults(node) == set()
    else:
        assert find_faults(node, "aarch64") == set()


def test_without_iommu_groups_it_is_off(node: Machine) -> None:
    for folder in (f"{GPU_PORT}/{GPU}", f"{NIC_PORT}/{NIC}"):
        node.sys.remove(f"{SWITCH}/{folder}/iommu_group")
    with Looking(polled(node.build())) as looking:
        looking.look()
        assert looking.readings("node").values["iommu_mode"] == "off"


def test_acs_is_not_shown_to_ordinary_users(node: Machine) -> None:
    node.sys.write(f"{SWITCH}/{GPU_PORT}/config", config_space(REDIRECT)[:64])
    with Looking(polled(node.build())) as looking:
        assert looking.look() == []
        readings = looking.readings("node")
    assert "vitald-sensors.timer" in readings.missing["acs_redirecting_ports"]
    assert "acs_redirecting_ports" not in readings.values


def test_what_root_read_of_acs_and_memory(node: Machine) -> None:
    """The daemon is not root: it knows the registers from root's file, and judges them."""
    for port in (GPU_PORT, NIC_PORT):
        node.sys.write(f"{SWITCH}/{port}/config", config_space(0)[:64])
    slow = memory_device("DIMM_B1", 4400).hex()
    content = {
        "version": 1,
        "uptime": read_clock(),
        "acs": {GPU_PORT: REDIRECT, NIC_PORT: 0},
        "memory_modules": [memory_device("DIMM_A1", 4800).hex(), slow],
    }
    node.root.write("run/vitald-sensors/sensors.json", json.dumps(content)).chmod(0o640)
    with Looking(polled(node.build())) as looking:
        events = looking.look()
        assert told(events) == {
            ("tuning/acs_redirects", "node"),
            ("tuning/memory_speed_unequal", "node"),
        }
        fields = {event.code: event.fields for event in events}
    assert fields["tuning/acs_redirects"]["acs_ports"] == GPU_PORT
    assert fields["tuning/memory_speed_unequal"]["memory_slow_modules"] == "DIMM_B1"
    assert fields["tuning/memory_speed_unequal"]["memory_speeds"] == "1 x 4400 MT/s, 1 x 4800 MT/s"


@pytest.mark.parametrize(
    ("module", "driver", "kernel", "found"),
    [
        ("nvidia_peermem", PROPRIETARY, "5.4.0-1-generic", "nvidia_peermem"),
        ("nv_peer_mem", PROPRIETARY, "5.4.0-1-generic", "nvidia_peermem"),
        ("", OPEN_DRIVER, "5.15.0-1-generic", "dma_buf"),
        ("", OPEN_DRIVER, "5.11.0-1-generic", "none"),
        ("", PROPRIETARY, "6.8.0-1-generic", "none"),
    ],
)
def test_the_way_in_which_adapters_read_gpu_memory(
    node: Machine, module: str, driver: str, kernel: str, found: str
) -> None:
    node.sys.remove("module/nvidia_peermem")
    if module:
        node.sys.module(module)
    node.proc.write("driver/nvidia/version", driver)
    node.proc.write("sys/kernel/osrelease", kernel)
    with Looking(polled(node.build())) as looking:
        looking.look()
        assert looking.readings("node").values["gpudirect_rdma"] == found


def test_a_missing_way_counts_after_ten_minutes(
    node: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.sys.remove("module/nvidia_peermem")
    clock = Clock(monkeypatch)
    with Looking(polled(node.build())) as looking:
        assert looking.look() == []  # the module may be loaded later
        clock.ahead += 601
        assert told(looking.look()) == {("tuning/gpudirect_missing", "node")}


def test_efa_has_its_own_way(node: Machine) -> None:
    node.sys.remove("module/nvidia_peermem")
    (node.sys.root / "bus/pci/drivers/efa").mkdir()
    node.sys.link(f"{SWITCH}/{NIC_PORT}/{NIC}/driver", "bus/pci/drivers/efa")
    node.sys.write(f"{SWITCH}/{NIC_PORT}/{NIC}/vendor", f"{AMAZON:#06x}")
    with Looking(polled(node.build())) as looking:
        looking.look()
        assert "gpudirect_rdma" not in looking.readings("node").values


def test_what_a_virtual_machine_does_not_show_is_missing_and_no_fault(tmp_path: Path) -> None:
    tree, proc = Tree(tmp_path / "sys"), Tree(tmp_path / "proc")
    tuning = Tuning(tree.root, proc.root, PciInventory(tree.root), tmp_path, "x86_64")
    with Looking(polled(tuning)) as looking:
        assert looking.look() == []
        readings = looking.readings("node")
    assert readings.values == {"has_accelerator": 0.0}
    assert not readings.unknown_reason
    assert set(readings.missing) == {
        *("cpu_governor", "cpu_power_limit_ratio", "memory_modules", "newer_kernel"),
        *("reboot_pending", "iommu_mode", "acs_redirecting_ports", "iommu_judged"),
        *("gpudirect_rdma", "memory_modules_listed"),
    }


def test_a_package_without_a_maximum_is_not_compared(node: Machine) -> None:
    for package in (0, 1):
        node.sys.write(f"class/powercap/intel-rapl:{package}/constraint_0_max_power_uw", 0)
    with Looking(polled(node.build())) as looking:
        looking.look()
        assert "cpu_power_limit_ratio" in looking.readings("node").missing


@pytest.mark.parametrize(
    ("running", "installed", "newest"),
    [
        ("6.8.0-124-generic", ["6.8.0-124-generic", "6.8.0-9-generic"], "6.8.0-124-generic"),
        ("6.8.0-124-generic", ["6.11.0-8-generic", "6.14.0-1-aws"], "6.11.0-8-generic"),
        ("6.1.0-28-cloud-amd64", ["6.1.0-30-cloud-amd64"], "6.1.0-30-cloud-amd64"),
        (
            "5.14.0-427.13.1.el9_4.x86_64",
            ["5.14.0-427.el9.x86_64", "5.14.0-503.11.1.el9_5.x86_64"],
            "5.14.0-503.11.1.el9_5.x86_64",
        ),
        ("5.14.0-427.2.1.el9_4.x86_64", ["5.14.0-427.el9.x86_64"], "5.14.0-427.el9.x86_64"),
        (
            "6.1.112-122.189.amzn2023.x86_64",
            ["6.1.115-126.197.amzn2023.x86_64"],
            "6.1.115-126.197.amzn2023.x86_64",
        ),
        ("6.8.0-124-generic", ["0-rescue-4f1c", "6.8.0-130-generic.old", "memtest"], ""),
        ("custom", ["6.8.0-1-generic"], ""),
    ],
)
def test_the_newest_kernel_of_a_flavour(running: str, installed: list[str], newest: str) -> None:
    assert find_newest(running, installed) == newest


def test_an_older_package_of_the_same_version_is_not_newer(node: Machine) -> None:
    node.proc.write("sys/kernel/osrelease", "5.14.0-427.2.1.el9_4.x86_64")
    node.root.write("boot/vmlinuz-5.14.0-427.el9.x86_64", "")
    assert find_faults(node) == set()


@given(st.text(max_size=40))
def test_no_release_is_too_strange(text: str) -> None:
    parsed = parse_release(text)
    assert parsed is None or parsed[0]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=6), st.integers(0, 5))
def test_a_higher_number_is_newer(numbers: list[int], place: int) -> None:
    higher = list(numbers)
    higher[place % len(numbers)] += 1
    old, new = (".".join(map(str, each)) + "-generic" for each in (numbers, higher))
    assert find_newest(old, [old, new]) == new


def test_only_ports_where_both_meet_count() -> None:
    gpu = [ROOT_PORT, UPSTREAM, GPU_PORT, GPU]
    assert find_switch_ports([gpu], [[ROOT_PORT, UPSTREAM, NIC_PORT, NIC]]) == [GPU_PORT, NIC_PORT]
    assert find_switch_ports([gpu], [["0000:a0:01.0", "0000:a1:00.0"]]) == []
    assert find_switch_ports([gpu], [[ROOT_PORT, "0000:81:00.1"]]) == []  # no switch


@given(st.binary(min_size=257, max_size=4096))
def test_no_configuration_space_is_too_strange(config: bytes) -> None:
    assert 0 <= find_acs_control(config) <= 0xFFFF


def test_acs_control_is_found() -> None:
    assert find_acs_control(config_space(0x1D)) == 0x1D
    assert find_acs_control(config_space(None)) == 0
    with pytest.raises(NotShown):
        find_acs_control(bytes(64))
