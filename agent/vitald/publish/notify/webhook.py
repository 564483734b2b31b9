"""
Posts each notification to a URL, in the format that the configuration names, and signs it: Standard
Webhooks 1.0.0, so that a receiver can use an existing library.

    webhook-id          the same in each repeat of one message
    webhook-timestamp   seconds since the epoch, of this attempt
    webhook-signature   v1,BASE64 for each key, of the HMAC-SHA256 of `ID.TIMESTAMP.BODY`

Source: standard-webhooks/standard-webhooks, spec/standard-webhooks.md, "Signature scheme" and
"Webhook headers".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass

from vitald.publish.notify.formats import FORMATS, encode_json
from vitald.publish.notify.http_post import HttpAnswer, HttpPoster, check_answer
from vitald.publish.notify.notification import Notification
from vitald.publish.notify.secret_file import (
    SecretUnusable,
    read_address,
    read_headers,
    read_routing_key,
    read_signing_keys,
)
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.sink import SinkFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """`poster`: of the address that it goes to. `shown`: the body without secrets, for a person."""

    poster: HttpPoster
    headers: dict[str, str]
    body: bytes
    shown: bytes


class WebhookReceiver:
    """One `[notify.NAME]` of the type webhook."""

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._format = FORMATS[settings.format]
        self._url = ""
        self._poster: HttpPoster | None = None

    async def deliver(self, notification: Notification) -> None:
        """Raises SinkFailed, NotificationRefused."""
        try:
            request = self.build_request(notification, time.time())
        except SecretUnusable as error:
            raise SinkFailed(str(error)) from None  # the file may be repaired
        check_answer(request.poster.server, await self.send(request))

    async def send(self, request: WebhookRequest) -> HttpAnswer:
        """Whatever was answered. Raises SinkFailed where nothing was."""
        return await request.poster.send(request.body, request.headers)

    def build_request(self, notification: Notification, now: float) -> WebhookRequest:
        """`now`: seconds since the epoch. Raises SecretUnusable."""
        settings = self._settings
        poster = self._find_poster()
        extra = read_headers(settings.headers_file)
        keys = read_signing_keys(settings.secret_file)
        routing_key = read_routing_key(settings.routing_key_file)
        document = self._format.build(notification)
        shown = body = encode_json(document)
        if self._format.has_routing_key:
            body = encode_json({"routing_key": routing_key, **document})
            shown = encode_json({"routing_key": "[secret]", **document})
        headers = {
            **extra,
            "Content-Type": self._format.content_type,
            **build_headers(notification.id, int(now), body, keys),
        }
        return WebhookRequest(poster=poster, headers=headers, body=body, shown=shown)

    def _find_poster(self) -> HttpPoster:
        """Of the present address, which a file may have. Raises SecretUnusable."""
        settings = self._settings
        url = settings.url[0] if settings.url_file is None else read_address(settings.url_file)
        if self._poster is None or url != self._url:
            self._url = url
            self._poster = HttpPoster(url, ca=settings.ca, timeout_s=settings.timeout_s)
        return self._poster


def build_headers(
    notification_id: str, timestamp: int, body: bytes, keys: Sequence[bytes] = ()
) -> dict[str, str]:
    """The headers of an attempt; without keys, without a signature. `timestamp`: seconds since the
    epoch.
    """
    headers = {"webhook-id": notification_id, "webhook-timestamp": str(timestamp)}
    if keys:
        signed = f"{notification_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(_sign(key, signed) for key in keys)
    return headers


def _sign(key: bytes, signed: bytes) -> str:
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
