"""
What the node object should say, computed from the published state. Pure.

    state ─► conditions, labels, annotation ─► compared with the node ─► one patch, or none

`<prefix>/Healthy` has readiness polarity (True is well), as readiness gates want it;
`<prefix>/RebootRequired` and `<prefix>/ReplacementRequired` have problem polarity, as remediation
controllers want it. Reasons are words of a closed list (docs/reference/reasons.md): policies match
them, so they name no device and no count. A message is for people only.

Source: Kubernetes API v1 NodeCondition; limits of labels from "Labels and Selectors".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vitald.model.reasons import FixedReason
from vitald.model.words import Action, Status
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.text import limit_bytes, replace_unprintable
from vitald.timestamps import format_rfc3339

# What has the prefix, by the words of [kubernetes] that turn it on.
OWN, LABELS, ANNOTATION = "own", "labels", "annotation"
DAEMON_SILENT = FixedReason.DAEMON_SILENT.value
HEARTBEAT_STALE = FixedReason.HEARTBEAT_STALE.value
NOT_REQUIRED = FixedReason.NOT_REQUIRED.value
HELD = FixedReason.HELD.value
MAX_MESSAGE_BYTES = 1024
MAX_ANNOTATION_BYTES = 8 * 1024
_MAX_HOLD_BYTES = 256


class ConditionStatus(Enum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCondition:
    """`changed_at`: since when the status is this, if it has just become so. Seconds since the
    epoch.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredNode:
    """`removed`: types of conditions that must not be there. A label or annotation that must not be
    there has the value None.
    """

    conditions: tuple[DesiredCondition, ...] = ()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


_HEALTHY = {
    Status.HEALTHY: ConditionStatus.TRUE,
    Status.DEGRADED: ConditionStatus.TRUE,
    Status.UNHEALTHY: ConditionStatus.FALSE,
    Status.UNKNOWN: ConditionStatus.UNKNOWN,
}


def build_own_parts(
    state: PublishedState, prefix: str, hold: str | None = None
) -> dict[str, DesiredNode]:
    """By OWN, LABELS and ANNOTATION. `hold`: the text of a person who holds repairs, or None."""
    return {
        OWN: DesiredNode(conditions=_build_conditions(state, prefix, hold)),
        LABELS: DesiredNode(labels=build_labels(state, prefix)),
        ANNOTATION: DesiredNode(annotations=_build_annotation(state, prefix)),
    }


def combine(parts: Iterable[DesiredNode]) -> DesiredNode:
    """All of them in one. No name may be in two of them."""
    listed = list(parts)
    return DesiredNode(
        conditions=tuple(condition for part in listed for condition in part.conditions),
        labels={key: value for part in listed for key, value in part.labels.items()},
        annotations={key: value for part in listed for key, value in part.annotations.items()},
        removed=tuple(type_ for part in listed for type_ in part.removed),
    )


def list_own_types(prefix: str) -> tuple[str, str, str]:
    """The types of the conditions with the prefix."""
    return f"{prefix}/Healthy", f"{prefix}/RebootRequired", f"{prefix}/ReplacementRequired"


def list_label_keys(prefix: str) -> tuple[str, str]:
    """Of the labels with the prefix: a word of Status, and one of Action."""
    return f"{prefix}/status", f"{prefix}/action"


def _build_conditions(
    state: PublishedState, prefix: str, hold: str | None
) -> tuple[DesiredCondition, ...]:
    types = list_own_types(prefix)
    if isinstance(state, DaemonSilent):
        return tuple(build_silent_condition(type_, state) for type_ in types)
    healthy = DesiredCondition(
        type=types[0],
        status=_HEALTHY[state.status],
        reason=state.reason,
        message=format_message(state.lines),
        changed_at=state.changed_at,
    )
    repairs = (state.reboot_reason, state.replacement_reason)
    return (
        healthy,
        *(
            _build_repair(type_, reason, state, hold)
            for type_, reason in zip(types[1:], repairs, strict=True)
        ),
    )


