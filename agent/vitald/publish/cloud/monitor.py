"""
Reads the provider's notices again and again, and hands them to the daemon: `POST /v1/notices`.

Each request has all notices that stand, so one that is gone ends its finding. Where the metadata
service does not answer, nothing is handed in: its silence neither opens nor ends a finding.

Owns     when notices are read and handed in, with back-off, and how that fares.
Refuses  what a notice means.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import aiohttp

from vitald.backoff import Backoff
from vitald.cloud_section import CloudSettings
from vitald.model.cloud_notice import Provider
from vitald.publish.cloud.aws import TIMEOUT_S as AWS_TIMEOUT_S
from vitald.publish.cloud.aws import AwsNotices
from vitald.publish.cloud.azure import TIMEOUT_S as AZURE_TIMEOUT_S
from vitald.publish.cloud.azure import AzureNotices
from vitald.publish.cloud.gcp import TIMEOUT_S as GCP_TIMEOUT_S
from vitald.publish.cloud.gcp import GcpNotices
from vitald.publish.cloud.metadata import MetadataFailed, MetadataService
from vitald.publish.cloud.notice import Notice, select_first
from vitald.publish.http import read_limited
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed, SinkHealth, note_failure, note_success
from vitald.publish.summary import PublishedState

REPEAT_S = 30.0  # for a daemon that was restarted, or a finding that was cleared by mistake
_ANSWER_S = 10.0
_MAX_BYTES = 64 * 1024
_BACKOFF = Backoff(1.0, 60.0)
_JITTER = 0.1
_OK = 200


class ProviderNotices(Protocol):
    """The notices of one provider. `read_notices` raises MetadataFailed."""

    async def read_notices(self) -> list[Notice]: ...


class CloudMonitor:
    """Keeps the daemon's findings of this provider up to date."""

    def __init__(self, settings: CloudSettings, socket: Path) -> None:
        self.health = SinkHealth("cloud", error="nothing has been read yet")
        self._settings = settings
        self._socket = socket
        self._provider = build_provider(settings)
        self._retry = Retry(unreachable=_BACKOFF, refused=_BACKOFF)
        self._handed_in = ""  # what the daemon has, and
        self._repeat_at = 0.0  # when it is handed in again, on the monotonic clock

    def offer_state(self, state: PublishedState) -> None:
        """The node's own state does not matter here."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._update_daemon()
            except MetadataFailed as error:
                delay = self._note_failure(f"{self._settings.provider}: {error}", error)
            except SinkFailed as error:
                delay = self._note_failure(str(error), error)
            else:
                self._retry.note_success()
                jitter = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
                delay = self._settings.every_s * jitter
            await asyncio.sleep(delay)

    async def _update_daemon(self) -> None:
        notices = select_first(await self._provider.read_notices())
        listed = [notice.to_json() for notice in notices]
        body: dict[str, object] = {"provider": self._settings.provider, "notices": listed}
        written = json.dumps(body)
        is_due = written != self._handed_in or time.monotonic() >= self._repeat_at
        if is_due:
            if not self.health.waiting:
                self.health = replace(self.health, waiting=1, waiting_since=time.time())
            await self._hand_in(body)
            self._handed_in, self._repeat_at = written, time.monotonic() + REPEAT_S
        self.health = note_success(self.health, waiting=0, writes=int(is_due))

    async def _hand_in(self, body: dict[str, object]) -> None:
        """Raises SinkFailed."""
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(self._socket)),
                    timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
                ) as session,
                session.post("http://vitald/v1/notices", json=body) as answer,
            ):
                content = await read_limited(answer, _MAX_BYTES)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            problem = str(error) or type(error).__name__
            raise SinkFailed(f"the daemon: {problem}", is_unreachable=True) from error
        if answer.status != _OK:
            text = content[:200].decode(errors="replace")
            raise SinkFailed(f"the daemon: HTTP {answer.status}: {text}")

    def _note_failure(self, detail: str, error: MetadataFailed | SinkFailed) -> float:
        """Seconds until the next attempt."""
        self.health = note_failure(self.health, SinkFailed(detail))
        delay = self._retry.note_failure(is_unreachable=error.is_unreachable)
        return max(delay, self._settings.every_s)


def build_provider(settings: CloudSettings) -> ProviderNotices:
    """Of the provider that the configuration names."""
    imminent_s, endpoint = settings.imminent_s, settings.endpoint
    if settings.provider == Provider.AWS.value:
        return AwsNotices(MetadataService(endpoint, timeout_s=AWS_TIMEOUT_S), imminent_s)
    if settings.provider == Provider.AZURE.value:
        return AzureNotices(MetadataService(endpoint, timeout_s=AZURE_TIMEOUT_S), imminent_s)
    return GcpNotices(MetadataService(endpoint, timeout_s=GCP_TIMEOUT_S), imminent_s)
