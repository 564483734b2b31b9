"""
From readings to signs: which of the catalogue's watches hold, and since when.

Owns     what was said last of each component, so that a thing is said once: counters' baselines,
         and what lasts; and what the last look found to hold still, so that the judge can be held
         against it.
Refuses  reading (a source does), and judging: a sign becomes an event, and what that means is the
         catalogue's.

A value that cannot be observed neither begins nor ends anything. What is remembered goes by the
component's identity, and survives a restart as the source's position; a boot, and a reset of the
device, begin it anew.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Union

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.collectors.crossing import (
    MAX_SAMPLES,
    PARTS,
    Crossing,
    crosses_limit,
    describe_crossing,
    find_difference,
    format_value,
    get_carried_fields,
    list_numbers,
    make_crossing,
    replace_unknown_parts,
    thin_samples,
    to_field_value,
    to_number,
    to_whole_number,
)
from vitald.model import Component, ComponentKind, Readings, Sample, Value

_SIGMA = 1.4826  # median absolute deviations to a standard deviation
_SIBLINGS = 3  # fewer have no median worth the name
# Components remembered of which there is nothing to remember: drives and functions may come and go
# for ever
_MAX_COMPONENTS = 16_384
# Counters with windows as long as this are remembered across a restart of the daemon, not of the
# node
_KEPT_S = 3600.0
# When they were last read is remembered to within this, so that it is not stored with every round
_READ_STEP_S = 600.0

# What a watch says of a component: fields and text where it holds, empty where it does not, None
# where that cannot be told.
_Held = Union["tuple[dict[str, Value], str]", "tuple[()]", None]


@dataclass(slots=True)
class _Known:
    """What is remembered of one component."""

    on: dict[str, str] = field(
        default_factory=dict
    )  # codes of states that were said to hold, and the reading that says so
    stood: dict[str, str] = field(
        default_factory=dict
    )  # the same, of before a boot or a reset: to be said again, or to be over
    said: dict[str, Sample] = field(
        default_factory=dict
    )  # code:reading -> the value that was said last
    turning: dict[str, float] = field(
        default_factory=dict
    )  # code -> since when a state is about to begin or to end
    grown: dict[str, deque[tuple[float, tuple[float, ...]]]] = field(
        default_factory=dict
    )  # counters with a window, where they changed
    # When counters with a window were last read; after a restart, within _READ_STEP_S of it
    read_at: float = 0.0
    resumed: set[str] = field(
        default_factory=set
    )  # counters with a window that were not read since a restart of the daemon
    booted: set[str] = field(
        default_factory=set
    )  # code:reading of counters that were not read since a boot or a reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The watches of a catalogue's entries, arranged for looking."""

    by_kind: Mapping[
        ComponentKind, tuple[tuple[ThresholdGroup, frozenset[str]], ...]
    ]  # entries, and the readings they look at
    windows: Mapping[str, float]  # seconds of the longest window over each counter that has one
    window_sizes: Mapping[str, frozenset[float]]
    words: frozenset[str]  # code:reading of states that a reading tells of by changing
    counters: frozenset[str]  # code:reading of counters that begin anew with a boot or a reset

    @staticmethod
    def index_groups(entries: Iterable[ThresholdGroup]) -> Thresholds:
        entries = tuple(entries)
        every = [
            (one, watch, f"{one.code}:{watch.of}") for one in entries for watch in one.thresholds
        ]
        sizes: dict[str, set[float]] = {}
        for _, watch, _ in every:
            if watch.over_s:
                sizes.setdefault(watch.of, set()).add(watch.over_s)
        looked_at = [(one, frozenset(watch.of for watch in one.thresholds)) for one in entries]
        # What is said of a PCI device is said of any.
        by_kind = {
            kind: tuple(
                (one, of) for one, of in looked_at if one.component in (kind, ComponentKind.PCI)
            )
            for kind in ComponentKind
        }
        return Thresholds(
            by_kind=by_kind,
            windows={of: max(found) for of, found in sizes.items()},
            window_sizes={of: frozenset(found) for of, found in sizes.items()},
            words=frozenset(
                key for one, watch, key in every if watch.test is Comparison.CHANGES and one.state
            ),
            counters=frozenset(
                key
                for _, watch, key in every
                if watch.test is Comparison.RISES and not watch.lifetime
            ),
        )


