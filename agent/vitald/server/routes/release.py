"""
Releasing the GPUs for a while, over the socket: `POST /v1/release`, and `POST /v1/release/end` to
take them back.

Owns     the parameters of a release, and the answer.
Refuses  the release itself: the source does it, with an event that has user and reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from vitald.checking import read_texts
from vitald.collectors.nvml.release import Releases
from vitald.core.device_directory import DeviceDirectory
from vitald.model.words import ComponentKind
from vitald.server import endpoints, serialize
from vitald.server.request import (
    RequestRefused,
    make_route,
    read_body,
    read_reason,
    read_seconds,
    read_value,
    require_release_right,
)
from vitald.server.routes.context import find_component
from vitald.topology.pci_inventory import PciInventory

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

_DEFAULT_S = 600.0
_RELEASE_TIMEOUT_S = 10.0
_STORE_TIMEOUT_S = 1.0  # where the disk hangs, the answer does not


class ReleaseRoutes:
    """The handlers. `releases` is None if NVML is not used; `prepare_release` stops a diagnostic
    that has the devices.

    `stored` returns once all earlier batches of the sources are shown.
    """

    def __init__(
        self,
        inventory: PciInventory,
        devices: DeviceDirectory,
        releases: Releases | None,
        prepare_release: Callable[[], Awaitable[None]],
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        self._inventory = inventory
        self._devices = devices
        self._releases = releases
        self._prepare_release = prepare_release
        self._stored = stored

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.RELEASE, self.release_devices),
            make_route(endpoints.END_RELEASE, self.end_release),
        ]

    async def release_devices(self, request: web.Request) -> schema.Released:
        """Release the GPUs for a while. Answers once vitald does not hold them any more, and the
        status shows that.
        """
        peer = require_release_right(request)
        body = await read_body(request, "reason", "seconds", "gpus")
        reason, seconds, releases = (
            read_reason(body),
            read_seconds(body, "seconds", _DEFAULT_S),
            self._get_releases(),
        )
        wanted = self._gpus_of(body)
        try:
            await self._prepare_release()
            begun = releases.begin_release(seconds, wanted, f"{peer.name}, pid {peer.pid}", reason)
            report = await asyncio.wait_for(begun, _RELEASE_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise RequestRefused(
                503, "the GPUs could not be let go of in time", "see vitald status: NVML may hang"
            ) from None
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stored(), _STORE_TIMEOUT_S)
        log.warning(
            "released",
            gpus=wanted or "all",
            seconds=seconds,
            uid=peer.uid,
            pid=peer.pid,
            reason=reason,
        )
        return {
            "gpus": [f"gpu/{gpu}" for gpu in wanted],
            "seconds": seconds,
            "until": serialize.format_moment(time.time() + seconds),
            "deviceUsers": [{"pid": pid, "process": name} for pid, name in report.device_users],
            "notInspected": report.hidden,
            "stuck": list(report.stuck),
            "free": not (report.device_users or report.stuck),
        }

    async def end_release(self, request: web.Request) -> schema.ReleaseEnded:
        """Ends the releases now, or only those with the reason in the body."""
        peer = require_release_right(request)
        body = await read_body(request, "reason")
        reason = read_reason(body) if "reason" in body else ""
        ended = self._get_releases().end_releases(f"{peer.name}, pid {peer.pid}", reason)
        log.info("release_ended", level="notice", uid=peer.uid, pid=peer.pid, ended=ended)
        return {"ended": ended}

    def _gpus_of(self, body: serialize.Json) -> list[str]:
        """The PCI addresses of the requested GPUs; empty for all of them."""
        known = {
            device.address
            for device in self._inventory.list_watched()
            if device.kind is ComponentKind.GPU
        }
        if not known:
            raise RequestRefused(
                409,
                "this node has no GPU on PCI: nothing is released",
                "vitald components shows what it has",
            )
        read = partial(read_texts, expected="a list of GPUs, by any of their names")
        names = read_value(body, "gpus", read, [], "leave it out for all of them")
        wanted = [find_component(self._devices, name, ComponentKind.GPU).id for name in names]
        if unknown := [gpu for gpu in wanted if gpu not in known]:
            raise RequestRefused(
                404, f"no GPU {unknown[0][:80]!r} on PCI now", "vitald gpus shows them"
            )
        return wanted

    def _get_releases(self) -> Releases:
        if self._releases is None:
            raise RequestRefused(
                409,
                "NVML is not asked on this node",
                "[nvml] enabled = false: nothing of ours holds a GPU",
            )
        return self._releases
