"""
CloudEvents 1.0, structured mode: the attributes and, as `data`, the body of the format `vitald`.

Structured rather than binary: the whole event is in the body, so that a signature covers it and a
queue keeps it. The source is the node, as a URI reference of its own, and the id is unique in it.

Source: cloudevents/spec, spec.md 1.0.2 ("Context Attributes"), bindings/http-protocol-binding.md
(3.2, structured mode), formats/json-format.md.
"""

from __future__ import annotations

from urllib.parse import quote

from vitald.publish.notify.formats.text import limit_name
from vitald.publish.notify.formats.vitald import build_body as build_own_body
from vitald.publish.notify.notification import Notification, NotificationKind
from vitald.timestamps import format_rfc3339

CONTENT_TYPE = "application/cloudevents+json"

# The reverse DNS name of what Kubernetes' conditions have as a prefix, too.
_TYPES = {
    NotificationKind.OPENED: "io.vitald.finding.opened",
    NotificationKind.ESCALATED: "io.vitald.finding.escalated",
    NotificationKind.CLEARED: "io.vitald.finding.cleared",
    NotificationKind.FLAGS: "io.vitald.node.flags",
    NotificationKind.DIGEST: "io.vitald.node.digest",
    NotificationKind.TEST: "io.vitald.test",
}


def build_body(notification: Notification) -> dict[str, object]:
    """The event. `subject`: the component of a finding; the attribute must not be empty."""
    document: dict[str, object] = {
        "specversion": "1.0",
        "id": notification.id,
        "source": f"/vitald/{quote(limit_name(notification.node.host) or 'unknown', safe='')}",
        "type": _TYPES[notification.kind],
        "time": format_rfc3339(notification.time),
        "datacontenttype": "application/json",
        "data": build_own_body(notification),
    }
    if notification.finding is not None and notification.finding.component:
        document["subject"] = limit_name(notification.finding.component)
    return document
