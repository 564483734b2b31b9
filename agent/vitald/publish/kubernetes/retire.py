"""
Removes from one node (`vitald publish kubernetes --retire`) or from all of them what vitald wrote,
with whatever configuration: what the API server has recorded (sets.py), and taints, of which it
records no manager.

    PATCH  /api/v1/nodes/NAME/status      conditions, labels and annotations
    PATCH  /api/v1/nodes/NAME             taints, where there is one
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection
from dataclasses import dataclass

import structlog

from vitald.backoff import Backoff
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.kubernetes.sets import describe_kept, find_written_names
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.taint import get_taint_key, is_ours, replace_taints
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import StateStore

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

PATIENCE_S = 30.0
_PAUSE_S = 1.0
_NOT_FOUND, _EXPIRED, _TOO_MANY = 404, 410, 429
_LASTING = (400, 401, 403, 422)  # the next attempt would be refused, too
_RETRY = Backoff(0.5, 5.0)
_ATTEMPTS = 8  # half a minute
_MAX_WAIT_S = 30.0  # of what a server may ask for


class NotRetired(Exception):
    """Something may still be on the node. The text says why."""


async def retire_node(
    client: KubernetesClient,
    settings: KubernetesSettings,
    store: StateStore,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """What was removed and what was kept, in words. Tries again for `patience_s`. Raises
    NotRetired.
    """
    deadline = time.monotonic() + patience_s
    removed: set[str] = set()
    while True:
        try:
            kept = await _remove_names(client, settings, store, removed)
        except ApiRefused as error:
            if error.status == _NOT_FOUND:
                return [*sorted(removed), f"node {client.node} does not exist"]
            if error.status in _LASTING or time.monotonic() >= deadline:
                raise NotRetired(_explain(client, removed, error)) from error
        except (ApiUnreachable, NoCredentials, SinkFailed) as error:
            if time.monotonic() >= deadline:
                raise NotRetired(_explain(client, removed, error)) from error
        else:
            return [*sorted(removed), *kept]
        await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311


async def _remove_names(
    client: KubernetesClient, settings: KubernetesSettings, store: StateStore, removed: set[str]
) -> list[str]:
    """Add to `removed` what was removed. Returns what was kept. Raises as the client does, and
    SinkFailed.
    """
    keys = store.read_taints() | {get_taint_key(settings.prefix)}
    node = await client.read_node()
    await remove_written(client, node, settings.prefix, keys, removed)
    await store.drop_taints(keys)
    await store.write_transitions(node.uid, {})  # a later first write is one
    return [f"kept: {name}" for name in describe_kept(node, settings.prefix)]


def _explain(client: KubernetesClient, removed: set[str], error: Exception) -> str:
    done = f" (removed: {', '.join(sorted(removed))})" if removed else ""
    return f"node {client.node}: not everything could be removed{done}: {error}"


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
    return error.status in (_EXPIRED, _TOO_MANY) or error.status >= 500
