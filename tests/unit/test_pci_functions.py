"""PCI functions, from a sysfs tree in a folder: who comes and goes, links, error counters,
drivers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.looking import Looking, polled, told
from tests.trees import AMAZON, MELLANOX, NVIDIA, Tree
from vitald.collectors.pci.collector import Pci
from vitald.collectors.pci.settings import PciSettings as Settings
from vitald.model.source import SourceState
from vitald.model.words import ComponentKind
from vitald.topology.pci_inventory import PciInventory

GPU, NEURON, FABRIC, ETHERNET, ENA, PORT = (
    *("0000:81:00.0", "0000:a0:1e.0", "0000:5c:00.0", "0000:03:00.0"),
    *("0000:00:05.0", "0000:80:01.0"),
)


class Clock:
    """Stands in for the module `time` where rounds ask it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def time(self) -> float:
        return time.time() + self.ahead


class Bus:
    """A node with one of each, and its source."""

    def __init__(self, root: Path, exclude: tuple[str, ...] = (), *, nvml: bool = True) -> None:
        self.tree = Tree(root)
        self.folders = {
            GPU: self.tree.pci(GPU, NVIDIA, 0x2330, 0x030200, "nvidia"),
            NEURON: self.tree.pci(NEURON, AMAZON, 0x7164, 0x088000, "neuron-driver"),
            FABRIC: self.tree.pci(FABRIC, MELLANOX, 0x1021, 0x020700, "mlx5_core"),
            ETHERNET: self.tree.pci(ETHERNET, 0x8086, 0x1572, 0x020000, "i40e", width=8),
            ENA: self.tree.pci(ENA, AMAZON, 0xEC20, 0x020000, "ena"),
        }
        self.inventory = PciInventory(root)
        self.subject = Pci(root, self.inventory, Settings(exclude=exclude), nvml=nvml)
        self.looking = Looking(polled(self.subject))

    def path(self, address: str, name: str) -> str:
        return f"{self.folders[address]}/{name}"

    def remove(self, address: str) -> None:
        """As the kernel does: the entry goes, and with it the device's folder."""
        self.tree.remove(f"bus/pci/devices/{address}")
        shutil.rmtree(self.tree.root / self.folders[address])

    def unbind(self, address: str) -> None:
        self.tree.remove(self.path(address, "driver"))

    def count(self, address: str, severity: str, **counts: int) -> None:
        total = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}[severity]
        lines = [
            *(f"{name} {count}" for name, count in counts.items()),
            f"TOTAL_ERR_{total} {sum(counts.values())}",
        ]
        self.tree.write(self.path(address, f"aer_dev_{severity}"), "\n".join(lines))


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    made = Bus(tmp_path)
    with made.looking:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(
        "vitald.collectors.polling.time", SimpleNamespace(monotonic=made.monotonic, time=made.time)
    )
    return made


def test_a_sound_bus_says_nothing(bus: Bus) -> None:
    assert told(bus.looking.look(3)) == set()
    assert bus.looking.last.state is SourceState.OK
    values = bus.looking.readings(f"nic/{FABRIC}").values
    assert (
        values["link_lanes"] == values["link_lanes_max"] == 16
        and values["link_transfers_per_second"] == 16e9
    )
    assert (values["part"], values["dead"], values["unbound"], values["driver"]) == (
        "fabric",
        0.0,
        0.0,
        "mlx5_core",
    )
    parts = {one.component.name: one.values["part"] for one in bus.looking.last.readings}
    assert parts == {
        f"gpu/{GPU}": "gpu",
        f"neuron/{NEURON}": "neuron",
        f"nic/{FABRIC}": "fabric",
        f"nic/{ETHERNET}": "network",
        f"nic/{ENA}": "virtual",
    }


# --- who comes and goes


