"""
A device's history: marks of past faults and remedies, for escalation and for the lemon score.

    a fault that comes back after its remedy, or in many processes  ->  escalation
    the marks of the last weeks, weighted and decaying              ->  the lemon score (advice)

The history belongs to the device (UUID, serial), not to the slot: it follows a board that is moved,
and a new board in the slot starts with an empty one. It is bounded in time by the windows of the
catalogue, and in size by a number of marks per device.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from vitald.catalog import Catalog
from vitald.catalog.escalation import EscalationStep, LemonScoring
from vitald.model.component import Component, Mark, MarkKind
from vitald.model.event import Fields
from vitald.model.finding import Changes, Requirement
from vitald.model.words import Action

_MAX_MARKS = 256
# Processes with one fault at one location of a device; beyond that only one in a while is kept
_MAX_PROCESSES = 64
_MARK_INTERVAL_S = 86400.0 / _MAX_PROCESSES
_MAX_DEVICES = 4096  # forged lines may name any number of devices
# The time of a boot is computed from a clock that was not set yet: a fault may seem to come before
# its remedy
_CLOCK_TOLERANCE_S = 600.0
NO_DATE = 315_360_000.0  # ten years: times below are those of a saved log without dates


@dataclass(frozen=True, slots=True)
class ScorePart:
    """Contribution of one kind of mark to a score."""

    kind: MarkKind
    count: int
    points: float


MarkKey = tuple[MarkKind, str, float]


class _ProcessTimes:
    """The processes that had one fault, sorted by time: their number within a window is computed
    for every line of a burst.
    """

    def __init__(self) -> None:
        self._met: list[tuple[float, str]] = []
        self._who: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._met)

    @property
    def last(self) -> float:
        return self._met[-1][0]

    def add_process(self, time: float, process: str) -> None:
        insort(self._met, (time, process))
        self._who[process] += 1

    def count_within(self, first: float, last: float) -> int:
        """Number of different processes from `first` to `last`."""
        begin, end = bisect_left(self._met, (first,)), bisect_right(self._met, (last, _AFTER_ALL))
        if len(self._who) == len(self._met):
            return end - begin
        return len({process for _, process in self._met[begin:end]})


_AFTER_ALL = "\U0010ffff"


class DeviceHistory:
    """The marks of every device, each once. Methods take the present time as an argument."""

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self._of: dict[str, dict[MarkKey, Mark]] = {}
        for mark in marks:
            self._of.setdefault(mark.device, {})[_make_key(mark)] = mark
        self._changes = Changes()
        # By device, then by fault and location; filled on demand
        self._met: dict[str, dict[tuple[str, str], _ProcessTimes]] = {}

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(mark for own in self._of.values() for mark in own.values())

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._of)

    def take_changes(self) -> Changes:
        """The changes since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    def add_mark(
        self, device: str, time: float, kind: MarkKind, fault: str, detail: str = ""
    ) -> bool:
        """Add a mark. Returns False for one that exists: an incident is one fault, however many
        lines.
        """
        if kind is MarkKind.PROCESS and self._is_storm(device, time, fault, detail):
            return False
        mark = Mark(device=device, time=time, kind=kind, fault=fault, detail=detail)
        own = self._of.get(device)
        if own is None:
            if len(self._of) >= _MAX_DEVICES:
                return False
            own = self._of[device] = {}
        key = _make_key(mark)
        if key in own:
            return False
        forgotten = self._changes.forgotten
        if len(own) >= _MAX_MARKS:
            forgotten = (
                *forgotten,
                own.pop(next((key for key in own if key[0] is MarkKind.PROCESS), next(iter(own)))),
            )
            self._met.pop(device, None)
        own[key] = mark
        if kind is MarkKind.PROCESS and device in self._met:
            _add_process(self._met[device], mark)
        self._changes = replace(
            self._changes, marks=(*self._changes.marks, mark), forgotten=forgotten
        )
        return True

    def _is_storm(self, device: str, time: float, fault: str, detail: str) -> bool:
        """Whether so many processes had the fault at this location that one more adds nothing."""
        met = self._get_processes(device).get((fault, _read_location(detail)))
        return met is not None and len(met) >= _MAX_PROCESSES and time - met.last < _MARK_INTERVAL_S

    def _get_processes(self, device: str) -> dict[tuple[str, str], _ProcessTimes]:
        known = self._met.get(device)
        if known is None:
            known = self._met[device] = {}
            for mark in self.list_marks(device):
                if mark.kind is MarkKind.PROCESS:
                    _add_process(known, mark)
        return known

    def forget_mark(self, mark: Mark) -> None:
        """Remove a mark."""
        self._met.pop(mark.device, None)
        if self._of.get(mark.device, {}).pop(_make_key(mark), None) is not None:
            self._changes = replace(self._changes, forgotten=(*self._changes.forgotten, mark))

    def adopt_marks(self, marks: Iterable[Mark]) -> None:
        """Add marks from another ledger."""
        self._met = {}
        for mark in marks:
            self._of.setdefault(mark.device, {}).setdefault(_make_key(mark), mark)

    def list_marks(self, device: str) -> Collection[Mark]:
        return self._of.get(device, {}).values()

    def rename_device(self, old: str, new: str) -> None:
        """Move the history of a slot to its device, once that is identified."""
        self._met = {}
        former = self._of.pop(old, None)
        if former is None:
            return
        own = self._of.setdefault(new, {})
        for mark in former.values():
            moved = replace(mark, device=new)
            own.setdefault(_make_key(moved), moved)
        now = self._map_changes(
            lambda mark: replace(mark, device=new) if mark.device == old else mark
        )
        self._changes = replace(now, renamed=(*now.renamed, (old, new)))

    def shift_times(self, seconds: float) -> None:
        """Shift all times after a step of the clock."""
        self._met = {}
        for device, marks in self._of.items():
            shifted = (replace(mark, time=mark.time + seconds) for mark in marks.values())
            self._of[device] = {_make_key(mark): mark for mark in shifted}
        now = self._map_changes(lambda mark: replace(mark, time=mark.time + seconds))
        self._changes = replace(now, shifted=now.shifted + seconds)

    def _map_changes(self, change: Callable[[Mark], Mark]) -> Changes:
        """The pending changes, converted as the ledger converts what it has stored."""
        marks, forgotten = (
            tuple(map(change, some)) for some in (self._changes.marks, self._changes.forgotten)
        )
        return replace(self._changes, marks=marks, forgotten=forgotten)

    def find_failed_remedies(
        self, device: str, fault: str, now: float, window_s: float, of: Action = Action.RESET_DEVICE
    ) -> list[Mark]:
        """The completed remedies of this fault, of at least that strength, that failed if the fault
        is seen now. Oldest first.
        """
        return [
            mark
            for mark in self.list_marks(device)
            if mark.kind is MarkKind.REMEDY
            and mark.fault == fault
            and -_CLOCK_TOLERANCE_S <= now - mark.time <= window_s
            and Action(mark.detail).rank >= of.rank
        ]

    def find_escalation(
        self,
        device: str,
        component: Component,
        fault: str,
        fields: Fields,
        now: float,
        steps: Iterable[EscalationStep],
        *,
        times: int,
    ) -> Requirement | None:
        """The requirement of the last of the policy's steps that is reached; None if none is.

        `times`: how often its finding was seen.
        """
        last: Requirement | None = None
        for step in steps:
            if step.of is not None:
                because = self._check_remedies(device, fault, now, step, step.of)
            elif step.times:
                because = (
                    f"it was seen {times} times without its remedy" if times >= step.times else ""
                )
            elif step.processes:
                because = self._check_processes(device, component, fault, fields, now, step)
            else:
                because = ""  # a wait, which `expiry` evaluates
            if because:
                last = replace(step.requirement, reason=because)
        return last

    def _check_remedies(
        self, device: str, fault: str, now: float, step: EscalationStep, of: Action
    ) -> str:
        done = self.find_failed_remedies(device, fault, now, step.within_s, of)
        if len(done) < step.remedies:
            return ""
        tried = " and ".join(
            f"{Action(mark.detail).phrase}, done {_format_day(mark.time)}" for mark in done[-3:]
        )
        return f"it came back after its remedy ({tried})"

    def _check_processes(
        self,
        device: str,
        component: Component,
        fault: str,
        fields: Fields,
        now: float,
        step: EscalationStep,
    ) -> str:
        place = format_location(fields, step.same)
        if step.same and not place:
            return ""
        seen = self._count_processes(device, fault, place, now, step.within_s)
        if seen < step.processes:
            return ""
        kind = component.kind.value
        if any(
            self._count_processes(other, fault, "", now, step.within_s) * 2 >= seen
            for other in self._of
            if other != device
        ):
            return ""  # the application fails on other devices as well: not a fault of this one
        return (
            f"{seen} different processes had it on this {kind} within {format_span(step.within_s)},"
            " and hardly any elsewhere"
        )

    def _count_processes(
        self, device: str, fault: str, place: str, now: float, window_s: float
    ) -> int:
        met = self._get_processes(device).get((fault, place))
        return met.count_within(now - window_s, now) if met is not None else 0

    def compute_score(
        self, device: str, now: float, lemon: LemonScoring
    ) -> tuple[float, list[ScorePart]]:
        """The lemon score and its parts, the largest first."""
        counts: dict[MarkKind, tuple[int, float]] = {}
        # The scheduler may report later which job died with an incident: that is the same failure.
        named = {
            mark.detail.partition(" job ")[0]
            for mark in self.list_marks(device)
            if mark.kind is MarkKind.JOB_DIED and " job " in mark.detail
        }
        for mark in self.list_marks(device):
            if mark.kind is MarkKind.JOB_DIED and mark.detail in named:
                continue
            weight, age = lemon.weights.get(mark.kind, 0.0), now - mark.time
            if weight and 0 <= age <= lemon.window_s:
                count, points = counts.get(mark.kind, (0, 0.0))
                counts[mark.kind] = count + 1, points + weight * 0.5 ** (age / lemon.half_life_s)
        parts = [
            ScorePart(kind, count, round(points, 2)) for kind, (count, points) in counts.items()
        ]
        return round(sum(part.points for part in parts), 2), sorted(
            parts, key=lambda part: -part.points
        )


