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
from vitald.publish.kubernetes.desired import DesiredNode, combine
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.part_writer import PartWriter
from vitald.publish.kubernetes.reconcile import LastTransition, build_patch, decide_transition
from vitald.publish.kubernetes.sets import FORMER, build_configured_node, describe_refusals
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.sink import PartlyWritten, SinkFailed
from vitald.publish.state_store import StateStore
from vitald.publish.summary import DaemonSilent, PublishedState

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

_RECHECK_S = 60.0  # while the node is not well or not all is written; else with the heartbeat
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
        self._writer = PartWriter(client, split_s=settings.heartbeat_s)
        self._has_refusals = False

    def get_recheck_s(self, state: PublishedState) -> float:
        """How long after a write the node is compared again, in seconds."""
        is_well = not isinstance(state, DaemonSilent) and state.status is Status.HEALTHY
        return (
            self._heartbeat_s
            if is_well and not self._has_refusals
            else min(_RECHECK_S, self._heartbeat_s)
        )

    async def write_state(self, state: PublishedState) -> bool:
        """Whether the node had to be patched. Raises SinkFailed; PartlyWritten where a part is
        refused.
        """
        with report_failures():
            return await self._reconcile(state, time.time())

    async def _reconcile(self, state: PublishedState, now: float) -> bool:
        node = await self._client.read_node()
        remembered = self._store.read_transitions(node.uid)
        configured = build_configured_node(self._settings, state, node, remembered)
        parts = configured.parts
        transitions = await self._decide_transitions(combine(parts.values()), node, remembered, now)

        def build(desired: DesiredNode) -> dict[str, object] | None:
            return build_patch(desired, transitions, node, now, self._heartbeat_s)

        did_write = await self._writer.write_parts(node, parts, build)
        if did_write:
            interval = self._settings.heartbeat_s
            # Nodes that were started together write at different times.
            self._heartbeat_s = interval * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        refusals = (*configured.refusals, *self._writer.refusals.values())
        self._has_refusals = bool(refusals)
        if not refusals:
            return did_write
        error = describe_refusals(refusals)
        if not parts.keys() - self._writer.refusals.keys() - {FORMER}:
            raise SinkFailed(error)
        refused = tuple(refusal.part for refusal in refusals)
        raise PartlyWritten(error, refused=refused, did_write=did_write)

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
