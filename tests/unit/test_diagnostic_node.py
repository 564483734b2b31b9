"""Which GPU a diagnostic means."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState
from vitald.diagnostics.node import NodeView
from vitald.model import Component, ComponentKind, Readings

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


def address_of(node: NodeView, index: int, serial: str = "") -> str | None:
    found = node.find_gpu(index, serial)
    return found.id if found is not None else None


def test_by_the_order_of_their_addresses(board: NodeState, node: NodeView) -> None:
    board.replace_readings("nvml", [readings(address) for address in reversed(ADDRESSES)])
    assert [address_of(node, index) for index in range(-1, 5)] == [None, *ADDRESSES, None]


def test_the_serial_number_comes_first(board: NodeState, node: NodeView) -> None:
    board.replace_readings(
        "nvml", [readings(address, f"S{number}") for number, address in enumerate(ADDRESSES)]
    )
    assert address_of(node, 0, "S2") == ADDRESSES[2]
    assert address_of(node, 99, "S2") == ADDRESSES[2]


def test_nobody_is_blamed_in_the_place_of_another(board: NodeState, node: NodeView) -> None:
    board.replace_readings(
        "nvml", [readings(address, f"S{number}") for number, address in enumerate(ADDRESSES)]
    )
    assert address_of(node, 1, "gone") is None
    assert address_of(node, 1) == ADDRESSES[1]
    board.replace_readings(
        "nvml", [readings(address) for address in ADDRESSES]
    )  # boards that do not say theirs
    assert address_of(node, 1, "S1") == ADDRESSES[1]
