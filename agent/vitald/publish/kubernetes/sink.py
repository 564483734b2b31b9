"""
Keeps conditions, labels and the annotation of the own node up to date.

Each write is a comparison: the node is read, the difference is sent as one patch, and the answer is
the node as others see it. What another writer removed is repaired the next time.

A right, an admission policy or a webhook may refuse a part. Then the parts are sent one by one, and
what was written of a refused part before is removed, since nothing would keep it up to date.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping

import structlog

from vitald.model.words import Status
from vitald.publish.kubernetes.client import REFUSED, ApiRefused, KubernetesClient, report_failures
from vitald.publish.kubernetes.desired import DesiredNode, combine
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.reconcile import (
    LastTransition,
    build_patch,
    build_removal,
    decide_transition,
)
from vitald.publish.kubernetes.sets import (
    FORMER,
    Refusal,
    build_configured_node,
    describe_refusals,
    list_desired_names,
)
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.sink import PartlyWritten, SinkFailed
from vitald.publish.state_store import StateStore
from vitald.publish.summary import DaemonSilent, PublishedState

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

_RECHECK_S = 60.0  # while the node is not well or not all is written; else with the heartbeat
_JITTER = 0.1
_RETRY_S = 60.0
BuildPatch = Callable[[DesiredNode], "dict[str, object] | None"]


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


class PartWriter:
    """Sends the parts of what the node should say. `refusals`: what the API server refuses at
    present, by part.
    """

    def __init__(self, client: KubernetesClient, split_s: float) -> None:
        """`split_s`: where it refuses everything, it is tried in parts once in so many seconds."""
        self.refusals: dict[str, Refusal] = {}
        self._client = client
        self._split_s = split_s
        # On the monotonic clock: when the refused parts are tried again, and when everything is
        # tried in parts again.
        self._retry_due = self._split_due = 0.0

    async def write_parts(
        self, node: NodeObject, parts: Mapping[str, DesiredNode], build_patch: BuildPatch
    ) -> bool:
        """Whether the node had to be patched. `build_patch`: the patch that makes the node say
        this, None if it does. Raises ApiRefused if everything is refused, else as the client does.
        """
        now = time.monotonic()
        self.refusals = {name: why for name, why in self.refusals.items() if name in parts}
        try:
            accepted = [part for name, part in parts.items() if name not in self.refusals]
            did_write = await self._send(build_patch(combine(accepted)))
        except ApiRefused as error:
            if error.status not in REFUSED or now < self._split_due:
                raise
            did_write = await self._write_each(parts, parts, build_patch)
            if parts.keys() - self.refusals.keys() <= {FORMER}:
                self.refusals, self._split_due = {}, now + self._split_s
                raise
        else:
            if not self.refusals or now < self._retry_due:
                return did_write
            did_write |= await self._write_each([*self.refusals], parts, build_patch)
        for name in self.refusals.keys() - {FORMER}:
            did_write |= await self._withdraw(node, parts[name])
        return did_write

    async def _write_each(
        self, names: Collection[str], parts: Mapping[str, DesiredNode], build_patch: BuildPatch
    ) -> bool:
        """Whether anything was written. What is refused is in `refusals` then."""
        self._retry_due = time.monotonic() + _RETRY_S
        did_write = False
        for name in names:
            try:
                did_write |= await self._send(build_patch(parts[name]))
                self.refusals.pop(name, None)
            except ApiRefused as error:
                if error.status not in REFUSED:
                    raise
                why = f"API server: {error}: change what refuses it, or the section [kubernetes]"
                self.refusals[name] = Refusal(name, why)
        return did_write

    async def _withdraw(self, node: NodeObject, part: DesiredNode) -> bool:
        """Whether something of it had to be removed, and could be."""
        names = list_desired_names(part) & node.list_sole_names()
        try:
            return await self._send(build_removal(names) if names else None)
        except ApiRefused as error:
            if error.status not in REFUSED:
                raise
            return False

    async def _send(self, patch: dict[str, object] | None) -> bool:
        if patch is None:
            return False
        await self._client.patch_status(patch)
        return True
