"""
Leadership among the processes of a Deployment, by a Lease.

As in client-go's leader election, the clock of the process that reads the Lease counts, not that of
its holder: the Lease has expired if this process has observed no renewal for its duration.

Source: Kubernetes API, Lease (coordination.k8s.io/v1), and client-go tools/leaderelection.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from vitald.publish.kubernetes.client import ApiRefused, Document
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.timestamps import format_rfc3339

DURATION_S = 180.0
RENEW_S = 30.0
_CONFLICT = 409


@dataclass(slots=True, kw_only=True)
class Lease:
    """One Lease, as the process called `identity` sees it. Times on the monotonic clock."""

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
        RENEW_S. Raises as the client does.
        """
        if self._asked_at is None or now - self._asked_at >= RENEW_S:
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
        has_expired = now - self._observed_at >= DURATION_S
        return not holder or holder == self.identity or has_expired

    async def _write(self, former: Document | None, holder: str) -> bool:
        """Whether no other process was faster."""
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": round(DURATION_S),
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
