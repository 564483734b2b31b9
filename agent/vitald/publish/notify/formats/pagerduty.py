"""
PagerDuty, Events API v2: a fault is an alert, which its end resolves.

Source: PagerDuty/api-schema, reference/events-v2/openapiv3.json (fields, severities, 400 is
final, 429 and 5xx are tried again); limits of summary (1024) and dedup_key (255): PagerDuty, "Send
an alert event". Lengths here are bytes, which are never fewer than characters.
"""

from __future__ import annotations

import hashlib

from vitald.publish.notify.formats.text import (
    describe_notification,
    is_resolved,
    limit_name,
    rate_notification,
)
from vitald.publish.notify.formats.vitald import build_body as build_own_body
from vitald.publish.notify.notification import Notification
from vitald.text import limit_bytes
from vitald.timestamps import format_rfc3339

_MAX_KEY, _MAX_SUMMARY = 255, 1024


def build_body(notification: Notification) -> dict[str, object]:
    """The event without its routing key."""
    event: dict[str, object] = {
        "event_action": "resolve" if is_resolved(notification) else "trigger",
        "dedup_key": _build_key(notification.key),
    }
    if event["event_action"] == "trigger":
        event["payload"] = _build_payload(notification)
        event["client"] = "vitald"
    return event


def _build_key(key: str) -> str:
    """As it is, or where it is too long a digest of it: cutting could make two keys one."""
    if len(key.encode(errors="replace")) <= _MAX_KEY:
        return key
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def _build_payload(notification: Notification) -> dict[str, object]:
    finding = notification.finding
    payload: dict[str, object] = {
        "summary": limit_bytes(describe_notification(notification), _MAX_SUMMARY),
        "source": limit_name(notification.node.host) or "unknown",
        "severity": rate_notification(notification),
        "timestamp": format_rfc3339(notification.time),
        "custom_details": build_own_body(notification),
    }
    if finding is not None:
        payload["component"] = limit_name(finding.component)
        payload["class"] = limit_name(finding.code)
    return payload
