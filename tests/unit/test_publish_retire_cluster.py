"""What `vitald publish kubernetes --retire --all-nodes` finds on a node."""

from __future__ import annotations

from vitald.publish.kubernetes.node_object import MANAGER, NodeCondition, NodeObject, NodeTaint
from vitald.publish.kubernetes.retire_cluster import find_written_names
from vitald.publish_sections import KubernetesSettings

_OURS, _OTHERS = frozenset({MANAGER}), frozenset({MANAGER, "kubectl-label"})


def test_what_is_vitalds_and_not_recoverys() -> None:
    types = ("Ready", "vitald.io/Healthy", "KernelReady", "NetworkingReady")
    node = NodeObject(
        name="node1",
        uid="u",
        resource_version="1",
        conditions={type_: NodeCondition(type=type_, status="True") for type_ in types},
        labels={"vitald.io/status": "healthy", "vitald.io/recovery": "replace", "a": "b"},
        annotations={
            "vitald.io/findings": "{}",
            "vitald.io/save-advised": "{}",
            "vitald.io/drained": "true",
        },
        taints=(NodeTaint(key="vitald.io/unhealthy", effect="NoSchedule"),),
        managers={"KernelReady": _OURS, "NetworkingReady": _OTHERS},
        label_managers={"a": _OTHERS},
    )
    found = find_written_names(node, KubernetesSettings())
    assert found.conditions == ["KernelReady", "vitald.io/Healthy"]
    assert found.labels == ["vitald.io/status"]
    assert found.annotations == ["vitald.io/findings", "vitald.io/save-advised"]
    assert found.taint
