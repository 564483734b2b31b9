"""
Leadership among the processes of a Deployment, by a Lease.

As client-go's leader election does, a Lease is judged by the clock of the process that reads it: it
has expired if its holder has not renewed it for its duration since it was first seen so. What a
holder's clock says does not matter.

Source: Kubernetes API, Lease (coordination.k8s.io/v1), and client-go tools/leaderelection.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from vitald.publish.kubernetes.client import ApiRefused
from vitald.publish.kubernetes.cluster_client import ClusterClient, Document
from vitald.timestamps import format_rfc3339

DURATION_S = 180.0
_RENEW_S = 30.0
_CONFLICT = 409


@dataclass(slots=True, kw_only=True)
class Lease:
    """One Lease, as the process called `identity` sees it. Times on the monotonic clock."""

    client: ClusterClient
    namespace: str
    name: str
    identity: str
    _seen: tuple[object, object] | None = field(default=None, init=False)  # holder, renewed
    _seen_at: float = field(default=0.0, init=False)
    _renewed: float | None = field(default=None, init=False)

    async def hold(self, now: float) -> bool:
        """Whether this process is the leader, after taking or renewing the Lease where that is
        due. Raises as the client does.
        """
        if self._renewed is not None and now - self._renewed < _RENEW_S:
            return True
        self._renewed = None
        lease = await self.client.read_lease(self.namespace, self.name)
        if lease is not None and not self._is_free(lease, now):
            return False
        if not await self._write(lease, self.identity):
            return False
        self._renewed = now
        return True

    async def release(self) -> None:
        """So that another process need not wait for its end. Raises as the client does."""
        if self._renewed is None:
            return
        self._renewed = None
        lease = await self.client.read_lease(self.namespace, self.name)
        if lease is not None and _read_spec(lease).get("holderIdentity") == self.identity:
            await self._write(lease, "")

    def _is_free(self, lease: Document, now: float) -> bool:
        spec = _read_spec(lease)
        holder, duration = spec.get("holderIdentity"), spec.get("leaseDurationSeconds")
        if (holder, spec.get("renewTime")) != self._seen:
            self._seen, self._seen_at = (holder, spec.get("renewTime")), now
        limit = duration if isinstance(duration, int) else DURATION_S
        return not holder or holder == self.identity or now - self._seen_at >= limit

    async def _write(self, former: Document | None, holder: str) -> bool:
        """Whether this process was the fastest."""
        moment = format_rfc3339(time.time(), "microseconds")
        transitions = 0
        if former is not None:
            spec = _read_spec(former)
            has_changed = spec.get("holderIdentity") != holder
            before = spec.get("leaseTransitions")
            transitions = (before if isinstance(before, int) else 0) + has_changed
        body = {
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": round(DURATION_S),
                "renewTime": moment,
                "leaseTransitions": transitions,
            }
        }
        try:
            if former is None:
                named = {"metadata": {"name": self.name}, **body}
                kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                await self.client.create_lease(self.namespace, {**kind, **named})
            else:
                version = _read_table(former, "metadata").get("resourceVersion")
                patch = {"metadata": {"resourceVersion": version}, **body}
                await self.client.patch_lease(self.namespace, self.name, patch)
        except ApiRefused as error:
            if error.status != _CONFLICT:
                raise
            return False
        return True


def _read_spec(lease: Document) -> Document:
    return _read_table(lease, "spec")


def _read_table(document: Document, key: str) -> Document:
    table = document.get(key)
    return table if isinstance(table, dict) else {}
