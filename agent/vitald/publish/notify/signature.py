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
from collections.abc import Sequence


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
