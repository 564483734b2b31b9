"""
The evaluator: folds events into the findings, and returns what that changes as a ledger entry.

Owns     the judge; the reconciliation of what a source observes with what is open; the events of
         what operators do; those of the daemon about itself and its node: boots, clock steps,
         faults of its own.
Refuses  I/O, the queue, and the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import structlog

from vitald.judge.engine import Judge
from vitald.judge.lifecycle import BY_PERSON, SUPPRESSED
from vitald.judge.open_findings import MAX_RESOLVED
from vitald.ledger.schema import AuditRecord
from vitald.ledger.store import LedgerEntry
from vitald.model.component import NODE, Component
from vitald.model.event import (
    BOOT,
    CLEARED,
    CLOCK_STEPPED,
    REPLACED,
    SIBLINGS,
    Event,
    Fields,
    Trust,
    Value,
)
from vitald.model.finding import Finding, Transition
from vitald.model.source import Batch

log: structlog.stdlib.BoundLogger = structlog.get_logger("pipeline")

_Fault: TypeAlias = tuple[Component, str, bool]  # component, code, simulated
OWN_SOURCE = "vitald"
_MIN_STEP_S = 2.0  # slewing between two checks changes the clock by less


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """What an operator does with a finding: closes it, accepts it, or begins its remedy.

    `code` is that of the event; `fields` are its fields besides finding, person and reason.
    `replaced`: the device of the finding was replaced.
    """

    code: str
    finding: int
    by: str
    audit: AuditRecord
    replaced: bool = False
    fields: Fields


class Evaluator:
    """The judge of one node, with what was observed and not opened, and how findings ended."""

    def __init__(
        self,
        judge: Judge,
        daemon_events: DaemonEvents,
        list_siblings: Callable[[Component], list[str] | None],
    ) -> None:
        """`list_siblings`: as PciInventory has it."""
        self.judge = judge
        self._list_siblings = list_siblings
        self._daemon_events = daemon_events
        self._endings: dict[_Fault, str] = {}  # how the last finding of each fault ended
        self._not_opened: set[_Fault] = set()  # observed, but no finding could be opened

    def restore_endings(self, endings: dict[_Fault, str]) -> None:
        """Take over from the ledger how findings ended."""
        self._endings = dict(endings)

    def evaluate_events(self, entry: LedgerEntry, *events: Event) -> LedgerEntry:
        """`entry` with these events and what they change in the findings."""
        transitions = [*entry.transitions]
        events = tuple(map(self._add_siblings, events))
        for event in events:
            try:
                transitions += self.judge.apply_event(event)
            except Exception as error:
                # A defect of ours must not stop the evaluation of everything else.
                log.exception(
                    "event_not_judged", identity=event.identity, code=event.code, raw=event.raw
                )
                raw = f"{type(error).__name__} while judging {event.identity}: {event.raw}"
                failed = self._daemon_events.make_event("vitald/not_judged", {}, NODE, raw)
                events = (*events, failed)
                # If even that cannot be evaluated, it is at least stored and in the log.
                with suppress(Exception):
                    transitions += self.judge.apply_event(failed)
        return replace(entry, events=(*entry.events, *events), transitions=tuple(transitions))

    def _add_siblings(self, event: Event) -> Event:
        """The event with the other devices of its kind, if its rule asks for them."""
        if not self.judge.catalog.find_rule(event.code).shared_cause:
            return event
        present = self._list_siblings(event.component)
        if present is None or event.component == NODE:
            return event
        return replace(event, fields={**event.fields, SIBLINGS: ",".join(present)})

    def add_changes(self, entry: LedgerEntry) -> LedgerEntry:
        """`entry` with what its evaluation changed besides the findings; call it once, at the end
        of the evaluation.
        """
        return replace(entry, changes=self.judge.take_changes())

    def is_contradicted(self, batch: Batch) -> bool:
        """True if a source observes something else than the open findings state."""
        unknown = any(not self.judge.accounts_for(event) for event in batch.holding)
        return unknown or bool(
            batch.calm
            and (
                self.judge.find_contradicted(batch.source, batch.calm)
                or self.judge.find_refuted(batch.calm)
            )
        )

    def reconcile(self, entry: LedgerEntry, batch: Batch) -> LedgerEntry:
        """Make one event of each difference between what a source observes and what is open, so
        that a replay has the same result.
        """
        for event in batch.holding:
            entry = self._open_observed(entry, event)
        for finding in self.judge.find_contradicted(batch.source, batch.calm) if batch.calm else ():
            raw = f"{batch.source}: {finding.title}: not observed any more"
            recovery = self._daemon_events.make_event(
                finding.code, {"recovered": True}, finding.component, raw
            )
            recovery = replace(
                recovery,
                source=batch.source,
                kind=finding.kind,
                simulated_until=finding.simulated_until,
            )
            entry = self.evaluate_events(entry, recovery)
        for finding in self.judge.find_refuted(batch.calm) if batch.calm else ():
            reason = f"{batch.source} observes it without this fault"
            fields: Fields = {"code": finding.code, "by": batch.source, "reason": reason}
            settled = self._daemon_events.make_event(
                CLEARED, fields, finding.component, f"{batch.source}: {reason}"
            )
            entry = self.evaluate_events(entry, settled)
        return entry

    def _open_observed(self, entry: LedgerEntry, event: Event) -> LedgerEntry:
        """Open a finding for a fault that is observed and not open."""
        fault = (event.component, event.code, event.is_simulated)
        if self.judge.accounts_for(event):
            self._not_opened.discard(fault)
            return entry
        if fault in self._not_opened:  # else there would be one event in every round
            return entry
        entry = self.evaluate_events(entry, self._repeat_event(event))
        if self.judge.accounts_for(event):
            return entry
        self._not_opened.add(fault)
        raw = (
            f"observed, and no finding could be opened: {event.code} of"
            f" {event.component.name}: {event.raw}"
        )
        failed = self._daemon_events.make_event("vitald/not_judged", {}, NODE, raw)
        return self.evaluate_events(entry, failed)

    def _repeat_event(self, event: Event) -> Event:
        """The same fact again, with how its finding ended: it was closed, but still holds."""
        ending = self._endings.get((event.component, event.code, event.is_simulated), "")
        # A suppressed consequence: its root cause may have been cleared by an operator.
        if not ending or ending.startswith(SUPPRESSED):
            of_root = (
                f"{code} {cause}"
                for (component, code, simulated), cause in reversed(self._endings.items())
                if (component, simulated) == (event.component, event.is_simulated)
                and cause.startswith(BY_PERSON)
            )
            ending = next(of_root, ending or "it is not open")
        return replace(
            event,
            fields={**event.fields, "again": ending},
            raw=f"{event.raw} ({ending}; still observed)",
        )

    def apply_action(self, action: OperatorAction) -> tuple[LedgerEntry, Finding | None]:
        """Evaluate what an operator does: an event like any other, so that a replay includes it.

        Returns the finding as it is then; None if it is not open.
        """
        opened = (finding for finding in self.judge.open_findings if finding.id == action.finding)
        finding = next(opened, None)
        if finding is None:
            return LedgerEntry(), None
        fields: dict[str, Value] = {
            **action.fields,
            "code": finding.code,
            "finding": finding.id,
            "by": action.by,
            "reason": action.audit.reason,
        }
        if finding.is_simulated:
            fields["drill"] = True
        # Dated when it was requested: what happened since is not dealt with. The clock may have
        # been set back meanwhile.
        raw, at = f"{action.by}: {action.audit.reason}", min(action.audit.time, time.time())
        make_event = self._daemon_events.make_event
        events = [make_event(action.code, fields, finding.component, raw, at)]
        if action.replaced and not finding.is_simulated:
            events.append(make_event(REPLACED, {"by": action.by}, finding.component, raw, at))
        entry = self.evaluate_events(LedgerEntry(audit=action.audit), *events)
        changed = (change.finding for change in entry.transitions)
        return entry, next((each for each in changed if each.id == finding.id), None)

    def remember_endings(self, transitions: Iterable[Transition]) -> None:
        """Keep how findings ended, for `reconcile`."""
        for transition in transitions:
            finding = transition.finding
            if finding.is_open:
                continue
            fault = (finding.component, finding.code, finding.is_simulated)
            self._endings.pop(fault, None)  # the latest is last
            self._endings[fault] = transition.cause
            if len(self._endings) > MAX_RESOLVED:
                del self._endings[next(iter(self._endings))]


class DaemonEvents:
    """Makes events of the source `vitald`, each with an identity of its own."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self._serial = 0
        self._booted_at = time.time() - _read_uptime_s()

    def make_event(
        self, code: str, fields: Fields, component: Component, raw: str, at: float | None = None
    ) -> Event:
        """An event of the daemon at `at`, in seconds since the epoch; None is now."""
        now = time.time()
        self._serial += 1
        return Event(
            identity=f"vitald:{self.boot_id}:{now:.6f}:{self._serial}",
            time=now if at is None else at,
            source=OWN_SOURCE,
            kind="vitald",
            code=code,
            component=component,
            boot_id=self.boot_id,
            raw=raw,
            trust=Trust.DAEMON,
            fields=fields,
        )

    def make_boot_event(self, opened: Iterable[Finding]) -> Event:
        """The boot of the node, after the last fault of an earlier boot in `opened` and before
        those of this one, which the kernel may have logged before the daemon ran.
        """
        former = [finding.last for finding in opened if finding.boot_id != self.boot_id]
        booted_at = min(time.time(), max([time.time() - _read_uptime_s(), *former]))
        event = self.make_event(BOOT, {}, NODE, "the node was booted", booted_at)
        return replace(event, identity=f"vitald:boot:{self.boot_id}")

    def detect_clock_step(self) -> tuple[Event, ...]:
        """An event if the clock was stepped since the last call: time windows and quiet times are
        measured on the new clock from then on.
        """
        seconds = time.time() - _read_uptime_s() - self._booted_at
        if abs(seconds) < _MIN_STEP_S:
            return ()
        self._booted_at += seconds
        log.warning("clock_stepped", seconds=round(seconds, 3))
        raw = f"the clock was stepped by {seconds:+.3f} s"
        return (self.make_event(CLOCK_STEPPED, {"seconds": seconds}, NODE, raw),)


def _read_uptime_s() -> float:
    """Seconds since the boot, suspend included: unlike the wall clock it cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
