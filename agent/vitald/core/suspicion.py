"""
What notices raise as a suspicion against this node: a diagnostic on its idle devices, and points in
the lemon score. It is no finding, and changes no status.

    job/not_finite   each user counts once within the span, by the kernel's user id
    nvml/waiting     a stall: the GPUs wait, one of them takes no part, and a job reports a stall.
                     A user's stalls count once a day

Owns     what was reported by whom, the stalls, and the requests that were made.
Refuses  I/O, clocks and judging. All of it follows from events that are in the ledger.

A job may report what it likes: the user id is the kernel's word, and for a stall the daemon's own
measurement must agree. Drills and events of another origin do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vitald.catalog.suspicion import SuspicionRule
from vitald.model import Event, Fields, Mark, MarkKind, Trust
from vitald.model.codes import CLOCK_STEPPED, DIAGNOSTIC_REQUESTED
from vitald.model.notice import JOB_NOT_FINITE, JOB_RESUMED, JOB_STALLED, WAITING

# The codes of the events that change it
SUSPICION_CODES = (
    JOB_NOT_FINITE,
    JOB_STALLED,
    JOB_RESUMED,
    WAITING,
    DIAGNOSTIC_REQUESTED,
    CLOCK_STEPPED,
)
_MAX_USERS, _MAX_STALLED_JOBS, _MAX_STALLS, _MAX_REQUESTS = 1024, 1024, 256, 64
_DAY_S = 86400.0
# A job may notice the stall so long before the counters of the GPUs show the wait
_BEFORE_S = 120.0
_Key = TypeVar("_Key")
_MAX_NAMED = 4  # users or GPUs in a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A wait of the GPUs in which jobs reported a stall. `gpus` took no part; `devices` are their
    identities. Times in seconds since the epoch; `agreed`: when both were known.
    """

    began: float
    agreed: float
    users: frozenset[int]
    gpus: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a diagnostic is to be requested. `users`: whose reports it used up."""

    code: str
    level: int
    because: str
    users: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A diagnostic that was requested at `time`."""

    time: float
    level: int
    because: str
    users: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait of the GPUs that has not ended, as far as is known."""

    began: float
    gpus: tuple[str, ...]
    devices: tuple[str, ...]


class Suspicion:
    """What was reported within the last weeks, bounded in number."""

    def __init__(self) -> None:
        self._not_finite: dict[int, float] = {}  # by user: when last
        self._stalled: dict[tuple[int, str], float] = {}  # by user and job: since when
        self._wait: _Wait | None = None
        self._stalls: deque[Stall] = deque(maxlen=_MAX_STALLS)  # the oldest first
        self._requests: deque[Request] = deque(maxlen=_MAX_REQUESTS)

    @property
    def last_request(self) -> Request | None:
        return self._requests[-1] if self._requests else None

    def restore(self, events: Iterable[Event]) -> None:
        """Restore from the events of the ledger, oldest first. A wait that went on when the daemon
        stopped is observed anew.
        """
        self._not_finite, self._stalled = {}, {}
        self._stalls.clear()
        self._requests.clear()
        for event in events:
            self.take_event(event)
        self._wait, self._stalled = None, {}

    def take_event(self, event: Event) -> None:
        """Apply an event of `SUSPICION_CODES`; any other changes nothing."""
        if event.is_simulated:
            return
        if event.trust is Trust.JOB:
            self._take_report(event)
        elif event.trust is Trust.DAEMON and event.code == WAITING:
            self._take_wait(event)
        elif event.trust is Trust.DAEMON and event.code == DIAGNOSTIC_REQUESTED:
            self._requests.append(_read_request(event))
        elif event.code == CLOCK_STEPPED and event.is_judged:
            self._shift_times(event.fields.get("seconds"))

    def find_cause(self, now: float, rules: Mapping[str, SuspicionRule]) -> Cause | None:
        """The reason to request a diagnostic; of several, the one with the highest level. What a
        former request used up does not count again.
        """
        causes = (
            self._find_users(now, rules.get(JOB_NOT_FINITE)),
            self._find_stalls(now, rules.get(WAITING)),
        )
        return max(
            (cause for cause in causes if cause is not None),
            key=lambda cause: cause.level,
            default=None,
        )

    def list_marks(self) -> dict[str, Sequence[Mark]]:
        """For the lemon score, by device: the stalls in which one GPU alone took no part. Of
        several, none is known to be the cause.
        """
        marks: dict[str, list[Mark]] = {}
        for stall in self._stalls:
            if len(stall.devices) != 1:
                continue
            (device,) = stall.devices
            mark = Mark(
                device=device, time=stall.agreed, kind=MarkKind.JOB_STALLED_HERE, fault=WAITING
            )
            marks.setdefault(device, []).append(mark)
        return {device: tuple(own) for device, own in marks.items()}

    # --- causes

    def _find_users(self, now: float, rule: SuspicionRule | None) -> Cause | None:
        if rule is None:
            return None
        counted: set[int] = set()
        for request in self._requests:
            if now - request.time <= rule.within_s:
                counted |= request.users
        users = sorted(
            user
            for user, last in self._not_finite.items()
            if now - last <= rule.within_s and user not in counted
        )
        if len(users) < rule.times:
            return None
        because = (
            f"jobs of {len(users)} users ({_list_names(users)}) computed values that are not finite"
            f" within {_format_days(rule.within_s)} ({JOB_NOT_FINITE})"
        )
        return Cause(code=JOB_NOT_FINITE, level=rule.level, because=because, users=tuple(users))

    def _find_stalls(self, now: float, rule: SuspicionRule | None) -> Cause | None:
        if rule is None:
            return None
        after = self._requests[-1].time if self._requests else 0.0
        stalls = [
            stall
            for stall in self._stalls
            if now - stall.agreed <= rule.within_s and stall.agreed > after
        ]
        if len(stalls) < rule.times:
            return None
        gpus = dict.fromkeys(name for stall in stalls for name in stall.gpus)
        because = (
            f"jobs stalled {len(stalls)} times within {_format_days(rule.within_s)} while the GPUs"
            f" waited and {_list_names(gpus)} took no part ({WAITING})"
        )
        return Cause(code=WAITING, level=rule.level, because=because)

    # --- events

    def _take_report(self, event: Event) -> None:
        """The word of a job. Its user is the kernel's."""
        user = event.fields.get("uid")
        if not isinstance(user, int) or isinstance(user, bool):
            return
        job = user, str(event.fields.get("job") or event.fields.get("pod") or "")
        if event.code == JOB_NOT_FINITE:
            _put_last(self._not_finite, user, event.time, _MAX_USERS)
        elif event.code == JOB_STALLED:
            _put_last(self._stalled, job, event.time, _MAX_STALLED_JOBS)
            self._note_stall(event.time)
        elif event.code == JOB_RESUMED:
            self._stalled.pop(job, None)

    def _take_wait(self, event: Event) -> None:
        if event.fields.get("recovered") is True:
            self._wait = None
            return
        seconds = event.fields.get("seconds")
        began = event.time - (seconds if isinstance(seconds, (int, float)) else 0.0)
        devices = _read_names(event.fields, "oddDevices")
        # What cannot be read is named in `odd` after those that take no part
        gpus = _read_names(event.fields, "odd")[: len(devices)]
        self._wait = _Wait(began, gpus, devices)
        self._note_stall(event.time)

    def _note_stall(self, now: float) -> None:
        """The measurement agrees with a report: the GPUs wait, and a job has stalled since."""
        wait = self._wait
        if wait is None or not wait.devices:
            return
        since = wait.began - _BEFORE_S
        users = frozenset(user for (user, _), at in self._stalled.items() if at >= since)
        if not users:
            return
        if self._stalls and self._stalls[-1].began == wait.began:
            former = self._stalls.pop()
            self._stalls.append(replace(former, users=former.users | users))
            return
        recent = [stall.users for stall in self._stalls if now - stall.agreed < _DAY_S]
        if users <= frozenset[int]().union(*recent):
            return
        self._stalls.append(
            Stall(began=wait.began, agreed=now, users=users, gpus=wait.gpus, devices=wait.devices)
        )

    def _shift_times(self, seconds: object) -> None:
        """The clock was stepped: convert past times to the new clock."""
        if not isinstance(seconds, (int, float)):
            return
        self._not_finite = {user: at + seconds for user, at in self._not_finite.items()}
        self._stalled = {job: at + seconds for job, at in self._stalled.items()}
        if self._wait is not None:
            self._wait = replace(self._wait, began=self._wait.began + seconds)
        stalls = [
            replace(stall, began=stall.began + seconds, agreed=stall.agreed + seconds)
            for stall in self._stalls
        ]
        requests = [replace(request, time=request.time + seconds) for request in self._requests]
        self._stalls = deque(stalls, maxlen=_MAX_STALLS)
        self._requests = deque(requests, maxlen=_MAX_REQUESTS)


def _read_request(event: Event) -> Request:
    level, users = event.fields.get("level"), event.fields.get("uids")
    return Request(
        time=event.time,
        level=level if isinstance(level, int) else 0,
        because=str(event.fields.get("because") or ""),
        users=frozenset(users if isinstance(users, list) else ()),
    )


def _read_names(fields: Fields, name: str) -> tuple[str, ...]:
    return tuple(filter(None, str(fields.get(name) or "").split(", ")))


def _put_last(times: dict[_Key, float], key: _Key, time: float, most: int) -> None:
    """Put a time as the last one; of too many, the one that was put first is forgotten."""
    times.pop(key, None)
    times[key] = time
    if len(times) > most:
        del times[next(iter(times))]


def _list_names(names: Iterable[object]) -> str:
    listed = [str(name) for name in names]
    more = [f"{len(listed) - _MAX_NAMED} more"] if len(listed) > _MAX_NAMED else []
    return ", ".join([*listed[:_MAX_NAMED], *more])


def _format_days(seconds: float) -> str:
    return f"{seconds / _DAY_S:g} days" if seconds >= 2 * _DAY_S else f"{seconds / 3600:g} h"