def build_silent_condition(type_: str, state: DaemonSilent) -> DesiredCondition:
    return DesiredCondition(
        type=type_,
        status=ConditionStatus.UNKNOWN,
        reason=DAEMON_SILENT,
        message=limit_bytes(f"vitald does not answer: {state.detail}", MAX_MESSAGE_BYTES),
        changed_at=state.since,
    )


def _build_repair(
    type_: str, reason: str, state: NodeSummary, hold: str | None
) -> DesiredCondition:
    if reason and hold is not None:
        return build_held_condition(type_, ConditionStatus.FALSE, hold, state.lines)
    return DesiredCondition(
        type=type_,
        status=ConditionStatus.TRUE if reason else ConditionStatus.FALSE,
        reason=reason or NOT_REQUIRED,
        message=format_message(state.lines) if reason else "",
        changed_at=state.changed_at,
    )


def build_held_condition(
    type_: str, status: ConditionStatus, hold: str, lines: Sequence[str]
) -> DesiredCondition:
    """`status`: of one that asks for no repair. `lines`: what the repair would be for."""
    held = limit_bytes(f"held by an annotation: {hold}", _MAX_HOLD_BYTES)
    return DesiredCondition(
        type=type_,
        status=status,
        reason=HELD,
        message=format_message([held, *lines]),
        changed_at=0.0,  # held since now, whenever its finding changed
    )


def build_labels(state: PublishedState, prefix: str) -> dict[str, str]:
    """Few values, so that selectors and metrics stay small: neither codes nor devices."""
    status, action = Status.UNKNOWN, Action.NONE
    if not isinstance(state, DaemonSilent):
        status, action = state.status, state.action
    words = (status.value, action.value)
    return dict(zip(list_label_keys(prefix), words, strict=True))


def _build_annotation(state: PublishedState, prefix: str) -> dict[str, str]:
    """The open findings as JSON, for tools. While the daemon is silent, those that were published
    last stay.
    """
    if isinstance(state, DaemonSilent):
        return {}
    return {get_annotation_key(prefix): format_findings(state.findings, state.open_findings)}


def get_annotation_key(prefix: str) -> str:
    return f"{prefix}/findings"


def get_hold_key(prefix: str) -> str:
    """The annotation with which a person holds repairs: read here, never written."""
    return f"{prefix}/hold"


def format_findings(findings: Sequence[FindingSummary], open_findings: int) -> str:
    """`{"open": 2, "findings": [...]}`, with as many findings as fit in MAX_ANNOTATION_BYTES."""
    fitting: list[str] = []
    size = len(f'{{"open":{open_findings},"findings":[]}}')
    for finding in findings:
        entry = json.dumps(_describe_finding(finding), separators=(",", ":"))
        size += len(entry) + 1
        if size > MAX_ANNOTATION_BYTES:
            break
        fitting.append(entry)
    return f'{{"open":{open_findings},"findings":[{",".join(fitting)}]}}'


def _describe_finding(finding: FindingSummary) -> dict[str, object]:
    return {
        "component": finding.component,
        "code": finding.code,
        "action": finding.action.value,
        "when": finding.when.value,
        "since": format_rfc3339(finding.since, "seconds"),
        "confirmed": finding.confirmed,
        "device": finding.device,
    }


def format_message(lines: Sequence[str]) -> str:
    """The lines that fit in MAX_MESSAGE_BYTES, and how many more there are."""
    if not lines:
        return "no open findings"
    shown = limit_bytes(lines[0], MAX_MESSAGE_BYTES - 64)
    for position, line in enumerate(lines[1:], start=1):
        longer = f"{shown}; {replace_unprintable(line)}"
        if len(longer.encode()) > MAX_MESSAGE_BYTES - 64:
            left = len(lines) - position
            return f"{shown}; and {left} more: vitald findings"
        shown = longer
    return shown
