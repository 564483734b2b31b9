"""
The taint `<prefix>/unhealthy=<action>:<effect>`, which keeps pods off an unhealthy node.

Taints are one list, which a patch replaces as a whole: it is read, changed and written with the
resource version that it was read at, and read again where another writer was faster (409). What
others put there stays. While the node's state is unknown, the taint stays as it is. It never has
the effect NoExecute, so `timeAdded`, which belongs to that, is not written.

Source: Kubernetes API v1, Taint, and "Resource versions" of the API concepts, tried against 1.36.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from vitald.model.words import Action, Status
from vitald.publish.kubernetes.client import ApiRefused, KubernetesClient, report_failures
from vitald.publish.kubernetes.node_object import NodeTaint
from vitald.publish.kubernetes.settings import TAINT_EFFECTS, TAINT_SINK, KubernetesSettings
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import StateStore
from vitald.publish.summary import DaemonSilent, PublishedState

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

OFF = "off"
# Only of NoSchedule the daemon may take a success for a drain: the others keep no pod away.
_NAMES = {
    OFF: "kubernetes-taint-removal",
    "PreferNoSchedule": "kubernetes-soft-taint",
    "NoSchedule": TAINT_SINK,
}
WORDS = tuple(action.value for action in Action)
_CONFLICT = 409
_ATTEMPTS = 5
_RECHECK_S = 60.0


class TaintSink:
    """Sets and removes the taint. A sink of its own: the right to patch nodes may be missing, and
    conditions do not need it.
    """

    def __init__(
        self, client: KubernetesClient, settings: KubernetesSettings, store: StateStore
    ) -> None:
        self.name = _NAMES[settings.taint]
        self._client = client
        self._settings = settings
        self._store = store
        self._key = get_taint_key(settings.prefix)

    @staticmethod
    def is_needed(settings: KubernetesSettings, store: StateStore) -> bool:
        """Whether there is a taint to set, or one that may have been left behind."""
        return settings.taint != OFF or bool(store.read_taints())

    def get_recheck_s(self, state: PublishedState) -> float:
        """How long after a write the node is compared again, in seconds."""
        is_unhealthy = not isinstance(state, DaemonSilent) and state.status is Status.UNHEALTHY
        return _RECHECK_S if is_unhealthy else self._settings.heartbeat_s

    async def write_state(self, state: PublishedState) -> bool:
        """Whether the node had to be patched. Raises SinkFailed."""
        if self._settings.taint == OFF:
            wanted = None
        elif isinstance(state, DaemonSilent) or state.status is Status.UNKNOWN:
            return False
        else:
            is_unhealthy = state.status is Status.UNHEALTHY
            wanted = self._build_taint(state.action.value) if is_unhealthy else None
        keys = self._store.read_taints()
        if self._settings.taint != OFF:
            keys |= {self._key}
        if not keys:
            return False
        with report_failures():
            did_write = await self._replace_taint(keys, wanted)
        kept = set() if wanted is None else {wanted.key}
        await self._store.drop_taints(keys - kept)
        return did_write

    def _build_taint(self, action: str) -> NodeTaint:
        return NodeTaint(key=self._key, value=action, effect=self._settings.taint)

    async def _replace_taint(self, keys: Collection[str], wanted: NodeTaint | None) -> bool:
        if wanted is not None:
            await self._store.add_taint(wanted.key)
        did_write = await replace_taints(self._client, keys, wanted)
        if did_write:
            log.info(
                "taint_written", level="notice", taint=None if wanted is None else wanted.to_json()
            )
        return did_write


async def replace_taints(
    client: KubernetesClient, keys: Collection[str], wanted: NodeTaint | None
) -> bool:
    """Make `wanted` the only taint of the node with one of these keys. Whether that changed it.

    Raises SinkFailed if other writers were faster each time, else as the client does.
    """
    for _ in range(_ATTEMPTS):
        node = await client.read_node()
        taints = merge_taints(node.taints, keys, wanted)
        if taints == node.taints:
            return False
        patch = {
            "metadata": {"resourceVersion": node.resource_version},
            "spec": {"taints": [taint.to_json() for taint in taints] or None},
        }
        try:
            await client.patch_node(patch)
        except ApiRefused as error:
            if error.status != _CONFLICT:
                raise
        else:
            return True
    raise SinkFailed(f"the node was changed by others {_ATTEMPTS} times while its taint was set")


def merge_taints(
    present: Sequence[NodeTaint], keys: Collection[str], wanted: NodeTaint | None
) -> tuple[NodeTaint, ...]:
    """Those of others in their order, and `wanted` in the place of ours."""
    if wanted is not None and wanted in present:
        return tuple(each for each in present if each == wanted or not is_ours(each, keys))
    others = tuple(each for each in present if not _gives_way(each, keys, wanted))
    return others if wanted is None else (*others, wanted)


def _gives_way(taint: NodeTaint, keys: Collection[str], wanted: NodeTaint | None) -> bool:
    """Ours, or one in the place of `wanted`: a node has one taint of a key and an effect."""
    is_in_place = wanted is not None and (taint.key, taint.effect) == (wanted.key, wanted.effect)
    return is_in_place or is_ours(taint, keys)


def is_ours(taint: NodeTaint, keys: Collection[str]) -> bool:
    """Whether it says what vitald's taint says. No manager of a single taint is recorded."""
    return taint.key in keys and taint.effect in TAINT_EFFECTS and taint.value in WORDS


def get_taint_key(prefix: str) -> str:
    return f"{prefix}/unhealthy"
