"""Which GPU a diagnostic means."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vitald.core.node_state import NodeState
from vitald.diagnostics.node_view import NodeView
from vitald.model.component import Component
from vitald.model.source import Readings
from vitald.model.words import ComponentKind
from vitald.topology.pci_inventory import PciDevice, PciInventory

ADDRESSES = ("0000:19:00.0", "0000:9b:00.0", "0001:05:00.0", "10000:01:00.0")


def readings(address: str, serial: str = "") -> Readings:
    values = {"serial": serial} if serial else {}
    return Readings(
        component=Component(ComponentKind.GPU, address),
        identity=address,
        time=time.time(),
        polled_at=time.monotonic(),
        values=values,
        fresh=frozenset(values),
    )


@pytest.fixture
def board() -> NodeState:
    return NodeState("boot", 0.0, device_reset=False)


@pytest.fixture
def node(board: NodeState, tmp_path: Path) -> NodeView:
    return NodeView(board, PciInventory(tmp_path), tmp_path / "ledger.db", lambda: "")


def test_whether_there_is_something_to_be_idle(board: NodeState, tmp_path: Path) -> None:
    inventory = PciInventory(tmp_path)
    view = NodeView(board, inventory, tmp_path / "ledger.db", lambda: "")
    assert not view.has_accelerators
    for vendor, device, pci_class, has in (
        (0x10DE, 0x2330, 0x030200, True),  # a GPU
        (0x1D0F, 0x7164, 0x088000, True),  # a Neuron device
        (0x10DE, 0x22A3, 0x068000, False),  # an NVSwitch: work uses it by way of a GPU
        (0x15B3, 0x1021, 0x020700, False),  # a network adapter
    ):
        inventory.devices = {
            ADDRESSES[0]: PciDevice(
                address=ADDRESSES[0], vendor=vendor, device=device, pci_class=pci_class, driver=None
            )
        }
        assert view.has_accelerators is has, hex(device)


def address_of(node: NodeView, index: int, serial: str = "") -> str | None:
    found = node.find_gpu(index, serial)
    return found.id if found is not None else None


def test_by_the_order_of_their_addresses(board: NodeState, node: NodeView) -> None:
    board.replace_readings("nvml", [readings(address) for address in reversed(ADDRESSES)])
    assert [address_of(node, index) for index in range(-1, 5)] == [None, *ADDRESSES, None]


def test_a_gpu_has_the_number_by_which_it_is_found(board: NodeState, node: NodeView) -> None:
    """A lost one keeps it, whatever the driver calls the others now."""
    assert node.find_number(Component(ComponentKind.GPU, ADDRESSES[1])) is None
    board.replace_readings("nvml", [readings(address) for address in reversed(ADDRESSES)])
    for index, address in enumerate(ADDRESSES):
        assert node.find_number(Component(ComponentKind.GPU, address)) == index
    assert node.find_number(Component(ComponentKind.GPU, "0000:99:00.0")) is None


def test_the_serial_number_comes_first_and_nobody_is_blamed_in_the_place_of_another(
    board: NodeState, node: NodeView
) -> None:
    board.replace_readings(
        "nvml", [readings(address, f"S{number}") for number, address in enumerate(ADDRESSES)]
    )
    assert address_of(node, 0, "S2") == address_of(node, 99, "S2") == ADDRESSES[2]
    assert address_of(node, 1, "gone") is None
    assert address_of(node, 1) == ADDRESSES[1]
    # Boards that do not say theirs.
    board.replace_readings("nvml", [readings(address) for address in ADDRESSES])
    assert address_of(node, 1, "S1") == ADDRESSES[1]
