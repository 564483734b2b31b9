"""
Notices of Google Compute Engine: host maintenance and preemption.

`maintenance-event` changes 60 minutes before the maintenance of a VM with GPUs, and has no time, so
an interruption that it announces counts as imminent. `upcoming-maintenance` has the time, for the
machine types that have it. They are polled: three hanging requests (`wait_for_change`) would notice
a change some seconds earlier, of a notice of minutes.

Source: Google Cloud: "Query metadata server for maintenance event notices", "Handle GPU host
maintenance events", "Monitor and plan for a host maintenance event", "Preemptible VM instances".
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from vitald.model.cloud_notice import Effect
from vitald.publish.cloud.metadata import (
    NOT_FOUND,
    Answer,
    MetadataFailed,
    MetadataService,
    refuse_answer,
)
from vitald.publish.cloud.notice import Notice, find_effect, parse_moment

TIMEOUT_S = 2.0
_INSTANCE = "/computeMetadata/v1/instance"
EVENT, PREEMPTED = f"{_INSTANCE}/maintenance-event", f"{_INSTANCE}/preempted"
UPCOMING = f"{_INSTANCE}/upcoming-maintenance?alt=json"
_FLAVOR = {"Metadata-Flavor": "Google"}
_EVENTS = {
    "NONE": None,
    "MIGRATE_ON_HOST_MAINTENANCE": Effect.PAUSE,
    "TERMINATE_ON_HOST_MAINTENANCE": Effect.IMMINENT,
}
_UNAVAILABLE = 503  # with the error "no notifications have been received yet", although there is
_NO_NOTIFICATION = b"no notifications have been received"  # just no maintenance


class GcpNotices:
    """Reads the notices of one VM. `imminent_s`: see `[cloud] imminent`."""

    def __init__(self, service: MetadataService, imminent_s: float) -> None:
        self._service = service
        self._imminent_s = imminent_s

    async def read_notices(self) -> list[Notice]:
        """Raises MetadataFailed."""
        event, preempted = await self._read_word(EVENT), await self._read_word(PREEMPTED)
        notices = await self._read_upcoming()
        if event not in _EVENTS:
            raise MetadataFailed(f"{EVENT}: {event!r:.80} is not documented")
        if preempted not in ("TRUE", "FALSE"):
            raise MetadataFailed(f"{PREEMPTED}: {preempted!r:.80} is not documented")
        if effect := _EVENTS[event]:
            notices.append(Notice(effect=effect, kind=event))
        if preempted == "TRUE":
            notices.append(Notice(effect=Effect.IMMINENT, kind="preempted"))
        return notices

    async def _get(self, path: str) -> Answer:
        """An answer of Google's metadata server: each has a header that says so."""
        answer = await self._service.get(path, _FLAVOR)
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise MetadataFailed(f"{path.partition('?')[0]}: not Google's metadata server answers")
        return answer

    async def _read_word(self, path: str) -> str:
        answer = await self._get(path)
        if not answer.is_found:
            raise refuse_answer(path, answer)
        try:
            return answer.read_text()
        except ValueError as error:
            raise MetadataFailed(f"{path}: {error}") from error

    async def _read_upcoming(self) -> list[Notice]:
        answer = await self._get(UPCOMING)
        is_none = answer.status == _UNAVAILABLE and _NO_NOTIFICATION in answer.body
        if is_none or answer.status == NOT_FOUND:  # not for this machine type
            return []
        if not answer.is_found:
            raise refuse_answer(UPCOMING, answer)
        try:
            return self._parse_upcoming(answer.read_json())
        except ValueError as error:
            raise MetadataFailed(f"{UPCOMING.partition('?')[0]}: {error}") from error

    def _parse_upcoming(self, document: object) -> list[Notice]:
        if document == "NONE":
            return []
        if not isinstance(document, dict):
            raise ValueError("expected a maintenance, or {}")
        if not document or _NO_NOTIFICATION.decode() in str(document.get("error", "")):
            return []
        not_before = parse_moment(_find(document, "window_start_time", "windowStartTime"))
        if not_before is None:
            raise ValueError("a maintenance without window_start_time")
        if _find(document, "maintenance_status", "maintenanceStatus") == "ONGOING":
            not_before = None
        kind = _find(document, "type") or "upcoming-maintenance"
        reasons = _find(document, "maintenance_reasons", "maintenanceReasons") or []
        listed = reasons if isinstance(reasons, list) else [reasons]
        return [
            Notice(
                effect=find_effect(not_before, time.time(), self._imminent_s),
                kind=f"maintenance-{kind}".lower(),
                not_before=not_before,
                description=", ".join(map(str, listed)),
            )
        ]


def _find(document: Mapping[str, object], *names: str) -> object:
    """The value of the first of these keys: the documentation has both spellings."""
    return next((document[name] for name in names if name in document), None)
