"""
Who may connect to the job socket: connections at once and a second, by user and in all.

Owns     the counts, and which users are barred for a while because they connect on and on.
Refuses  the socket: the server accepts, closes, and has the kernel keep out who is barred.

Pure: the caller gives the time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from vitald.backoff import Backoff
from vitald.jobsocket.token_bucket import TokenBucket

MAX_CONNECTIONS, MAX_PER_USER = 256, 64
_CONNECTS_PER_S, _CONNECTS_BURST = 4.0, 2.0 * MAX_PER_USER  # of one user
_REFUSALS_PER_S, _REFUSALS_BURST = 4.0, 256.0  # of one user; more are a flood
_BARRED = Backoff(10.0, 300.0)
_REMEMBERED_S = 600.0  # a bar, after its end
_MAX_BARRED = 128  # users at once


@dataclass(slots=True)
class _Bar:
    until: float
    former: int  # bars of this user before it


class Admission:
    """The users of one socket."""

    def __init__(self) -> None:
        self._connections: Counter[int] = Counter()  # by user, as the others
        self._connects: dict[int, TokenBucket] = {}
        self._refusals: dict[int, TokenBucket] = {}
        self._bars: dict[int, _Bar] = {}  # ended ones, too
        self.barred: frozenset[int] = frozenset()

    def admit(self, uid: int, now: float) -> bool:
        """Whether there is room for another connection of this user. It is counted then, until
        `release`.
        """
        if uid in self.barred or not self._has_room(uid, now):
            self._note_refusal(uid, now)
            return False
        self._connections[uid] += 1
        return True

    def release(self, uid: int) -> None:
        self._connections[uid] -= 1
        if not self._connections[uid]:
            del self._connections[uid]

    def forget(self, now: float) -> None:
        """Lift the bars that are over, and forget users who have been at rest. To be called every
        second.
        """
        for buckets in (self._connects, self._refusals):
            for uid in [uid for uid, bucket in buckets.items() if bucket.is_full(now)]:
                del buckets[uid]
        for uid in [uid for uid, bar in self._bars.items() if now >= bar.until + _REMEMBERED_S]:
            del self._bars[uid]
        self.barred = frozenset(uid for uid in self.barred if now < self._bars[uid].until)

    def _has_room(self, uid: int, now: float) -> bool:
        if uid not in self._connects:
            self._connects[uid] = TokenBucket(_CONNECTS_PER_S, _CONNECTS_BURST, now)
        is_full = self._connections.total() >= MAX_CONNECTIONS
        is_full = is_full or self._connections[uid] >= MAX_PER_USER
        return not is_full and self._connects[uid].take(now)

    def _note_refusal(self, uid: int, now: float) -> None:
        if uid not in self._refusals:
            self._refusals[uid] = TokenBucket(_REFUSALS_PER_S, _REFUSALS_BURST, now)
        is_flood = not self._refusals[uid].take(now)
        if is_flood and uid not in self.barred and len(self.barred) < _MAX_BARRED:
            bar = self._bars.get(uid)
            former = bar.former + 1 if bar is not None else 0
            self._bars[uid] = _Bar(now + _BARRED.delay_s(former), former)
            self.barred |= {uid}
