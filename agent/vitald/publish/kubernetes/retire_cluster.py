"""
Removes what vitald wrote from all nodes of the cluster: for the removal of a whole installation,
when no publisher runs any more.

It needs no memory of what was written: everything under the prefix is vitald's, and of names
without it those that it alone manages (`metadata.managedFields`, field manager "vitald"), whatever
profile they came from.

    GET    /api/v1/nodes?limit=...        page by page
    PATCH  /api/v1/nodes/NAME/status      conditions, labels and annotations
    PATCH  /api/v1/nodes/NAME             taints, where there is one

Source: Kubernetes API concepts, "Retrieving large results sets in chunks" (a token for the next
page expires: 410) and "Server-Side Apply" (managedFields), tried against 1.36.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import structlog

from vitald.backoff import Backoff
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.node_object import NodeObject, parse_node
from vitald.publish.kubernetes.reconcile import build_removal

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

PAGE = 25  # nodes; one with many images takes about 50 KB
_MANAGER = "vitald"
_OURS = frozenset((_MANAGER,))
_RETRY = Backoff(0.5, 5.0)
_ATTEMPTS = 8  # half a minute
_NOT_FOUND, _CONFLICT, _GONE, _TOO_MANY = 404, 409, 410, 429


@dataclass(frozen=True, slots=True)
class WrittenNames:
    """What vitald wrote to one node, sorted."""

    conditions: list[str]
    labels: list[str]
    annotations: list[str]
    taint: bool

    def __bool__(self) -> bool:
        return bool(self.conditions or self.labels or self.annotations or self.taint)


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node, and the labels and annotations that vitald alone manages."""

    node: NodeObject
    managed: frozenset[str]


class ClusterClient(KubernetesClient):
    """A client for one node after the other."""

    async def list_nodes(self, token: str = "") -> tuple[list[ListedNode], str]:
        """One page, and the token of the next, "" after the last. Raises as read_node."""
        path = f"/api/v1/nodes?limit={PAGE}"
        document = await self._request("GET", f"{path}&continue={quote(token)}" if token else path)
        if not isinstance(document, dict) or not isinstance(document.get("items"), list):
            raise ApiUnreachable("the answer is no NodeList")
        metadata = document.get("metadata")
        following = metadata.get("continue") if isinstance(metadata, dict) else None
        try:
            return [_parse_listed(item) for item in document["items"]], str(following or "")
        except ValueError as error:
            raise ApiUnreachable(f"the answer is no NodeList: {error}") from error

    async def remove_names(self, node: NodeObject, names: WrittenNames, taint: str) -> None:
        """From this node; one that is gone has nothing. Raises as read_node."""
        self.node = node.name
        removal = build_removal(names.conditions, names.labels, names.annotations)
        try:
            present = await self.patch_status(removal)
            if names.taint:
                await self._remove_taint(taint, present)
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise

    async def _remove_taint(self, key: str, node: NodeObject) -> None:
        """At the version that the other taints were read at: they are one list."""
        left = [taint.to_json() for taint in node.taints if taint.key != key]
        version = {"resourceVersion": node.resource_version}
        await self.patch_node({"metadata": version, "spec": {"taints": left or None}})


async def retire_cluster(client: ClusterClient, prefix: str) -> tuple[int, int]:
    """How many nodes there are, and from how many something was removed. Raises ApiUnreachable,
    ApiRefused, NoCredentials after half a minute without progress.
    """
    seen: set[str] = set()
    changed: set[str] = set()
    token, failures = "", 0
    while True:
        known = len(seen)
        try:
            nodes, following = await client.list_nodes(token)
            for listed in nodes:
                seen.add(listed.node.name)
                if await _retire_node(client, listed, prefix):
                    changed.add(listed.node.name)
        except (ApiRefused, ApiUnreachable) as error:
            failures += 1
            if not _is_passing(error) or failures >= _ATTEMPTS:
                raise
            log.warning("retire_retried", error=str(error))
            wait = error.retry_after_s if isinstance(error, ApiRefused) else None
            await asyncio.sleep(wait if wait is not None else _RETRY.delay_s(failures))
            token = ""  # nodes that are done are only read again
            continue
        if len(seen) > known:
            failures = 0
        if not following:
            return len(seen), len(changed)
        token = following


async def _retire_node(client: ClusterClient, listed: ListedNode, prefix: str) -> bool:
    """Whether there was something to remove."""
    names = find_written_names(listed, prefix)
    if names:
        await client.remove_names(listed.node, names, _get_taint_key(prefix))
        log.info(
            "retired",
            node=listed.node.name,
            conditions=names.conditions,
            labels=names.labels,
            annotations=names.annotations,
            taint=names.taint,
        )
    return bool(names)


def find_written_names(listed: ListedNode, prefix: str) -> WrittenNames:
    """What this node has of vitald."""
    node, start = listed.node, f"{prefix}/"
    return WrittenNames(
        conditions=sorted(
            type_
            for type_ in node.conditions
            if type_.startswith(start) or node.managers.get(type_) == _OURS
        ),
        labels=_find_own(node.labels, start, listed.managed),
        annotations=_find_own(node.annotations, start, listed.managed),
        taint=any(taint.key == _get_taint_key(prefix) for taint in node.taints),
    )


def _find_own(names: Mapping[str, str], start: str, managed: frozenset[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(start) or name in managed)


def _get_taint_key(prefix: str) -> str:
    return f"{prefix}/unhealthy"


def _is_passing(error: ApiRefused | ApiUnreachable) -> bool:
    """Whether another attempt may succeed. 410: the token of the next page has expired."""
    if isinstance(error, ApiUnreachable):
        return True
    return error.status in (_CONFLICT, _GONE, _TOO_MANY) or error.status >= 500


def _parse_listed(document: object) -> ListedNode:
    """Raises ValueError that names the key."""
    node = parse_node(document)
    metadata = document["metadata"] if isinstance(document, dict) else {}
    ours: set[str] = set()
    others: set[str] = set()
    for entry in metadata.get("managedFields") or ():
        names = _list_managed_names(entry.get("fieldsV1"))
        (ours if entry.get("manager") == _MANAGER else others).update(names)
    return ListedNode(node, frozenset(ours - others))


def _list_managed_names(fields: object) -> list[str]:
    """Labels and annotations, from keys such as `f:example.com/name`."""
    metadata = fields.get("f:metadata") if isinstance(fields, dict) else None
    if not isinstance(metadata, dict):
        return []
    groups = (metadata.get(f"f:{group}") for group in ("labels", "annotations"))
    return [
        key.removeprefix("f:")
        for group in groups
        if isinstance(group, dict)
        for key in group
        if key.startswith("f:")
    ]
