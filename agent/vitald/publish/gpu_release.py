"""
Has the daemon release the GPUs, and take them back: `POST /v1/release`, `POST /v1/release/end`.

A release is known by its reason, so that another person's is never ended, and one that was begun
before a restart of this process is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitald.publish.daemon_request import AnswerUnusable, DaemonAway, request_daemon
from vitald.server import endpoints
from vitald.server.endpoint import Endpoint

REASON = "driver upgrade by the NVIDIA GPU Operator"
_ANSWER_S = 15.0  # the daemon waits up to 10 s for a worker that hangs in the driver
_CONFLICT = 409  # no GPU on PCI, or NVML is not used
_NVML = "nvml"


class ReleaseFailed(Exception):
    """The daemon did not answer, or refused. The text says why.

    `is_final`: it would refuse again.
    """

    def __init__(self, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class DaemonReleases:
    """Whether the GPUs are released, by whomever; and which run of the daemon says so."""

    started_at: str
    is_released: bool


class GpuReleases:
    """Requests to the daemon behind this socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read_state(self) -> DaemonReleases:
        """Raises ReleaseFailed."""
        status = await self._request(endpoints.STATUS)
        try:
            sources = {source["name"]: source["state"] for source in status["sources"]}
            return DaemonReleases(str(status["startedAt"]), sources.get(_NVML) == "released")
        except (KeyError, TypeError) as error:
            raise ReleaseFailed(
                f"{endpoints.STATUS.path}: {type(error).__name__}: {error}"
            ) from error

    async def begin_release(self, seconds: float) -> bool:
        """Returns once the daemon does not hold the GPUs; False if it never does. Raises
        ReleaseFailed.
        """
        try:
            await self._request(endpoints.RELEASE, {"reason": REASON, "seconds": seconds})
        except _Refused as refused:
            if refused.status == _CONFLICT:
                return False
            raise
        return True

    async def end_release(self) -> None:
        """Take the GPUs back, unless somebody else has them released. Raises ReleaseFailed."""
        try:
            await self._request(endpoints.END_RELEASE, {"reason": REASON})
        except _Refused as refused:
            if refused.status != _CONFLICT:
                raise

    async def _request(
        self, endpoint: Endpoint[object], body: Mapping[str, object] | None = None
    ) -> Mapping[str, Any]:
        try:
            return await request_daemon(self._socket, endpoint, body, answer_s=_ANSWER_S)
        except DaemonAway as error:
            raise ReleaseFailed(str(error)) from error
        except AnswerUnusable as error:
            raise _Refused(str(error), error.status) from error


class _Refused(ReleaseFailed):
    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail, is_final=400 <= status < 500)
        self.status = status
