"""The node's flags as one receiver counts them, and when a change of them is sent: worse ones at
once, better ones once they last.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from vitald.model import Status
from vitald.publish.ask_daemon import DaemonAway, NotAnswered, ask_daemon
from vitald.publish.notify.messages import read_flags
from vitald.publish.notify.notification import UNKNOWN_FLAGS, NodeFlags
from vitald.publish.notify.progress import Progress, TimedFlags
from vitald.publish.rate_limit import RateLimit
from vitald.publish.sink import BETTER_S, SEVERITY, WORSE_S
from vitald.publish.state_store import StateStore
from vitald.publish.summary import NodeSummary, NoSummary, PublishedState, parse_summary

_MAX_BYTES = 1024 * 1024
_PER_MINUTE, _BURST = 4.0, 6


class StateReader(Protocol):
    """Gives the state as a receiver counts it."""

    async def read_state(self) -> PublishedState | None:
        """None where the daemon does not answer."""
        ...


class SummaryReader:
    """The summary with drills, or without: other than the publisher follows it."""

    def __init__(self, socket: Path, *, drills: bool) -> None:
        self._socket = socket
        self._query = {"drills": str(drills).lower()}

    async def read_state(self) -> PublishedState | None:
        """None where there is no answer that can be used: it is asked again."""
        try:
            return parse_summary(
                await ask_daemon(self._socket, "/v1/summary", self._query, _MAX_BYTES)
            )
        except (DaemonAway, NotAnswered, NoSummary):
            return None


class FlagsWatch:
    """Since when the flags are what they are."""

    def __init__(self) -> None:
        self._flags: NodeFlags | None = None
        self._since = 0.0  # on the monotonic clock

    def find_wait(self, sent: NodeFlags | None, flags: NodeFlags, now: float) -> float | None:
        """Seconds until these are to be sent; None where the receiver knows them."""
        if flags != self._flags:
            self._flags, self._since = flags, now
        if sent is not None and _rank_flags(sent) == _rank_flags(flags):
            return None
        settles_s = BETTER_S if sent is not None and is_better(sent, flags) else WORSE_S
        return max(0.0, self._since + settles_s - now)


class ReceiverFlags:
    """The node's flags for one receiver, and the change of them that it is to get."""

    def __init__(
        self, name: str, store: StateStore, reader: StateReader | None, *, drills: bool
    ) -> None:
        """`reader`: where the states that the publisher follows count drills otherwise. `drills`:
        whether the receiver wants them.
        """
        self._name = name
        self._store = store
        self._reader = reader
        self._drills = drills
        self._watch = FlagsWatch()
        self._limit = RateLimit(_PER_MINUTE, _BURST)

    @property
    def has_own_reader(self) -> bool:
        return self._reader is not None

    async def read_current(self, followed: PublishedState | None) -> NodeFlags:
        """For messages on findings. `followed`: the state that the publisher follows."""
        state = await self._read_state(followed)
        sent = self._store.read_progress(self._name).flags
        return read_flags(state, sent.flags if sent is not None else UNKNOWN_FLAGS)

    async def store_change(
        self, progress: Progress, followed: PublishedState | None
    ) -> float | None:
        """Store flags that are to be sent as pending. Seconds until then; None where there is no
        change; 0 when it is done.
        """
        state = await self._read_state(followed)
        if state is None or (
            isinstance(state, NodeSummary) and state.simulated and not self._drills
        ):
            return None
        former = progress.flags.flags if progress.flags is not None else None
        flags = read_flags(state, former or UNKNOWN_FLAGS)
        wait = self._watch.find_wait(former, flags, time.monotonic())
        if wait is None or wait > 0.0:
            return wait
        timed = TimedFlags(flags, time.time())
        is_first = former is None and flags.status is Status.HEALTHY
        if not is_first and (wait := self._limit.take(time.monotonic())):
            return wait
        # A receiver that is new need not hear that all is well.
        after = replace(progress, flags=timed) if is_first else replace(progress, pending=timed)
        await self._store.write_progress(self._name, after)
        return 0.0

    async def _read_state(self, followed: PublishedState | None) -> PublishedState | None:
        """None where it is not known."""
        if self._reader is None or not isinstance(followed, NodeSummary):
            return followed
        return await self._reader.read_state()


def is_better(before: NodeFlags, after: NodeFlags) -> bool:
    """In every respect, or the same. That nothing is known any more is no improvement."""
    if after.status is Status.UNKNOWN:
        return False
    pairs = zip(_rank_flags(after), _rank_flags(before), strict=True)
    return all(new <= old for new, old in pairs)


def _rank_flags(flags: NodeFlags) -> tuple[int, bool, bool, bool, bool]:
    return (
        SEVERITY[flags.status],
        flags.reboot_required,
        flags.replacement_required,
        flags.reboot_due,
        flags.replacement_due,
    )
