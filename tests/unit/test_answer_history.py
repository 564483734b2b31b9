"""A fault that one answer of a watch had and the next one had not requires no validation."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.builders import catalogue
from tests.unit.test_diagnostics_manager import Node
from tests.unit.test_recording import HEALTHY, UNANSWERED, Watched, failing
from tests.unit.test_validation import Watched as Judged
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.interpreter import RunInterpreter
from vitald.diagnostics.recording import RecordingPolicy
from vitald.diagnostics.schedule import SCHEDULE
from vitald.model.codes import VALIDATION_PENDING
from vitald.model.diagnostic import Report, Run, RunRequest

FAILURE = failing(3225.8)
PCIE = "dcgm_health/pcie"


class WatchedNode:
    """A node whose watch answers every 15 seconds, from the answer to what is open."""

    def __init__(self) -> None:
        self.node, self.judged, self.time = Node(), Judged(), 1_000_000.0
        self.restart()

    def restart(self) -> None:
        watch = Watched()
        checks = CheckSet({watch.name: watch}, cast("Any", None), cast("Any", None))
        node = cast("Any", self.node)
        self.interpreter = RunInterpreter("diagnostics", "boot-a", node, catalogue())
        self.policy = RecordingPolicy(checks, node, self.interpreter)

    def answer(self, *reports: Report, step_s: float = 15.0) -> list[str]:
        """The codes that are open after the last one."""
        for report in reports:
            self.time += step_s
            ask = RunRequest(check="dcgm_health", by=SCHEDULE)
            run = Run(id=str(self.time), ask=ask, began=self.time, ended=self.time, report=report)
            if self.policy.accept_run(run, cut=False):
                self.judged.judge(*self.interpreter.make_events(run, cut=False))
                self.node.open = list(self.judged.evaluator.judge.open_findings)
        return [code for _, code in self.judged.open]


def test_a_failure_that_is_gone_at_the_next_answer_is_unfit_and_not_validated() -> None:
    node = WatchedNode()
    assert node.answer(HEALTHY, FAILURE) == [PCIE]
    assert node.judged.evaluator.judge.open_findings[0].makes_unfit(between_jobs=False)
    assert node.answer(HEALTHY) == []
    assert node.judged.replay() == []


@pytest.mark.parametrize(
    "reports",
    [
        (FAILURE, FAILURE, HEALTHY),
        (FAILURE, UNANSWERED, FAILURE, HEALTHY),
        (FAILURE, HEALTHY, HEALTHY, FAILURE, HEALTHY),  # it returned within the hour
    ],
)
def test_a_failure_that_a_second_answer_had_is_validated(reports: tuple[Report, ...]) -> None:
    node = WatchedNode()
    node.answer(HEALTHY)
    assert node.answer(*reports) == [VALIDATION_PENDING]
    assert node.judged.replay() == [("node", VALIDATION_PENDING)]


def test_a_failure_that_returns_after_more_than_an_hour_is_another() -> None:
    node = WatchedNode()
    assert node.answer(HEALTHY, FAILURE, HEALTHY, *[HEALTHY] * 300, FAILURE, HEALTHY) == []


def test_what_was_open_before_a_start_counts_as_seen_again() -> None:
    node = WatchedNode()
    node.answer(HEALTHY, FAILURE)
    node.restart()
    assert node.answer(HEALTHY) == [VALIDATION_PENDING]
    node = WatchedNode()
    node.answer(HEALTHY, FAILURE)
    node.restart()
    assert node.answer(FAILURE, HEALTHY) == [VALIDATION_PENDING]