def test_what_vanished_is_told_at_the_next_look_and_ends_when_it_is_back(bus: Bus) -> None:
    bus.looking.look()
    codes = {
        f"gpu/{GPU}": "pci/removed",
        f"neuron/{NEURON}": "pci/removed",
        f"nic/{FABRIC}": "pci/removed",
        f"nic/{ETHERNET}": "pci/adapter_removed",
        f"nic/{ENA}": "pci/detached",
    }
    kept = bus.tree.root / "kept"
    for address, folder in bus.folders.items():
        shutil.copytree(bus.tree.root / folder, kept / address, symlinks=True)
        bus.remove(address)
    assert told(bus.looking.look()) == {(code, name) for name, code in codes.items()}
    assert told(bus.looking.look(3)) == set()
    assert not bus.folders.keys() & bus.inventory.devices.keys()
    for address, folder in bus.folders.items():
        (kept / address).rename(bus.tree.root / folder)
        bus.tree.link(f"bus/pci/devices/{address}", folder)
    back = bus.looking.look()
    ended = {event.component.name: event.code for event in back if event.fields.get("recovered")}
    assert ended == codes
    assert told(back) == {("pci/added", name) for name in codes}
    assert told(bus.looking.look(2)) == set()


def test_what_was_not_there_at_the_start_is_told_once(bus: Bus) -> None:
    bus.looking.look()
    bus.tree.pci("0000:a0:1a.0", AMAZON, 0xEFA1, 0x020000, "efa")
    (event,) = bus.looking.look()
    assert (event.code, event.component.name) == ("pci/added", "nic/0000:a0:1a.0")
    assert event.raw == "pci: arrivals rose by 1 to 1: nic 0000:a0:1a.0 (1d0f:efa1, efa)"
    assert bus.looking.look(2) == []


def test_a_restart_takes_nothing_for_new_and_knows_what_was_gone(bus: Bus) -> None:
    bus.looking.look()
    bus.remove(GPU)
    assert ("pci/removed", f"gpu/{GPU}") in told(bus.looking.look())
    again = polled(Pci(bus.tree.root, PciInventory(bus.tree.root), Settings()))
    with Looking(again, bus.looking.position) as looking:
        assert looking.look(2) == []
        bus.tree.pci(GPU, NVIDIA, 0x2330, 0x030200, "nvidia2")
        events = looking.look()
        assert [event.code for event in events if event.fields.get("recovered")] == ["pci/removed"]


def test_a_virtual_function_comes_and_goes_by_command(bus: Bus) -> None:
    bus.looking.look()
    address = "0000:5c:00.2"
    bus.folders[address] = bus.tree.pci(address, MELLANOX, 0x101E, 0x020700, "mlx5_core")
    bus.tree.link(bus.path(address, "physfn"), bus.folders[FABRIC])
    bus.tree.write(
        bus.path(address, "config"), b"\xff\xff\xff\xff" + bytes(60)
    )  # so the standard has it for virtual functions
    bus.tree.write(bus.path(address, "current_link_width"), 0)
    assert told(bus.looking.look(2)) == {("pci/added", f"nic/{address}")}
    assert bus.looking.readings(f"nic/{address}").values["dead"] == 0.0
    bus.unbind(address)
    bus.remove(address)
    assert told(bus.looking.look(2)) == {("pci/detached", f"nic/{address}")}


