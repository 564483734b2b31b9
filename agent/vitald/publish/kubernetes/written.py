"""
Which names are written to the node, and what removes them: so that nothing stays behind when the
configuration changes or vitald leaves the node. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from vitald.model import Action, Status
from vitald.publish.kubernetes.client import MANAGER
from vitald.publish.kubernetes.desired import DesiredNode, build_desired_node
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.state_store import WrittenKind, WrittenName
from vitald.publish.summary import NodeSummary, PublishedState
from vitald.publish_sections import KubernetesSettings

_UNKNOWN = NodeSummary(
    status=Status.UNKNOWN,
    action=Action.NONE,
    reason="",
    lines=(),
    reboot_reason="",
    replacement_reason="",
    changed_at=0.0,
    findings=(),
    open_findings=0,
    boot_id="",
)


def build_desired(state: PublishedState, settings: KubernetesSettings) -> DesiredNode:
    """What the node should say with this configuration."""
    return build_desired_node(
        state, settings.prefix, labels=settings.labels, annotation=settings.annotation
    )


def list_names(desired: DesiredNode) -> frozenset[WrittenName]:
    """All that it consists of."""
    return frozenset(
        [
            *(WrittenName(WrittenKind.CONDITION, each.type) for each in desired.conditions),
            *(WrittenName(WrittenKind.LABEL, name) for name in desired.labels),
            *(WrittenName(WrittenKind.ANNOTATION, name) for name in desired.annotations),
        ]
    )


def list_configured_names(settings: KubernetesSettings) -> frozenset[WrittenName]:
    """What this configuration writes in every state; a taint apart."""
    return list_names(build_desired(_UNKNOWN, settings))


def get_taint_key(settings: KubernetesSettings) -> str:
    return f"{settings.prefix}/unhealthy"


def find_present(names: Collection[WrittenName], node: NodeObject) -> frozenset[WrittenName]:
    """Those of the names that the node has and that are ours."""
    taints = {taint.key for taint in node.taints}
    return frozenset(
        name
        for name in names
        if (name.kind is WrittenKind.CONDITION and _is_our_condition(name.name, node))
        or (name.kind is WrittenKind.LABEL and name.name in node.labels)
        or (name.kind is WrittenKind.ANNOTATION and name.name in node.annotations)
        or (name.kind is WrittenKind.TAINT and name.name in taints)
    )


def _is_our_condition(type_: str, node: NodeObject) -> bool:
    """A type without a prefix belongs to a profile, and another agent may have taken it over."""
    managers = node.managers.get(type_, frozenset())
    return type_ in node.conditions and ("/" in type_ or managers <= {MANAGER})


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
