"""
What is read of everything but GPUs, as metrics.

Names are the field's own words where it has any (node_exporter, the kernel), in base units,
`_total` for what only counts up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from prometheus_client.core import Metric

from vitald.collectors.discovery import find_collectors
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.collectors.reading_definitions import ReadingTable
from vitald.core.node_state import NodeState
from vitald.metrics.families import (
    Family,
    LabelledReadings,
    build_metrics,
    derive_families,
    list_exported,
)
from vitald.model import ComponentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportedTable:
    """A table of readings, with what is derived from it once."""

    source: str
    table: ReadingTable
    families: tuple[Family, ...]
    exported: frozenset[str]


@cache
def _list_tables() -> tuple[_ExportedTable, ...]:
    return tuple(
        _ExportedTable(
            source=collector.name,
            table=table,
            families=derive_families(table),
            exported=list_exported(table),
        )
        for collector in find_collectors()
        if collector.name != NVML  # it has a module of its own
        for table in collector.readings
    )


def collect_metrics(node_state: NodeState) -> Iterator[Metric]:
    """The families of what is read now."""
    for exported in _list_tables():
        table = exported.table
        components = [
            LabelledReadings(readings, [get_label(readings) for get_label in table.labels.values()])
            for readings in node_state.list_readings(exported.source)
            if table.component in (ComponentKind.PCI, readings.component.kind)
            and not exported.exported.isdisjoint(readings.values)
        ]
        if components:
            yield from build_metrics(exported.families, list(table.labels), components)
