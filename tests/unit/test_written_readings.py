"""The lines that are written for GPUs are those of the families that are built for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_exposition import write_by_prometheus_client
from vitald.collectors.nvml.readings import READINGS
from vitald.metrics.exposition import ExpositionWriter, Format
from vitald.metrics.gpus import GpuMetrics
from vitald.model import Component, ComponentKind, Readings, Sample

NAMES = sorted({reading.name for table in READINGS for reading in table.readings})
TEXTS = ("name", "uuid", "serial")
NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**63))
VALUES = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3).map(tuple), st.sampled_from(["P0", 'a"b'])),
    max_size=60,
)
PAGES = st.lists(
    st.lists(st.tuples(VALUES, st.sampled_from(["one", 'two"\\', "three"])), max_size=3),
    min_size=1,
    max_size=4,
)


def make_readings(page: Sequence[tuple[Mapping[str, Sample], str]]) -> list[Readings]:
    """Of GPUs in the slots 0, 1, …; which GPU is in a slot may change from page to page."""
    return [
        Readings(
            component=Component(ComponentKind.GPU, f"0000:{slot:02x}:00.0"),
            identity=uuid,
            time=0.0,
            polled_at=0.0,
            values={**values, "minor": float(slot), **dict.fromkeys(TEXTS, uuid)},
            fresh=frozenset(),
        )
        for slot, (values, uuid) in enumerate(page)
    ]


@pytest.mark.parametrize("each_link", [False, True])
@given(pages=PAGES)
def test_both_are_the_same_page(
    each_link: bool, pages: list[list[tuple[Mapping[str, Sample], str]]]
) -> None:
    writer = ExpositionWriter()
    written, built = GpuMetrics(each_link=each_link), GpuMetrics(each_link=each_link)
    for page in map(make_readings, pages):
        assert writer.write_families(
            written.write_metrics(page), Format.TEXT
        ) == write_by_prometheus_client(list(built.collect_metrics(page)), Format.TEXT)


def test_a_gpu_in_the_place_of_another_has_its_own_labels() -> None:
    gpus, writer = GpuMetrics(), ExpositionWriter()
    for uuid in ("GPU-1", "GPU-2"):
        page = writer.write_families(
            gpus.write_metrics(make_readings([({"power_watts": 70.0}, uuid)])), Format.OPENMETRICS
        ).decode()
        assert f'uuid="{uuid}"}} 70.0\n' in page
    assert "GPU-1" not in page
