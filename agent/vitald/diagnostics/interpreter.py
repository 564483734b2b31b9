"""What runs mean as events, and the memory that this needs from one run to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import structlog

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics import events
from vitald.diagnostics.node import NodeView
from vitald.model import NODE, Event
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
        self._seen = events.RunMemory()

    @property
    def memory(self) -> Mapping[str, object]:
        """What must be kept across restarts, for JSON."""
        return self._seen.memory

    def recall_memory(self, memory: Mapping[str, object]) -> None:
        """Restores `memory`. Raises TypeError, ValueError, AttributeError."""
        self._seen = events.RunMemory.from_memory(memory)

    def confirm_faults(self, run: Run) -> Run:
        """The run with its faults marked that an earlier run had found."""
        try:
            return events.mark_confirmed(run, self._node, self._seen)
        except Exception:  # without confirmation no reboot or replacement is required
            log.exception("diagnostic_not_confirmed", id=run.id)
            report = replace(run.report, reboot_required=False, replacement_required=False)
            return replace(run, report=report)

    def end_removed(self, checks: Collection[str]) -> list[Event]:
        """Events that end the findings of checks that are not configured any more."""
        return events.make_removed_events(checks, self._facts, self._node.list_findings())

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
                cut=cut,
            )
        except Exception as error:
            log.exception("diagnostic_not_judged", id=run.id)
            self._seen = events.RunMemory.from_memory(before)
            text = (
                f"{type(error).__name__} while telling what {run.id} found: vitald diag show"
                f" {run.id}"
            )
            return [
                events.make_run_event(run, self._facts),
                self._facts.make_event("vitald/not_judged", NODE, {}, text),
            ]
