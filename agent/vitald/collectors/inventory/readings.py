"""Counts of this node's devices by kind, versions, and what is expected of both."""

from __future__ import annotations

from dataclasses import replace

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingDefinition,
    ReadingTable,
    flag,
    gauges,
    get_id,
    get_reading,
    text_reading,
    unexported,
)
from vitald.model import ComponentKind

# The counted kinds of devices, and their display names.
KINDS = {
    "gpus": "GPUs",
    "neuron": "Neuron devices",
    "efa": "EFA adapters",
    "nics": "InfiniBand and RoCE adapters",
    "nvme": "NVMe drives",
}
# Their kind as components have it. EFA adapters, which are `nic` there, are counted apart.
_COMPONENT_KINDS = {"gpus": "gpu", "neuron": "neuron", "efa": "efa", "nics": "nic", "nvme": "disk"}
VERSIONS = ("gpu_driver", "neuron_driver", "efa_driver", "kernel")


def _count(
    metric: str, help_: str, ending: str, *, unit: str = "", kinds: tuple[str, ...] = tuple(KINDS)
) -> tuple[ReadingDefinition, ...]:
    """A gauge by kind of device."""
    parts = {_COMPONENT_KINDS[kind]: f"{kind}{ending}" for kind in kinds}
    readings = gauges(metric, help_, "component_kind", parts, unit=unit)
    return tuple(
        replace(reading, former_labels={"kind": kind}) for kind, reading in zip(kinds, readings)
    )


_EXPECT = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald",
    readings=(
        *_count("devices", "Devices that are here, by kind.", ""),
        *_count("devices_expected", "Devices that should be here.", "_expected"),
        *_count(
            "devices_expected_confirmed",
            "1 where the expected number is confirmed, 0 where it is being learned.",
            "_confirmed",
            unit=FLAG,
        ),
        *_count(
            "devices_most",
            "Devices that an instance of this type can have.",
            "_most",
            kinds=("efa",),
        ),
        *(text_reading(name, f"Version: {name}.") for name in VERSIONS),
        *(
            text_reading(f"{name}_expected", f"Versions that the node may run: {name}.")
            for name in VERSIONS
        ),
    ),
)

_SOFTWARE = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_software",
    labels={
        "software": get_id,
        "software_version": get_reading("version"),
        "minimum": get_reading("minimum"),
    },
    readings=(
        flag("below_minimum", "1 where the version is below the configured or published minimum."),
        unexported("configured", "1 where the configuration requires the minimum.", unit=FLAG),
        text_reading("version", "The version; of several adapters, that of the first one below."),
        text_reading("minimum", "The minimum version of its branch."),
        text_reading("minimum_source", "Where the minimum comes from."),
        text_reading("adapters", "The adapters with this firmware."),
    ),
)

READINGS = (_EXPECT, _SOFTWARE)
