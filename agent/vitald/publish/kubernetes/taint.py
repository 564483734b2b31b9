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

from vitald.model import Status
from vitald.model.response import ServiceState
from vitald.publish.kubernetes.client import ApiRefused, KubernetesClient, report_failures
from vitald.publish.kubernetes.node_object import NodeTaint
from vitald.publish.kubernetes.written import get_taint_key
from vitald.publish.service_report import ServiceReport
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import StateStore, WrittenKind, WrittenName
from vitald.publish.summary import DaemonSilent, PublishedState
from vitald.publish_sections import KubernetesSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

OFF = "off"
_DRAINING = "NoSchedule"  # PreferNoSchedule keeps no pod away for certain
_CONFLICT = 409
_ATTEMPTS = 5
_RECHECK_S = 60.0


class TaintSink:
    """Sets and removes the taint. A sink of its own: the right to patch nodes may be missing, and
    conditions do not need it.
    """

    name = "kubernetes-taint"

    def __init__(
        self,
        client: KubernetesClient,
        settings: KubernetesSettings,
        store: StateStore,
        report: ServiceReport | None = None,
    ) -> None:
        """`report`: to the daemon, once the API server has accepted a change."""
        self._client = client
        self._settings = settings
        self._store = store
        self._report = report
        self._key = get_taint_key(settings)

    @staticmethod
    def is_needed(settings: KubernetesSettings, store: StateStore) -> bool:
        """Whether there is a taint to set, or one that may have been left behind."""
        return settings.taint != OFF or bool(_list_keys(store))

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
        keys = _list_keys(self._store)
        if self._settings.taint != OFF:
            keys |= {self._key}
        if not keys:
            return False
        with report_failures():
            did_write = await self._replace_taint(keys, wanted)
        kept = set() if wanted is None else {wanted.key}
        await self._store.drop_written([_name_taint(key) for key in keys - kept])
        if self._report is not None:
            is_drained = wanted is not None and wanted.effect == _DRAINING
            await self._report.send_state(
                ServiceState.DRAINED if is_drained else ServiceState.IN_SERVICE
            )
        return did_write

    def _build_taint(self, action: str) -> NodeTaint:
        return NodeTaint(key=self._key, value=action, effect=self._settings.taint)

    async def _replace_taint(self, keys: Collection[str], wanted: NodeTaint | None) -> bool:
        if wanted is not None:
            await self._store.add_written([_name_taint(wanted.key)])
        did_write = await replace_taints(self._client, keys, wanted)
        if did_write:
            log.info("taint_written", taint=None if wanted is None else wanted.to_json())
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
        return tuple(each for each in present if each.key not in keys or each == wanted)
    others = tuple(each for each in present if each.key not in keys)
    return others if wanted is None else (*others, wanted)


def _list_keys(store: StateStore) -> frozenset[str]:
    return frozenset(each.name for each in store.read_written() if each.kind is WrittenKind.TAINT)


def _name_taint(key: str) -> WrittenName:
    return WrittenName(WrittenKind.TAINT, key)
