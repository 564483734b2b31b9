"""
Keeps conditions, labels and the annotation of the own node up to date.

Each write is a comparison: the node is read, the difference is sent as one patch, and the answer is
the node as others see it. What another writer removed is repaired the next time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import structlog

from vitald.model import Status
from vitald.publish.kubernetes.client import KubernetesClient, report_failures
from vitald.publish.kubernetes.desired import DesiredNode
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.reconcile import LastTransition, build_patch, decide_transition
from vitald.publish.kubernetes.sets import Refusal, build_configured_node
from vitald.publish.sink import PartlyWritten
from vitald.publish.state_store import StateStore
from vitald.publish.summary import DaemonSilent, PublishedState
from vitald.publish_sections import KubernetesSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

_RECHECK_S = 60.0  # while the node is not well; otherwise with the heartbeat
_JITTER = 0.1


class KubernetesSink:
    """Writes the node's state to its Node object."""

    name = "kubernetes"

    def __init__(
        self, client: KubernetesClient, settings: KubernetesSettings, store: StateStore
    ) -> None:
        self._client = client
        self._settings = settings
        self._store = store
        self._heartbeat_s = settings.heartbeat_s
        self._refusals: tuple[Refusal, ...] = ()

    def get_recheck_s(self, state: PublishedState) -> float:
        """How long after a write the node is compared again, in seconds."""
        is_well = not isinstance(state, DaemonSilent) and state.status is Status.HEALTHY
        return (
            self._heartbeat_s
            if is_well and not self._refusals
            else min(_RECHECK_S, self._heartbeat_s)
        )

    async def write_state(self, state: PublishedState) -> bool:
        """Whether the node had to be patched. Raises SinkFailed; PartlyWritten where a set is
        refused.
        """
        with report_failures():
            written = await self._reconcile(state, time.time())
        if self._refusals:
            raise PartlyWritten("; ".join(refusal.describe() for refusal in self._refusals))
        return written

    async def _reconcile(self, state: PublishedState, now: float) -> bool:
        node = await self._client.read_node()
        remembered = self._store.read_transitions(node.uid)
        configured = build_configured_node(self._settings, state, node, remembered)
        self._refusals, desired = configured.refusals, configured.desired
        transitions = await self._decide_transitions(desired, node, remembered, now)
        patch = build_patch(desired, transitions, node, now, self._heartbeat_s)
        if patch is None:
            return False
        await self._client.patch_status(patch)
        interval = self._settings.heartbeat_s
        # Nodes that were started together write at different times.
        self._heartbeat_s = interval * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        return True

    async def _decide_transitions(
        self,
        desired: DesiredNode,
        node: NodeObject,
        remembered: Mapping[str, LastTransition],
        now: float,
    ) -> dict[str, LastTransition]:
        """Since when each condition has its status; stored before it is written."""
        decided = {
            condition.type: decide_transition(
                condition,
                remembered.get(condition.type),
                node.conditions.get(condition.type),
                now,
            )
            for condition in desired.conditions
        }
        if decided != remembered:
            await self._store.write_transitions(node.uid, decided)
        return decided
