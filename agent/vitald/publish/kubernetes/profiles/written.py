"""
Adds what the configured profiles write to what the node should say. Pure.

A profile whose condition types or labels another agent manages is refused whole: two writers would
undo each other's words. What vitald wrote of a profile that is refused, or no longer configured, is
removed, so that no repair follows from a word that nobody keeps up to date. The managers are those
that the API server notes in metadata.managedFields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from vitald.publish.kubernetes.desired import DesiredNode, list_own_types
from vitald.publish.kubernetes.node_object import MANAGER, NodeObject
from vitald.publish.kubernetes.profiles.conditions import build_foreign_conditions
from vitald.publish.kubernetes.profiles.hyperpod import ANNOTATIONS, LABELS, build_labels
from vitald.publish.kubernetes.profiles.tables import read_words
from vitald.publish.summary import PublishedState

CONDITION_PROFILES, HYPERPOD, OWN = ("eks", "npd"), "hyperpod", "own"
# A kubelet sets labels when it registers its node, and leaves them alone afterwards. Source:
# Kubernetes, "kubelet", --node-labels.
_REGISTRAR = "kubelet"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a profile is not written, and what to do."""

    profile: str
    why: str

    def describe(self) -> str:
        return (
            f'"{self.profile}" is not written: {self.why}, or take "{self.profile}" out of'
            " [kubernetes] conditions"
        )


@dataclass(frozen=True, slots=True)
class ProfiledNode:
    desired: DesiredNode
    refusals: tuple[Refusal, ...]


def list_profile_types(prefix: str) -> tuple[str, ...]:
    """All condition types that any configuration writes."""
    return (
        *list_own_types(prefix),
        *(type_ for name in CONDITION_PROFILES for type_ in list_condition_types(name)),
    )


def list_condition_types(profile: str) -> tuple[str, ...]:
    """The condition types of one profile."""
    return tuple(condition.type for condition in read_words(profile).conditions)


def add_profiles(
    desired: DesiredNode,
    profiles: Collection[str],
    prefix: str,
    state: PublishedState,
    node: NodeObject,
) -> ProfiledNode:
    """`profiles`: of [kubernetes] conditions. `prefix`: of the own conditions."""
    refusals = [refusal for name in profiles if (refusal := find_refusal(name, node)) is not None]
    refused = {refusal.profile for refusal in refusals}
    written = [name for name in profiles if name not in refused]
    conditions = [*desired.conditions]
    for name in CONDITION_PROFILES:
        if name in written:
            conditions += build_foreign_conditions(read_words(name), state, node)
    kept = {condition.type for condition in conditions}
    labels, annotations = (
        build_labels(read_words(HYPERPOD), state)
        if HYPERPOD in written
        else (
            _remove(_list_ours(LABELS, node.label_managers)),
            _remove(_list_ours(ANNOTATIONS, node.annotation_managers)),
        )
    )
    return ProfiledNode(
        replace(
            desired,
            conditions=tuple(conditions),
            labels={**desired.labels, **labels},
            annotations={**desired.annotations, **annotations},
            removed=tuple(
                type_
                for type_ in _list_ours(list_profile_types(prefix), node.managers)
                if type_ not in kept
            ),
        ),
        tuple(refusals),
    )


def find_refusal(profile: str, node: NodeObject) -> Refusal | None:
    """Why this profile must not be written to this node; None where it may."""
    if profile == HYPERPOD:
        return _find_hyperpod_refusal(node)
    if profile not in CONDITION_PROFILES:
        return None
    words = read_words(profile)
    for key, value in words.refused_labels.items():
        if node.labels.get(key) == value:
            return Refusal(
                profile, f"the node has the label {key}={value}: leave it to that service"
            )
    for condition in words.conditions:
        if others := node.managers.get(condition.type, frozenset()) - {MANAGER}:
            return _refuse(profile, "condition", condition.type, others)
    return None


def _find_hyperpod_refusal(node: NodeObject) -> Refusal | None:
    for label in LABELS:
        if others := node.label_managers.get(label, frozenset()) - {MANAGER, _REGISTRAR}:
            return _refuse(HYPERPOD, "label", label, others)
    for key in ANNOTATIONS:
        if others := node.annotation_managers.get(key, frozenset()) - {MANAGER}:
            return _refuse(HYPERPOD, "annotation", key, others)
    return None


def _refuse(profile: str, kind: str, name: str, others: Collection[str]) -> Refusal:
    named = ", ".join(sorted(others))
    return Refusal(
        profile, f"{kind} {name} is managed by {named}: remove that agent and its {kind}"
    )


def _list_ours(names: Iterable[str], managers: Mapping[str, frozenset[str]]) -> list[str]:
    """Those that only vitald manages."""
    return [name for name in names if managers.get(name) == frozenset({MANAGER})]


def _remove(names: Iterable[str]) -> dict[str, str | None]:
    return dict.fromkeys(names)
