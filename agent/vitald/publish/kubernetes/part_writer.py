"""
Sends the parts of what the node should say: together in one patch, or each by itself where the API
server refuses that.

A right, an admission policy or a webhook may refuse a part. Then the rest is written, and what was
written of that part before is removed, since nothing would keep it up to date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from vitald.publish.kubernetes.client import REFUSED, ApiRefused, KubernetesClient
from vitald.publish.kubernetes.desired import DesiredNode, combine
from vitald.publish.kubernetes.names import list_desired_names
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.reconcile import build_removal
from vitald.publish.kubernetes.sets import FORMER, Refusal

_RETRY_S = 60.0
BuildPatch = Callable[[DesiredNode], "dict[str, object] | None"]


class PartWriter:
    """`refusals`: what the API server refuses at present, by part."""

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
