"""
What the node should say with this configuration, in parts: the sets of [kubernetes] conditions,
labels and annotations, without the sets that are refused; and what an earlier configuration wrote
and must go. Pure.

A set whose names another agent manages is refused whole: two writers would undo each other's words.
What vitald alone manages and no longer writes is removed, so that no controller acts on a stale
value. The managers are those that the API server notes in metadata.managedFields. Of the names on a
node, vitald's are those that the configuration writes, and those that it has written according to
that record. Nothing else is ever removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from vitald.publish.kubernetes.desired import (
    ANNOTATION,
    LABELS,
    OWN,
    DesiredNode,
    build_own_parts,
    get_annotation_key,
    get_hold_key,
    list_label_keys,
    list_own_types,
)
from vitald.publish.kubernetes.node_object import (
    MANAGER,
    NameKind,
    NodeName,
    NodeObject,
    list_by_kind,
)
from vitald.publish.kubernetes.profiles import hyperpod
from vitald.publish.kubernetes.profiles.conditions import build_foreign_conditions
from vitald.publish.kubernetes.profiles.foreign_words import read_words
from vitald.publish.kubernetes.profiles.hyperpod import build_labels
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.summary import PublishedState

# A kubelet sets labels when it registers its node, and leaves them alone afterwards. Source:
# Kubernetes, "kubelet", --node-labels.
_REGISTRAR = "kubelet"


# What an earlier configuration wrote, and this one does not.
FORMER = "former-names"
CONDITION_PROFILES, HYPERPOD = ("eks", "npd"), "hyperpod"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`why` a part is not written, and what to do."""

    part: str
    why: str


def describe_refusals(refusals: Iterable[Refusal]) -> str:
    """One text for all, in which each reason stands once."""
    parts: dict[str, list[str]] = {}
    for refusal in refusals:
        parts.setdefault(refusal.why, []).append(f'"{refusal.part}"')
    return "; ".join(f"{', '.join(named)} not written: {why}" for why, named in parts.items())


@dataclass(frozen=True, slots=True)
class ConfiguredNode:
    """`parts`: what is written by itself where it cannot be written together, by the word of
    [kubernetes] that turns it on.
    """

    parts: Mapping[str, DesiredNode]
    refusals: tuple[Refusal, ...]


def build_configured_node(
    settings: KubernetesSettings,
    state: PublishedState,
    node: NodeObject,
    known: Collection[str] = (),
) -> ConfiguredNode:
    """`node`: as it is now. `known`: types of the conditions that were written to it before."""
    refusals = [
        refusal
        for name in dict.fromkeys((OWN, *settings.conditions))
        if (refusal := find_refusal(name, settings, node, known)) is not None
    ]
    refused = frozenset(refusal.part for refusal in refusals)
    written = [name for name in settings.conditions if name not in refused]
    hold = node.annotations.get(get_hold_key(settings.prefix))
    parts: dict[str, DesiredNode] = {}
    if OWN not in refused:
        wanted = {OWN: OWN in written, LABELS: settings.labels, ANNOTATION: settings.annotation}
        own = build_own_parts(state, settings.prefix, hold)
        parts.update((name, own[name]) for name, is_wanted in wanted.items() if is_wanted)
    for name in CONDITION_PROFILES:
        if name in written:
            conditions = build_foreign_conditions(read_words(name), state, node, hold)
            parts[name] = DesiredNode(conditions=tuple(conditions))
    if HYPERPOD in written:
        labels, annotations = build_labels(read_words(HYPERPOD), state, hold)
        parts[HYPERPOD] = DesiredNode(labels=labels, annotations=annotations)
    leftovers = node.list_sole_names() - list_configured_names(settings, refused)
    if leftovers:
        parts[FORMER] = DesiredNode(
            labels=dict.fromkeys(list_by_kind(leftovers, NameKind.LABEL)),
            annotations=dict.fromkeys(list_by_kind(leftovers, NameKind.ANNOTATION)),
            removed=tuple(list_by_kind(leftovers, NameKind.CONDITION)),
        )
    not_empty = {name: part for name, part in parts.items() if part != DesiredNode()}
    return ConfiguredNode(not_empty, tuple(refusals))


