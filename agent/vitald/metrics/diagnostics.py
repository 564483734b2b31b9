"""
Diagnostics as metrics: the last run of each check and level, what runs now, and how many have
ended.

What programs print becomes labels here, so every family has a bound, and what is wrong comes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.metrics.label_values import clean_label
from vitald.model.diagnostic import Measure, Outcome, Run, Stage
from vitald.server.diagnostics_view import DiagnosticsView

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
}
_FINE = ("pass", "skip", "not_run", "none")


@dataclass(slots=True)
class _RunCount:
    """A counter. `since`: when it began, in seconds since the epoch."""

    since: float
    count: int = 0


class RunTally:
    """How many runs have ended, since the daemon started. `count_run` is called with each."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, int, str], _RunCount] = {}

    def count_run(self, run: Run) -> None:
        key = run.ask.check, run.ask.level, name_outcome(run)
        self.ended.setdefault(key, _RunCount(time.time())).count += 1


def name_outcome(run: Run) -> str:
    return PREEMPTED if run.preempted else run.report.outcome.value


def collect_metrics(shown: DiagnosticsView, tally: RunTally) -> Iterator[Metric]:
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
    yield from _collect_current(shown)
    counted = CounterMetricFamily(
        "vitald_diagnostic_runs",
        "Runs of diagnostics that have ended since the daemon started.",
        labels=["check", "level", "outcome"],
    )
    for (check, level, how), ended_so in sorted(tally.ended.items(), key=itemgetter(0)):
        counted.add_metric([check, str(level), how], ended_so.count, created=ended_so.since)
    yield counted
    yield _collect_tests(run for _, run in last)
    yield from _collect_measures(run for _, run in last)


def _collect_current(shown: DiagnosticsView) -> Iterator[Metric]:
    running = _make_gauge("running", "1 while a diagnostic runs.")
    waiting = _make_gauge(
        "waiting", "1 while a requested diagnostic waits for its turn, or for idle devices."
    )
    stages = {(run.ask.check, run.ask.level): run.stage for run in reversed(shown.active)}
    for name, check in shown.checks.items():
        for level in check.levels:
            stage = stages.get((name, level))
            running.add_metric([name, str(level)], stage in (Stage.RUNNING, Stage.ENDING))
            waiting.add_metric([name, str(level)], stage is Stage.WAITING)
    yield running
    yield waiting
    yield collect_schedule(shown)
    yield from _collect_passes(shown)


def _collect_passes(shown: DiagnosticsView) -> Iterator[Metric]:
    passed = _make_gauge(
        "last_pass_timestamp_seconds",
        "When a scheduled diagnostic last passed on all devices, at this level or a higher one.",
    )
    for record in shown.passes:
        if record.passed_at is not None:
            passed.add_metric([_clean_name(record.check), str(record.level)], record.passed_at)
    yield passed
    yield collect_pass_ages(shown)


def collect_pass_ages(shown: DiagnosticsView) -> Metric:
    age = _make_gauge(
        "pass_age_ratio",
        "Time since a scheduled diagnostic last passed, or if it never did since its first run, in"
        " its periods. Above 2 the pass is no evidence any more.",
    )
    now = time.time()
    for record in shown.passes:
        ratio = record.get_age_s(now) / record.every_s
        age.add_metric([_clean_name(record.check), str(record.level)], ratio)
    return age


def collect_schedule(shown: DiagnosticsView) -> Metric:
    due = _make_gauge(
        "next_timestamp_seconds", "When the schedule runs a diagnostic next. Past: it waits."
    )
    for scheduled in shown.scheduled:
        due.add_metric([_clean_name(scheduled.check), str(scheduled.level)], scheduled.at)
    return due


def _collect_tests(runs: Iterable[Run]) -> Metric:
    family = GaugeMetricFamily(
        "vitald_diagnostic_test_status",
        "Result of a test on a GPU in the last run: 1 for the status that it had.",
        labels=["check", "level", "test", "gpu_index", "test_status", "gpu", "status"],
    )
    statuses: dict[tuple[str, str, str, str], str] = {}
    for run in runs:
        for test in run.report.tests:
            for gpu, status in (
                ((str(gpu), status) for gpu, status in test.gpus.items())
                if test.gpus
                else [("", test.status)]
            ):
                key = (run.ask.check, str(run.ask.level), _clean_name(test.name), gpu)
                known = _STATUSES.get(status.strip().lower(), "other")
                # Of two tests with the same name, the one that did not pass.
                statuses[key] = statuses.get(key, known) if known in _FINE else known
    for (check, level, name, gpu), status in islice(
        sorted(statuses.items(), key=lambda item: item[1] in _FINE), _TESTS
    ):
        family.add_metric([check, level, name, gpu, status, gpu, status], 1)
    return family


def _collect_measures(runs: Iterable[Run]) -> Iterator[Metric]:
    value = GaugeMetricFamily(
        "vitald_diagnostic_measure",
        "What a diagnostic measured last, in base units.",
        labels=["check", "measure", "device", "name"],
    )
    ratio = GaugeMetricFamily(
        "vitald_diagnostic_measure_ratio",
        "The same relative to its lower limit, or its upper limit relative to it: below 1 is bad.",
        labels=["check", "measure", "device", "name"],
    )
    latest: dict[tuple[str, str, str], Measure] = {}
    for run in sorted(runs, key=lambda run: run.ended):
        latest |= {
            (run.ask.check, _clean_name(measure.name), _clean_name(measure.device)): measure
            for measure in run.report.measures
            if math.isfinite(measure.value)
        }
    for (check, name, device), measure in islice(latest.items(), _MEASURES):
        labels = (check, name, device, name)
        value.add_metric(labels, measure.value)
        if measure.least:
            ratio.add_metric(labels, measure.value / measure.least)
        elif measure.most is not None and measure.value > 0.0:
            ratio.add_metric(labels, measure.most / measure.value)
    yield value
    yield ratio


def _clean_name(text: str) -> str:
    return clean_label(text, _NAME)


def _make_gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vitald_diagnostic_{name}", text, labels=["check", "level"])
