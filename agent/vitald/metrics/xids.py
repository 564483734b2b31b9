"""Xids by GPU, with the labels of the other metrics of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from vitald.collectors.nvml.node import NAME as NVML
from vitald.core.node_state import NodeState
from vitald.metrics import gpus
from vitald.metrics.single import format_bool
from vitald.model import Component


class XidCollector:
    """Keeps the labels of GPUs that NVML can no longer read: an Xid is often the reason."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        self._labels: dict[Component, Sequence[str]] = {}

    def count_xids(self) -> Metric:
        family = CounterMetricFamily(
            "vitald_gpu_xid_events",
            "Xids of the GPU since the daemon started.",
            labels=[*gpus.LABELS, "code", "simulated"],
        )
        xids = self._node_state.events.xids
        if xids:
            self._update_labels({xid.component for xid in xids})
        for xid, counted in xids.items():
            unknown = ("", "", xid.component.id, "")
            labels = self._labels.get(xid.component, unknown)
            family.add_metric(
                [*labels, xid.code, format_bool(xid.is_simulated)],
                counted.number,
                created=counted.since,
            )
        return family

    def _update_labels(self, wanted: set[Component]) -> None:
        """`wanted` are the GPUs that had an Xid; a reading without a UUID is not one to keep."""
        for readings in self._node_state.readings.get(NVML, ()):
            known = self._labels.get(readings.component)
            if readings.component in wanted and (known is None or readings.values.get("uuid")):
                self._labels[readings.component] = gpus.list_labels(readings)
