"""
The signature of a request: Standard Webhooks 1.0.0, so that a receiver can use an existing library.

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
import re
from collections.abc import Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def build_message_id(notification_id: str) -> str:
    """As it is, or a digest: a message id must have no full stop, because it is signed as text."""
    if _PLAIN.fullmatch(notification_id):
        return notification_id
    return f"msg_{hashlib.sha256(notification_id.encode()).hexdigest()[:32]}"


def build_headers(
    notification_id: str, timestamp: int, body: bytes, keys: Sequence[bytes] = ()
) -> dict[str, str]:
    """The headers of an attempt; without keys, without a signature. `timestamp`: seconds since the
    epoch.
    """
    message_id = build_message_id(notification_id)
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if keys:
        signed = f"{message_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(_sign(key, signed) for key in keys)
    return headers


def _sign(key: bytes, signed: bytes) -> str:
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
