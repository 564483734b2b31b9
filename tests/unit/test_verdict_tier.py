"""The verdict tier has at most 70 series, the worst of them, whatever is wrong with the node; and
what others write into labels harms no scrape.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from tests.exported import read_exported
from tests.system.test_metrics import complaints
from tests.unit.builders import event, finding, gpu, interpreter
from vitald.core.node_state import NodeState
from vitald.core.publisher_reports import SinkReport
from vitald.diagnostics.view import DiagnosticsView
from vitald.metrics.diagnostics import RunTally
from vitald.metrics.exporter import NodeStateCollector
from vitald.metrics.exposition import MAX_CHARACTERS, ExpositionWriter, Format, clean_label
from vitald.metrics.scrape import make_connection_limit
from vitald.metrics.slurm import UnknownJobs
from vitald.metrics.verdict_tier import FAMILIES, MAX_SERIES, select_families
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import ScheduledRun
from vitald.model.event import Trust
from vitald.model.finding import Acceptance, Finding, Requirement
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import Action, ComponentKind, When
from vitald.recovery.requester import RecoveryRequester
from vitald.recovery.settings import RecoverySettings
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread

HOSTILE = ('a"b\\', "line\nbreak", "\udcff\ud800", "\x1b[2J\x00", "é" * 10_000, "", "other", "名")
names = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(), max_size=300))


class Board:
    """A node's state that a test fills, and the metrics made from it."""

    def __init__(self, folder: Path) -> None:
        self.state = NodeState("boot-a", 1000.0, device_reset=False)
        self.scheduled: list[ScheduledRun] = []
        self.thread = WorkerThread("test")
        shown = SimpleNamespace(
            checks={},
            unavailable={},
            active=(),
            scheduled=self.scheduled,
            last_runs={},
        )
        self.collector = NodeStateCollector(
            self.state,
            interpreter(),
            PciInventory(folder),
            make_connection_limit(),
            profile=lambda: "nvidia",
            diagnostics=cast("DiagnosticsView", shown),
            tally=RunTally(),
            recovery=RecoveryRequester(
                self.state, folder, self.thread, lambda: RecoverySettings(), asyncio.Event()
            ),
            unknown_jobs=UnknownJobs(lambda: folder / "record", self.thread),
            instance_type=HOSTILE[4],
            each_link=False,
        )

    def add_source(self, name: str, *, up: bool) -> None:
        self.state.sources[name] = SourceHealth(
            name=name,
            state=SourceState.OK if up else SourceState.FAILED,
            deadline=60.0,
            polled_at=time.monotonic(),
        )

    def add_sinks(self, *sinks: tuple[str, bool]) -> None:
        self.state.publishers.store_report(
            tuple(
                SinkReport(
                    name=name,
                    up=up,
                    last_success=None,
                    error="",
                    waiting=0,
                    waiting_since=None,
                    writes=0,
                    failures=0,
                    refused=(),
                )
                for name, up in sinks
            )
        )

    def open(self, *findings: Finding) -> None:
        self.state.findings = findings

    def list_verdict(self) -> list[Metric]:
        return list(self.collector.collect_verdict())

    def list_samples(self, name: str) -> list[Sample]:
        return [
            sample
            for family in self.list_verdict()
            for sample in family.samples
            if sample.name == name
        ]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path)
    yield made
    made.thread.close()


