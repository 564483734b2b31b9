"""
A sink, and the task that keeps one up to date.

Only the latest state is kept: what a sink writes follows from the present state, so nothing queues
up while it cannot be reached. Worse news is written at once, better news after BETTER_S, so that a
fault that comes and goes is not written each time. Of the writes that are possible in a minute,
some are reserved for worse news.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from vitald.model.words import Action, Status
from vitald.publish.retry import RateLimit, Retry
from vitald.publish.state_store import StateStore
from vitald.publish.summary import DaemonSilent, PublishedState

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

WORSE_S, BETTER_S = 0.5, 5.0
_WRITES_PER_MINUTE, _BURST = 12, 8  # in any minute; at once
_RESERVED = 4  # of the burst, for worse news
SEVERITY = {Status.HEALTHY: 0, Status.DEGRADED: 1, Status.UNKNOWN: 2, Status.UNHEALTHY: 3}


class SinkFailed(Exception):
    """Nothing was written. `retry_after_s`: when the receiver wants the next attempt.

    `is_unreachable`: there was no answer. `is_expected`: no fault of the receiver (the node is
    gone), so it is not logged as an error.
    """

    def __init__(
        self,
        detail: str,
        *,
        retry_after_s: float | None = None,
        is_unreachable: bool = False,
        is_expected: bool = False,
    ) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.is_unreachable = is_unreachable
        self.is_expected = is_expected


class PartlyWritten(Exception):
    """All but the parts that are `refused` is up to date. The text says why, and what to do about
    it.
    """

    def __init__(self, detail: str, *, refused: tuple[str, ...], did_write: bool) -> None:
        super().__init__(detail)
        self.refused = refused
        self.did_write = did_write


class Sink(Protocol):
    """Writes states somewhere."""

    name: str

    async def write_state(self, state: PublishedState) -> bool:
        """Make the receiver say this. Whether anything had to be written. Raises SinkFailed,
        PartlyWritten.
        """
        ...

    def get_recheck_s(self, state: PublishedState) -> float:
        """How long after a write the receiver is compared again."""
        ...


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """How a sink fares. Times in seconds since the epoch; 0 is never."""

    name: str
    is_up: bool = False
    last_success: float = 0.0
    error: str = "nothing has been written yet"
    refused: tuple[str, ...] = ()  # what of the state; the rest is written
    waiting: int = 0  # how much is not written yet: 1 for a state, or so many events
    waiting_since: float = 0.0
    writes: int = 0
    failures: int = 0

    def describe(self) -> str:
        """One line for `systemctl status`."""
        return f"{self.name}: up" if self.is_up else f"{self.name}: {self.error}"


def note_failure(health: SinkHealth, error: SinkFailed) -> SinkHealth:
    """The health from now on. Logged once for each reason."""
    failed = replace(
        health, is_up=False, error=str(error), refused=(), failures=health.failures + 1
    )
    if health.error != failed.error and not error.is_expected:
        log.error("sink_failed", sink=health.name, error=failed.error)
    return failed


def note_success(
    health: SinkHealth, *, waiting: int, writes: int, partly: PartlyWritten | None = None
) -> SinkHealth:
    """The health from now on. `waiting`: how much is left to write; `writes`: how much was
    written. What is refused is logged once for each reason.
    """
    error, refused = ("", ()) if partly is None else (str(partly), partly.refused)
    if refused and error != health.error:
        log.error("sink_refused", sink=health.name, refused=refused, error=error)
    if not refused and not health.is_up and (health.failures or health.refused):
        log.info("sink_recovered", level="notice", sink=health.name)
    now = time.time()
    return replace(
        health,
        is_up=not refused,
        last_success=now,
        error=error,
        refused=refused,
        waiting=waiting,
        waiting_since=now if waiting else 0.0,
        writes=health.writes + writes,
    )


class Runner(Protocol):
    """A task that keeps one receiver up to date."""

    health: SinkHealth

    def offer_state(self, state: PublishedState) -> None:
        """The state is this now."""
        ...

    async def run(self) -> None:
        """Until cancelled."""
        ...


def rank_state(state: PublishedState) -> tuple[bool, int, int, bool, bool]:
    """How severe it is in each respect: nothing is known, the status, the action, and the repairs
    that are due.
    """
    if isinstance(state, DaemonSilent):
        return True, SEVERITY[Status.UNKNOWN], Action.NONE.rank, False, False
    return (
        state.status is Status.UNKNOWN,
        SEVERITY[state.status],
        state.action.rank,
        bool(state.reboot_reason),
        bool(state.replacement_reason),
    )


def is_worse(before: PublishedState | None, after: PublishedState) -> bool:
    """Whether the new state is worse in any respect, or the first one."""
    if before is None:
        return True
    return any(new > old for new, old in zip(rank_state(after), rank_state(before), strict=True))


class SinkRunner:
    """Keeps one sink up to date with the latest state."""

    def __init__(self, sink: Sink, store: StateStore) -> None:
        """`store`: remembers over a restart how much may be written."""
        self.sink = sink
        self._store = store
        self.health = SinkHealth(sink.name)
        self._state: PublishedState | None = None
        self._written: PublishedState | None = None
        self._due = float("inf")  # of the next write, on the monotonic clock
        self._recheck = float("inf")  # the same, if nothing changes
        self._succeeded_at = float("-inf")
        self._changed = asyncio.Event()
        self._is_compared = False  # with all that the receiver reported
        self._limit = RateLimit(_WRITES_PER_MINUTE - _BURST, _BURST)
        until_full = store.read_moment(self._limit_name) - time.time()
        # The clock may have been set since.
        self._limit.full_at = time.monotonic() + min(until_full, self._limit.refill_s)
        self._retry = Retry()

    @property
    def _limit_name(self) -> str:
        return f"full_at {self.sink.name}"

    def offer_state(self, state: PublishedState) -> None:
        """The state is this now."""
        if state == self._state:
            return
        written = self._state if self._written is None else self._written
        if not self._retry.failures:
            self._due = self._find_due(written, self._state, state)
        self._state = state
        if not self.health.waiting:
            self.health = replace(self.health, waiting=1, waiting_since=time.time())
        self._changed.set()

    def note_change(self, *, is_urgent: bool) -> None:
        """The receiver was changed by others: it is compared soon. `is_urgent`: as worse news is,
        because nothing is on it yet, or a person holds repairs; then also where the last write
        failed.
        """
        self._is_compared = False
        is_settled = self._state == self._written and not self._retry.failures
        if is_urgent:
            self._written = None
        if self._state is not None and (is_urgent or is_settled):
            self._due = min(self._due, time.monotonic() + WORSE_S)
            self._changed.set()

    def _find_due(
        self, written: PublishedState | None, former: PublishedState | None, state: PublishedState
    ) -> float:
        now = time.monotonic()
        if isinstance(state, DaemonSilent):  # it has been waited for already
            return now
        if is_worse(written, state):
            return min(self._due, now + WORSE_S)
        was_better = former is not None and former != written and not is_worse(written, former)
        return min(self._due if was_better else self._recheck, now + BETTER_S)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wait_until_due()
            if self._state is None:
                continue
            reserve = 0 if is_worse(self._written, self._state) else _RESERVED
            if wait := self._limit.find_wait_s(time.monotonic(), reserve):
                self._due = time.monotonic() + wait
                continue
            await self._write_state(self._state)

    async def _wait_until_due(self) -> None:
        while (pause := self._due - time.monotonic()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(
                    self._changed.wait(), None if pause == float("inf") else pause
                )
            except asyncio.TimeoutError:
                return

    async def _write_state(self, state: PublishedState) -> None:
        partly = None
        self._is_compared = True
        try:
            did_write = await self.sink.write_state(state)
        except PartlyWritten as error:
            partly, did_write = error, error.did_write
        except SinkFailed as error:
            self._due = time.monotonic() + self._retry.note_failure(
                is_unreachable=error.is_unreachable, retry_after_s=error.retry_after_s
            )
            self.health = note_failure(self.health, error)
            return
        self._retry.note_success()
        if did_write:
            await self._count_write()
        self._written = state
        self._succeeded_at = time.monotonic()
        self._due = self._recheck = self._succeeded_at + self.sink.get_recheck_s(state)
        is_behind = self._state is not None and self._state != state
        if self._state is not None and is_behind:
            self._due = self._find_due(state, None, self._state)
        elif not self._is_compared:
            self._due = self._succeeded_at + WORSE_S
        self.health = note_success(
            self.health, waiting=int(is_behind), writes=int(did_write), partly=partly
        )

    async def _count_write(self) -> None:
        """What needed no write costs nothing."""
        now = time.monotonic()
        self._limit.count(now)
        await self._store.write_moment(self._limit_name, time.time() + self._limit.full_at - now)

    def describe_delay(self, limit_s: float) -> str:
        """Why the receiver is not up to date, if it was not within the last `limit_s`; else ""."""
        if time.monotonic() - self._succeeded_at <= limit_s:
            return ""
        why = self.health.error or f"nothing was compared within {limit_s:g} s"
        return f"{self.health.name}: {why}"
