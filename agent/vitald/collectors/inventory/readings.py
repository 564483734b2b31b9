"""Counts of this node's devices by kind, versions, and what is expected of both."""

from __future__ import annotations

from collections.abc import Iterable

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingDefinition,
    ReadingTable,
    gauges,
    text_reading,
    unexported,
)
from vitald.model.words import ComponentKind

# The counted kinds of devices, and their display names.
KINDS = {
    "gpus": "GPUs",
    "neuron": "Neuron devices",
    "efa": "EFA adapters",
    "nics": "InfiniBand and RoCE adapters",
    "nvme": "NVMe drives",
}
_SINGULAR = {"gpus": "gpu", "nics": "nic"}  # as the value of a label
VERSIONS = ("gpu_driver", "neuron_driver", "efa_driver", "kernel")


def _count(
    metric: str, help_: str, ending: str = "", *, unit: str = "", kinds: Iterable[str] = KINDS
) -> tuple[ReadingDefinition, ...]:
    """A gauge with the kinds of devices that are counted."""
    readings = {_SINGULAR.get(kind, kind): f"{kind}{ending}" for kind in kinds}
    return gauges(metric, help_, "device_kind", readings, unit=unit)


_EXPECT = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald",
    readings=(
        *_count("devices", "Devices that are here, by kind."),
        *_count("devices_expected", "Devices that should be here.", "_expected"),
        *_count(
            "devices_expected_confirmed",
            "1 where the expected number is confirmed, 0 where it is being learned.",
            "_confirmed",
            unit=FLAG,
        ),
        *(
            unexported(
                f"{kind}_proven",
                "0 if only the configuration sets the expected number, else 1.",
                unit=FLAG,
            )
            for kind in KINDS
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

READINGS = (_EXPECT,)
