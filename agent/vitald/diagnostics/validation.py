"""
The course of a pending validation: which run it needs next, and what a run that has ended changes.

    pending, level L ──pass──► closed by the judge
        ├─ fail ─► level L + 1 ──fail──► failed: a person, until the next repair
        ├─ no verdict ─► again after 1, 2, 4 ... minutes; after three of them failed, or
        │                closed if no fault was known before
        └─ cannot run here, for a while ─► the same: failed until it can, or closed

Owns     the fields of the events `validation/pending` and `validation/failed` after they were
         opened.
Refuses  clocks and I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vitald.backoff import Backoff
from vitald.catalog import Clears
from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics.dcgm.meanings import ENGINE_DOWN
from vitald.judge.validation import read_trigger
from vitald.model import NODE, Event, Fields, Finding, Value
from vitald.model.codes import VALIDATION_FAILED, VALIDATION_PENDING
from vitald.model.diagnostic import Outcome, Run, RunRequest
from vitald.model.validation import MissedValidation, Trigger, ValidationEnd

VALIDATION = "validation"  # the requester of its runs
CHECK = "dcgm"
MAX_TRIES = 3  # successive runs without a verdict
_HIGHEST = 4
_RETRY = Backoff(60.0, 3600.0)
_WAIT_NOTE_S = 600.0  # between two notes of what it waits for
_NEXT_TRY = "its next try"
# Kinds of findings that a run may disprove
_NOT_BLOCKING = (CHECK, "dcgm_health", VALIDATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An open finding `validation/pending`, read. Times in seconds since the epoch."""

    finding: Finding
    level: int  # that must pass now
    first: int  # that was required at first
    after: Trigger
    because: str
    tries: int  # successive runs without a verdict
    failed: str  # levels that failed, as `2, 3`
    not_before: float
    waits: str
    obstacle: str  # why no run has been possible for long; "" if one is
    returned: bool  # required again, after it had ended because diagnostics could not run

    @property
    def is_decided(self) -> bool:
        """Whether the highest level to try has failed: no run goes on by itself."""
        return str(self.level) in self.failed.split(", ")

    @property
    def needs_person(self) -> bool:
        return self.is_decided or self.tries >= MAX_TRIES or bool(self.obstacle)

    @property
    def may_end_unproven(self) -> bool:
        """Whether it may end without a pass: not where a fault was known before, or a run has found
        one.
        """
        return not (self.failed or self.after.follows_fault)

    def make_fields(self, **changed: Value) -> Fields:
        """The fields of an event that changes some of them."""
        return {
            "level": self.level,
            "first": self.first,
            "after": self.after.value,
            "because": self.because,
            "tries": self.tries,
            "failed": self.failed,
            "not_before": self.not_before,
            "waits": self.waits,
            "obstacle": self.obstacle,
            **({"returned": True} if self.returned else {}),
            **changed,
        }


