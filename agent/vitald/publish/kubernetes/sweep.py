"""
`vitald publish sweep`: one process for the cluster, which corrects what silent publishers left.

    silent, and its pod is to run there    conditions Unknown, reason HeartbeatStale
    silent, and no publisher's pod         all that vitald wrote is removed

A publisher is silent if it has not written for three heartbeats while this process observed it. The
time of its last write is the API server's record, and the time of observation is this process's
monotonic clock: neither a wrong clock, nor a restart, nor an outage of the API server, during which
no publisher can write, makes the nodes of a cluster unknown.

Kubernetes turns only the kubelet's own conditions to Unknown when they are no longer renewed.
Source: Kubernetes, pkg/controller/nodelifecycle/node_lifecycle_controller.go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from vitald.model.words import Action, Status
from vitald.publish.kubernetes.client import REFUSED, ApiRefused, ApiUnreachable, Document
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.kubernetes.desired import HEARTBEAT_STALE, ConditionStatus, list_label_keys
from vitald.publish.kubernetes.node_object import (
    NameKind,
    NodeCondition,
    NodeName,
    NodeObject,
    list_by_kind,
)
from vitald.publish.kubernetes.profiles.hyperpod import FIT, HEALTH_STATUS
from vitald.publish.kubernetes.reconcile import delete_conditions
from vitald.publish.kubernetes.retire import remove_written
from vitald.publish.kubernetes.sets import (
    HYPERPOD,
    find_written_names,
    list_configured_names,
    list_profile_names,
)
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.taint import get_taint_key
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed
from vitald.timestamps import format_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("sweep")

LEASE_S = 180.0
LEASE_RENEW_S = 30.0
INTERVAL_S = 60.0
HEARTBEATS = 3  # a publisher that missed so many is silent
_NOT_FOUND, _CONFLICT = 404, 409
_LEASE_RELEASE_S = 1.0
_FAILURES = (ApiRefused, ApiUnreachable, NoCredentials, SinkFailed)
_SILENT_MESSAGE = (
    "vitald publish on this node has stopped writing: check its pod or unit, and its log"
)


@dataclass(slots=True, kw_only=True)
class Lease:
    """Leadership among the processes of a Deployment, by one Lease, as the process `identity` sees
    it. Times on the monotonic clock.

    As in client-go's leader election (tools/leaderelection), the clock of the process that reads
    the Lease counts, not that of its holder: the Lease has expired if this process has observed no
    renewal for its duration.
    """

    client: ClusterClient
    namespace: str
    name: str
    identity: str
    _observed: tuple[object, object] | None = field(default=None, init=False)  # holder, renewTime
    _observed_at: float = field(default=0.0, init=False)  # first
    _asked_at: float | None = field(default=None, init=False)
    _is_held: bool = field(default=False, init=False)

    async def hold(self, now: float) -> bool:
        """Whether this process is the leader. Takes or renews the Lease, at most once in
        LEASE_RENEW_S. Raises as the client does.
        """
        if self._asked_at is None or now - self._asked_at >= LEASE_RENEW_S:
            self._is_held = False
            self._is_held = await self._take(now)
            self._asked_at = now
        return self._is_held

    async def release(self) -> None:
        """So that the next leader need not wait for the expiry. Raises as the client does."""
        if not self._is_held:
            return
        self._is_held, self._asked_at = False, None
        lease = await self.client.read_lease(self.namespace, self.name)
        if lease is not None and _read_table(lease, "spec").get("holderIdentity") == self.identity:
            await self._write(lease, "")

    async def _take(self, now: float) -> bool:
        lease = await self.client.read_lease(self.namespace, self.name)
        if lease is not None and not self._is_free(lease, now):
            return False
        return await self._write(lease, self.identity)

    def _is_free(self, lease: Document, now: float) -> bool:
        spec = _read_table(lease, "spec")
        holder = spec.get("holderIdentity")
        observed = (holder, spec.get("renewTime"))
        if observed != self._observed:
            self._observed, self._observed_at = observed, now
        has_expired = now - self._observed_at >= LEASE_S
        return not holder or holder == self.identity or has_expired

    async def _write(self, former: Document | None, holder: str) -> bool:
        """Whether no other process was faster."""
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": round(LEASE_S),
            "renewTime": format_rfc3339(time.time(), "microseconds"),
        }
        try:
            if former is None:
                kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                lease = {**kind, "metadata": {"name": self.name}, "spec": spec}
                await self.client.create_lease(self.namespace, lease)
            else:
                version = _read_table(former, "metadata").get("resourceVersion")
                patch = {"metadata": {"resourceVersion": version}, "spec": spec}
                await self.client.patch_lease(self.namespace, self.name, patch)
        except ApiRefused as error:
            if error.status != _CONFLICT:
                raise
            return False
        return True


def _read_table(document: Document, key: str) -> Document:
    table = document.get(key)
    return table if isinstance(table, dict) else {}


@dataclass(frozen=True, slots=True)
class _Observation:
    """The last write of a publisher, by the API server's clock, and since when it has been the
    last, on the monotonic clock.
    """

    written_at: str
    since: float


class Sweep:
    """Checks all nodes once a minute, and corrects them while it is the leader."""

    def __init__(
        self,
        client: ClusterClient,
        settings: KubernetesSettings,
        lease: Lease,
        *,
        pods: str,
        ready_file: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pods`: the label selector of the publishers' pods, in the Lease's namespace; "" where
        publishers run on the hosts. `ready_file`: touched after each successful check.
        """
        self._client = client
        self._settings = settings
        self._lease = lease
        self._pods = pods
        self._ready_file = ready_file
        self._clock = clock
        self._silent_s = HEARTBEATS * settings.heartbeat_s
        self._observations: dict[str, _Observation] = {}  # by the node's uid
        self._checked_at = clock()
        self._refused = False

    async def run(self) -> None:
        """Until cancelled."""
        retry = Retry()
        log.info("sweeping", level="notice", silent_s=self._silent_s, pods=self._pods)
        try:
            while True:
                try:
                    await self.check_nodes()
                except _FAILURES as error:
                    log.error("check_failed", error=str(error))
                    pause = retry.note_failure(
                        is_unreachable=isinstance(error, ApiUnreachable),
                        retry_after_s=getattr(error, "retry_after_s", None),
                    )
                else:
                    retry.note_success()
                    pause = INTERVAL_S
                await asyncio.sleep(pause)
        finally:
            with suppress(*_FAILURES, asyncio.TimeoutError):
                await asyncio.wait_for(self._lease.release(), _LEASE_RELEASE_S)

    async def check_nodes(self) -> None:
        """Raises as the client does."""
        begun = self._clock()
        if begun - self._checked_at > 2 * INTERVAL_S:
            self._observations.clear()  # for too long, no write could have been observed
        await self._lease.hold(begun)
        observations: dict[str, _Observation] = {}
        self._refused = False
        async for node in self._client.list_metadata():
            if not find_written_names(node, self._settings.prefix):
                continue
            now = self._clock()
            observation = self._observations.get(node.uid)
            if observation is None or observation.written_at != node.written_at:
                observation = _Observation(node.written_at, now)
            elif now - observation.since >= self._silent_s and await self._correct(node):
                observation = _Observation(node.written_at, now)  # checked again as late
            observations[node.uid] = observation
        self._observations, self._checked_at = observations, self._clock()
        if not self._refused:
            self._note_success()

    def _note_success(self) -> None:
        try:
            self._ready_file.touch()
        except OSError as error:  # then the readiness probe fails
            log.error("not_noted", file=str(self._ready_file), error=str(error))

    async def _correct(self, listed: NodeObject) -> bool:
        """Whether that is done; else the next check tries again. What the API server refuses of one
        node does not keep the others from being corrected.
        """
        if not await self._lease.hold(self._clock()):
            return False
        self._client.node = listed.name
        try:
            node = await self._client.read_node()
            if (node.uid, node.written_at) == (listed.uid, listed.written_at):
                await self._correct_node(node)
        except ApiRefused as error:
            if error.status in REFUSED:
                self._refused = True
                log.error("refused", node=listed.name, error=str(error))
            elif error.status not in (_NOT_FOUND, _CONFLICT):
                raise
            return False
        except SinkFailed as error:  # other writers were faster
            log.warning("not_corrected", node=listed.name, error=str(error))
            return False
        return True

    async def _correct_node(self, node: NodeObject) -> None:
        namespace, prefix = self._lease.namespace, self._settings.prefix
        if self._pods and not await self._client.has_publisher(namespace, self._pods, node.name):
            removed: set[str] = set()
            await remove_written(self._client, node, prefix, {get_taint_key(prefix)}, removed)
            log.warning("retired", node=node.name, removed=sorted(removed))
        elif patch := build_stale_patch(node, self._settings, time.time()):
            await self._client.patch_status(patch)
            log.warning("made_unknown", node=node.name, written_at=node.written_at)


