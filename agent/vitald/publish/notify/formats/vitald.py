"""
The own format, which has everything. docs/reference/notification.schema.json describes it.
"""

from __future__ import annotations

from vitald.publish.notify.formats.text import (
    describe_notification,
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
from vitald.timestamps import format_rfc3339

MAX_GROUPS = 50


def build_body(notification: Notification) -> dict[str, object]:
    """What does not apply is null; a text that is not known is empty."""
    node, finding, former = notification.node, notification.finding, notification.former_flags
    return {
        "id": notification.id,
        "dedupKey": notification.key,
        "transition": notification.kind.value,
        "time": format_rfc3339(notification.time),
        "host": limit_name(node.host),
        "instanceId": limit_name(node.instance_id),
        "bootId": limit_name(node.boot_id),
        "version": limit_name(node.version),
        "summary": describe_notification(notification),
        "severity": rate_notification(notification),
        "finding": None if finding is None else _build_finding(finding),
        "flags": _build_flags(notification.flags),
        "formerFlags": None if former is None else _build_flags(former),
        "digest": _build_digest(notification.digest),
    }


def _build_finding(finding: NotifiedFinding) -> dict[str, object]:
    return {
        "id": finding.id,
        "component": limit_name(finding.component),
        "uuid": limit_name(finding.uuid),
        "serial": limit_name(finding.serial),
        "kind": limit_name(finding.kind),
        "code": limit_name(finding.code),
        "reason": limit_name(finding.reason),
        "title": limit_line(finding.title),
        "action": finding.action.value,
        "when": limit_name(finding.when),
        "todo": limit_line(finding.todo),
        "since": format_rfc3339(finding.since) if finding.since else None,
        "raw": limit_raw(finding.raw),
        "source": limit_name(finding.source),
        "cause": limit_line(finding.cause),
        "confirmed": finding.confirmed,
        "simulated": finding.simulated,
    }


def _build_flags(flags: NodeFlags) -> dict[str, object]:
    return {
        "status": flags.status.value,
        "rebootRequired": flags.reboot_required,
        "replacementRequired": flags.replacement_required,
        "rebootDue": flags.reboot_due,
        "replacementDue": flags.replacement_due,
        "simulated": flags.simulated,
    }


def _build_digest(digest: Digest | None) -> dict[str, object] | None:
    if digest is None:
        return None
    return {
        "firstId": digest.first_id,
        "lastId": digest.last_id,
        "count": digest.count,
        "groups": [
            {
                "transition": group.kind.value,
                "code": limit_name(group.code),
                "action": group.action.value,
                "count": group.count,
            }
            for group in digest.groups[:MAX_GROUPS]
        ],
    }
