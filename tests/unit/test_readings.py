"""What collectors declare of their readings: the catalogue's thresholds and the reference page
agree with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import readings_page
from tests.conftest import require
from tests.looking import CATALOG
from vitald import catalog
from vitald.catalog import Catalog
from vitald.catalog.threshold import Threshold, ThresholdGroup
from vitald.collectors.definition import CollectorDefinition
from vitald.collectors.discovery import find_collectors, find_packages, find_sections
from vitald.model.words import ComponentKind


def list_declared(collector: CollectorDefinition, component: ComponentKind) -> set[str]:
    """Readings of a kind of component. PCI stands for any kind, in tables as in thresholds."""
    return {
        reading.name
        for table in collector.readings
        if ComponentKind.PCI in (table.component, component) or table.component is component
        for reading in table.readings
    }


def list_readings(threshold: Threshold) -> set[str]:
    """Every reading that a threshold names."""
    named = {threshold.of, threshold.times, *threshold.only, *threshold.carry} - {""}
    return named | ({threshold.limit} if isinstance(threshold.limit, str) else set())


def list_undeclared(rules: Catalog) -> Iterator[str]:
    """Readings that an entry's thresholds name, and no collector of its kind declares."""
    for collector in find_collectors():
        for kind in collector.catalog_kinds:
            for entry in rules.find_thresholds(kind):
                yield from _list_undeclared_of(collector, entry)


def _list_undeclared_of(collector: CollectorDefinition, entry: ThresholdGroup) -> Iterator[str]:
    declared = list_declared(collector, entry.component)
    for threshold in entry.thresholds:
        for name in sorted(list_readings(threshold) - declared):
            yield f"{entry.code}: {collector.name} declares no reading {name!r}"


def test_every_threshold_names_readings_that_a_collector_declares() -> None:
    assert list(list_undeclared(CATALOG)) == []


ENTRY = {
    "title": "Drive too hot",
    "meaning": "A test.",
    "escalation": "none",
    "component": "disk",
    "class": "hardware",
    "action": "none",
    "source": "a test",
}


@pytest.mark.parametrize(
    "threshold",
    [
        {"of": "temperatur", "above": 1},
        {"of": "temperature_celsius", "above": "no_limit"},
        {"of": "temperature_celsius", "above": 1, "times": "no_factor"},
        {"of": "temperature_celsius", "above": 1, "only": {"no_state": 1}},
        {"of": "temperature_celsius", "above": 1, "carry": ["no_reading"]},
    ],
)
def test_a_reading_that_nobody_declares_is_found(threshold: dict[str, object]) -> None:
    rules = catalog.load_catalog("nvidia", {"nvme/too_hot_here": ENTRY | {"thresholds": threshold}})
    (problem,) = list_undeclared(rules)
    assert problem.startswith("nvme/too_hot_here: host declares no reading")


def test_every_threshold_belongs_to_a_collector() -> None:
    kinds = {kind for collector in find_collectors() for kind in collector.catalog_kinds}
    assert {rule.kind for rule in CATALOG.rules.values() if rule.thresholds} <= kinds


def test_names_are_of_one_collector() -> None:
    names = [collector.name for collector in find_collectors()]
    kinds = [kind for collector in find_collectors() for kind in collector.catalog_kinds]
    orders = [section.order for section in find_sections()]
    for unique in (names, kinds, orders):
        assert len(unique) == len(set(unique))
    assert len(find_sections()) == len(find_packages())


def test_every_collector_is_built_in_one_way() -> None:
    for collector in find_collectors():
        builders = (collector.build_collector, collector.build_source)
        assert [builder is None for builder in builders].count(False) == 1, collector.name


def test_the_reference_page_is_what_the_collectors_declare() -> None:
    require(readings_page.PAGE.is_file(), str(readings_page.PAGE))
    written = readings_page.PAGE.read_text(encoding="utf-8")
    assert written == readings_page.page(), "python -m tests.readings_page writes it"
