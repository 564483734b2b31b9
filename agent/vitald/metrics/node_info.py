"""
What kind of node it is, for comparing faults over a fleet: instance type, kernel, drivers, rack.

Sources fail just when faults are compared, so what was read last stays.
"""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import InfoMetricFamily, Metric

from vitald.collectors.inventory.collector import NAME as INVENTORY
from vitald.collectors.nvml.node import NAME as NVML
from vitald.core.node_state import NodeState

# Label -> where it is read: sources, in this order, and the reading's name there
_LABELS = {
    "kernel": ((INVENTORY, "kernel"),),
    "gpu_driver": ((NVML, "driver_version"), (INVENTORY, "gpu_driver")),
    "neuron_driver": ((INVENTORY, "neuron_driver"),),
    "chassis_serial": ((NVML, "chassis_serial"),),
}


class NodeIdentity:
    """`instance_type`: the product name in the firmware; empty if there is none."""

    def __init__(self, node_state: NodeState, instance_type: str) -> None:
        self._node_state = node_state
        self._values = {"instance_type": instance_type, **dict.fromkeys(_LABELS, "")}

    def make_info(self) -> Metric:
        for label, places in _LABELS.items():
            found = (self._find_value(source, reading) for source, reading in places)
            self._values[label] = next(filter(None, found), self._values[label])
        info = InfoMetricFamily(
            "vitald_node",
            "Type, kernel, drivers and rack of the node; empty where there is none.",
        )
        info.add_metric([], self._values)
        return info

    def _find_value(self, source: str, reading: str) -> str:
        """The value that most components have; of several, the first."""
        values = Counter(
            text
            for readings in self._node_state.readings.get(source, ())
            if (text := str(readings.values.get(reading, "")))
        )
        return max(values, key=lambda text: values[text], default="")