class ThresholdEvaluator:
    """The watches of one source over all its components."""

    def __init__(
        self, watched: Iterable[ThresholdGroup], memory: Mapping[str, Any] | None = None
    ) -> None:
        self._thresholds = Thresholds.index_groups(watched)
        self.holding: list[Crossing] = []  # what was said before, and held at the last look
        self.calm: set[tuple[Component, str]] = (
            set()
        )  # codes of states that did not hold at the last look, and that nobody said
        self._known: dict[str, _Known] = {}
        for identity, stored in (memory or {}).items():
            said = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in stored.get("said", {}).items()
            }
            grown = {
                of: deque((float(at), tuple(map(float, values))) for at, values in samples)
                for of, samples in stored.get("grown", {}).items()
                if of in self._thresholds.windows
            }
            self._known[identity] = _Known(
                on=dict(stored.get("on", {})),
                stood=dict(stored.get("stood", {})),
                said=said,
                grown=grown,
                read_at=float(stored.get("read_at", 0.0)),
                resumed=set(grown),
            )

    def configure(self, watched: Iterable[ThresholdGroup]) -> None:
        """Other watches, the same memory: the catalogue was reloaded."""
        self._thresholds = Thresholds.index_groups(watched)
        self.holding, self.calm = [], set()

    @property
    def memory(self) -> dict[str, Any]:
        """What is to be remembered, for JSON."""
        kept = {}
        for name, one in self._known.items():
            grown = {
                of: list(samples)
                for of, samples in one.grown.items()
                if self._thresholds.windows.get(of, 0.0) >= _KEPT_S and samples
            }
            if one.on or one.stood or one.said or grown:
                read_at = one.read_at // _READ_STEP_S * _READ_STEP_S
                more = {
                    **({"stood": one.stood} if one.stood else {}),
                    **({"grown": grown, "read_at": read_at} if grown else {}),
                }
                kept[name] = {"on": one.on, "said": one.said, **more}
        return kept

    def forget_component(self, identity: str, *, counters: bool = False) -> None:
        """Something was done that ends findings: what still holds is to be said again. `counters`:
        and they begin at zero.
        """
        known = self._known.get(identity)
        if known is not None:
            gone = (
                self._thresholds.words | self._thresholds.counters
                if counters
                else self._thresholds.words
            )
            said = {key: value for key, value in known.said.items() if key not in gone}
            self._known[identity] = _Known(
                stood={**known.stood, **known.on}, said=said, booted=set(said)
            )

    def report_again(self, codes: Collection[str]) -> None:
        """What holds of these is to be said again: their entries ask for something now."""
        for known in self._known.values():
            for code in known.on.keys() & codes:
                known.stood[code] = known.on.pop(code)

    def rename_component(self, former: str, identity: str) -> None:
        """A component that went by another name says who it is."""
        known = self._known.pop(former, None)
        if known is not None and identity not in self._known:
            self._known[identity] = known

    def forget_all(self) -> None:
        """The node was booted. Counters that began anew will show it."""
        for identity in self._known:
            self.forget_component(identity)

    def evaluate_readings(
        self, readings: Sequence[Readings], now: float, siblings: Sequence[Readings] = ()
    ) -> list[Crossing]:
        """What the fresh ones of these readings say that was not said before. `now` is on the
        monotonic clock.

        `siblings`: all components that one of them may be compared with, as they were last read.
        """
        self.holding, self.calm = [], set()
        for one in readings:
            self._note(one, now)
        signs: list[Crossing] = []
        for one in readings:
            for watched, of in self._thresholds.by_kind[one.component.kind]:
                if not of.isdisjoint(one.fresh):
                    signs += (
                        self._lasting(watched, one, siblings, now)
                        if watched.is_state
                        else self._happening(watched, one)
                    )
        if len(self._known) > _MAX_COMPONENTS:
            self._make_room({one.identity for one in readings})
        return signs

    def _make_room(self, needed: Collection[str]) -> None:
        idle = [
            name
            for name, one in self._known.items()
            if name not in needed and not (one.on or one.stood or one.said)
        ]
        for name in idle[: len(self._known) - _MAX_COMPONENTS]:
            del self._known[name]

    # --- what lasts

    def _lasting(
        self, watched: ThresholdGroup, one: Readings, all_: Sequence[Readings], now: float
    ) -> list[Crossing]:
        known = self._known[one.identity]
        held, seen, unseen = None, False, False
        for watch in watched.thresholds:
            found = self._holds(watch, one, all_, now) if watch.of in one.fresh else None
            seen, unseen = seen or found is not None, unseen or found is None
            if found:
                held = watch, found
                break
        was = watched.code in known.on
        said_of = known.on.get(watched.code) or known.stood.get(watched.code)
        if held is None and said_of is not None:
            if said_of not in one.fresh:
                return []  # what it was said of has not been read again
            if (other := self._holds_still(watched, one, all_, now)) is not None:
                (known.on if was else known.stood)[watched.code] = other.of
                known.turning.pop(watched.code, None)
                return []
        if not seen or (was if held is not None else said_of is None):
            known.turning.pop(watched.code, None)
            if held is not None and self._is_present(held[0], known, now):
                self.holding.append(make_crossing(one, watched.code, *held[1]))
            elif held is None and not unseen:
                self.calm.add((one.component, watched.code))
            return []
        if held is not None:
            wait = held[0].for_s
        else:
            # What was seen in a window is over when that has passed; else what is near its limit
            # would come and go.
            wait = max(
                (watch.clears_after_s for watch in watched.thresholds if watch.of == said_of),
                default=0.0,
            )
        if now - known.turning.setdefault(watched.code, now) < wait:
            return []
        del known.turning[watched.code]
        if held is None:
            of = known.on.pop(watched.code, "") or known.stood.pop(watched.code)
            value = one.values.get(of)
            fields: dict[str, Value] = {"recovered": True}
            return [
                make_crossing(
                    one,
                    watched.code,
                    {**fields, of: to_field_value(value)},
                    f"{of} is {format_value(value)} again",
                )
            ]
        watch, (fields, text) = held
        known.stood.pop(watched.code, None)
        known.on[watched.code] = watch.of
        return [
            make_crossing(
                one, watched.code, fields, text + (f" for {watch.for_s:g} s" if watch.for_s else "")
            )
        ]

    def _holds_still(
        self, watched: ThresholdGroup, one: Readings, all_: Sequence[Readings], now: float
    ) -> Threshold | None:
        """Another watch of the entry whose reading was not read in this look, is current, and
        holds.
        """
        others = (
            watch for watch in watched.thresholds if watch.of not in one.fresh and not watch.over_s
        )
        return next((watch for watch in others if self._holds(watch, one, all_, now)), None)

    def _is_present(self, watch: Threshold, known: _Known, now: float) -> bool:
        """Whether what holds is so now. What grew in a window may have been dealt with since; it
        grows still where it grew in this look.
        """
        samples = known.grown.get(watch.of) if watch.over_s else None
        return not watch.over_s or bool(samples and len(samples) > 1 and samples[-1][0] == now)

    def _holds(
        self, watch: Threshold, one: Readings, all_: Sequence[Readings], now: float
    ) -> tuple[dict[str, Value], str] | tuple[()] | None:
        """The event's fields and text where it holds, empty where it does not, None where that
        cannot be told.
        """
        for name, wanted in watch.only.items():
            if name not in one.values:
                return None
            if one.values[name] not in wanted:
                return ()
        values = self._values(watch, one, now)
        if values is None:
            return None
        if watch.test in (Comparison.PEERS_ABOVE, Comparison.PEERS_BELOW):
            return self._among(watch, one, all_, now)
        limit = one.values.get(watch.limit) if isinstance(watch.limit, str) else watch.limit
        if watch.test is Comparison.DIFFERS:
            return find_difference(watch, values[0], limit)
        times = one.values.get(watch.times, None) if watch.times else 1.0
        if not isinstance(limit, (int, float)) or not isinstance(times, (int, float)):
            return None
        limit *= times
        hit = [place for place, value in enumerate(values) if crosses_limit(watch, value, limit)]
        if not hit:
            return ()
        return describe_crossing(watch, one, values, hit, limit)

    def _among(
        self, watch: Threshold, one: Readings, all_: Sequence[Readings], now: float
    ) -> tuple[dict[str, Value], str] | tuple[()] | None:
        """Held against the same reading of its siblings: those of the same model, under the same
        conditions.
        """
        own = self._values(watch, one, now)
        others = [
            float(values[0])
            for other in all_
            if other.identity != one.identity
            and other.values.get("name") == one.values.get("name")
            and all(other.values.get(name) in wanted for name, wanted in watch.only.items())
            and (values := self._values(watch, other, now)) is not None
            and not isinstance(values[0], str)
        ]
        if (
            own is None
            or isinstance(own[0], str)
            or len(others) < _SIBLINGS
            or not isinstance(watch.limit, (int, float))
        ):
            return None
        median = statistics.median(others)
        spread = statistics.median(abs(other - median) for other in others) * _SIGMA
        off = own[0] - median if watch.test is Comparison.PEERS_ABOVE else median - own[0]
        if off <= max(watch.limit * spread, watch.least):
            return ()
        fields: dict[str, Value] = {
            watch.of: round(own[0], 6),
            "median": round(median, 6),
            "deviation": round(spread, 6),
        }
        return fields, f"{watch.of} is {own[0]:g}, its {len(others)} siblings have {median:g}"

    # --- what happens

    def _happening(self, watched: ThresholdGroup, one: Readings) -> list[Crossing]:
        known = self._known[one.identity]
        signs = []
        for watch in watched.thresholds:
            value = one.values.get(watch.of)
            if value is None or watch.of not in one.fresh:
                continue
            key = f"{watched.code}:{watch.of}"
            before = known.said.get(key)
            if watched.state and value == before:
                fields = {watch.of: to_field_value(value), **get_carried_fields(watch, one)}
                self.holding.append(
                    make_crossing(one, watched.code, fields, f"{watch.of} is {format_value(value)}")
                )
            if (
                before == (value if watch.test is Comparison.CHANGES else list_numbers(value))
                and key not in known.booted
            ):
                continue  # as it was: nearly always
            if any(one.values.get(name) not in wanted for name, wanted in watch.only.items()):
                continue
            if watch.test is Comparison.CHANGES:
                crossing = self._compare_word(watched.code, watch, one, known)
            else:
                crossing = self._compare_counter(watched.code, watch, one, known)
            if crossing is not None:
                signs.append(crossing)
        return signs

    def _compare_word(
        self, code: str, watch: Threshold, one: Readings, known: _Known
    ) -> Crossing | None:
        """A crossing if the reading differs from what was reported before.

        If nothing was reported, 0 counts as reported, or whatever text is there first.
        """
        key = f"{code}:{watch.of}"
        value, before = one.values[watch.of], known.said.get(key)
        unreported = value if isinstance(value, str) else 0
        if value != before:
            known.said[key] = value
        if value == (unreported if before is None else before):
            return None
        fields = {
            watch.of: to_field_value(value),
            "was": to_field_value(before),
            **get_carried_fields(watch, one),
        }
        return make_crossing(one, code, fields, f"{watch.of} is {format_value(value)}")

    def _compare_counter(
        self, code: str, watch: Threshold, one: Readings, known: _Known
    ) -> Crossing | None:
        """A crossing if a counter, or a part of it, rose by the limit since it was reported."""
        key = f"{code}:{watch.of}"
        value, before = one.values[watch.of], known.said.get(key)
        now_at, base = list_numbers(value), list_numbers(before)
        if len(base) != len(now_at):
            base = (0.0,) * len(now_at)
        now_at = replace_unknown_parts(now_at, base)
        if before is None and watch.baseline:
            base = now_at
        if key in known.booted:
            # It began anew, unless it is one that nothing begins anew.
            base = tuple(was if was <= at else 0.0 for was, at in zip(base, now_at))
        elif not watch.returns:
            # It fell for no known reason: what it fell to is nothing new.
            base = tuple(map(min, base, now_at))
        least = max(to_number(watch.limit), 1e-9)
        risen = [place for place, (was, at) in enumerate(zip(base, now_at)) if at - was >= least]
        known.said[key] = tuple(
            at if place in risen else was for place, (was, at) in enumerate(zip(base, now_at))
        )
        known.booted.discard(key)
        if not risen:
            return None
        by = sum(now_at[place] - base[place] for place in risen)
        rise: dict[str, Value] = {
            watch.of: to_whole_number(sum(now_at)),
            "rise": to_whole_number(by),
        }
        if isinstance(value, tuple):
            rise[f"{PARTS.get(one.component.kind, 'port')}s"] = list(risen)
        since = "" if before is not None else ", at the first look"
        text = f"{watch.of} rose by {by:g} to {sum(now_at):g}{since}"
        return make_crossing(one, code, rise, text)

    # --- values

    def _note(self, one: Readings, now: float) -> None:
        known = self._known.setdefault(one.identity, _Known())
        stopped_s = now - known.read_at
        for of, window in self._thresholds.windows.items():
            value = one.values.get(of)
            if value is None or isinstance(value, str) or of not in one.fresh:
                continue
            samples, numbers = known.grown.setdefault(of, deque()), list_numbers(value)
            if samples and len(samples[-1][1]) != len(numbers):
                samples.clear()
            if samples:
                numbers = replace_unknown_parts(numbers, samples[-1][1])
            if of in known.resumed:
                known.resumed.discard(of)
                self._spread_growth(of, samples, numbers, stopped_s=stopped_s, now=now)
            known.read_at = now
            if samples and samples[-1][1] == numbers:
                continue  # only what changed tells of growth, and a day's window would be long
            samples.append((now, numbers))
            while len(samples) > 1 and samples[1][0] <= now - window:
                samples.popleft()
            if len(samples) > MAX_SAMPLES and window > _KEPT_S:
                known.grown[of] = thin_samples(samples)

    def _spread_growth(
        self,
        of: str,
        samples: deque[tuple[float, tuple[float, ...]]],
        numbers: tuple[float, ...],
        *,
        stopped_s: float,
        now: float,
    ) -> None:
        """Distribute what a counter grew by while the daemon was stopped evenly over that time.

        Else the growth of days would count as that of the last minute. A stop that fits into a
        window needs no samples in between.
        """
        if (
            not samples
            or samples[-1][1] == numbers
            or any(was > at for was, at in zip(samples[-1][1], numbers))
        ):
            return
        last = samples[-1][1]
        for window in sorted(self._thresholds.window_sizes[of], reverse=True):
            if window < stopped_s and now - window > samples[-1][0]:
                share = 1.0 - window / stopped_s
                samples.append(
                    (
                        now - window,
                        tuple(was + (at - was) * share for was, at in zip(last, numbers)),
                    )
                )

    def _values(
        self, watch: Threshold, one: Readings, now: float
    ) -> tuple[float | str, ...] | None:
        """The value, or one for each part; with a window, how much it grew per unit of time. None:
        not observed.
        """
        value = one.values.get(watch.of)
        if value is None:
            return None
        if not watch.over_s:
            return value if isinstance(value, tuple) else (value,)
        known = self._known.get(one.identity)
        samples = known.grown.get(watch.of) if known is not None else None
        if samples is None or isinstance(value, str):
            return None
        if len(samples) == 1:  # it has not changed since it was first seen
            return (0.0,) * len(samples[0][1])
        inside = [sample for sample in samples if sample[0] > now - watch.over_s]
        before = [sample for sample in samples if sample[0] <= now - watch.over_s]
        inside = before[-1:] + inside
        grown = [0.0] * len(inside[-1][1])
        for (_, earlier), (_, later) in pairwise(inside):
            for place, (was, at) in enumerate(zip(earlier, later)):
                grown[place] += max(0.0, at - was)  # it fell: that is where it counts from
        return tuple(total / watch.over_s * watch.per_s for total in grown)
