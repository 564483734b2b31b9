"""
Notices of AWS EC2: scheduled events, Spot interruptions, rebalance recommendations. By IMDSv2 only.

Source: Amazon EC2 User Guide: "Instance metadata categories", "Use the Instance Metadata Service",
"Scheduled events for your Amazon EC2 instances", "Spot Instance interruption notices" (check every
5 seconds; HTTP 404 if there is none), "EC2 instance rebalance recommendations". States of scheduled
events: aws/aws-node-termination-handler, pkg/monitor/scheduledevent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

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
_TOKEN = "/latest/api/token"  # noqa: S105
_TOKEN_TTL_S, _RENEW_S = 21_600, 600
_META = "/latest/meta-data"
SCHEDULED = f"{_META}/events/maintenance/scheduled"
SPOT = f"{_META}/spot/instance-action"
REBALANCE = f"{_META}/events/recommendations/rebalance"
_UNAUTHORIZED = 401
_ENDED = ("completed", "canceled")
_HIBERNATE = "hibernate"  # begins at once


class AwsNotices:
    """Reads the notices of one EC2 instance. `imminent_s`: see `[cloud] imminent`."""

    def __init__(self, service: MetadataService, imminent_s: float) -> None:
        self._service = service
        self._imminent_s = imminent_s
        self._token = ""
        self._renew_at = 0.0  # on the monotonic clock

    async def read_notices(self) -> list[Notice]:
        """Raises MetadataFailed."""
        notices: list[Notice] = []
        readers: tuple[tuple[str, Callable[[object], list[Notice]]], ...] = (
            (SCHEDULED, self._parse_scheduled),
            (SPOT, self._parse_spot),
            (REBALANCE, _parse_rebalance),
        )
        for path, parse in readers:
            answer = await self._get(path)
            if answer.status == NOT_FOUND:
                continue
            if not answer.is_found:
                raise refuse_answer(path, answer)
            try:
                notices += parse(answer.read_json())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise MetadataFailed(f"{path}: {type(error).__name__}: {error}") from error
        return notices

    async def _get(self, path: str) -> Answer:
        answer = await self._service.get(path, await self._authorize())
        if answer.status != _UNAUTHORIZED:
            return answer
        self._token = ""  # it is not valid any more
        return await self._service.get(path, await self._authorize())

    async def _authorize(self) -> Mapping[str, str]:
        if not self._token or time.monotonic() >= self._renew_at:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
            answer = await self._service.put(_TOKEN, ttl)
            token = answer.body.decode("ascii", "replace").strip()
            if not answer.is_found or not token.isprintable() or not token.isascii():
                raise MetadataFailed(f"{_TOKEN}: no token (HTTP {answer.status})")
            self._token, self._renew_at = token, time.monotonic() + _TOKEN_TTL_S - _RENEW_S
        return {"X-aws-ec2-metadata-token": self._token}

    def _parse_scheduled(self, document: object) -> list[Notice]:
        if not isinstance(document, list):
            raise ValueError("expected a list of events")
        return [
            self._make_scheduled(event)
            for event in document
            if event.get("State", "") not in _ENDED
        ]

    def _make_scheduled(self, event: Mapping[str, object]) -> Notice:
        not_before = parse_moment(event.get("NotBefore"))
        return Notice(
            effect=find_effect(not_before, time.time(), self._imminent_s),
            kind=str(event["Code"]),
            id=str(event.get("EventId", "")),
            not_before=not_before,
            description=str(event.get("Description", "")),
        )

    def _parse_spot(self, document: object) -> list[Notice]:
        if not isinstance(document, dict):
            raise ValueError("expected an action")
        action, not_before = str(document["action"]), parse_moment(document.get("time"))
        if action == _HIBERNATE:
            not_before = None
        effect = find_effect(not_before, time.time(), self._imminent_s)
        return [Notice(effect=effect, kind=f"spot-{action}", not_before=not_before)]


def _parse_rebalance(document: object) -> list[Notice]:
    if not isinstance(document, dict):
        raise ValueError("expected a recommendation")
    noticed_at = document["noticeTime"]
    if parse_moment(noticed_at) is None:
        raise ValueError("no noticeTime")
    return [Notice(effect=Effect.REBALANCE, kind="rebalance", description=f"since {noticed_at}")]
