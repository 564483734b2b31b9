"""
Which answers of a watch are recorded.

A watch is read every few seconds. An answer is recorded in the ledger and the log if it brings
news: it differs from the one before, or the open findings do not agree with it. All others are kept
in memory only, as the last run of the check. `change_limit` withholds changes of an answer that
alternates.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitald.diagnostics.change_limit import ChangeLimit, identify_faults
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.events import NOT_RUN_AFTER, may_report
from vitald.diagnostics.interpreter import RunInterpreter
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.schedule import SCHEDULE
from vitald.model import Finding
from vitald.model.diagnostic import Outcome, Run

# Between records of an answer with which the open findings do not agree: a finding that a person
# cleared returns, and one that is suppressed as a consequence does not fill the ledger.
_REPEAT_S = 600.0
_UNANSWERED_S = 300.0  # between records of runs without a verdict, until a finding reports that
_WITH_VERDICT = (Outcome.PASS, Outcome.FAIL)


class RecordingPolicy:
    """Decides for each run whether it is recorded, and remembers the last one that was."""

    def __init__(self, checks: CheckSet, node: NodeView, interpreter: RunInterpreter) -> None:
        self._checks = checks
        self._node = node
        self._interpreter = interpreter
        self._recorded: dict[str, Run] = {}  # by check
        self._limits: dict[str, ChangeLimit] = {}  # by check

    def accept_run(self, run: Run, cut: bool) -> bool:
        """True if the run is to be recorded. `cut`: it was stopped."""
        if not self._checks.is_watch(run.ask.check) or run.ask.gpus:
            return True
        if not cut:
            self._interpreter.note_answer(run)
        if run.ask.by == SCHEDULE:
            limit = self._limits.setdefault(run.ask.check, ChangeLimit())
            if not self._brings_news(run, limit, cut=cut):
                return False
            limit.note_record(run)
        self._recorded[run.ask.check] = run
        return True

    def _brings_news(self, run: Run, limit: ChangeLimit, *, cut: bool) -> bool:
        faults = run.report.faults
        if cut or (self._checks.is_settling(run.ask.check) and not faults):
            return False
        answer, last = describe_answer(run), self._recorded.get(run.ask.check)
        limit.note_answer(run, answer)
        if last is None or describe_answer(last) != answer:
            return last is None or limit.allow_change(run, last)
        since_s = run.ended - last.ended
        if run.report.outcome not in _WITH_VERDICT and not faults:
            may_count = self._interpreter.count_failed_runs(run) < NOT_RUN_AFTER
            return may_count and not 0.0 <= since_s < _UNANSWERED_S
        agrees = _agrees(run, self._node.list_findings())
        return not agrees and not 0.0 <= since_s < _REPEAT_S


def describe_answer(run: Run) -> object:
    """What two answers have in common that say the same. Their texts contain figures that change
    with each answer.
    """
    report = run.report
    statuses = {
        (test.name, test.status, tuple(sorted({**test.gpus, **test.cpus}.items())))
        for test in report.tests
    }
    return report.outcome, report.remedy, identify_faults(run), frozenset(statuses)


def _agrees(run: Run, findings: Iterable[Finding]) -> bool:
    """True if each reported fault has a finding, and each finding of the check is reported."""
    reported = {fault.code for fault in run.report.faults}
    open_codes = {
        finding.code
        for finding in findings
        if not (finding.is_simulated or finding.on_trial)
        and may_report(run.ask.check, finding.code)
    }
    return reported == open_codes
