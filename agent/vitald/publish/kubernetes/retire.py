"""
`vitald publish kubernetes --retire`: removes all that was written to the node, with whatever
configuration. What that is, the API server has recorded (names.py); taints apart, which the state
folder names.
"""

from __future__ import annotations

import asyncio
import random
import time

from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.kubernetes.names import describe_kept
from vitald.publish.kubernetes.removal import remove_written
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.taint import get_taint_key
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import StateStore

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
    """What was removed and what was kept, in words. Tries again for `patience_s`. Raises
    NotRetired.
    """
    deadline = time.monotonic() + patience_s
    removed: set[str] = set()
    while True:
        try:
            kept = await _remove_names(client, settings, store, removed)
        except ApiRefused as error:
            if error.status == _GONE:
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
