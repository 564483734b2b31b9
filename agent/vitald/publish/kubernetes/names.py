"""
The names on a node that are vitald's: those that the configuration writes, and those that the API
server's record of field managers says it has written. Nothing else is ever removed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vitald.publish.kubernetes.desired import (
    OWN,
    DesiredNode,
    get_annotation_key,
    list_label_keys,
    list_own_types,
)
from vitald.publish.kubernetes.node_object import MANAGER, NameKind, NodeName, NodeObject
from vitald.publish.kubernetes.profiles import hyperpod
from vitald.publish.kubernetes.profiles.tables import read_words
from vitald.publish.kubernetes.settings import KubernetesSettings

CONDITION_PROFILES, HYPERPOD = ("eks", "npd"), "hyperpod"


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
