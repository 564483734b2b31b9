"""
Removes from a node what vitald wrote to it: what the API server has recorded (names.py), and
taints, of which it records no manager.

    PATCH  /api/v1/nodes/NAME/status      conditions, labels and annotations
    PATCH  /api/v1/nodes/NAME             taints, where there is one
"""

from __future__ import annotations

from collections.abc import Collection

from vitald.publish.kubernetes.client import KubernetesClient
from vitald.publish.kubernetes.names import find_written_names
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.kubernetes.taint import is_ours, replace_taints
from vitald.publish.sink import SinkFailed


def describe_written(node: NodeObject, prefix: str, taint_keys: Collection[str]) -> set[str]:
    """What there is to remove."""
    return {name.describe() for name in find_written_names(node, prefix)} | _describe_taints(
        node, taint_keys
    )


async def remove_written(
    client: KubernetesClient,
    node: NodeObject,
    prefix: str,
    taint_keys: Collection[str],
    removed: set[str],
) -> None:
    """From the client's node, as it was read. Adds what was removed to `removed`, also where the
    rest fails. Raises as the client does, and SinkFailed where another writer was faster.
    """
    if names := find_written_names(node, prefix):
        after = await client.patch_status(build_removal(names))
        if left := find_written_names(after, prefix):
            raise SinkFailed(f"still there: {', '.join(sorted(each.describe() for each in left))}")
        removed |= {name.describe() for name in names}
    if taints := _describe_taints(node, taint_keys):
        await replace_taints(client, taint_keys, None)
        removed |= taints


def _describe_taints(node: NodeObject, keys: Collection[str]) -> set[str]:
    return {f"taint {taint.key}" for taint in node.taints if is_ours(taint, keys)}
