"""
Advises the jobs of this node to save a checkpoint before the node or a device of it is reset.

Owns     when to save is advised, and what persons announced.
Refuses  judging, telling jobs, which the outputs do, and forcing anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from vitald.collectors.event_factory import EventFactory
from vitald.core.node_state import NodeState
from vitald.judge.verdict import sort_by_strength
from vitald.model import NODE, Batch, Event, Finding, When
from vitald.model.advice import (
    ANNOUNCED,
    INTERRUPTION,
    NO_ADVICE,
    Advice,
    AnnouncedSave,
    RequestedRepair,
    advise_for_repair,
)
from vitald.model.cloud_notice import Effect
from vitald.model.codes import SAVE_ANNOUNCED, SAVE_WITHDRAWN
from vitald.timestamps import parse_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("advice")

SOURCE = "advice"
SAVE_CODES = (SAVE_ANNOUNCED, SAVE_WITHDRAWN)
MIN_AGE_S = 60.0  # of a finding: what clears itself, or gets worse at once, advises nothing
_TICK_S = 1.0


class SaveAdvisor:
    """Keeps `node_state.advice` up to date. `store` returns once a batch is in the ledger and
    published; `get_requested_repair` returns what root is requested to do, if anything.
    """

    def __init__(
        self,
        node_state: NodeState,
        store: Callable[[Batch], Awaitable[None]],
        get_requested_repair: Callable[[], RequestedRepair | None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node_state = node_state
        self._store = store
        self._get_requested_repair = get_requested_repair
        self._clock = clock
        self._facts = EventFactory(SOURCE, node_state.boot_id)
        self._announced: AnnouncedSave | None = None

    async def run(self) -> None:
        """Until cancelled. Findings age and announcements end without an event."""
        while True:
            self.update()
            await asyncio.sleep(_TICK_S)

    def update(self) -> None:
        """Publish the advice as of now."""
        now = self._clock()
        if self._announced is not None and now >= self._announced.until:
            self._announced = None
        state = self._node_state
        # What is read from a simulated library says nothing about this node.
        findings = () if state.simulated else state.findings
        requested = self._get_requested_repair()
        advice = compute_advice(findings, now, requested=requested, announced=self._announced)
        if advice == state.advice:
            return
        state.set_advice(advice)
        if advice.save:
            log.warning("save_advised", action=advice.action, why=advice.why)
        else:
            log.info("save_not_advised")

    async def announce_save(self, seconds: float, reason: str, by: str) -> Advice:
        """Advise jobs to save for so many seconds, as a person wants it. Returns the advice that
        results; a stronger reason may hide this one.
        """
        until = self._clock() + seconds
        text = f"{by} advises jobs to save for {seconds / 60:g} min: {reason}"
        await self._store_event(SAVE_ANNOUNCED, {"by": by, "reason": reason, "until": until}, text)
        self._announced = AnnouncedSave(reason=reason, until=until)
        self.update()
        return self._node_state.advice

    async def withdraw_save(self, reason: str, by: str) -> bool:
        """End an announcement. False if there is none."""
        if self._announced is None:
            return False
        text = f"{by} does not advise jobs to save any more: {reason}"
        await self._store_event(SAVE_WITHDRAWN, {"by": by, "reason": reason}, text)
        self._announced = None
        self.update()
        return True

    def restore(self, events: Iterable[Event]) -> None:
        """Restore the announcement from events of `SAVE_CODES`, oldest first. A boot ends it: what
        was planned has happened.
        """
        for event in events:
            self._announced = _read_announcement(event, self._node_state.boot_id)
        self.update()

    async def _store_event(self, code: str, fields: dict[str, str | float], text: str) -> None:
        await self._store(Batch(SOURCE, (self._facts.make_event(code, NODE, fields, text),)))


def compute_advice(
    findings: Sequence[Finding],
    now: float,
    *,
    requested: RequestedRepair | None = None,
    announced: AnnouncedSave | None = None,
) -> Advice:
    """The advice at the time `now`, in seconds since the epoch. Of several reasons, the one that
    comes first gives the text: an interruption within minutes, a repair that root is requested to
    do, a finding whose action waits for the running job, a person.
    """
    real = sort_by_strength([finding for finding in findings if _is_real(finding)])
    interruption = next((each for each in real if each.code == Effect.IMMINENT.code), None)
    if interruption is not None:
        return _advise_for_interruption(interruption)
    if requested is not None:
        return _advise_for_request(requested, real)
    waiting = next((each for each in real if _waits_for_job(each, now)), None)
    if waiting is not None:
        return _advise_for_finding(waiting)
    if announced is not None and now < announced.until:
        return Advice(
            save=True,
            why=announced.reason,
            action=ANNOUNCED,
            when=When.AFTER_JOB.value,
            by=announced.until,
        )
    return NO_ADVICE


def _is_real(finding: Finding) -> bool:
    """Whether it counts: no drill, no rule on trial, not accepted, not the text of a process."""
    return not (
        finding.is_simulated or finding.on_trial or finding.is_deferred or finding.is_hearsay
    )


def _waits_for_job(finding: Finding, now: float) -> bool:
    waits = finding.action.makes_unfit and finding.when is When.AFTER_JOB
    return waits and now - finding.since >= MIN_AGE_S


def _advise_for_interruption(finding: Finding) -> Advice:
    return Advice(
        save=True,
        why=f"{finding.title} ({finding.code})",
        action=INTERRUPTION,
        when=When.NOW.value,
        by=_read_not_before(finding),
        finding=finding.id,
    )


def _read_not_before(finding: Finding) -> float | None:
    """When the provider interrupts the instance, as its notice says."""
    try:
        return parse_rfc3339(str(finding.fields.get("notBefore", ""))).timestamp()
    except (ValueError, OverflowError):
        return None


def _advise_for_request(requested: RequestedRepair, findings: Sequence[Finding]) -> Advice:
    cause = next((each for each in findings if each.id in requested.findings), None)
    if cause is None:  # it has just gone; the request is withdrawn within a second
        return advise_for_repair(requested, f"a {requested.repair.value} is requested", When.NOW)
    return advise_for_repair(requested, _describe_finding(cause), cause.when)


def _advise_for_finding(finding: Finding) -> Advice:
    return Advice(
        save=True,
        why=_describe_finding(finding),
        action=finding.action.value,
        when=finding.when.value,
        finding=finding.id,
    )


def _describe_finding(finding: Finding) -> str:
    return f"{finding.component.name}: {finding.title} ({finding.code})"


def _read_announcement(event: Event, boot_id: str) -> AnnouncedSave | None:
    until = event.fields.get("until")
    is_current = event.code == SAVE_ANNOUNCED and event.boot_id == boot_id
    if not (is_current and isinstance(until, (int, float))):
        return None
    return AnnouncedSave(reason=str(event.fields.get("reason") or ""), until=float(until))