def test_an_adapter_that_another_stands_in_for_is_no_fabric(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    for address, name, master in ((ETHERNET, "eth1", "bond0"), ("0000:07:00.0", "eth2", "")):
        folder = bus.folders.setdefault(
            address, bus.tree.pci(address, MELLANOX, 0x1021, 0x020000, "mlx5_core")
        )
        bus.tree.write(f"{folder}/infiniband/mlx5_{name}/fw_ver", "1")
        bus.tree.write(f"{folder}/net/{name}/operstate", "up")
        if master:
            bus.tree.write(f"devices/virtual/net/{master}/operstate", "up")
            bus.tree.link(f"{folder}/net/{name}/master", f"devices/virtual/net/{master}")
    with bus.looking as looking:
        looking.look()
        parts = {one.component.id: one.values["part"] for one in looking.last.readings}
        assert (parts[ETHERNET], parts["0000:07:00.0"]) == ("network", "fabric")
        shutil.rmtree(
            bus.tree.root / bus.path("0000:07:00.0", "infiniband")
        )  # its driver is taken away first
        looking.look()
        bus.remove("0000:07:00.0")
        assert told(looking.look()) == {("pci/removed", "nic/0000:07:00.0")}


def test_a_bus_that_cannot_be_read_shows_nobody_gone(bus: Bus) -> None:
    bus.looking.look()
    bus.tree.remove("bus/pci/devices")
    bus.tree.write("bus/pci/devices", "")
    assert told(bus.looking.look(2)) == set()
    assert (
        bus.looking.last.state is SourceState.FAILED
        and "PCI cannot be read" in bus.looking.last.detail
    )


def test_a_bus_that_cannot_be_read_at_the_start_makes_nobody_new(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    devices = bus.tree.root / "bus/pci/devices"
    devices.rename(devices.with_name("kept"))
    bus.tree.write("bus/pci/devices", "")
    with bus.looking as looking:
        looking.look()
        devices.unlink()
        devices.with_name("kept").rename(devices)
        assert told(looking.look(2)) == set()


def test_what_the_site_excludes_is_left_alone(tmp_path: Path) -> None:
    bus = Bus(tmp_path, exclude=("0000:81:*", "0000:0?:00.0"))
    with bus.looking as looking:
        looking.look()
        assert {one.component.id for one in looking.last.readings} == {NEURON, FABRIC, ENA}
        bus.remove(GPU)
        assert looking.look(2) == []


def test_a_node_without_such_devices_has_nothing_to_look_at(tmp_path: Path) -> None:
    Tree(tmp_path).pci("0000:00:1f.0", 0x8086, 0x1234, 0x060100)
    with Looking(polled(Pci(tmp_path, PciInventory(tmp_path), Settings()))) as looking:
        looking.look()
        assert looking.last.state is SourceState.ABSENT


# --- one that does not answer


def test_a_dead_device_is_told_when_it_stays_dead_and_nothing_else_is_read_of_it(
    bus: Bus, clock: Clock
) -> None:
    bus.looking.look()
    bus.tree.write(bus.path(FABRIC, "config"), b"\xff" * 64)
    bus.tree.write(bus.path(FABRIC, "current_link_width"), 63)  # what the kernel makes of ones
    bus.count(FABRIC, "fatal", DLP=7)
    assert told(bus.looking.look()) == set()
    clock.ahead += 40
    assert told(bus.looking.look()) == {("pci/dead", f"nic/{FABRIC}")}
    read = bus.looking.readings(f"nic/{FABRIC}")
    assert (
        "link_lanes" not in read.values
        and "aer_fatal" not in read.values
        and "do" in read.missing["link_lanes"]
    )
    assert read.values["present"] == 1.0


def test_a_device_in_reset_is_not_dead(bus: Bus, clock: Clock) -> None:
    bus.looking.look()
    config = (bus.tree.root / bus.path(FABRIC, "config")).read_bytes()
    bus.tree.write(bus.path(FABRIC, "config"), b"\xff" * 64)
    bus.looking.look()
    bus.tree.write(bus.path(FABRIC, "config"), config)
    clock.ahead += 40
    assert told(bus.looking.look(2)) == set()


def test_one_that_sleeps_is_not_woken(bus: Bus) -> None:
    bus.tree.write(bus.path(GPU, "power/runtime_status"), "suspended")
    bus.tree.hang(bus.path(GPU, "config"))  # it would show
    bus.looking.look()
    assert "powered down" in bus.looking.readings(f"gpu/{GPU}").missing["dead"]
    assert bus.looking.last.state is SourceState.OK


def test_a_look_that_hangs_is_said_and_the_others_are_seen(bus: Bus) -> None:
    bus.looking.look()
    bus.looking.expect_hang()
    bus.tree.hang(bus.path(ETHERNET, "config"))
    bus.looking.source.poll_now()
    bus.looking.until(lambda batch: any(event.code == "pci/hung" for event in batch.events))
    bus.remove(GPU)
    assert told(bus.looking.look()) == {("pci/removed", f"gpu/{GPU}")}
    with (bus.tree.root / bus.path(ETHERNET, "config")).open("wb"):
        pass
    bus.tree.write(bus.path(ETHERNET, "config"), bytes(64))
    ended = bus.looking.until(
        lambda batch: any(event.fields.get("recovered") for event in batch.events)
    )
    assert {event.code for event in ended.events} == {"pci/hung"}


# --- its driver


def test_a_device_that_lost_its_driver_is_told(bus: Bus, clock: Clock) -> None:
    bus.looking.look()
    bus.unbind(NEURON)
    assert told(bus.looking.look()) == set()  # the driver may be loaded again
    clock.ahead += 130
    assert told(bus.looking.look()) == {("pci/unbound", f"neuron/{NEURON}")}
    bus.tree.link(bus.path(NEURON, "driver"), "bus/pci/drivers/vfio-pci")
    bus.looking.look()
    clock.ahead += 130
    assert [event.fields.get("recovered") for event in bus.looking.look()] == [True]


def test_without_a_driver_from_the_start_its_like_decide(bus: Bus, clock: Clock) -> None:
    bus.folders["other"] = bus.tree.pci(
        "0000:82:00.0", NVIDIA, 0x2330, 0x030200
    )  # the other H100 has its driver
    bus.tree.pci("0000:04:00.0", 0x8086, 0x9999, 0x020000)  # no other of its model
    bus.looking.look()
    clock.ahead += 130
    assert told(bus.looking.look()) == {("pci/unbound", "gpu/0000:82:00.0")}
    assert "unbound" in bus.looking.readings("nic/0000:04:00.0").missing


def test_a_driver_that_does_not_load_after_a_boot_is_missed(bus: Bus, clock: Clock) -> None:
    bus.looking.look()
    bus.unbind(GPU)
    bus.tree.write(bus.path(FABRIC, "device"), "0x1023")  # another card is in the slot now
    bus.unbind(FABRIC)
    booted = polled(Pci(bus.tree.root, PciInventory(bus.tree.root), Settings()), boot_id="boot-2")
    with Looking(booted, bus.looking.position) as looking:
        looking.look()
        clock.ahead += 130
        assert told(looking.look()) == {("pci/unbound", f"gpu/{GPU}")}


# --- its link


def test_a_link_below_its_best_is_told_where_nothing_else_explains_it(
    tmp_path: Path, clock: Clock
) -> None:
    expected: dict[tuple[str, str, object], str | None] = {
        (FABRIC, "current_link_width", 8): "pci/link_width",
        (FABRIC, "current_link_speed", "8.0 GT/s PCIe"): "pci/link_speed",
        (NEURON, "current_link_speed", "2.5 GT/s PCIe"): "pci/link_speed",
        (ETHERNET, "current_link_width", 4): "pci/link_width",
        (GPU, "current_link_speed", "2.5 GT/s PCIe"): None,  # idle: NVML knows
        (GPU, "current_link_width", 8): None,
        (FABRIC, "current_link_width", 0): None,
        (FABRIC, "current_link_width", 255): None,
        (FABRIC, "current_link_speed", "Unknown"): None,
        (FABRIC, "max_link_speed", ""): None,
        (ENA, "current_link_width", 1): None,
    }
    found = {}
    for number, (address, name, value) in enumerate(expected):
        bus = Bus(tmp_path / str(number))
        with bus.looking:
            bus.looking.look()
            bus.tree.write(bus.path(address, name), value)
            bus.looking.look()
            clock.ahead += 310
            found[address, name, value] = {code for code, _ in told(bus.looking.look())}
    assert found == {case: {code} if code else set() for case, code in expected.items()}


def behind_a_port(bus: Bus, **port: str | int) -> str:
    """Another adapter, behind a port of its own. Returns its address."""
    address = "0000:81:00.1"
    above = bus.tree.pci(PORT, 0x8086, 0x352A, 0x060400, "pcieport")
    bus.folders[PORT] = above
    for name, value in port.items():
        bus.tree.write(f"{above}/{name}", value)
    folder = bus.tree.pci(address, MELLANOX, 0x1021, 0x020700, "mlx5_core")
    (bus.tree.root / folder).rename(bus.tree.root / above / address)
    bus.tree.remove(f"bus/pci/devices/{address}")
    bus.tree.link(f"bus/pci/devices/{address}", f"{above}/{address}")
    bus.folders[address] = f"{above}/{address}"
    return address


@pytest.mark.parametrize(
    ("nvml", "expected"), [(False, {("pci/link_width", f"gpu/{GPU}")}), (True, set())]
)
def test_a_narrow_gpu_is_told_here_where_nvml_is_not_asked(
    tmp_path: Path, clock: Clock, nvml: bool, expected: set[tuple[str, str]]
) -> None:
    bus = Bus(tmp_path, nvml=nvml)
    with bus.looking:
        bus.tree.write(bus.path(GPU, "current_link_width"), 8)
        bus.tree.write(bus.path(GPU, "current_link_speed"), "2.5 GT/s PCIe")  # an idle one
        bus.looking.look()
        clock.ahead += 310
        assert told(bus.looking.look()) == expected
        bus.tree.write(bus.path(GPU, "current_link_width"), 16)
        bus.looking.look()
        clock.ahead += 310
        over = {event.code for event in bus.looking.look() if event.fields.get("recovered")}
        assert over == {code for code, _ in expected}


def test_a_card_in_a_narrow_slot_is_as_it_was_built(bus: Bus, clock: Clock) -> None:
    address = behind_a_port(bus, max_link_width=8, max_link_speed="16.0 GT/s PCIe")
    bus.tree.write(bus.path(address, "max_link_speed"), "32.0 GT/s PCIe")
    bus.tree.write(bus.path(address, "current_link_width"), 8)
    bus.looking.look()
    clock.ahead += 310
    assert told(bus.looking.look()) == set()
    bus.tree.write(bus.path(address, "current_link_width"), 4)
    bus.looking.look()
    clock.ahead += 310
    (event,) = bus.looking.look()
    assert (event.code, event.fields["limit"], event.fields["port"]) == ("pci/link_width", 8, PORT)


# --- its errors


def test_what_was_counted_before_the_start_is_nothing_and_what_comes_after_is_told(
    bus: Bus,
) -> None:
    bus.count(FABRIC, "fatal", DLP=3)
    bus.count(FABRIC, "nonfatal", CmpltTO=5)
    assert told(bus.looking.look(2)) == set()
    bus.count(FABRIC, "fatal", DLP=4)
    assert told(bus.looking.look()) == {("pci/fatal_errors", f"nic/{FABRIC}")}
    bus.count(FABRIC, "nonfatal", CmpltTO=6)
    assert told(bus.looking.look()) == {("pci/nonfatal_errors", f"nic/{FABRIC}")}
    assert (
        bus.looking.readings(f"nic/{FABRIC}").values["aer_seen"]
        == "nonfatal CmpltTO 6, fatal DLP 4"
    )
    assert told(bus.looking.look(2)) == set()


def test_a_few_corrected_errors_are_nothing_and_a_stream_is_told_until_it_ends(
    bus: Bus, clock: Clock
) -> None:
    bus.looking.look()
    bus.count(GPU, "correctable", RxErr=8)
    assert told(bus.looking.look()) == set()
    clock.ahead += 1800
    bus.count(GPU, "correctable", RxErr=10, BadTLP=1)
    assert told(bus.looking.look()) == {("pci/corrected_errors", f"gpu/{GPU}")}
    clock.ahead += 3700
    bus.looking.look()
    clock.ahead += 3700
    assert [event.fields.get("recovered") for event in bus.looking.look()] == [True]


def test_errors_of_the_port_above_are_the_ports(bus: Bus) -> None:
    behind_a_port(bus)
    bus.looking.look()
    bus.count(PORT, "nonfatal", CmpltTO=1)
    assert told(bus.looking.look()) == {("pci/nonfatal_errors", f"pci/{PORT}")}


def test_names_that_nobody_knows_and_a_missing_total_are_no_trouble(bus: Bus) -> None:
    bus.tree.write(bus.path(NEURON, "aer_dev_fatal"), "DLP 2\nTomorrowsError 3")
    bus.looking.look()
    values = bus.looking.readings(f"neuron/{NEURON}").values
    assert (values["aer_fatal"], values["aer_seen"]) == (5.0, "fatal DLP 2, fatal TomorrowsError 3")


def test_without_error_reporting_it_is_said_why_and_nothing_is_wrong(bus: Bus) -> None:
    for severity in ("correctable", "nonfatal", "fatal"):
        bus.tree.remove(bus.path(NEURON, f"aer_dev_{severity}"))
    bus.tree.write(bus.path(GPU, "aer_dev_fatal"), "no numbers here")
    bus.tree.write(bus.path(FABRIC, "aer_dev_fatal"), "")
    assert told(bus.looking.look(2)) == set()
    assert bus.looking.last.state is SourceState.OK
    assert "virtual machines" in bus.looking.readings(f"neuron/{NEURON}").missing["aer_fatal"]
    assert "no value" in bus.looking.readings(f"gpu/{GPU}").missing["aer_fatal"]
    assert bus.looking.readings(f"nic/{FABRIC}").missing["aer_fatal"] == "the file is empty"


# --- what the kernel's lines need to know of who has gone


def test_a_device_that_left_is_known_for_what_it_was_and_by_the_port_it_sat_behind(
    bus: Bus,
) -> None:
    address = behind_a_port(bus)
    bus.looking.look()
    bus.remove(address)
    assert told(bus.looking.look()) == {("pci/removed", f"nic/{address}")}
    assert bus.inventory.find_port(address) == PORT
    assert bus.inventory.get_component(address, ComponentKind.PCI).name == f"nic/{address}"
    assert address not in {device.address for device in bus.inventory.list_watched()}
    bus.tree.pci(address, NVIDIA, 0x2330, 0x030200)
    bus.looking.look()
    assert bus.inventory.get_component(address, ComponentKind.PCI).name == f"gpu/{address}"
    assert address not in bus.inventory.departed


def test_announcements_that_are_not_heard_are_shown(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.pci("0000:81:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    said = ["libudev is not there"]
    subject = Pci(tree.root, PciInventory(tree.root), Settings(), lambda: said[0])
    with Looking(polled(subject, "pci")) as node:
        node.look()
        assert "libudev is not there" in node.readings("node").missing["uevents"]
        said[0] = ""
        node.look()
        assert "node" not in {one.component.name for one in node.last.readings}


def test_a_function_whose_registers_cannot_be_read_is_not_well(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    folder = tree.pci("0000:81:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    with Looking(polled(Pci(tree.root, PciInventory(tree.root), Settings()), "pci")) as node:
        node.look()
        assert node.last.state is SourceState.OK
        (tree.root / folder / "config").unlink()
        (tree.root / folder / "config").mkdir()
        assert told(node.look()) == set()
        assert "EISDIR" in node.readings("gpu/0000:81:00.0").unknown_reason
        assert node.last.state is SourceState.FAILED


# --- over a boot


def boot(
    bus: Bus,
    root: Path,
    boot_id: str = "boot-b",
    has_enough: Callable[[str], bool] = lambda _: False,
) -> Looking:
    """The same node after a boot, with what was stored before it."""
    subject = Pci(root, PciInventory(root), Settings(), boot_id=boot_id, has_enough=has_enough)
    return Looking(polled(subject, boot_id=boot_id or "boot-1"), bus.looking.position)


def test_what_did_not_come_back_from_a_boot_is_missing_until_it_is_back(bus: Bus) -> None:
    bus.looking.look()
    for address in (GPU, NEURON, FABRIC, ETHERNET, ENA):
        bus.remove(address)
    lasting = {f"gpu/{GPU}", f"neuron/{NEURON}", f"nic/{FABRIC}"}
    missing = {("pci/missing", name) for name in lasting}
    missing.add(("pci/adapter_removed", f"nic/{ETHERNET}"))
    with boot(bus, bus.tree.root) as first:
        assert told(first.look(2)) == missing
        bus.looking = first
        # A restart within the boot repeats nothing; the next boot does
        with boot(bus, bus.tree.root) as again:
            assert told(again.look(2)) == set()
        with boot(bus, bus.tree.root, "boot-c") as later:
            assert told(later.look()) == missing
            bus.tree.pci(GPU, NVIDIA, 0x2330, 0x030200, "nvidia2")
            events = later.look()
            assert [
                (event.code, event.component.name)
                for event in events
                if event.fields.get("recovered")
            ] == [("pci/missing", f"gpu/{GPU}")]


def test_a_board_in_another_slot_is_not_missing(bus: Bus) -> None:
    """Nor one whose bus has another number since the boot."""
    bus.looking.look()
    bus.remove(GPU)
    bus.tree.pci("0000:1b:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    with boot(bus, bus.tree.root) as looking:
        assert told(looking.look(2)) == set()


def test_what_the_site_says_is_enough_is_not_missing(bus: Bus) -> None:
    bus.looking.look()
    bus.remove(GPU)
    with boot(bus, bus.tree.root, has_enough=lambda kind: kind == "gpus") as looking:
        assert told(looking.look(2)) == set()


def test_the_slots_of_another_machine_are_not_missed(bus: Bus) -> None:
    """A copy of the disk of a node with GPUs, in one without."""
    bus.tree.write("class/dmi/id/product_name", "p5.48xlarge")
    bus.looking.look()
    bus.remove(GPU)
    bus.tree.write("class/dmi/id/product_name", "m7i.large")
    with boot(bus, bus.tree.root) as looking:
        assert told(looking.look(2)) == set()


def test_what_left_before_a_restart_has_departed_and_is_missing_after_a_boot(bus: Bus) -> None:
    bus.looking.look()
    bus.remove(GPU)
    assert told(bus.looking.look()) == {("pci/removed", f"gpu/{GPU}")}
    with boot(bus, bus.tree.root, "") as same:
        assert told(same.look(2)) == set()
        bus.looking = same
        with boot(bus, bus.tree.root, "boot-b") as looking:
            assert told(looking.look(2)) == {("pci/missing", f"gpu/{GPU}")}


@pytest.mark.parametrize(
    ("gpus", "switches", "enough", "lacking"),
    [
        (7, 4, False, 1),
        (6, 4, False, 2),
        (0, 4, False, 1),  # one at least
        (7, 4, True, 0),
        (8, 4, False, 0),
        (4, 3, False, 0),
    ],
)
def test_a_board_with_switches_has_a_whole_number_of_gpus(
    tmp_path: Path, *, gpus: int, switches: int, enough: bool, lacking: int
) -> None:
    tree = Tree(tmp_path)
    for number in range(gpus):
        tree.pci(f"0000:{0x18 + number:02x}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    if gpus:
        tree.pci("0000:e0:00.0", NVIDIA, 0x1FB0, 0x030000, "nvidia")  # a card for a display
    for number in range(switches):
        tree.pci(f"0000:{0x80 + number:02x}:00.0", NVIDIA, 0x22A3, 0x068000, "nvidia-nvswitch")
    settings = Settings(exclude=("0000:18:00.0",))  # what is not watched is there all the same
    subject = Pci(tmp_path, PciInventory(tmp_path), settings, has_enough=lambda _: enough)
    with Looking(polled(subject)) as looking:
        found = looking.look()
        (node,) = [one for one in looking.last.readings if one.component.name == "node"]
        assert node.values["gpus_missing_on_board"] == lacking
        assert told(found) == ({("pci/board_incomplete", "node")} if lacking else set())


def test_without_switches_any_number_of_gpus_is_as_it_was_built(bus: Bus) -> None:
    bus.looking.look()
    for number in range(4):
        bus.tree.pci(f"0000:{0x18 + number:02x}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    assert {code for code, _ in told(bus.looking.look(2))} == {"pci/added"}
