"""What is on PCI, from a sysfs tree in a folder; and the spelling of addresses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.collectors.kernel_log.record import format_pci, normalize_pci
from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.topology.pci_inventory import PciInventory


def device(
    sysfs: Path, address: str, vendor: int, number: int, pci_class: int, driver: str = ""
) -> Path:
    """A device as sysfs shows it."""
    path = sysfs / "bus" / "pci" / "devices" / address
    path.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", number)):
        (path / name).write_text(f"0x{value:04x}\n")
    (path / "class").write_text(f"0x{pci_class:06x}\n")
    if driver:
        target = sysfs / "bus" / "pci" / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(target)
    return path


KINDS = {
    "0000:18:00.0": (0x10DE, 0x2330, 0x030200, ComponentKind.GPU),
    "0000:19:00.0": (0x10DE, 0x2330, 0x030000, ComponentKind.GPU),
    "0000:c1:00.0": (0x10DE, 0x22A3, 0x068000, ComponentKind.NVSWITCH),
    "0000:c2:00.0": (0x10DE, 0x1AF1, 0x060400, ComponentKind.PCI),  # a bridge
    "0000:1a:00.1": (0x10DE, 0x22BA, 0x040300, ComponentKind.PCI),  # a GPU's sound function
    "0000:1b:00.0": (0x1D0F, 0x7164, 0x088000, ComponentKind.NEURON),
    "0000:1c:00.0": (0x1D0F, 0xEFA1, 0x020000, ComponentKind.NIC),
    "0000:5c:00.0": (0x15B3, 0x1021, 0x020700, ComponentKind.NIC),
    "0000:00:1f.0": (0x8086, 0x1234, 0x060100, ComponentKind.PCI),
    "0000:02:00.0": (0x1002, 0x740F, 0x030200, ComponentKind.PCI),  # another maker's
    "10000:01:00.0": (0x144D, 0xA80A, 0x010802, ComponentKind.PCI),
}


@pytest.fixture
def inventory(tmp_path: Path) -> PciInventory:
    for address, (vendor, number, pci_class, _) in KINDS.items():
        device(tmp_path, address, vendor, number, pci_class, "nvidia" if vendor == 0x10DE else "")
    made = PciInventory(tmp_path)
    made.scan_bus()
    return made


def test_every_device_is_known_for_what_it_is(inventory: PciInventory) -> None:
    assert {address: found.kind for address, found in inventory.devices.items()} == {
        address: kind for address, (*_, kind) in KINDS.items()
    }
    assert inventory.devices["0000:18:00.0"].driver == "nvidia"
    assert inventory.devices["0000:5c:00.0"].driver is None


def test_accelerators_switches_and_adapters_are_watched(inventory: PciInventory) -> None:
    assert {found.address for found in inventory.list_watched()} == {
        address for address, (*_, kind) in KINDS.items() if kind is not ComponentKind.PCI
    }


def test_the_bus_outranks_the_grammar_only_where_that_says_pci(inventory: PciInventory) -> None:
    assert inventory.get_component("0000:5c:00.0", ComponentKind.PCI) == Component(
        ComponentKind.NIC, "0000:5c:00.0"
    )
    assert inventory.get_component("0000:5c:00.0", ComponentKind.GPU).kind is ComponentKind.GPU
    assert inventory.get_component("0000:99:00.0", ComponentKind.PCI).kind is ComponentKind.PCI


def test_presence_is_looked_up_at_the_moment(inventory: PciInventory, tmp_path: Path) -> None:
    assert inventory.is_present("0000:18:00.0")
    for name in ("vendor", "device", "class", "driver"):
        (tmp_path / "bus/pci/devices/0000:18:00.0" / name).unlink()
    (tmp_path / "bus/pci/devices/0000:18:00.0").rmdir()
    assert not inventory.is_present("0000:18:00.0")
    assert "0000:18:00.0" in inventory.devices  # what was known stays known


def test_a_node_without_pci_has_no_devices(tmp_path: Path) -> None:
    inventory = PciInventory(tmp_path / "nothing")
    inventory.scan_bus()
    assert (inventory.devices, inventory.list_watched()) == ({}, [])


def test_a_device_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    device(tmp_path, "0000:18:00.0", 0x10DE, 0x2330, 0x030200)
    (device(tmp_path, "0000:19:00.0", 0x10DE, 0x2330, 0x030200) / "class").unlink()
    (device(tmp_path, "0000:1a:00.0", 0x10DE, 0x2330, 0x030200) / "vendor").write_text("gone\n")
    inventory = PciInventory(tmp_path)
    inventory.scan_bus()
    assert list(inventory.devices) == ["0000:18:00.0"]


@pytest.mark.parametrize(
    ("printed", "normal"),
    [
        ("0000:65:00.0", "0000:65:00.0"),
        ("0000:65:00", "0000:65:00.0"),
        ("00000000:9B:00.0", "0000:9b:00.0"),
        ("10000:01:00.3", "10000:01:00.3"),
        ("65:1F.7", "0000:65:1f.7"),
        ("0019:01:00", "0019:01:00.0"),
    ],
)
def test_addresses_are_spelt_as_sysfs_does(printed: str, normal: str) -> None:
    assert normalize_pci(printed) == normal


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
    st.integers(4, 8),
)
def test_normal_spelling_is_stable(
    domain: int, bus: int, number: int, function: int, width: int
) -> None:
    """However many zeros and capitals a driver prints; and once normal, always normal."""
    normal = f"{domain:04x}:{bus:02x}:{number:02x}.{function}"
    assert (
        normalize_pci(f"{domain:0{width}X}:{bus:02X}:{number:02X}.{function}")
        == normal
        == normalize_pci(normal)
    )
    assert format_pci(f"{domain:x}", f"{bus:x}", f"{number:x}", str(function)) == normal


def test_a_bus_that_cannot_be_read_is_not_an_empty_one(
    inventory: PciInventory, tmp_path: Path
) -> None:
    before = dict(inventory.devices)
    class_ = tmp_path / "bus/pci/devices/0000:18:00.0/class"
    class_.unlink()
    class_.mkdir()  # a file that cannot be read, whoever we are
    inventory.scan_bus()
    assert (inventory.devices, "class" in inventory.error) == (before, True)
    class_.rmdir()
    inventory.scan_bus()  # gone between the listing and the look
    assert (set(before) - set(inventory.devices), inventory.error) == ({"0000:18:00.0"}, "")


def test_a_bus_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bus/pci").mkdir(parents=True)
    (tmp_path / "bus/pci/devices").write_text("")
    inventory = PciInventory(tmp_path)
    inventory.scan_bus()
    assert inventory.devices == {} and "Not a directory" in inventory.error