def _make_key(mark: Mark) -> MarkKey:
    """What identifies a mark: its detail (the incident), or its time for remedies and the like."""
    timed = mark.kind in (
        MarkKind.REMEDY,
        MarkKind.REMOVED,
        MarkKind.DIAGNOSTIC_FAILED,
        MarkKind.ACCEPTED,
    )
    if timed:
        return mark.kind, mark.fault, mark.time
    if mark.kind is MarkKind.PROCESS:
        return mark.kind, f"{mark.fault} {mark.detail}", 0.0
    return mark.kind, mark.detail, 0.0


def _read_location(detail: str) -> str:
    return detail.partition(" ")[2]


def _add_process(known: dict[tuple[str, str], _ProcessTimes], mark: Mark) -> None:
    """Count a process at its location, and for the device as a whole."""
    process = mark.detail.partition(" ")[0]
    for place in dict.fromkeys(("", _read_location(mark.detail))):
        known.setdefault((mark.fault, place), _ProcessTimes()).add_process(mark.time, process)


def format_location(fields: Fields, names: Iterable[str]) -> str:
    """Location in the device, by the named fields: `gpc=2,tpc=1`."""
    return ",".join(f"{name}={fields[name]}" for name in names if fields.get(name) is not None)


def format_process(fields: Fields, boot_id: str, names: Iterable[str]) -> str:
    """Detail of a process mark: process and location. Empty if the line names no process."""
    pid = fields.get("pid")
    return (
        f"{boot_id[:8]}:{pid} {format_location(fields, names)}".rstrip()
        if isinstance(pid, int)
        else ""
    )


def _format_day(time: float) -> str:
    if time < NO_DATE:
        return f"{time:.0f} s after the start"
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def format_span(seconds: float) -> str:
    """Hours or days: `12 h`, `3 days`."""
    return f"{seconds / 86400:g} days" if seconds >= 2 * 86400 else f"{seconds / 3600:g} h"


def list_location_fields(catalog: Catalog, code: str) -> tuple[str, ...]:
    """The fields of a code's events that distinguish locations in a device."""
    steps = catalog.escalation_policies[catalog.find_rule(code).escalation].steps
    return tuple(dict.fromkeys(name for step in steps for name in step.same))
