"""
The difference between the node object and what it should say, as one patch. Pure.

What is written follows from the present state and from nothing else, so that what another writer
removed or changed is repaired by the next comparison.

`lastTransitionTime` is ours to keep: the API server computes nothing. Readers count from it (after
ten minutes, Karpenter replaces a node), so it moves only when the status changes: not with the
reason, not with a second fault, not after a restart, not because another writer removed the
condition, and not because the status was Unknown for less than SILENCE_S.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from vitald.publish.kubernetes.desired import (
    HEARTBEAT_STALE,
    HELD,
    ConditionStatus,
    DesiredCondition,
    DesiredNode,
)
from vitald.publish.kubernetes.node_object import (
    NameKind,
    NodeCondition,
    NodeName,
    NodeObject,
    list_by_kind,
)
from vitald.timestamps import format_rfc3339, parse_rfc3339

SILENCE_S = 300.0  # a daemon that was restarted has answered again by then


@dataclass(frozen=True, slots=True)
class LastTransition:
    """The status of a condition and its reason, and since when. Seconds since the epoch.

    `before`: what was true before nothing was known; None for any other status.
    """

    status: str
    at: float
    reason: str = ""
    before: LastTransition | None = None


def decide_transition(
    desired: DesiredCondition,
    remembered: LastTransition | None,
    present: NodeCondition | None,
    now: float,
) -> LastTransition:
    """The present status and since when it is that.

    `remembered` is this process's own record, which outlives a restart; the node's condition is
    the fallback where that was lost, or where the sweep has made it Unknown since.
    Otherwise the status is new: since the ledger's last change, if that was after the former
    transition; else since now. A repair that was held is due since now.
    """
    status, reason = desired.status.value, desired.reason
    if present is not None and present.reason == HEARTBEAT_STALE:
        remembered = None
    continued = None if remembered is None else _find_continued(remembered, status, reason, now)
    if continued is not None:
        # A clock that was ahead may have been set back since.
        return replace(continued, at=min(continued.at, now), reason=reason)
    earliest = 0.0 if remembered is None else remembered.at
    written = None if present is None else _read_time(present.last_transition)
    if remembered is None and present is not None and written is not None:
        if present.status == status:
            return LastTransition(status, min(written, now), reason)
        earliest = written
    former = remembered or present
    was_held = former is not None and former.reason == HELD
    explains = earliest < desired.changed_at <= now and not was_held
    before = remembered if desired.status is ConditionStatus.UNKNOWN else None
    return LastTransition(status, desired.changed_at if explains else now, reason, before)


def _find_continued(
    remembered: LastTransition, status: str, reason: str, now: float
) -> LastTransition | None:
    """What has been true all the time, also while nothing was known for a moment."""
    if remembered.status == status:
        return remembered
    before = remembered.before
    is_same = before is not None and (before.status, before.reason) == (status, reason)
    return before if is_same and now - remembered.at < SILENCE_S else None


def build_patch(
    desired: DesiredNode,
    transitions: Mapping[str, LastTransition],
    node: NodeObject,
    now: float,
    heartbeat_s: float,
) -> dict[str, object] | None:
    """A strategic merge patch of the node's status; None if the node says it all, and said so
    within `heartbeat_s`.
    """
    conditions = [
        _complete(condition, transitions[condition.type], now) for condition in desired.conditions
    ]
    present = [node.conditions.get(condition.type) for condition in conditions]
    removed = [type_ for type_ in desired.removed if type_ in node.conditions]
    is_same = (
        all(_says(there, here) for there, here in zip(present, conditions, strict=True))
        and all(node.labels.get(key) == value for key, value in desired.labels.items())
        and all(node.annotations.get(key) == value for key, value in desired.annotations.items())
        and not removed
    )
    if is_same and not _is_heartbeat_due(present, now, heartbeat_s):
        return None
    return {
        "metadata": {"labels": dict(desired.labels), "annotations": dict(desired.annotations)},
        "status": {
            "conditions": [condition.to_json() for condition in conditions]
            + delete_conditions(removed)
        },
    }


def build_removal(names: Collection[NodeName]) -> dict[str, object]:
    """A strategic merge patch of the status that removes these."""
    return {
        "metadata": {
            "labels": dict.fromkeys(list_by_kind(names, NameKind.LABEL)),
            "annotations": dict.fromkeys(list_by_kind(names, NameKind.ANNOTATION)),
        },
        "status": {"conditions": delete_conditions(list_by_kind(names, NameKind.CONDITION))},
    }


def delete_conditions(types: list[str]) -> list[dict[str, object]]:
    return [{"type": type_, "$patch": "delete"} for type_ in types]


def _complete(condition: DesiredCondition, transition: LastTransition, now: float) -> NodeCondition:
    return NodeCondition(
        type=condition.type,
        status=condition.status.value,
        reason=condition.reason,
        message=condition.message,
        last_transition=format_rfc3339(transition.at, "seconds"),
        last_heartbeat=format_rfc3339(now, "seconds"),
    )


def _says(there: NodeCondition | None, here: NodeCondition) -> bool:
    """Whether the node has the condition, its heartbeat apart."""
    return there is not None and (
        (there.status, there.reason, there.message, there.last_transition)
        == (here.status, here.reason, here.message, here.last_transition)
    )


def _is_heartbeat_due(
    conditions: list[NodeCondition | None], now: float, heartbeat_s: float
) -> bool:
    """Whether one of the conditions was not written within `heartbeat_s`. A time in the future is
    of a clock that was ahead.
    """
    times = [
        None if condition is None else _read_time(condition.last_heartbeat)
        for condition in conditions
    ]
    return any(time is None or not 0.0 <= now - time < heartbeat_s for time in times)


def _read_time(text: str) -> float | None:
    try:
        return parse_rfc3339(text).timestamp()
    except ValueError:
        return None
