"""
The own format, which has everything. docs/reference/notification.schema.json describes it.
"""

from __future__ import annotations

from vitald import __version__
from vitald.publish.notify.formats.text import (
    describe_notification,
    is_simulated,
    limit_line,
    limit_name,
    limit_raw,
    rate_notification,
)
from vitald.publish.notify.notification import (
    Digest,
    NodeFlags,
    Notification,
    NotifiedFinding,
)
from vitald.text import limit_bytes
from vitald.timestamps import format_rfc3339

_MAX_LISTED = 64  # bytes of each of many names: a whole body stays below 64 KiB


def build_body(notification: Notification) -> dict[str, object]:
    """What does not apply is null; a text that is not known is empty."""
    node, finding, former = notification.node, notification.finding, notification.former_flags
    return {
        "id": notification.id,
        "dedupKey": limit_line(notification.key),
        "transition": notification.kind.value,
        "time": format_rfc3339(notification.time),
        "host": limit_name(node.host),
        "instanceId": limit_name(node.instance_id),
        "bootId": limit_name(node.boot_id),
        "version": __version__,
        "summary": describe_notification(notification),
        "severity": rate_notification(notification),
        "simulated": is_simulated(notification),
        "finding": None if finding is None else _build_finding(finding),
        "flags": _build_flags(notification.flags),
        "formerFlags": None if former is None else _build_flags(former),
        "digest": None if notification.digest is None else _build_digest(notification.digest),
    }


def _build_finding(finding: NotifiedFinding) -> dict[str, object]:
    return {
        "id": finding.id,
        "component": limit_name(finding.component),
        "device": limit_name(finding.device),
        "uuid": limit_name(finding.uuid),
        "serial": limit_name(finding.serial),
        "code": limit_name(finding.code),
        "title": limit_line(finding.title),
        "action": finding.action.value,
        "when": limit_name(finding.when),
        "instruction": finding.action.phrase,
        "since": format_rfc3339(finding.since) if finding.since else None,
        "raw": limit_raw(finding.raw),
        "cause": limit_line(finding.cause),
        "confirmed": finding.confirmed,
    }


def _build_flags(flags: NodeFlags) -> dict[str, object]:
    return {
        "status": flags.status.value,
        "rebootRequired": flags.reboot_required,
        "replacementRequired": flags.replacement_required,
        "rebootDue": flags.reboot_due,
        "replacementDue": flags.replacement_due,
    }


def _build_digest(digest: Digest) -> dict[str, object]:
    return {
        "count": digest.count,
        "groups": [
            {
                "transition": group.kind.value,
                "code": limit_name(group.code),
                "action": group.action.value,
                "count": group.count,
                "components": [limit_bytes(name, _MAX_LISTED) for name in group.components],
            }
            for group in digest.groups
        ],
    }