def build_stale_patch(
    node: NodeObject, settings: KubernetesSettings, now: float
) -> dict[str, object] | None:
    """A patch of the status, for the node as it was read. None if it has these values already, or
    if vitald wrote no condition: then there is no heartbeat, and a publisher that has nothing to
    change does not write.

    Conditions become Unknown and keep their heartbeat, the labels of status and action become
    `unknown` and `none`. What else vitald wrote has no such word and is removed; an order to
    HyperPod apart, since a node that needs a repair is likely to be silent.
    """
    written = find_written_names(node, settings.prefix) & node.list_names()
    if HYPERPOD in settings.conditions and node.labels.get(HEALTH_STATUS) != FIT:
        written -= list_profile_names(HYPERPOD)
    kept = written & list_configured_names(settings)
    words = list_stale_words(settings.prefix)
    conditions = [_expire(node.conditions[type_], now) for type_ in _types(kept)]
    changed = [each for each in conditions if each != node.conditions[each.type]]
    labels = {
        key: words.get(key) if NodeName(NameKind.LABEL, key) in kept else None
        for key in list_by_kind(written, NameKind.LABEL)
    }
    annotations = list_by_kind(written, NameKind.ANNOTATION)
    removed = _types(written - kept)
    has_heartbeat = bool(conditions or removed)
    is_same = all(node.labels.get(key) == word for key, word in labels.items())
    if not has_heartbeat or (is_same and not (changed or annotations or removed)):
        return None
    return {
        "metadata": {
            "resourceVersion": node.resource_version,  # 409 if it was written to meanwhile
            "labels": labels,
            "annotations": dict.fromkeys(annotations),
        },
        "status": {"conditions": [each.to_json() for each in changed] + delete_conditions(removed)},
    }


def _types(names: Iterable[NodeName]) -> list[str]:
    return list_by_kind(names, NameKind.CONDITION)


def list_stale_words(prefix: str) -> dict[str, str]:
    """Of the labels that have a word for it."""
    words = (Status.UNKNOWN.value, Action.NONE.value)
    return dict(zip(list_label_keys(prefix), words, strict=True))


def _expire(condition: NodeCondition, now: float) -> NodeCondition:
    """`now`: seconds since the epoch."""
    unknown = ConditionStatus.UNKNOWN.value
    is_same = condition.status == unknown and condition.last_transition
    return NodeCondition(
        type=condition.type,
        status=unknown,
        reason=HEARTBEAT_STALE,
        message=_SILENT_MESSAGE,
        last_transition=condition.last_transition if is_same else format_rfc3339(now, "seconds"),
        last_heartbeat=condition.last_heartbeat,
    )
