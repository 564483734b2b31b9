"""
Thresholds: when a reading of a component means a fault, as data.

A threshold applies to one reading. It takes the value or, with `over`, the growth of a counter in a
window, and compares it with a number, another reading of the same component, or its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union

from vitald import tomlfile
from vitald.model.words import ComponentKind

Limit = Union[float, str]  # a number, or the name of another reading
Plain = Union[int, float, str]


class Comparison(Enum):
    """How a value is compared."""

    ABOVE = "above"  # more than the limit
    BELOW = "below"  # less than it
    IS = "is"  # one of these values
    HAS = "has"  # one of these bits set
    LISTS = "lists"  # a comma-separated text that contains one of these
    LISTS_OTHER = "lists_other"  # a comma-separated text that contains any other
    PEERS_ABOVE = "peers_above"  # number of deviations above the median of its siblings
    PEERS_BELOW = "peers_below"
    # A counter rose by at least this since the last event: an event each time
    RISES = "rises"
    CHANGES = "changes"  # another value than in the last event: an event each time
    DIFFERS = "differs"  # a text that is none of those in the comma-separated reading `limit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One threshold. `limit` is the number, or the name of the reading, that `test` needs."""

    of: str
    test: Comparison
    limit: Limit = 0.0
    values: tuple[Plain, ...] = ()
    over_s: float = 0.0  # compare the growth of a counter in this window
    per_s: float = 60.0  # the unit of that growth
    times: str = ""  # multiply the limit by this reading
    min_distance: float = 0.0  # among siblings: smallest distance from their median
    lifetime: bool = False  # a counter that no reset clears
    # The first value of a counter is ignored: only its growth counts
    baseline: bool = False
    # A counter that may read less for a while: only values above its maximum count
    returns: bool = False
    for_s: float = 0.0  # how long it must hold
    # How long it must not hold to be over; None: as long as it had to hold
    clear_for_s: float | None = None
    # It applies only while these readings have these values
    only: Mapping[str, tuple[Plain, ...]] = field(default_factory=dict)
    carry: tuple[str, ...] = ()  # other readings that its event carries, for the entry's cases

    @property
    def is_state(self) -> bool:
        """Whether it is a state that begins and ends, not a single occurrence."""
        return self.test not in (Comparison.RISES, Comparison.CHANGES)

    @property
    def clears_after_s(self) -> float:
        """How long it must not hold to be over; for growth at least its window."""
        return max(self.for_s, self.over_s) if self.clear_for_s is None else self.clear_for_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdGroup:
    """The thresholds of one entry: it holds while one of them does."""

    code: str
    component: ComponentKind
    thresholds: tuple[Threshold, ...]
    # The state lasts until another event, so it is reported again after a boot
    state: bool = False

    @property
    def is_state(self) -> bool:
        return self.thresholds[0].is_state


_TESTS = {test.value: test for test in Comparison}
_KEYS = (
    "of",
    "over",
    "per",
    "times",
    "min_distance",
    "lifetime",
    "baseline",
    "returns",
    "for",
    "clear_for",
    "only",
    "carry",
    *_TESTS,
)


def read_threshold(table: Mapping[str, Any]) -> Threshold:
    """From `{ of = "temperature_celsius", above = 90, for = "1m" }`. Raises ValueError, naming the
    key.
    """
    key = _find_test(table)
    test = _TESTS[key]
    values, limit = _read_limit(key, test, table[key])
    over_s = _read_duration(table, "over")
    _check_combination(table, key, over_s)
    only, carry = _read_only(table), _read_carry(table)
    return Threshold(
        of=table["of"],
        test=test,
        limit=limit,
        values=values,
        over_s=over_s,
        per_s=tomlfile.parse_duration(table.get("per", "1m")),
        times=str(table.get("times", "")),
        min_distance=float(table.get("min_distance", 0.0)),
        lifetime=table.get("lifetime") is True,
        baseline=table.get("baseline") is True,
        returns=table.get("returns") is True,
        for_s=_read_duration(table, "for"),
        clear_for_s=_read_duration(table, "clear_for") if "clear_for" in table else None,
        only=only,
        carry=carry,
    )


def _find_test(table: Mapping[str, Any]) -> str:
    """The key of the comparison, in a table that has only known keys and one reading."""
    tomlfile.refuse_unknown_keys(table, _KEYS)
    tests = [key for key in table if key in _TESTS]
    if len(tests) != 1:
        raise ValueError(f"needs exactly one of {', '.join(_TESTS)}")
    if not isinstance(table.get("of"), str):
        raise ValueError("of: expected the name of a reading")
    return tests[0]


def _check_combination(table: Mapping[str, Any], key: str, over_s: float) -> None:
    """Refuse keys that have no meaning for this comparison."""
    test = _TESTS[key]
    if "per" in table and not over_s:
        raise ValueError("per: needs `over`, the window in which it grows")
    lasting = "for" in table or "clear_for" in table or over_s
    if lasting and test in (Comparison.RISES, Comparison.CHANGES):
        raise ValueError(f"{key}: what only happens has neither `for`, `clear_for` nor `over`")
    for name in ("baseline", "returns"):
        if name in table and test is not Comparison.RISES:
            raise ValueError(f"{name}: belongs to `rises`")


def _read_duration(table: Mapping[str, Any], key: str) -> float:
    """Seconds; 0 if the key is not given."""
    return tomlfile.parse_duration(table[key]) if key in table else 0.0


def _read_only(table: Mapping[str, Any]) -> dict[str, tuple[Plain, ...]]:
    only = table.get("only", {})
    if not isinstance(only, dict):
        raise ValueError("only: expected { reading = value }")
    return {name: _read_plain(f"only.{name}", value) for name, value in only.items()}


def _read_carry(table: Mapping[str, Any]) -> tuple[str, ...]:
    carry = table.get("carry", [])
    if not isinstance(carry, list) or not all(isinstance(name, str) for name in carry):
        raise ValueError("carry: expected a list of names of readings")
    return tuple(carry)


def _read_limit(key: str, test: Comparison, given: object) -> tuple[tuple[Plain, ...], Limit]:
    """The values and the limit of a comparison, of which one is empty. Raises ValueError."""
    if test in (Comparison.IS, Comparison.HAS, Comparison.LISTS, Comparison.LISTS_OTHER):
        return _read_plain(key, given), 0.0
    if test is Comparison.DIFFERS:
        if not isinstance(given, str):
            raise ValueError(f"{key}: expected the name of a reading, found {given!r}")
        return (), given
    if isinstance(given, bool) and test is not Comparison.CHANGES:
        raise ValueError(f"{key}: expected a number or the name of a reading, found {given!r}")
    if isinstance(given, str) and test in (Comparison.ABOVE, Comparison.BELOW):
        return (), given
    if not isinstance(given, (int, float)):
        raise ValueError(f"{key}: expected a number, found {given!r}")
    return (), given


def _read_plain(key: str, value: object) -> tuple[Plain, ...]:
    values = value if isinstance(value, list) else [value]
    plain = tuple(item for item in values if isinstance(item, (int, float, str)))
    if not plain or len(plain) != len(values):
        raise ValueError(f"{key}: expected a number, a string, or a list of them, found {value!r}")
    return plain