def find_pending(findings: Iterable[Finding]) -> Pending | None:
    """The pending validation; None if nothing is to be validated."""
    finding = _find_open(findings, VALIDATION_PENDING)
    if finding is None:
        return None
    fields = finding.fields
    level = _read_whole(fields, "level", 1)
    return Pending(
        finding=finding,
        level=level,
        first=_read_whole(fields, "first", level),
        after=read_trigger(fields) or Trigger.CLEARED,
        because=str(fields.get("because", "")),
        tries=_read_whole(fields, "tries", 0),
        failed=str(fields.get("failed", "")),
        not_before=_read_number(fields, "not_before"),
        waits=str(fields.get("waits", "")),
        obstacle=str(fields.get("obstacle", "")),
        returned=fields.get("returned") is True,
    )


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether `validation/failed` is open."""
    return _find_open(findings, VALIDATION_FAILED) is not None


def make_request(pending: Pending) -> RunRequest:
    return RunRequest(
        check=CHECK,
        level=pending.level,
        by=VALIDATION,
        reason=f"validation #{pending.finding.id}: {pending.because}",
    )


def find_reason_to_wait(
    pending: Pending,
    findings: Iterable[Finding],
    clears: Callable[[Finding], Clears],
    now: float,
    *,
    obstacle: str = "",
    boot: str = "",
) -> str:
    """Why no run of the validation is to be queued now; "" if one is. `obstacle`: why none is
    possible; `boot`: what it waits for because the node has just booted.
    """
    if pending.is_decided:
        return "a repair or a person"
    if obstacle:
        return f"a way to run it: {obstacle}"
    if pending.obstacle:  # A pass must be newer than the note that it is possible again.
        return "a note that it can run again"
    if boot:
        return boot
    other = next((each for each in findings if _blocks(each, clears)), None)
    if other is not None:
        return f"the end of {other.code} of {other.component.name}"
    # A time beyond any delay is from before the clock was set back.
    if now < pending.not_before <= now + 2 * _RETRY.longest_s:
        return _NEXT_TRY
    return ""


def make_wait_event(pending: Pending, waits: str, facts: EventFactory, now: float) -> Event | None:
    """A note in the finding of what the run waits for; None if it is known. Other names of the same
    kind of reason are noted rarely.
    """
    is_same_kind = waits.partition(":")[0] == pending.waits.partition(":")[0]
    if waits == _NEXT_TRY:  # the finding says why there was no verdict, which tells more
        return None
    if waits == pending.waits or (is_same_kind and now - pending.finding.last < _WAIT_NOTE_S):
        return None
    raw = f"level {pending.level} must pass: {pending.because}; it waits for {waits}"
    return facts.make_event(VALIDATION_PENDING, NODE, pending.make_fields(waits=waits), raw)


def make_end_event(pending: Pending, end: ValidationEnd, reason: str, facts: EventFactory) -> Event:
    """The end of a validation without a pass; `reason` is kept."""
    since = round(pending.finding.since, 3)
    fields = pending.make_fields(over=end.value, reason=reason, since=since)
    return facts.make_event(VALIDATION_PENDING, NODE, fields, f"not validated: {reason}")


def make_obstacle_events(pending: Pending, obstacle: str, facts: EventFactory) -> list[Event]:
    """No run has been possible for long, and it may not end without a pass."""
    text = f"level {pending.level} cannot run: {obstacle}"
    fields = pending.make_fields(obstacle=obstacle, waits="")
    level: Fields = {"level": pending.level}
    return [
        facts.make_event(VALIDATION_PENDING, NODE, fields, text),
        facts.make_event(VALIDATION_FAILED, NODE, level, text),
    ]


def make_return_event(missed: MissedValidation, level: int, facts: EventFactory) -> Event:
    """A validation that had ended because diagnostics could not run is required again."""
    fields: Fields = {
        "level": level,
        "first": level,
        "after": missed.after.value,
        "because": missed.because,
        "returned": True,
    }
    raw = f"level {level} must pass: {missed.because}; it could not run then, and can now"
    return facts.make_event(VALIDATION_PENDING, NODE, fields, raw)


def make_obstacle_over_event(pending: Pending, facts: EventFactory) -> Event:
    """A run is possible again."""
    fields = pending.make_fields(obstacle="", tries=0, not_before=0.0, waits="")
    raw = f"level {pending.level} can run again"
    return facts.make_event(VALIDATION_PENDING, NODE, fields, raw)


def make_failed_over_event(level: int, facts: EventFactory) -> Event:
    """The end of `validation/failed`: nothing is pending any more, or validation began again."""
    raw = "validation is over or began again"
    return facts.make_event(VALIDATION_FAILED, NODE, {"level": level, "recovered": True}, raw)


def make_run_events(
    run: Run, pending: Pending | None, facts: EventFactory, *, cut: bool, complete: bool
) -> list[Event]:
    """What a run changes about a pending validation, apart from a pass, which closes it.

    `cut`: it was stopped; `complete`: it tested every GPU.
    """
    if pending is None or not _tests(run, pending):
        return []
    outcome, report = run.report.outcome, run.report
    if run.began < pending.finding.last:
        if run.ended >= pending.finding.last or cut or run.preempted:
            return []
        # The run has just ended: what it is to validate was dated by a clock set back since.
        reason = "by the clock it ended before what it is to validate"
        return _make_no_verdict_events(run, reason, pending, facts)
    if outcome is Outcome.PASS and complete:
        return []
    if outcome is Outcome.FAIL:
        return _make_failure_events(run, pending, facts)
    if cut or run.preempted:
        return []
    if outcome is Outcome.NOT_APPLICABLE and pending.may_end_unproven:
        return [make_end_event(pending, ValidationEnd.IMPOSSIBLE, report.reason, facts)]
    reason = report.reason or outcome.value
    if outcome is Outcome.PASS:
        reason = "it did not say that it tested every GPU"
    return _make_no_verdict_events(run, reason, pending, facts)


def _make_failure_events(run: Run, pending: Pending, facts: EventFactory) -> list[Event]:
    """One level up, once; then the verdict stands."""
    tested = run.ask.level
    failed = ", ".join(filter(None, (pending.failed, str(tested))))
    text = f"{run.ask.label} failed: {run.report.reason}"
    if tested < min(pending.first + 1, _HIGHEST):
        fields = _make_progress(pending, run, level=tested + 1, failed=failed)
        raw = f"{text}; level {tested + 1} decides"
        return [facts.make_event(VALIDATION_PENDING, NODE, fields, raw, moment=run.ended)]
    fields = _make_progress(pending, run, level=tested, failed=failed)
    return [
        facts.make_event(VALIDATION_PENDING, NODE, fields, text, moment=run.ended),
        _make_failed_event(run, tested, text, facts),
    ]


def _make_progress(pending: Pending, run: Run, *, level: int, failed: str) -> Fields:
    changed: dict[str, Value] = {"level": level, "failed": failed, "run": run.id}
    return pending.make_fields(**changed, tries=0, not_before=0.0, waits="")


def _make_failed_event(run: Run, level: int, text: str, facts: EventFactory) -> Event:
    fields: Fields = {"level": level, "run": run.id}
    return facts.make_event(VALIDATION_FAILED, NODE, fields, text, moment=run.ended)


def _make_no_verdict_events(
    run: Run, reason: str, pending: Pending, facts: EventFactory
) -> list[Event]:
    tries = min(pending.tries + 1, 10**6)
    is_engine_down = any(fault.code == ENGINE_DOWN for fault in run.report.faults)
    if tries >= MAX_TRIES and pending.may_end_unproven:
        end = ValidationEnd.IMPOSSIBLE if is_engine_down else ValidationEnd.NO_VERDICT
        return [make_end_event(pending, end, reason, facts)]
    text = f"{run.ask.label} came to nothing, try {tries}: {reason}"
    fields = pending.make_fields(
        run=run.id, tries=tries, not_before=run.ended + _RETRY.delay_s(tries - 1), waits=""
    )
    events = [facts.make_event(VALIDATION_PENDING, NODE, fields, text, moment=run.ended)]
    if tries == MAX_TRIES:
        events.append(_make_failed_event(run, pending.level, text, facts))
    return events


def _tests(run: Run, pending: Pending) -> bool:
    """Whether the run tests what is to be validated: all GPUs, at the level."""
    return run.ask.check == CHECK and not run.ask.gpus and run.ask.level >= pending.level


def _blocks(finding: Finding, clears: Callable[[Finding], Clears]) -> bool:
    """Whether its repair comes first: a diagnostic would only find it again."""
    return (
        not (finding.is_simulated or finding.on_trial or finding.is_hearsay)
        and finding.kind not in _NOT_BLOCKING
        and finding.makes_unfit(between_jobs=True)
        and clears(finding).diagnostic is None
    )


def _find_open(findings: Iterable[Finding], code: str) -> Finding | None:
    return next(
        (
            finding
            for finding in findings
            if finding.code == code
            and finding.component == NODE
            and not (finding.is_simulated or finding.on_trial)
        ),
        None,
    )


def _read_whole(fields: Fields, name: str, default: int) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _read_number(fields: Fields, name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
