"""
What the node object should say, computed from the published state. Pure.

    state ─► conditions, labels, annotation ─► compared with the node ─► one patch, or none

`<prefix>/Healthy` and `<prefix>/Validated` have readiness polarity (True is well), as readiness
gates want it; `<prefix>/RebootRequired` and `<prefix>/ReplacementRequired` have problem polarity,
as remediation controllers want it. Reasons are words of a closed list (docs/reference/reasons.md):
policies match them, so they name no device and no count. A message is for people only.

Source: Kubernetes API v1 NodeCondition; limits of labels from "Labels and Selectors".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vitald.model import Action, Status
from vitald.model.advice import Advice
from vitald.model.codes import VALIDATION_FAILED, VALIDATION_PENDING
from vitald.model.validation import ValidationStage
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.reasons import FixedReason, make_reason
from vitald.text import limit_bytes, replace_unprintable
from vitald.timestamps import format_rfc3339

DAEMON_SILENT = FixedReason.DAEMON_SILENT.value
NOT_REQUIRED = FixedReason.NOT_REQUIRED.value
MAX_MESSAGE_BYTES = 1024
MAX_ANNOTATION_BYTES = 8 * 1024


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

    conditions: tuple[DesiredCondition, ...]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


_VALIDATED = {
    ValidationStage.OFF: (ConditionStatus.UNKNOWN, FixedReason.VALIDATION_OFF.value),
    ValidationStage.NONE: (ConditionStatus.TRUE, NOT_REQUIRED),
    ValidationStage.PENDING: (ConditionStatus.FALSE, make_reason(VALIDATION_PENDING)),
    ValidationStage.FAILED: (ConditionStatus.FALSE, make_reason(VALIDATION_FAILED)),
}
_HEALTHY = {
    Status.HEALTHY: ConditionStatus.TRUE,
    Status.DEGRADED: ConditionStatus.TRUE,
    Status.UNHEALTHY: ConditionStatus.FALSE,
    Status.UNKNOWN: ConditionStatus.UNKNOWN,
}


def build_desired_node(
    state: PublishedState, prefix: str, *, labels: bool, annotation: bool, own: bool = True
) -> DesiredNode:
    """What the node should say. `labels`, `annotation`, `own`: whether these, and the conditions
    with the prefix, are written.
    """
    return DesiredNode(
        conditions=_build_conditions(state, prefix) if own else (),
        labels=build_labels(state, prefix) if labels else {},
        annotations=_build_annotations(state, prefix) if annotation else {},
    )


def list_own_types(prefix: str) -> tuple[str, str, str, str]:
    """The types of the conditions with the prefix."""
    return (
        f"{prefix}/Healthy",
        f"{prefix}/RebootRequired",
        f"{prefix}/ReplacementRequired",
        f"{prefix}/Validated",
    )


def _build_conditions(state: PublishedState, prefix: str) -> tuple[DesiredCondition, ...]:
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
    return (
        healthy,
        _build_repair(types[1], state.reboot_reason, state),
        _build_repair(types[2], state.replacement_reason, state),
        _build_validated(types[3], state),
    )


def _build_validated(type_: str, state: NodeSummary) -> DesiredCondition:
    """Unknown where no validation is carried out: nothing says that the node is validated."""
    status, reason = _VALIDATED[state.validation or ValidationStage.OFF]
    return DesiredCondition(
        type=type_,
        status=status,
        reason=reason,
        message=limit_text(state.validation_detail),
        changed_at=state.changed_at,
    )


def build_silent_condition(type_: str, state: DaemonSilent) -> DesiredCondition:
    return DesiredCondition(
        type=type_,
        status=ConditionStatus.UNKNOWN,
        reason=DAEMON_SILENT,
        message=limit_text(f"vitald does not answer: {state.detail}"),
        changed_at=state.since,
    )


def _build_repair(type_: str, reason: str, state: NodeSummary) -> DesiredCondition:
    return DesiredCondition(
        type=type_,
        status=ConditionStatus.TRUE if reason else ConditionStatus.FALSE,
        reason=reason or NOT_REQUIRED,
        message=format_message(state.lines) if reason else "",
        changed_at=state.changed_at,
    )


def build_labels(state: PublishedState, prefix: str) -> dict[str, str]:
    """Few values, so that selectors and metrics stay small: neither codes nor devices."""
    status, action = Status.UNKNOWN, Action.NONE
    if not isinstance(state, DaemonSilent):
        status, action = state.status, state.action
    return {f"{prefix}/status": status.value, f"{prefix}/action": action.value}


def _build_annotations(state: PublishedState, prefix: str) -> dict[str, str | None]:
    """The open findings as JSON, for tools, and the advice to jobs while they should save. While
    the daemon is silent, those that were published last stay.
    """
    if isinstance(state, DaemonSilent):
        return {}
    findings, save = list_annotation_keys(prefix)
    advice = state.advice
    return {
        findings: format_findings(state.findings, state.open_findings),
        save: _format_advice(advice) if advice is not None and advice.save else None,
    }


def list_annotation_keys(prefix: str) -> tuple[str, str]:
    """The annotations with the prefix: the findings, and the advice to save."""
    return f"{prefix}/findings", f"{prefix}/save-advised"


def _format_advice(advice: Advice) -> str:
    return json.dumps(
        {
            "why": advice.why,
            "action": advice.action,
            "when": advice.when,
            "by": format_rfc3339(advice.by, "seconds") if advice.by is not None else None,
        },
        separators=(",", ":"),
    )


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
    shown = limit_text(lines[0], MAX_MESSAGE_BYTES - 64)
    for position, line in enumerate(lines[1:], start=1):
        longer = f"{shown}; {replace_unprintable(line)}"
        if len(longer.encode()) > MAX_MESSAGE_BYTES - 64:
            left = len(lines) - position
            return f"{shown}; and {left} more: vitald findings"
        shown = longer
    return shown


def limit_text(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """Printable, and at most `limit` bytes of UTF-8."""
    return limit_bytes(text, limit)
