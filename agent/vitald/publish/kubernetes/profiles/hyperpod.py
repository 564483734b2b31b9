"""
Labels and the annotation of SageMaker HyperPod's health monitoring agent. Pure.

    sagemaker.amazonaws.com/node-health-status   Schedulable, Unschedulable,
                                                 UnschedulablePendingReboot,
                                                 UnschedulablePendingReplacement
    sagemaker.amazonaws.com/fault-types, fault-reasons   of the fault that orders the repair
    sagemaker.amazonaws.com/fault-details        annotation: JSON [{timestamp, type, reason,
                                                 message}] of all faults for which one is due

A pending state orders the repair from the service, so it is written only for a real finding for
which the repair is due now, and where no person holds repairs. Otherwise an order is neither given
nor withdrawn while vitald cannot tell.

Source: Amazon SageMaker AI developer guide, "Resilience-related Kubernetes labels".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from vitald.model.words import Repair, Status
from vitald.publish.kubernetes.desired import MAX_ANNOTATION_BYTES, MAX_MESSAGE_BYTES
from vitald.publish.kubernetes.profiles.conditions import list_due_findings
from vitald.publish.kubernetes.profiles.foreign_words import ForeignWords
from vitald.publish.summary import DaemonSilent, FindingSummary, PublishedState
from vitald.text import limit_bytes
from vitald.timestamps import format_rfc3339

_PREFIX = "sagemaker.amazonaws.com"
HEALTH_STATUS = f"{_PREFIX}/node-health-status"
FAULT_TYPES, FAULT_REASONS = f"{_PREFIX}/fault-types", f"{_PREFIX}/fault-reasons"
FAULT_DETAILS = f"{_PREFIX}/fault-details"
LABELS, ANNOTATIONS = (HEALTH_STATUS, FAULT_TYPES, FAULT_REASONS), (FAULT_DETAILS,)

_PENDING = {
    Repair.REBOOT: "UnschedulablePendingReboot",
    Repair.REPLACE: "UnschedulablePendingReplacement",
}
FIT, UNFIT = "Schedulable", "Unschedulable"
_NO_REPAIR = {
    Status.HEALTHY: FIT,
    Status.DEGRADED: FIT,
    Status.UNHEALTHY: UNFIT,
}
WORDS = (FIT, UNFIT, *_PENDING.values())  # of HEALTH_STATUS
_MAX_LABEL = 63
_NOT_IN_A_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_NOT_AT_AN_END = "._-"

Texts = dict[str, "str | None"]


def build_labels(
    words: ForeignWords, state: PublishedState, hold: str | None = None
) -> tuple[Texts, Texts]:
    """Labels and annotations; None for one that must not be there. Empty: they stay as they are.
    `hold`: as for the own conditions.
    """
    if isinstance(state, DaemonSilent):
        return {}, {}
    due = list_due_findings(state)
    repair = _choose_repair(due)
    if repair is not None and hold is None:
        return _build_order(words, due, repair)
    if repair is None and (not state.is_complete or state.status not in _NO_REPAIR):
        return {}, {}
    labels: Texts = dict.fromkeys(LABELS)
    labels[HEALTH_STATUS] = _NO_REPAIR[state.status] if repair is None else UNFIT
    return labels, dict.fromkeys(ANNOTATIONS)


def _choose_repair(due: Sequence[FindingSummary]) -> Repair | None:
    """The strongest. What is due and is no replacement is a reboot."""
    repairs = [_find_repair(finding) for finding in due]
    if Repair.REPLACE in repairs:
        return Repair.REPLACE
    return Repair.REBOOT if repairs else None


def _find_repair(finding: FindingSummary) -> Repair:
    repair = finding.action.choose_repair(device_reset=False)
    return Repair.REBOOT if repair is None else repair


def _build_order(
    words: ForeignWords, due: Sequence[FindingSummary], repair: Repair
) -> tuple[Texts, Texts]:
    first = next(finding for finding in due if _find_repair(finding) is repair)
    fault_type, reason = _find_fault(words, first)
    labels: Texts = {
        HEALTH_STATUS: _PENDING[repair],
        FAULT_TYPES: make_label_value(fault_type) or None,
        FAULT_REASONS: make_label_value(reason) or None,
    }
    return labels, {FAULT_DETAILS: _format_details(words, due)}


def _find_fault(words: ForeignWords, finding: FindingSummary) -> tuple[str, str]:
    """Fault type ("" where AWS names none) and reason."""
    word = words.find_word(finding, _find_repair(finding))
    return ("", finding.reason) if word is None else (word.type, word.spell(finding))


def _format_details(words: ForeignWords, due: Sequence[FindingSummary]) -> str:
    """As many as fit in MAX_ANNOTATION_BYTES, and at least one."""
    details: list[str] = []
    size = 2
    for finding in due:
        fault_type, reason = _find_fault(words, finding)
        entry = json.dumps(
            {
                "timestamp": format_rfc3339(finding.since, "seconds"),
                "type": fault_type,
                "reason": reason,
                "message": limit_bytes(f"{finding.component}: {finding.code}", MAX_MESSAGE_BYTES),
            },
            separators=(",", ":"),
        )
        size += len(entry) + 1
        if size > MAX_ANNOTATION_BYTES:
            break
        details.append(entry)
    return f"[{','.join(details)}]"


def make_label_value(text: str) -> str:
    """At most 63 letters, digits, dashes, underscores and dots, the first and last of them letters
    or digits. Source: Kubernetes, "Labels and Selectors".
    """
    value = _NOT_IN_A_LABEL.sub("-", text).strip(_NOT_AT_AN_END)
    return value[:_MAX_LABEL].rstrip(_NOT_AT_AN_END)
