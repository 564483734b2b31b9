"""What runs mean as events, and the memory that this needs from one run to the next."""

from __future__ import annotations

import json
from dataclasses import replace

import structlog

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics import events
from vitald.diagnostics.answer_history import AnswerHistory
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.run_memory import RunMemory
from vitald.model import NODE, Event, Position
from vitald.model.diagnostic import Run

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")


class RunInterpreter:
    """Turns runs into events. A fault of ours is reported as an event: it must not hold up the
    runs after it.
    """

    def __init__(self, source: str, boot_id: str, node: NodeView, catalog: Catalog) -> None:
        self.catalog = catalog
        self._source = source
        self._facts = EventFactory(source, boot_id)
        self._node = node
        self._seen = RunMemory()
        self._answers = AnswerHistory()

    @property
    def memory(self) -> str:
        """What must be kept across restarts, as JSON."""
        return json.dumps(self._seen.memory, sort_keys=True)

    def recall_memory(self, position: Position) -> None:
        """Restores `memory` from the source's last position."""
        try:
            self._seen = RunMemory.from_memory(json.loads(position.cursor))
        except (TypeError, ValueError, AttributeError) as error:
            log.error(
                "memory_not_read",
                source=self._source,
                error=str(error),
                effect="what must be found twice begins anew",
            )

    def count_failed_runs(self, run: Run) -> int:
        """How many successive runs of this check and level ended without a verdict."""
        return self._seen.failed_runs.get(run.ask.label, 0)

    def confirm_faults(self, run: Run) -> Run:
        """The run with its faults marked that an earlier run had found."""
        try:
            return events.mark_confirmed(run, self._node, self._seen)
        except Exception:  # without confirmation no reboot or replacement is required
            log.exception("diagnostic_not_confirmed", id=run.id)
            report = replace(run.report, reboot_required=False, replacement_required=False)
            return replace(run, report=report)

    def note_answer(self, run: Run) -> None:
        """Call it for each answer of a watch, whether it is recorded or not."""
        if run.report.outcome in events.WITH_VERDICT:
            serials = run.report.serials
            faults = [
                (events.find_component(fault, serials, self._node), fault.code)
                for fault in run.report.faults
            ]
            self._answers.note_answer(faults, run.ended)

    def make_events(self, run: Run, *, cut: bool) -> list[Event]:
        """The events of a run. `cut`: it was stopped."""
        before = self._seen.memory
        try:
            return events.make_events(
                run,
                self._facts,
                self.catalog,
                self._node,
                self._seen,
                self._node.list_findings(),
                answers=self._answers,
                cut=cut,
            )
        except Exception as error:
            log.exception("diagnostic_not_judged", id=run.id)
            self._seen = RunMemory.from_memory(before)
            text = (
                f"{type(error).__name__} while telling what {run.id} found: vitald diag show"
                f" {run.id}"
            )
            return [
                events.make_run_event(run, self._facts),
                self._facts.make_event("vitald/not_judged", NODE, {}, text),
            ]
