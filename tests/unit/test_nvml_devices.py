"""Which GPUs are missing: by UUID, whatever happens to slots and bus numbers."""

from __future__ import annotations

import json

from vitald.collectors.nvml.known_gpus import GpuRegistry, KnownGpu

A, B, C, D = (
    KnownGpu(address=f"0000:{number}:00.0", uuid=f"GPU-{letter}", serial=letter)
    for number, letter in zip((10, 20, 30, 40), "abcd")
)


def at(known: KnownGpu, address: str) -> KnownGpu:
    return KnownGpu(address=address, uuid=known.uuid, serial=known.serial)


def after_a_restart(*known: KnownGpu) -> GpuRegistry:
    """These were here, and nobody has answered yet."""
    before = GpuRegistry()
    for one in known:
        assert before.register_gpu(one)
    return GpuRegistry(json.loads(json.dumps(before.memory)))


def missing(devices: GpuRegistry, *on_pci: KnownGpu) -> list[str]:
    return [one.uuid for one in devices.list_missing({one.address for one in on_pci})]


def test_nobody_is_missing_before_anybody_was_met() -> None:
    assert missing(GpuRegistry()) == []
    assert missing(after_a_restart(A, B), A, B) == []  # on PCI, and silent: not missing


def test_an_empty_slot() -> None:
    devices = after_a_restart(A, B, C)
    assert [devices.register_gpu(one) for one in (A, C)] == [False, False]
    assert missing(devices, A, C) == ["GPU-b"]
    assert not devices.register_gpu(B)
    assert missing(devices, A, B, C) == []


def test_the_others_move_up_where_one_is_dead_at_boot() -> None:
    devices = after_a_restart(A, B, C)
    assert devices.register_gpu(at(A, A.address)) is False
    assert devices.register_gpu(at(C, B.address))
    assert missing(devices, A, B) == ["GPU-b"]


def test_another_board_in_the_slot() -> None:
    devices = after_a_restart(A, B)
    assert devices.register_gpu(at(D, A.address))
    assert missing(devices, A, B) == []
    assert devices.get_identity(A.address) == "GPU-d"


def test_two_boards_change_places() -> None:
    devices = after_a_restart(A, B)
    assert devices.register_gpu(at(A, B.address))
    assert devices.register_gpu(at(B, A.address))
    assert missing(devices, A, B) == []


def test_one_that_was_given_to_a_guest_is_on_pci_and_not_missing() -> None:
    devices = after_a_restart(A, B)
    devices.register_gpu(A)
    assert missing(devices, A, B) == []


def test_who_left_after_it_was_met_is_missing_once_all_are_met_anew() -> None:
    devices = GpuRegistry()
    for one in (A, B):
        devices.register_gpu(one)
    devices.note_attached()
    devices.register_gpu(A)
    assert missing(devices, A) == ["GPU-b"]


def test_who_is_not_known_goes_by_its_address() -> None:
    assert GpuRegistry().get_identity(A.address) == A.address
