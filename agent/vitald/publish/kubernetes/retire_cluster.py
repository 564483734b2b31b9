"""
Removes what vitald wrote from all nodes of the cluster: for the removal of a whole installation,
when no publisher runs any more.

It needs no memory of what was written: the API server has recorded it (names.py), whatever the
configuration was.

    GET    /api/v1/nodes?limit=...        page by page
    PATCH  /api/v1/nodes/NAME/status      conditions, labels and annotations
    PATCH  /api/v1/nodes/NAME             taints, where there is one

Source: Kubernetes API concepts, "Retrieving large results sets in chunks" (a token for the next
page expires: 410) and "Server-Side Apply" (managedFields), tried against 1.36.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import structlog

from vitald.backoff import Backoff
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.names import describe_kept, find_written_names
from vitald.publish.kubernetes.node_object import NodeObject, parse_node
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.kubernetes.taint import get_taint_key, is_ours, replace_taints
from vitald.publish.sink import SinkFailed

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

PAGE = 25  # nodes; one with many images takes about 50 KB
_RETRY = Backoff(0.5, 5.0)
_ATTEMPTS = 8  # half a minute
_MAX_WAIT_S = 30.0  # of what a server may ask for
_NOT_FOUND, _GONE, _TOO_MANY = 404, 410, 429


class ClusterClient(KubernetesClient):
    """A client for one node after the other."""

    async def list_nodes(self, token: str = "") -> tuple[list[NodeObject], str]:
        """One page, and the token of the next, "" after the last. Raises as read_node."""
        path = f"/api/v1/nodes?limit={PAGE}"
        document = await self._request("GET", f"{path}&continue={quote(token)}" if token else path)
        if not isinstance(document, dict) or not isinstance(document.get("items"), list):
            raise ApiUnreachable("the answer is no NodeList")
        metadata = document.get("metadata")
        following = metadata.get("continue") if isinstance(metadata, dict) else None
        try:
            return [parse_node(item) for item in document["items"]], str(following or "")
        except ValueError as error:
            raise ApiUnreachable(f"the answer is no NodeList: {error}") from error

    async def retire_node(self, node: NodeObject, prefix: str) -> list[str]:
        """What was removed from this node, in words; one that is gone has nothing. Raises as
        read_node, and SinkFailed.
        """
        self.node = node.name
        names, keys = find_written_names(node, prefix), (get_taint_key(prefix),)
        has_taint = any(is_ours(taint, keys) for taint in node.taints)
        try:
            if names:
                await self.patch_status(build_removal(names))
            if has_taint:
                await replace_taints(self, keys, None)
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
        words = [name.describe() for name in names]
        return sorted(words + [f"taint {key}" for key in keys] * has_taint)


async def retire_cluster(client: ClusterClient, prefix: str) -> tuple[int, int]:
    """How many nodes there are, and from how many something was removed. Raises ApiUnreachable,
    ApiRefused, NoCredentials, SinkFailed after half a minute without progress.
    """
    seen: set[str] = set()
    changed: set[str] = set()
    token, failures = "", 0
    while True:
        known = len(seen)
        try:
            nodes, following = await client.list_nodes(token)
            for node in nodes:
                if node.name not in seen and (kept := describe_kept(node, prefix)):
                    log.warning("kept", node=node.name, kept=kept)
                seen.add(node.name)
                if removed := await client.retire_node(node, prefix):
                    changed.add(node.name)
                    log.info("retired", node=node.name, removed=removed)
        except (ApiRefused, ApiUnreachable, SinkFailed) as error:
            failures += 1
            if not _is_passing(error) or failures >= _ATTEMPTS:
                raise
            log.warning("retire_retried", error=str(error))
            wait = None if isinstance(error, ApiUnreachable) else error.retry_after_s
            pause = _RETRY.delay_s(failures) if wait is None else min(wait, _MAX_WAIT_S)
            await asyncio.sleep(pause)
            token = ""  # nodes that are done are only read again
            continue
        if len(seen) > known:
            failures = 0
        if not following:
            return len(seen), len(changed)
        token = following


def _is_passing(error: ApiRefused | ApiUnreachable | SinkFailed) -> bool:
    """Whether another attempt may succeed. 410: the token of the next page has expired."""
    if not isinstance(error, ApiRefused):
        return True
    return error.status in (_GONE, _TOO_MANY) or error.status >= 500
