"""
Conditions under foreign types, for the profiles that have them. Pure.

A repair controller deletes the node for some of these types: Karpenter, by force, after ten
minutes. So one says that there is a problem only for a real finding for which a repair is due now
(judge/repairs.py), and Unknown, on which nobody acts, where vitald cannot tell. Drills never count,
whatever [publish] drills says, nor does what a person holds.

Source: aws/karpenter-provider-aws, pkg/cloudprovider/cloudprovider.go (RepairPolicies).
"""

from __future__ import annotations

from vitald.model.words import When
from vitald.publish.kubernetes.desired import (
    ConditionStatus,
    DesiredCondition,
    build_held_condition,
    build_silent_condition,
    format_message,
)
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.profiles.foreign_words import (
    ForeignCondition,
    ForeignWord,
    ForeignWords,
)
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState

SOURCE_NOT_READ = "SourceNotRead"


def list_due_findings(state: NodeSummary) -> list[FindingSummary]:
    """The real findings for which a repair is due now, the strongest first."""
    return [finding for finding in state.findings if finding.due and not finding.simulated]


def build_foreign_conditions(
    words: ForeignWords, state: PublishedState, node: NodeObject, hold: str | None = None
) -> tuple[DesiredCondition, ...]:
    """The conditions of a profile. `hold`: as for the own ones."""
    if isinstance(state, DaemonSilent):
        return tuple(
            build_silent_condition(condition.type, state)
            for condition in words.conditions
            if condition.type in node.conditions or not condition.needs_accelerator
        )
    causes: dict[str, tuple[FindingSummary, ForeignWord]] = {}
    for finding in list_due_findings(state):
        word = words.find_word(finding)
        if word is not None:
            causes.setdefault(word.type, (finding, word))
    return tuple(
        _build_condition(condition, state, causes.get(condition.type), hold)
        for condition in words.conditions
        if condition.type in causes
        or condition.type in node.conditions
        or state.accelerators
        or not condition.needs_accelerator
    )


def _build_condition(
    condition: ForeignCondition,
    state: NodeSummary,
    cause: tuple[FindingSummary, ForeignWord] | None,
    hold: str | None,
) -> DesiredCondition:
    if cause is not None and hold is not None:
        return build_held_condition(condition.type, condition.well_status, hold, state.lines)
    if cause is not None:
        finding, word = cause
        return DesiredCondition(
            type=condition.type,
            status=condition.problem,
            reason=word.spell(finding),
            message=format_message([f"{finding.reason} on {finding.component}", *state.lines]),
            # What waited for the job is due since the node became idle, which no finding tells.
            changed_at=state.changed_at if finding.when is When.NOW else 0.0,
        )
    if not state.is_complete:
        return DesiredCondition(
            type=condition.type,
            status=ConditionStatus.UNKNOWN,
            reason=SOURCE_NOT_READ,
            message=format_message(state.lines),
            changed_at=state.changed_at,
        )
    return DesiredCondition(
        type=condition.type,
        status=condition.well_status,
        reason=condition.find_well_word(state.accelerators),
        message="no repair of the node is due",
        changed_at=state.changed_at,
    )
