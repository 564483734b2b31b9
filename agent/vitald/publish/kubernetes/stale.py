"""
What the node object should say while its publisher is silent: that the state is unknown. Pure.

Kubernetes turns only the kubelet's own conditions to Unknown when they are no longer renewed.
Source: Kubernetes, pkg/controller/nodelifecycle/node_lifecycle_controller.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitald.model import Action, Status
from vitald.publish.kubernetes.desired import HEARTBEAT_STALE, ConditionStatus, list_label_keys
from vitald.publish.kubernetes.names import (
    HYPERPOD,
    find_written_names,
    list_configured_names,
    list_profile_names,
)
from vitald.publish.kubernetes.node_object import (
    NameKind,
    NodeCondition,
    NodeName,
    NodeObject,
    list_by_kind,
)
from vitald.publish.kubernetes.profiles.hyperpod import FIT, HEALTH_STATUS
from vitald.publish.kubernetes.reconcile import delete_conditions
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.timestamps import format_rfc3339

_MESSAGE = "vitald publish on this node has stopped writing: check its pod or unit, and its log"


def build_stale_patch(
    node: NodeObject, settings: KubernetesSettings, now: float
) -> dict[str, object] | None:
    """A patch of the status, for the node as it was read. None if it has these values already, or
    if vitald wrote no condition: then there is no heartbeat, and a publisher that has nothing to
    change does not write.

    Conditions become Unknown and keep their heartbeat, the labels of status and action become
    `unknown` and `none`. What else vitald wrote has no such word and is removed; an order to
    HyperPod apart, since a node that needs a repair is likely to be silent.
    """
    written = find_written_names(node, settings.prefix) & node.list_names()
    if HYPERPOD in settings.conditions and node.labels.get(HEALTH_STATUS) != FIT:
        written -= list_profile_names(HYPERPOD)
    kept = written & list_configured_names(settings)
    words = list_stale_words(settings.prefix)
    conditions = [_expire(node.conditions[type_], now) for type_ in _types(kept)]
    changed = [each for each in conditions if each != node.conditions[each.type]]
    labels = {
        key: words.get(key) if NodeName(NameKind.LABEL, key) in kept else None
        for key in list_by_kind(written, NameKind.LABEL)
    }
    annotations = list_by_kind(written, NameKind.ANNOTATION)
    removed = _types(written - kept)
    has_heartbeat = bool(conditions or removed)
    is_same = all(node.labels.get(key) == word for key, word in labels.items())
    if not has_heartbeat or (is_same and not (changed or annotations or removed)):
        return None
    return {
        "metadata": {
            "resourceVersion": node.resource_version,  # 409 if it was written to meanwhile
            "labels": labels,
            "annotations": dict.fromkeys(annotations),
        },
        "status": {"conditions": [each.to_json() for each in changed] + delete_conditions(removed)},
    }


def _types(names: Iterable[NodeName]) -> list[str]:
    return list_by_kind(names, NameKind.CONDITION)


def list_stale_words(prefix: str) -> dict[str, str]:
    """Of the labels that have a word for it."""
    words = (Status.UNKNOWN.value, Action.NONE.value)
    return dict(zip(list_label_keys(prefix), words, strict=True))


def _expire(condition: NodeCondition, now: float) -> NodeCondition:
    """`now`: seconds since the epoch."""
    unknown = ConditionStatus.UNKNOWN.value
    is_same = condition.status == unknown and condition.last_transition
    return NodeCondition(
        type=condition.type,
        status=unknown,
        reason=HEARTBEAT_STALE,
        message=_MESSAGE,
        last_transition=condition.last_transition if is_same else format_rfc3339(now, "seconds"),
        last_heartbeat=condition.last_heartbeat,
    )