def find_refusal(
    set_name: str, settings: KubernetesSettings, node: NodeObject, known: Collection[str] = ()
) -> Refusal | None:
    """Why this set must not be written to this node; None where it may."""
    if set_name == OWN:
        return None if _has_own(settings.prefix, node, known) else _refuse_first(settings, node)
    if set_name in CONDITION_PROFILES:
        for key, value in read_words(set_name).refused_labels.items():
            if node.labels.get(key) == value:
                why = f"the node has the label {key}={value}: leave it to that service"
                return _refuse(set_name, why)
    return _refuse_managed(set_name, list_profile_names(set_name), node)


def _has_own(prefix: str, node: NodeObject, known: Collection[str]) -> bool:
    """Whether vitald has written names with the prefix to this node: then it repairs what others
    change in them.
    """
    is_managed = any(MANAGER in node.find_managers(name) for name in list_own_names(prefix))
    return is_managed or any(type_ in known for type_ in list_own_types(prefix))


def _refuse_first(settings: KubernetesSettings, node: NodeObject) -> Refusal | None:
    """For names with the prefix that others had first."""
    names = list_own_names(settings.prefix) & list_configured_names(settings)
    return _refuse_managed(OWN, names, node)


def _refuse_managed(set_name: str, names: Iterable[NodeName], node: NodeObject) -> Refusal | None:
    for name in sorted(names, key=NodeName.describe):
        harmless = {MANAGER, _REGISTRAR} if name.kind is NameKind.LABEL else {MANAGER}
        if others := node.find_managers(name) - harmless:
            named = ", ".join(sorted(others))
            why = f"{name.describe()} is managed by {named}: remove that agent and its"
            return _refuse(set_name, f"{why} {name.kind.value}")
    return None


def _refuse(set_name: str, why: str) -> Refusal:
    otherwise = (
        "choose another [kubernetes] prefix"
        if set_name == OWN
        else f'take "{set_name}" out of [kubernetes] conditions'
    )
    return Refusal(set_name, f"{why}, or {otherwise}")


def list_own_names(prefix: str) -> frozenset[NodeName]:
    """All with the prefix; the taint apart, of which no manager is recorded."""
    return _name_all(list_own_types(prefix), list_label_keys(prefix), (get_annotation_key(prefix),))


def list_profile_names(profile: str) -> frozenset[NodeName]:
    """What a set of [kubernetes] conditions other than "own" may write."""
    if profile == HYPERPOD:
        return _name_all((), hyperpod.LABELS, hyperpod.ANNOTATIONS)
    return _name_all(condition.type for condition in read_words(profile).conditions)


def list_desired_names(desired: DesiredNode) -> frozenset[NodeName]:
    """What it says, or removes by saying None."""
    types = (condition.type for condition in desired.conditions)
    return _name_all(types, desired.labels, desired.annotations)


def list_configured_names(
    settings: KubernetesSettings, refused: Collection[str] = ()
) -> frozenset[NodeName]:
    """What this configuration may write, without the sets that are `refused`."""
    prefix, sets = settings.prefix, set(settings.conditions).difference(refused)
    names = _name_all(
        list_own_types(prefix) if OWN in sets else (),
        list_label_keys(prefix) if settings.labels and OWN not in refused else (),
        (get_annotation_key(prefix),) if settings.annotation and OWN not in refused else (),
    )
    return names.union(*(list_profile_names(profile) for profile in sets - {OWN}))


def find_written_names(node: NodeObject, prefix: str) -> frozenset[NodeName]:
    """What vitald wrote to the node, with any configuration: what it alone manages, and of its
    own names also those that it manages beside others.
    """
    own = (name for name in list_own_names(prefix) if MANAGER in node.find_managers(name))
    return node.list_sole_names().union(own)


def describe_kept(node: NodeObject, prefix: str) -> list[str]:
    """The own names that are on the node and not vitald's to remove, and who manages them."""
    kept = [
        name
        for name in list_own_names(prefix) & node.list_names()
        if MANAGER not in node.find_managers(name)
    ]
    return sorted(
        f"{name.describe()}, managed by {', '.join(sorted(node.find_managers(name))) or 'nobody'}"
        for name in kept
    )


def _name_all(
    types: Iterable[str], labels: Iterable[str] = (), annotations: Iterable[str] = ()
) -> frozenset[NodeName]:
    return frozenset(
        [
            *(NodeName(NameKind.CONDITION, name) for name in types),
            *(NodeName(NameKind.LABEL, name) for name in labels),
            *(NodeName(NameKind.ANNOTATION, name) for name in annotations),
        ]
    )
