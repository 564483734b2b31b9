"""Counts of this node's devices by kind, versions, and what is expected of both."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    gauges,
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
VERSIONS = ("gpu_driver", "neuron_driver", "efa_driver", "kernel")
_EXPECT = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald",
    readings=(
        *gauges(
            "devices", "Devices that are here, by kind.", "kind", {kind: kind for kind in KINDS}
        ),
        *gauges(
            "devices_expected",
            "Devices that should be here.",
            "kind",
            {kind: f"{kind}_expected" for kind in KINDS},
        ),
        *gauges(
            "devices_expected_confirmed",
            "1 where the expected number is confirmed, 0 where it is being learned.",
            "kind",
            {kind: f"{kind}_confirmed" for kind in KINDS},
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
        *gauges(
            "devices_most",
            "Devices that an instance of this type can have.",
            "kind",
            {"efa": "efa_most"},
        ),
        *(text_reading(name, f"Version: {name}.") for name in VERSIONS),
        *(
            text_reading(f"{name}_expected", f"Versions that the node may run: {name}.")
            for name in VERSIONS
        ),
    ),
)

READINGS = (_EXPECT,)