def fill(board: Board, texts: Sequence[str], count: int) -> None:
    """All that can be wrong with a node, with names that others chose."""

    def text(number: int) -> str:
        return texts[number % len(texts)]

    for number in range(count // 5):
        board.add_source(f"source-{number}{text(number)}", up=bool(number % 3))
    board.open(
        *(
            finding(
                list(Action)[number % len(Action)],
                list(When)[number % len(When)],
                number,
                component=Component(
                    list(ComponentKind)[number % len(ComponentKind)], f"{number}{text(number)}"
                ),
                code=f"{text(number)}/{text(number + 1)}",
                since=float(number),
                simulated_until=9e9 if number % 2 else None,
            )
            for number in range(count)
        )
    )
    board.add_sinks(*((f"sink-{number}", bool(number % 2)) for number in range(30)))
    board.scheduled[:] = [
        ScheduledRun(check=text(number), level=number, at=float(number)) for number in range(30)
    ]
    for number in range(count):
        board.state.events.count_event(
            event(f"{text(number)}/{number}", gpu(number % 8), float(number))
        )
        board.state.events.count_event(event(f"xid/{text(number)}", gpu(number % 8)))


def test_the_budget_is_kept_by_its_own_sum() -> None:
    assert sum(family.limit for family in FAMILIES.values()) <= MAX_SERIES


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(names, min_size=1, max_size=4), count=st.sampled_from([0, 1, 25, 500]))
def test_never_more_than_70_series(
    texts: list[str], count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    board = Board(tmp_path_factory.mktemp("board"))
    fill(board, texts, count)
    families = board.list_verdict()
    assert len({family.name for family in families}) == len(families)
    series = [
        (sample.name, *sorted(sample.labels.items()))
        for family in families
        for sample in family.samples
    ]
    assert len(series) <= MAX_SERIES
    assert len(series) == len(set(series)), "a series is there twice"
    board.thread.close()


def test_a_full_node_uses_every_family(board: Board) -> None:
    fill(board, ["x"], 500)
    assert {family.name for family in board.list_verdict()} == {*FAMILIES}


def test_the_20_worst_findings_and_the_sum_of_the_rest(board: Board) -> None:
    """A drill hides nothing that is real, and is in no sum with it."""
    drills = [
        finding(Action.REPLACE_NODE, number=number, simulated_until=9e9)
        for number in range(100, 130)
    ]
    observed = [finding(Action.OBSERVE, When.AFTER_JOB, number) for number in range(1, 31)]
    worst = finding(Action.REBOOT_NODE, number=99)
    board.open(*drills, *observed, worst)
    samples = board.list_samples("vitald_findings")
    assert len(samples) == 22
    assert samples[0].labels == {
        "component": worst.component.name,
        "pci_bus_id": worst.component.id,
        "kind": "xid",
        "code": "79",
        "action": "reboot_node",
        "when": "now",
        "accepted": "false",
        "simulated": "false",
    }
    rest = {
        sample.labels["simulated"]: sample.value
        for sample in samples
        if sample.labels["action"] == "other"
    }
    assert rest == {"false": 11, "true": 30}
    assert sum(sample.value for sample in samples) == 61


def test_what_waits_for_maintenance_hides_nothing_that_counts(board: Board) -> None:
    board.open(
        *(finding(Action.REPLACE_NODE, When.MAINTENANCE, number) for number in range(1, 31)),
        finding(Action.REBOOT_NODE, When.AFTER_JOB, number=99),
    )
    first = board.list_samples("vitald_findings")[0]
    assert (first.labels["action"], first.labels["when"]) == ("reboot_node", "after_job")


def test_the_checks_of_alerts_come_before_others() -> None:
    family = GaugeMetricFamily("vitald_recovery_refused", "", labels=["check"])
    for check in ("age", "daemon", "effect", "budget", "brake"):
        family.add_metric([check], 1)
    (selected,) = select_families([family])
    assert [sample.labels["check"] for sample in selected.samples] == ["effect", "brake"]


def test_what_a_person_accepted_hides_nothing_that_counts(board: Board) -> None:
    required = Requirement(Action.REPLACE_NODE, When.NOW)
    accepted = Acceptance(by="root", reason="a spare", since=0.0, until=9e9, required=required)
    board.open(
        *(
            finding(Action.INSPECT, number=number, accepted=accepted, escalation=required)
            for number in range(1, 31)
        ),
        finding(Action.OBSERVE, number=99),
    )
    first, *others = board.list_samples("vitald_findings")
    assert (first.labels["accepted"], first.labels["action"]) == ("false", "observe")
    assert {sample.labels["accepted"] for sample in others} == {"true", "other"}
    (escalated,) = board.list_samples("vitald_findings_escalated")
    assert escalated.value == 0


def test_findings_with_the_same_labels_are_one_series_since_the_first(board: Board) -> None:
    together = finding(since=50.0), finding(since=40.0), finding(since=60.0)
    board.open(*together)
    values = {
        family.name: [sample.value for sample in family.samples]
        for family in read_exported(board.collector.collect_all())
        if family.name.startswith("vitald_finding")
    }
    assert values["vitald_findings"] == [3]
    assert values["vitald_finding_opened_timestamp_seconds"] == [40.0]


def test_what_is_down_comes_first(board: Board) -> None:
    for number in range(9):
        board.add_source(f"source-{number}", up=number not in (7, 8))
    samples = board.list_samples("vitald_source_up")
    assert [(sample.labels["source"], sample.value) for sample in samples] == [
        ("source-7", 0),
        ("source-8", 0),
        ("source-0", 1),
        ("other", 1),
    ]
    for number in range(4):
        board.add_source(f"source-{number}", up=False)
    assert board.list_samples("vitald_source_up")[-1].value == 0


def test_few_sources_and_sinks_keep_their_names(board: Board) -> None:
    board.add_source("nvml", up=True)
    board.add_sinks(("kubernetes", True), ("textfile", False))
    assert [sample.labels for sample in board.list_samples("vitald_source_up")] == [
        {"source": "nvml"}
    ]
    assert [sample.labels["sink"] for sample in board.list_samples("vitald_publish_up")] == [
        "textfile",
        "kubernetes",
    ]


def test_a_sink_that_is_called_other_is_no_second_series(board: Board) -> None:
    board.add_sinks(("other", False), ("kubernetes", True))
    samples = board.list_samples("vitald_publish_up")
    assert [(sample.labels["sink"], sample.value) for sample in samples] == [
        ("kubernetes", 1),
        ("other", 0),
    ]


def test_accelerators_are_counted_by_status(board: Board) -> None:
    board.open(finding(number=1), finding(number=2), finding(Action.OBSERVE, component=NODE))
    counts = {
        (sample.labels["component_kind"], sample.labels["status"]): sample.value
        for sample in board.list_samples("vitald_components")
    }
    other = ("healthy", "degraded", "unknown")
    assert counts == {("gpu", "unhealthy"): 2, **{("gpu", status): 0 for status in other}}


def test_hostile_labels_break_no_scrape(board: Board, promtool: str) -> None:
    """Both tiers, in both formats; nothing that others write makes the page large."""
    fill(board, HOSTILE, 60)
    for families in (list(board.collector.collect_all()), board.list_verdict()):
        page = ExpositionWriter().write_families(families, Format.TEXT).decode()
        openmetrics = read_exported(families, Format.OPENMETRICS)
        samples = [sample for family in read_exported(families) for sample in family.samples]
        created = [s for family in openmetrics for s in family.samples if "_created" in s.name]
        assert len(samples) == sum(len(family.samples) for family in openmetrics) - len(created)
        assert len(samples) == len([line for line in page.splitlines() if line[0] != "#"])
        values = [value for sample in samples for value in sample.labels.values()]
        assert max(map(len, values)) <= MAX_CHARACTERS
        assert all(value.isprintable() for value in values)
        assert complaints(promtool, page) == ""


@given(names, names)
@example("line\nbreak", "line\x01break")
@example("line\nbreak", "line\\x0abreak")
@example("x" * 200, "x" * 201)
@example("x" * MAX_CHARACTERS, "é\n" * MAX_CHARACTERS)
def test_a_clean_label_is_one_short_line_and_keeps_texts_apart(one: str, other: str) -> None:
    cleaned = clean_label(one)
    assert cleaned.isprintable() and len(cleaned) <= MAX_CHARACTERS
    assert (cleaned == clean_label(other)) == (one == other)


def test_last_events_and_xids_are_bounded(board: Board) -> None:
    tally = board.state.events
    for number in range(5000):
        tally.count_event(event(f"xid/{number}", gpu(number % 200), float(number)))
    assert len(tally.counts) <= 2001 and len(tally.last_times) <= 2001
    assert len(tally.xids) <= 2000
    assert sum(counted.number for counted in tally.counts.values()) == 5000


def test_a_line_that_is_not_evaluated_is_no_last_event(board: Board) -> None:
    board.state.events.count_event(event(trust=Trust.UNTRUSTED, time=50.0))
    assert board.state.events.last_times == {} and board.state.events.xids == {}
    board.state.events.count_event(event(time=60.0))
    board.state.events.count_event(event(time=40.0, identity="older"))
    assert list(board.state.events.last_times.values()) == [60.0]


def test_counters_of_the_daemon_say_when_they_began(board: Board) -> None:
    before = time.time()
    board.state.events.count_event(event())
    created = {
        sample.name: sample.value
        for family in read_exported(board.collector.collect_all(), Format.OPENMETRICS)
        for sample in family.samples
        if sample.name.endswith("_created")
    }
    assert created["vitald_kernel_records_lost_created"] == 1000.0
    assert created["vitald_events_created"] >= before
    assert created["vitald_gpu_xid_events_created"] >= before
    assert not [name for name in created if name.startswith(("vitald_gpu_nvlink", "vitald_nic"))]


def test_requirement_of_a_finding_is_what_is_shown(board: Board) -> None:
    """Action and date are those that hold now, not those of the catalogue."""
    board.open(finding(Action.OBSERVE, escalation=Requirement(Action.REBOOT_NODE, When.AFTER_JOB)))
    (sample,) = board.list_samples("vitald_findings")
    assert (sample.labels["action"], sample.labels["when"]) == ("reboot_node", "after_job")
