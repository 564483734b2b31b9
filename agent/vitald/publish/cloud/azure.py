"""
Notices of Azure: Scheduled Events.

The first request of a VM enables the service, and may take up to two minutes; without a request for
24 hours it is disabled. All VMs of a scale set get the events of all, so `Resources` decides.
Events are only read: none is approved, which would start it early.

Source: Microsoft, "Azure Metadata Service: Scheduled Events for Linux VMs" (version 2020-07-01) and
"Azure Instance Metadata Service".
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from vitald.model.cloud_notice import Effect
from vitald.publish.cloud.metadata import MetadataFailed, MetadataService, refuse_answer
from vitald.publish.cloud.notice import Notice, find_effect, parse_moment

TIMEOUT_S = 10.0
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HEADERS = {"Metadata": "true"}
_PAUSE = "Freeze"
_STARTED = "Started"  # NotBefore is empty then
_OPEN = ("Scheduled", _STARTED)


class AzureNotices:
    """Reads the events of one VM. `imminent_s`: see `[cloud] imminent`."""

    def __init__(self, service: MetadataService, imminent_s: float) -> None:
        self._service = service
        self._imminent_s = imminent_s
        self._name = ""  # as events name this VM

    async def read_notices(self) -> list[Notice]:
        """Raises MetadataFailed."""
        if not self._name:
            self._name = await self._read_name()
        answer = await self._service.get(EVENTS, _HEADERS)
        if not answer.is_found:
            raise refuse_answer(EVENTS, answer)
        try:
            document = answer.read_json()
            if not isinstance(document, dict) or not isinstance(document["Events"], list):
                raise ValueError("expected a list of events")
            return [self._make_notice(event) for event in document["Events"] if self._is_own(event)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = EVENTS.partition("?")[0]
            raise MetadataFailed(f"{path}: {type(error).__name__}: {error}") from error

    async def _read_name(self) -> str:
        answer = await self._service.get(NAME, _HEADERS)
        if not answer.is_found:
            raise refuse_answer(NAME, answer)
        try:
            name = answer.read_text()
        except ValueError:
            name = ""
        if not _NAME.fullmatch(name):
            raise MetadataFailed("/metadata/instance/compute/name: not the name of a VM")
        return name

    def _is_own(self, event: Mapping[str, object]) -> bool:
        resources = event["Resources"]
        if not isinstance(resources, list):
            raise ValueError("expected a list of Resources")
        names = [str(name).casefold() for name in resources]
        return event["EventStatus"] in _OPEN and self._name.casefold() in names

    def _make_notice(self, event: Mapping[str, object]) -> Notice:
        kind = str(event["EventType"])
        started = event["EventStatus"] == _STARTED
        not_before = None if started else parse_moment(event.get("NotBefore"))
        effect = find_effect(not_before, time.time(), self._imminent_s)
        return Notice(
            effect=Effect.PAUSE if kind == _PAUSE else effect,
            kind=kind,
            id=str(event.get("EventId", "")),
            not_before=not_before,
            description=str(event.get("Description", "")),
        )
