"""
What a collector declares about itself: its configuration, its readings, and how it is built.

Each package of collectors has one `CollectorDefinition`, COLLECTOR in its `collector.py`. The
registry, the metrics, the documentation and the check of the catalogue derive from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vitald.catalog import Catalog
from vitald.collectors.collector import Collector
from vitald.collectors.reading_definitions import ReadingTable
from vitald.config.section import Section
from vitald.config.values import Config
from vitald.model.source import Source
from vitald.topology.fstab import Fstab
from vitald.topology.neuron_locations import NeuronLocations
from vitald.topology.pci_inventory import PciInventory


class PresentSource(Source, Protocol):
    """A source of the present state, which can use a reloaded catalogue."""

    def configure(self, catalog: Catalog) -> None: ...

    def poll_now(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorContext:
    """What collectors are built from, and share.

    `inventory` is read anew by several of them. `has_enough`: whether the site configured how many
    devices of these kinds to expect, and at least as many are present. `is_healthy`: whether the
    present devices may be taken for the expected ones. `find_block_devices` updates what the kernel
    log's lines are matched with. `get_uevent_error`: why the kernel's uevents are not received;
    empty while they are.
    """

    config: Config
    catalog: Catalog
    boot_id: str
    inventory: PciInventory
    places: NeuronLocations
    fstab: Fstab
    has_enough: Callable[..., bool]
    is_healthy: Callable[[], bool]
    find_block_devices: Callable[[], None]
    get_uevent_error: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorDefinition:
    """One collector. `name` is that of its source; `section` holds its settings.

    `catalog_kinds`: kinds of the catalogue's entries whose thresholds apply to its readings.
    `counted`: kinds of devices of the inventory that it reads. `subsystems`: it polls at once when
    the kernel announces a device of these. Exactly one of `build_collector`, for what is polled,
    and `build_source` is given. `every_s` and `deadline_s` are the section's where they are 0.
    """

    name: str
    section: Section
    catalog_kinds: tuple[str, ...]
    readings: tuple[ReadingTable, ...]
    counted: tuple[str, ...] = ()
    subsystems: tuple[str, ...] = ()
    build_collector: Callable[[CollectorContext], Collector] | None = None
    build_source: Callable[[CollectorContext], PresentSource] | None = None
    every_s: float = 0.0
    deadline_s: float = 0.0
