"""
Removes what vitald wrote from all nodes of the cluster: for the removal of a whole installation.

It needs no memory of what was written: the API server has recorded it (names.py), whatever the
configuration was.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from vitald.backoff import Backoff
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.names import describe_kept
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.removal import describe_written, remove_written
from vitald.publish.kubernetes.taint import get_taint_key
from vitald.publish.sink import SinkFailed

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

_RETRY = Backoff(0.5, 5.0)
_ATTEMPTS = 8  # half a minute
_MAX_WAIT_S = 30.0  # of what a server may ask for
_NOT_FOUND, _GONE, _TOO_MANY = 404, 410, 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What was removed from a node, or would be, and what is kept. In words."""

    node: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]


async def retire_cluster(
    client: ClusterClient, prefix: str, *, dry_run: bool = False
) -> list[Removal]:
    """One entry a node. Raises ApiUnreachable, ApiRefused, NoCredentials, SinkFailed after half a
    minute without progress.
    """
    done: dict[str, Removal] = {}
    token, failures = "", 0
    while True:
        known = len(done)
        try:
            nodes, token = await client.list_nodes(token)
            for node in nodes:
                removal = await _retire_node(client, node, prefix, dry_run=dry_run)
                if removal.removed or node.name not in done:
                    done[node.name] = removal
                    _log_removal(removal, dry_run=dry_run)
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
        if len(done) > known:
            failures = 0
        if not token:
            return list(done.values())


async def _retire_node(
    client: ClusterClient, node: NodeObject, prefix: str, *, dry_run: bool
) -> Removal:
    client.node = node.name
    keys = {get_taint_key(prefix)}
    removed = describe_written(node, prefix, keys) if dry_run else set()
    try:
        if not dry_run:
            await remove_written(client, node, prefix, keys, removed)
    except ApiRefused as error:
        if error.status != _NOT_FOUND:  # a node that is gone has nothing
            raise
    kept = describe_kept(node, prefix)
    return Removal(node=node.name, removed=tuple(sorted(removed)), kept=tuple(kept))


def _log_removal(removal: Removal, *, dry_run: bool) -> None:
    if removal.kept:
        log.warning("kept", node=removal.node, kept=removal.kept)
    if removal.removed and not dry_run:
        log.info("retired", level="notice", node=removal.node, removed=removal.removed)


def _is_passing(error: ApiRefused | ApiUnreachable | SinkFailed) -> bool:
    """Whether another attempt may succeed. 410: the token of the next page has expired."""
    if not isinstance(error, ApiRefused):
        return True
    return error.status in (_GONE, _TOO_MANY) or error.status >= 500
