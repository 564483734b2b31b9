"""
`vitald publish kubernetes --retire`: removes all that was written to the node.

What that is comes from the state folder, for everything that was ever written, and from the present
configuration, for a state folder that was lost.
"""

from __future__ import annotations

import asyncio
import random
import time

from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.taint import replace_taints
from vitald.publish.kubernetes.written import (
    build_names_removal,
    find_present,
    get_taint_key,
    list_configured_names,
    list_profile_names,
)
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import StateStore, WrittenKind, WrittenName
from vitald.publish_sections import KubernetesSettings

PATIENCE_S = 30.0
_PAUSE_S = 1.0
_GONE = 404
_LASTING = (400, 401, 403, 422)  # the next attempt would be refused, too


class NotRetired(Exception):
    """Something may still be on the node. The text says why."""


async def retire_node(
    client: KubernetesClient,
    settings: KubernetesSettings,
    store: StateStore,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """What was removed, in words. Tries again for `patience_s`. Raises NotRetired."""
    deadline = time.monotonic() + patience_s
    removed: list[WrittenName] = []
    while True:
        try:
            await _remove_names(client, settings, store, removed)
        except ApiRefused as error:
            if error.status == _GONE:
                return [*_describe(removed), f"node {client.node} does not exist"]
            if error.status in _LASTING or time.monotonic() >= deadline:
                raise NotRetired(_explain(client, removed, error)) from error
        except (ApiUnreachable, NoCredentials, SinkFailed) as error:
            if time.monotonic() >= deadline:
                raise NotRetired(_explain(client, removed, error)) from error
        else:
            return _describe(removed)
        await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311


async def _remove_names(
    client: KubernetesClient,
    settings: KubernetesSettings,
    store: StateStore,
    removed: list[WrittenName],
) -> None:
    """Add to `removed` what was removed. Raises as the client does, and SinkFailed."""
    taint = WrittenName(WrittenKind.TAINT, get_taint_key(settings))
    configured = list_configured_names(settings)
    names = store.read_written() | configured | list_profile_names() | {taint}
    present = find_present(names, await client.read_node())
    taints = frozenset(name for name in present if name.kind is WrittenKind.TAINT)
    if of_status := present - taints:
        _check_removed(await client.patch_status(build_names_removal(of_status)), of_status)
        removed += of_status
    if taints:
        await replace_taints(client, [name.name for name in taints], None)
        removed += taints
    await store.drop_written(names)


def _check_removed(node: NodeObject, names: frozenset[WrittenName]) -> None:
    """Raises SinkFailed where another writer was faster."""
    if left := find_present(names, node):
        raise SinkFailed(f"still there: {', '.join(sorted(_describe(list(left))))}")


def _describe(names: list[WrittenName]) -> list[str]:
    return sorted(name.describe() for name in names)


def _explain(client: KubernetesClient, removed: list[WrittenName], error: Exception) -> str:
    done = f" (removed: {', '.join(_describe(removed))})" if removed else ""
    return f"node {client.node}: not everything could be removed{done}: {error}"
