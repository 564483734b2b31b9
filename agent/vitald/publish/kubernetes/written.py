"""
Which names are written to the node, and what removes them: so that nothing stays behind when the
configuration changes or vitald leaves the node. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vitald.publish.kubernetes.desired import (
    DesiredNode,
    build_labels,
    list_annotation_keys,
    list_own_types,
)
from vitald.publish.kubernetes.node_object import MANAGER, NodeObject
from vitald.publish.kubernetes.profiles.hyperpod import ANNOTATIONS, LABELS
from vitald.publish.kubernetes.profiles.written import (
    CONDITION_PROFILES,
    HYPERPOD,
    OWN,
    list_condition_types,
)
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.state_store import WrittenKind, WrittenName
from vitald.publish.summary import DaemonSilent
from vitald.publish_sections import KubernetesSettings

_SILENT = DaemonSilent(since=0.0, detail="")  # the labels have the same names in every state


def list_names(desired: DesiredNode) -> frozenset[WrittenName]:
    """All that it consists of."""
    return _name_all(
        (condition.type for condition in desired.conditions),
        (name for name, value in desired.labels.items() if value is not None),
        (name for name, value in desired.annotations.items() if value is not None),
    )


def list_configured_names(settings: KubernetesSettings) -> frozenset[WrittenName]:
    """What this configuration may write; a taint apart."""
    prefix, sets = settings.prefix, settings.conditions
    is_hyperpod = HYPERPOD in sets
    types = [*list_own_types(prefix)] if OWN in sets else []
    for name in CONDITION_PROFILES:
        types += list_condition_types(name) if name in sets else ()
    labels = build_labels(_SILENT, prefix) if settings.labels else ()
    return _name_all(
        types,
        (*labels, *(LABELS if is_hyperpod else ())),
        (
            *(list_annotation_keys(prefix) if settings.annotation else ()),
            *(ANNOTATIONS if is_hyperpod else ()),
        ),
    )


def list_profile_names() -> frozenset[WrittenName]:
    """What any profile may write."""
    types = (type_ for name in CONDITION_PROFILES for type_ in list_condition_types(name))
    return _name_all(types, LABELS, ANNOTATIONS)


def _name_all(
    types: Iterable[str], labels: Iterable[str], annotations: Iterable[str]
) -> frozenset[WrittenName]:
    return frozenset(
        [
            *(WrittenName(WrittenKind.CONDITION, name) for name in types),
            *(WrittenName(WrittenKind.LABEL, name) for name in labels),
            *(WrittenName(WrittenKind.ANNOTATION, name) for name in annotations),
        ]
    )


def get_taint_key(settings: KubernetesSettings) -> str:
    return f"{settings.prefix}/unhealthy"


def find_present(names: Collection[WrittenName], node: NodeObject) -> frozenset[WrittenName]:
    """Those of the names that the node has. Names of a profile belong to others, too: those that
    only vitald manages.
    """
    foreign = list_profile_names()
    present = {
        WrittenKind.CONDITION: node.conditions.keys(),
        WrittenKind.LABEL: node.labels.keys(),
        WrittenKind.ANNOTATION: node.annotations.keys(),
        WrittenKind.TAINT: {taint.key for taint in node.taints},
    }
    return frozenset(
        name
        for name in names
        if name.name in present[name.kind] and (name not in foreign or _is_ours(name, node))
    )


def _is_ours(name: WrittenName, node: NodeObject) -> bool:
    managers = {
        WrittenKind.CONDITION: node.managers,
        WrittenKind.LABEL: node.label_managers,
        WrittenKind.ANNOTATION: node.annotation_managers,
    }
    return managers[name.kind].get(name.name) == frozenset({MANAGER})


def build_names_removal(names: Collection[WrittenName]) -> dict[str, object]:
    """A strategic merge patch of the status without these. Taints are no part of the status."""
    by_kind = {
        kind: sorted(each.name for each in names if each.kind is kind) for kind in WrittenKind
    }
    return build_removal(
        by_kind[WrittenKind.CONDITION],
        by_kind[WrittenKind.LABEL],
        by_kind[WrittenKind.ANNOTATION],
    )
