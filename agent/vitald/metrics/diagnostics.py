"""
Diagnostics as metrics: the last run of each check and level, what runs now, and how many have
ended.

What programs print becomes labels here, so every family has a bound, and what is wrong comes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.core.node_state import Count
from vitald.diagnostics.view import DiagnosticsView
from vitald.model.diagnostic import Measure, Run, Stage
from vitald.model.words import Outcome
from vitald.text import clean_line

PREEMPTED = "preempted"  # stopped to make room for work: no result
_OUTCOMES = (*(outcome.value for outcome in Outcome), PREEMPTED)
_TESTS, _MEASURES, _NAME = 600, 300, 60
# As DCGM prints them, in small letters. Anything else is `other`.
_STATUSES = {
    "pass": "pass",
    "fail": "fail",
    "warn": "warn",
    "skip": "skip",
    "not run": "not_run",
    "notrun": "not_run",
    "": "none",
    # Of its health watches
    "healthy": "pass",
    "warning": "warn",
    "failure": "fail",
}
_FINE = ("pass", "skip", "not_run", "none")


class RunTally:
    """How many runs have ended, since the daemon started. `count_run` is called with each."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, int, str], Count] = {}

    def count_run(self, run: Run) -> None:
        key = run.request.check, run.request.level, name_outcome(run)
        self.ended.setdefault(key, Count(time.time())).number += 1


def name_outcome(run: Run) -> str:
    return PREEMPTED if run.preempted else run.report.outcome.value


def collect_results(shown: DiagnosticsView, tally: RunTally) -> Iterator[Metric]:
    last = sorted(shown.last_runs.items())
    outcome = GaugeMetricFamily(
        "vitald_diagnostic_last_outcome",
        "How the last run of a diagnostic ended: 1 for the outcome that it had.",
        labels=["check", "level", "outcome"],
    )
    ended = _make_gauge("last_end_timestamp_seconds", "When the last run of a diagnostic ended.")
    took = _make_gauge("last_duration_seconds", "How long the last run of a diagnostic took.")
    for (check, level), run in last:
        for name in _OUTCOMES:
            outcome.add_metric([check, str(level), name], name == name_outcome(run))
        ended.add_metric([check, str(level)], run.ended)
        took.add_metric([check, str(level)], max(0.0, run.ended - run.began))
    yield outcome
    yield ended
    yield took
    counted = CounterMetricFamily(
        "vitald_diagnostic_runs",
        "Runs of diagnostics that have ended since the daemon started.",
        labels=["check", "level", "outcome"],
    )
    for (check, level, how), count in sorted(tally.ended.items(), key=itemgetter(0)):
        counted.add_metric([check, str(level), how], count.number, created=count.since)
    yield counted
    yield _collect_tests(run for _, run in last)
    yield from _collect_measures(run for _, run in last)


def collect_current(shown: DiagnosticsView) -> Iterator[Metric]:
    running = _make_gauge("running", "1 while a diagnostic runs.")
    waiting = _make_gauge(
        "waiting", "1 while a requested diagnostic waits for its turn, or for idle devices."
    )
    stages = {(run.request.check, run.request.level): run.stage for run in reversed(shown.active)}
    for name, check in shown.checks.items():
        for level in check.levels:
            stage = stages.get((name, level))
            running.add_metric([name, str(level)], stage in (Stage.RUNNING, Stage.ENDING))
            waiting.add_metric([name, str(level)], stage is Stage.WAITING)
    yield running
    yield waiting
    owed = _make_gauge(
        "owed_since_timestamp_seconds",
        "Since when a requested diagnostic has no verdict, over restarts; absent if none is owed.",
    )
    since: dict[tuple[str, int], float] = {}
    for run in shown.active:
        key = (run.request.check, run.request.level)
        since[key] = min(run.requested_at, since.get(key, run.requested_at))
    for (name, level), requested_at in since.items():
        owed.add_metric([name, str(level)], requested_at)
    yield owed
    due = _make_gauge(
        "next_timestamp_seconds", "When the schedule runs a diagnostic next. Past: it waits."
    )
    for scheduled in shown.scheduled:
        due.add_metric([scheduled.check, str(scheduled.level)], scheduled.at)
    yield due


def _collect_tests(runs: Iterable[Run]) -> Metric:
    family = GaugeMetricFamily(
        "vitald_diagnostic_test_status",
        "Result of a test on a GPU in the last run: 1 for the status that it had.",
        labels=["check", "level", "test", "gpu_index", "test_status"],
    )
    statuses: dict[tuple[str, str, str, str], str] = {}
    for run in runs:
        for test in run.report.tests:
            for gpu, status in (
                ((str(gpu), status) for gpu, status in test.gpus.items())
                if test.gpus
                else [("", test.status)]
            ):
                key = (run.request.check, str(run.request.level), _clean_name(test.name), gpu)
                known = _STATUSES.get(status.strip().lower(), "other")
                # Of two tests with the same name, the one that did not pass.
                statuses[key] = statuses.get(key, known) if known in _FINE else known
    for (check, level, name, gpu), status in islice(
        sorted(statuses.items(), key=lambda item: item[1] in _FINE), _TESTS
    ):
        family.add_metric([check, level, name, gpu, status], 1)
    return family


def _collect_measures(runs: Iterable[Run]) -> Iterator[Metric]:
    value = GaugeMetricFamily(
        "vitald_diagnostic_measure",
        "What a diagnostic measured last, in base units.",
        labels=["check", "measure", "device"],
    )
    ratio = GaugeMetricFamily(
        "vitald_diagnostic_measure_ratio",
        "The same relative to its lower limit, or its upper limit relative to it: below 1 is bad.",
        labels=["check", "measure", "device"],
    )
    latest: dict[tuple[str, str, str], Measure] = {}
    for run in sorted(runs, key=lambda run: run.ended):
        latest |= {
            (run.request.check, _clean_name(measure.name), _clean_name(measure.device)): measure
            for measure in run.report.measures
            if math.isfinite(measure.value)
        }
    for labels, measure in islice(latest.items(), _MEASURES):
        value.add_metric(labels, measure.value)
        if measure.minimum:
            ratio.add_metric(labels, measure.value / measure.minimum)
        elif measure.maximum is not None and measure.value > 0.0:
            ratio.add_metric(labels, measure.maximum / measure.value)
    yield value
    yield ratio


def _clean_name(text: str) -> str:
    return clean_line(text)[:_NAME]


def _make_gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vitald_diagnostic_{name}", text, labels=["check", "level"])
