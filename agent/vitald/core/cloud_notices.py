"""
What `vitald publish` reported last of the cloud provider's notices, and what of it is stored.

The pipeline compares each report with the open findings, so that a notice that is gone ends its
finding, and one that was cleared by mistake is open again.

Owns     the event of a notice, how often reports may change the ledger, and the end of findings
         whose notices are not reported any more.
Refuses  checking a report, which the route does, and what an effect means, which is the
         catalogue's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from vitald.collectors.event_factory import EventFactory
from vitald.core.change_interval import FIRST_S, ChangeInterval
from vitald.core.node_state import NodeState
from vitald.model import NODE, Batch, Event, Value
from vitald.model.cloud_notice import Effect, Provider
from vitald.timestamps import format_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

SOURCE = "cloud"
UNREPORTED_AFTER_S = 1800.0  # sixty reports


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudNotice:
    """One notice, as checked. `not_before`: in seconds since the epoch."""

    effect: Effect
    kind: str
    id: str
    not_before: float | None
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """All notices that stand, by the code of their finding."""

    provider: str
    notices: Mapping[str, tuple[CloudNotice, ...]]


class CloudNotices:
    """The last report. `store` returns once a batch is in the ledger and published."""

    def __init__(
        self,
        node_state: NodeState,
        store: Callable[[Batch], Awaitable[None]],
        *,
        event_every_s: float = FIRST_S,
        unreported_after_s: float = UNREPORTED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_state = node_state
        self._store = store
        self._unreported_after_s = unreported_after_s
        self._clock = clock
        self._facts = EventFactory(SOURCE, node_state.boot_id)
        self._report: _Report | None = None  # None: nothing is reported
        # When the findings end unless there is a report; those of before a start have as long
        self._silent_at = clock() + unreported_after_s
        # By code. What was stored last since the start, and when something else may be
        self._stored: dict[str, tuple[CloudNotice, ...]] = {}
        self._intervals = {effect.code: ChangeInterval(event_every_s) for effect in Effect}
        self._store_at = math.inf  # when a change that had to wait is due
        self._reported = asyncio.Event()

    async def store_report(self, provider: Provider, notices: Sequence[CloudNotice]) -> None:
        """Open, update and end the findings of the provider's notices, as far as the time since
        the last change permits. `run` stores the rest.
        """
        by_code: dict[str, tuple[CloudNotice, ...]] = {}
        for notice in notices:
            code = notice.effect.code
            by_code[code] = (*by_code.get(code, ()), notice)
        report = _Report(provider=provider.value, notices=by_code)
        self._report = report
        self._silent_at = self._clock() + self._unreported_after_s
        batch = self._make_batch(report)
        self._reported.set()
        await self._store(batch)

    async def run(self) -> None:
        """Store what had to wait, and end the findings that nobody reports; until cancelled."""
        while True:
            self._reported.clear()
            wait_s = min(self._store_at, self._silent_at) - self._clock()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    self._reported.wait(), wait_s if math.isfinite(wait_s) else None
                )
            await self.update()

    async def update(self) -> None:
        """Store what is due by now."""
        now = self._clock()
        if now >= self._silent_at:
            await self._end_unreported()
        elif now >= self._store_at and self._report is not None:
            await self._store(self._make_batch(self._report))

    async def _end_unreported(self) -> None:
        """The provider's notices are unknown: their findings end with that reason."""
        self._report, self._silent_at, self._store_at = None, math.inf, math.inf
        self._stored = {effect.code: () for effect in Effect}
        text = (
            f"{SOURCE}: no report of the provider's notices for"
            f" {self._unreported_after_s / 60:g} minutes (vitald publish)"
        )
        fields: dict[str, Value] = {"recovered": True, "unreported": True}
        codes = sorted(self._list_open())
        if codes:
            log.warning("notices_unreported", codes=codes, effect="their findings end")
            events = (self._facts.make_event(code, NODE, fields, text) for code in codes)
            await self._store(Batch(SOURCE, tuple(events)))

    def _list_open(self) -> set[str]:
        """The codes of open findings that come from notices."""
        return {
            found.code
            for found in self._node_state.findings
            if found.component == NODE and found.source == SOURCE
        }

    def _make_batch(self, report: _Report) -> Batch:
        """What this report changes and may change by now, and what holds still."""
        now, opened = self._clock(), self._list_open()
        events, holding, calm = list[Event](), list[Event](), set[str]()
        self._store_at = math.inf
        for code in (effect.code for effect in Effect):
            notices, former = report.notices.get(code, ()), self._stored.get(code)
            is_change = (code in opened) != bool(notices) if former is None else former != notices
            event = self._make_event(report.provider, notices) if notices else None
            interval = self._intervals[code]
            # A finding that is to open is not late; one that is to end may be.
            held_until = interval.earliest if notices and not former else interval.due
            if is_change and now < held_until:
                self._store_at = min(self._store_at, held_until)
                holding += [event] if event and former else []  # open, whatever its text
                continue
            self._stored[code] = notices
            if event is None:
                calm.add(code)
            else:
                holding.append(event)
            if is_change:
                interval.note_change(now)
                events += [event] if event else []
        at_rest = frozenset((NODE, code) for code in calm)
        return Batch(SOURCE, tuple(events), holding=tuple(holding), calm=at_rest)

    def _make_event(self, provider: str, notices: Sequence[CloudNotice]) -> Event:
        """Of all notices with one effect; the first one of them names it."""
        first = min(notices, key=lambda notice: notice.not_before or 0.0)
        fields: dict[str, Value] = {"provider": provider, "notice": first.kind}
        text = f"{provider}: {first.kind}"
        if first.not_before is not None:
            fields["notBefore"] = format_rfc3339(first.not_before, "seconds")
            text += f", not before {fields['notBefore']}"
        if first.description:
            text += f": {first.description}"
        if len(notices) > 1:
            fields["notices"] = len(notices)
            text += f" (and {len(notices) - 1} more)"
        if first.id:
            fields["id"] = first.id
        return self._facts.make_event(first.effect.code, NODE, fields, text)
