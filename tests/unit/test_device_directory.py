"""The device that a person means, by any of its names."""

from __future__ import annotations

import pytest

from tests.unit.builders import finding
from vitald.core.device_directory import DeviceDirectory
from vitald.judge.devices import SlotRegistry
from vitald.model.component import NODE, Component, Device, DeviceNames
from vitald.model.words import ComponentKind

GPU = Component(ComponentKind.GPU, "0000:65:00.0")
OTHER = Component(ComponentKind.GPU, "0000:ab:00.0")
NIC = Component(ComponentKind.NIC, "0000:4f:00.0")
DRIVE = Component(ComponentKind.DISK, "nvme0")
NEURON = Component(ComponentKind.NEURON, "0000:10:1c.0")
UUID = "GPU-5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5"


def directory(*devices: Device) -> DeviceDirectory:
    made = DeviceDirectory()
    made.set_slots(SlotRegistry(devices))
    made.replace_devices(
        "nvml",
        [
            DeviceNames(component=GPU, index="3", serial="165001", uuid=UUID, module="4"),
            DeviceNames(component=OTHER, index="4", serial="165002", uuid="GPU-b"),
        ],
    )
    made.replace_devices(
        "pci",
        [
            DeviceNames(component=GPU, slot="7"),
            DeviceNames(component=NIC, slot="7"),
        ],
    )
    made.replace_devices(
        "network", [DeviceNames(component=NIC, serial="b83f:d203", aliases=("mlx5_0", "ib0"))]
    )
    made.replace_devices(
        "host", [DeviceNames(component=DRIVE, serial="S6", address="0000:01:00.0")]
    )
    return made


def test_the_names_of_a_device_come_from_all_sources_and_the_judge() -> None:
    known = directory(Device(component=GPU, uuid="GPU-old"), Device(component=NEURON, serial="7a"))
    assert known.find_names(GPU) == DeviceNames(
        component=GPU,
        index="3",
        serial="165001",
        uuid=UUID,
        slot="7",
        module="4",
        address="0000:65:00.0",
    )
    assert known.find_names(GPU).text == "GPU 3, serial 165001, slot 7, module 4"
    assert known.find_names(OTHER).text == "GPU 4, serial 165002"
    assert known.find_names(NIC).text == "mlx5_0, ib0, GUID b83f:d203, slot 7"
    assert known.find_names(DRIVE).text == "serial S6, PCI 0000:01:00.0"
    assert known.find_names(NEURON).text == "serial 7a"
    assert known.find_names(Component(ComponentKind.GPU, "0000:01:00.0")).text == ""


def test_a_board_without_a_serial_number_has_its_uuid() -> None:
    assert DeviceNames(component=GPU, index="0", uuid="GPU-a").text == "GPU 0, GPU-a"


@pytest.mark.parametrize(
    "name",
    [
        *("3", "gpu/3", "GPU 3", "gpu 3", "165001", UUID, UUID.upper(), f"gpu/{UUID}"),
        *("gpu/0000:65:00.0", "0000:65:00.0", "65:00", "65:00.0", "00000000:65:00.0"),
        *("0000:65:00", " 3 ", "module 4", "gpu/slot 7"),
    ],
)
def test_each_name_is_accepted(name: str) -> None:
    assert directory().find_components(name) == [GPU]
    assert directory().find_components(name, ComponentKind.GPU) == [GPU]


def test_names_of_other_kinds() -> None:
    known = directory()
    for name in ("mlx5_0", "IB0", "b83f:d203", "4f:00.0", "nic/mlx5_0"):
        assert known.find_components(name) == [NIC], name
    for name in ("nvme0", "disk/nvme0", "S6", "0000:01:00.0"):
        assert known.find_components(name) == [DRIVE], name
    assert known.find_components("ib0", ComponentKind.GPU) == []


def test_an_ambiguous_name_gives_all_that_it_may_mean() -> None:
    assert directory().find_components("slot 7") == [GPU, NIC]


@pytest.mark.parametrize(
    "name", ["", "9", "x", "slot 8", "neuron 3", "GPU-", "tape/0", "0000:99:00.0"]
)
def test_what_no_device_is_called(name: str) -> None:
    assert directory().find_components(name) == []


def test_a_component_need_not_be_known_by_its_full_name() -> None:
    """Its events may be asked for after it left."""
    gone = Component(ComponentKind.DISK, "sdx")
    assert directory().find_components("disk/sdx") == [gone]
    for name in ("node", "node/nvml", "gpu"):
        assert directory().find_components(name) == [Component.parse_name(name)]
    address = Component(ComponentKind.GPU, "0000:99:00.0")
    assert directory().find_components("0000:99:00.0", ComponentKind.GPU) == [address]


def test_a_finding_names_its_own_board() -> None:
    """Not the one that was put into its slot later."""
    known = directory(Device(component=GPU, uuid=UUID, placed_at=500.0))
    before, after = (finding(component=GPU, last=last) for last in (400.0, 500.0))
    assert known.find_names_of(before) is None
    assert known.describe_component(before) == "gpu/0000:65:00.0"
    assert known.describe_component(after) == (
        "gpu/0000:65:00.0 (GPU 3, serial 165001, slot 7, module 4)"
    )


def test_the_node_and_a_whole_kind_are_no_device() -> None:
    known = directory()
    for component in (NODE, Component(ComponentKind.NODE, "nvml"), Component(ComponentKind.GPU)):
        one = finding(component=component)
        assert known.find_names_of(one) is None
        assert known.describe_component(one) == component.name


def test_what_the_judge_learns_of_a_slot_is_known_at_once() -> None:
    slots, made = SlotRegistry(), DeviceDirectory()
    made.set_slots(slots)
    assert made.find_names(GPU).text == ""
    slots.put_device(Device(component=GPU, serial="165003"))
    assert made.find_names(GPU).text == "serial 165003"
    slots.adopt_devices([Device(component=OTHER, serial="165004")])
    assert made.find_names(OTHER).text == "serial 165004"
    made.set_slots(SlotRegistry())
    assert made.find_names(GPU).text == ""


def test_a_source_replaces_what_it_said() -> None:
    known = directory()
    assert known.find_components("3") == [GPU]
    known.replace_devices("nvml", [DeviceNames(component=OTHER, index="3")])
    assert known.find_components("3") == [OTHER]
    assert known.find_names(GPU).text == "slot 7"
