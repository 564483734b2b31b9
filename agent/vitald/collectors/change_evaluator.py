"""
Thresholds of occurrences: counters that rise and readings that change, one crossing each time.

They are compared with what was reported last, so that each rise and each change is reported once.
"""

from __future__ import annotations

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.collectors.crossing import (
    PARTS,
    Crossing,
    ObservedStates,
    format_value,
    get_carried_fields,
    list_numbers,
    make_crossing,
    replace_unknown_parts,
    to_field_value,
    to_number,
    to_whole_number,
)
from vitald.collectors.threshold_index import make_key
from vitald.collectors.threshold_memory import ComponentMemory
from vitald.model import Readings, Value

_MIN_RISE = 1e-9


def evaluate_changes(
    group: ThresholdGroup, readings: Readings, memory: ComponentMemory, observed: ObservedStates
) -> list[Crossing]:
    """What this poll read that differs from what was reported of the component.

    A state that is reported by a change, and was reported before, is added to `observed`.
    """
    crossings = []
    for threshold in group.thresholds:
        value = readings.values.get(threshold.of)
        if value is None or threshold.of not in readings.fresh:
            continue
        key = make_key(group.code, threshold.of)
        before = memory.reported.get(key)
        if group.state and value == before:
            fields = {
                threshold.of: to_field_value(value),
                **get_carried_fields(threshold, readings),
            }
            text = f"{threshold.of} is {format_value(value)}"
            observed.holding.append(make_crossing(readings, group.code, fields, text))
        changes = threshold.test is Comparison.CHANGES
        if before == (value if changes else list_numbers(value)) and key not in memory.restarted:
            continue  # unchanged: nearly always
        if any(readings.values.get(name) not in wanted for name, wanted in threshold.only.items()):
            continue
        compare = _compare_word if changes else _compare_counter
        crossing = compare(group.code, threshold, readings, memory)
        if crossing is not None:
            crossings.append(crossing)
    return crossings


def _compare_word(
    code: str, threshold: Threshold, readings: Readings, memory: ComponentMemory
) -> Crossing | None:
    """A crossing if the reading differs from what was reported before.

    If nothing was reported, 0 counts as reported, or whatever text is there first.
    """
    key = make_key(code, threshold.of)
    value, before = readings.values[threshold.of], memory.reported.get(key)
    unreported = value if isinstance(value, str) else 0
    if value != before:
        memory.reported[key] = value
    if value == (unreported if before is None else before):
        return None
    fields = {
        threshold.of: to_field_value(value),
        "was": to_field_value(before),
        **get_carried_fields(threshold, readings),
    }
    return make_crossing(readings, code, fields, f"{threshold.of} is {format_value(value)}")


def _compare_counter(
    code: str, threshold: Threshold, readings: Readings, memory: ComponentMemory
) -> Crossing | None:
    """A crossing if a counter, or a part of it, rose by the limit since it was reported."""
    key = make_key(code, threshold.of)
    value, before = readings.values[threshold.of], memory.reported.get(key)
    base = list_numbers(before)
    current = list_numbers(value)
    if len(base) != len(current):
        base = (0.0,) * len(current)
    current = replace_unknown_parts(current, base)
    if before is None and threshold.baseline:
        base = current
    if key in memory.restarted:
        # The counter was reset, unless it is one that nothing resets.
        base = tuple(was if was <= at else 0.0 for was, at in zip(base, current))
    elif not threshold.returns:
        # It fell for no known reason: its new value is not a change to report.
        base = tuple(map(min, base, current))
    limit = max(to_number(threshold.limit), _MIN_RISE)
    risen = [place for place, (was, at) in enumerate(zip(base, current)) if at - was >= limit]
    memory.reported[key] = tuple(
        at if place in risen else was for place, (was, at) in enumerate(zip(base, current))
    )
    memory.restarted.discard(key)
    if not risen:
        return None
    rise = sum(current[place] - base[place] for place in risen)
    fields: dict[str, Value] = {
        threshold.of: to_whole_number(sum(current)),
        "rise": to_whole_number(rise),
        **get_carried_fields(threshold, readings),
    }
    if isinstance(value, tuple):
        fields[f"{PARTS.get(readings.component.kind, 'port')}s"] = list(risen)
    since = "" if before is not None else ", at the first look"
    text = f"{threshold.of} rose by {rise:g} to {sum(current):g}{since}"
    return make_crossing(readings, code, fields, text)
