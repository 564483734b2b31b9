"""
Removes what vitald wrote from all nodes of the cluster: for the removal of a whole installation,
when no publisher runs any more.

It needs no memory of what was written: everything under the prefix is vitald's, that of recovery
apart, and of names without it those that it alone manages (`metadata.managedFields`, field manager
"vitald"), whatever profile they came from.

    GET    /api/v1/nodes?limit=...        page by page
    PATCH  /api/v1/nodes/NAME/status      conditions, labels and annotations
    PATCH  /api/v1/nodes/NAME             taints, where there is one

Source: Kubernetes API concepts, "Retrieving large results sets in chunks" (a token for the next
page expires: 410) and "Server-Side Apply" (managedFields), tried against 1.36.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import structlog

from vitald.backoff import Backoff
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.node_object import MANAGER, NodeObject, parse_node
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.kubernetes.taint import replace_taints
from vitald.publish.kubernetes.written import get_taint_key
from vitald.publish.sink import SinkFailed
from vitald.publish_sections import KubernetesSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

PAGE = 25  # nodes; one with many images takes about 50 KB
_OURS = frozenset((MANAGER,))
_RETRY = Backoff(0.5, 5.0)
_ATTEMPTS = 8  # half a minute
_MAX_WAIT_S = 30.0  # of what a server may ask for
_NOT_FOUND, _GONE, _TOO_MANY = 404, 410, 429
# Names under the prefix that automatic recovery writes (recovery/kubernetes.py, [recovery] label):
# it would no longer know the nodes that it cordoned.
_OF_RECOVERY = ("drained", "recovery")


@dataclass(frozen=True, slots=True)
class WrittenNames:
    """What vitald wrote to one node, sorted."""

    conditions: list[str]
    labels: list[str]
    annotations: list[str]
    taint: bool

    def __bool__(self) -> bool:
        return bool(self.conditions or self.labels or self.annotations or self.taint)


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

    async def remove_names(self, node: NodeObject, names: WrittenNames, taint: str) -> None:
        """From this node; one that is gone has nothing. Raises as read_node, and SinkFailed."""
        self.node = node.name
        removal = build_removal(names.conditions, names.labels, names.annotations)
        try:
            await self.patch_status(removal)
            if names.taint:
                await replace_taints(self, [taint], None)
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise


async def retire_cluster(client: ClusterClient, settings: KubernetesSettings) -> tuple[int, int]:
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
                seen.add(node.name)
                if await _retire_node(client, node, settings):
                    changed.add(node.name)
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


async def _retire_node(
    client: ClusterClient, node: NodeObject, settings: KubernetesSettings
) -> bool:
    """Whether there was something to remove."""
    names = find_written_names(node, settings)
    if names:
        await client.remove_names(node, names, get_taint_key(settings))
        log.info(
            "retired",
            node=node.name,
            conditions=names.conditions,
            labels=names.labels,
            annotations=names.annotations,
            taint=names.taint,
        )
    return bool(names)


def find_written_names(node: NodeObject, settings: KubernetesSettings) -> WrittenNames:
    """What this node has of vitald."""
    start = f"{settings.prefix}/"
    return WrittenNames(
        conditions=_find_own(node.conditions, start, node.managers),
        labels=_find_own(node.labels, start, node.label_managers),
        annotations=_find_own(node.annotations, start, node.annotation_managers),
        taint=any(taint.key == get_taint_key(settings) for taint in node.taints),
    )


def _find_own(
    names: Collection[str], start: str, managers: Mapping[str, frozenset[str]]
) -> list[str]:
    kept = {f"{start}{name}" for name in _OF_RECOVERY}
    return sorted(
        name
        for name in names
        if (name.startswith(start) and name not in kept) or managers.get(name) == _OURS
    )


def _is_passing(error: ApiRefused | ApiUnreachable | SinkFailed) -> bool:
    """Whether another attempt may succeed. 410: the token of the next page has expired."""
    if not isinstance(error, ApiRefused):
        return True
    return error.status in (_GONE, _TOO_MANY) or error.status >= 500
