"""
Texts of notifications: one line that says what happened, and limits.

Titles, raw lines and the names in them come from the kernel log, from devices and from processes:
they are printable and short in every format, whatever they were.
"""

from __future__ import annotations

from vitald.model.words import Action, Status, When
from vitald.publish.notify.notification import (
    Digest,
    NodeFlags,
    Notification,
    NotificationKind,
    NotifiedFinding,
)
from vitald.text import count_noun, join_first, limit_bytes

MAX_NAME, MAX_LINE, MAX_RAW = 256, 500, 1000  # bytes of UTF-8
_MAX_GROUPS = 5  # of a digest, in one line

# PagerDuty's words, which other receivers know as well.
_SEVERITY = {
    Action.REPLACE_NODE: "critical",
    Action.REBOOT_NODE: "error",
    Action.RESET_DEVICE: "error",
    Action.INSPECT: "warning",
    Action.RESTART_WORKLOAD: "warning",
    Action.OBSERVE: "info",
    Action.NONE: "info",
}
_STATUS_SEVERITY = {
    Status.HEALTHY: "info",
    Status.DEGRADED: "warning",
    Status.UNKNOWN: "warning",
    Status.UNHEALTHY: "error",
}
_MOMENTS = {when.value: when.phrase for when in When}


def limit_name(text: str) -> str:
    return limit_bytes(text, MAX_NAME)


def limit_line(text: str) -> str:
    return limit_bytes(text, MAX_LINE)


def limit_raw(text: str) -> str:
    return limit_bytes(text, MAX_RAW)


def rate_notification(notification: Notification) -> str:
    """The severity of the message: critical, error, warning or info."""
    if notification.finding is not None:
        return _SEVERITY[notification.finding.action]
    if notification.digest is not None:
        return _SEVERITY[_find_strongest(notification.digest)]
    if notification.kind is NotificationKind.FLAGS:
        return rate_flags(notification.flags)
    return "info"


def rate_flags(flags: NodeFlags) -> str:
    if flags.replacement_required:
        return "critical"
    return "error" if flags.reboot_required else _STATUS_SEVERITY[flags.status]


def is_resolved(notification: Notification) -> bool:
    """Whether it is the end of what an earlier one with its key began."""
    if notification.kind is NotificationKind.FLAGS:
        return rate_flags(notification.flags) == "info"
    if notification.digest is not None:
        return not notification.digest.groups
    return notification.kind is NotificationKind.CLEARED


def is_simulated(notification: Notification) -> bool:
    """Whether it is about a drill."""
    return notification.finding is not None and notification.finding.simulated


def describe_notification(notification: Notification) -> str:
    """`node1: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node`."""
    drill = "SIMULATED: " if is_simulated(notification) else ""
    host = limit_name(notification.node.host or "unknown host")
    return f"{drill}{host}: {_describe_change(notification)}"


def _describe_change(notification: Notification) -> str:
    if notification.finding is not None:
        return _describe_finding(notification.kind, notification.finding)
    if notification.digest is not None:
        return _describe_digest(notification.digest)
    if notification.kind is NotificationKind.FLAGS:
        return describe_flags(notification.flags)
    return "test notification, nothing is wrong"


def _describe_finding(kind: NotificationKind, finding: NotifiedFinding) -> str:
    what = f"{limit_name(finding.component)}: {limit_line(finding.title)}"
    what += f" ({limit_name(finding.code)})"
    if kind is NotificationKind.CLEARED:
        return f"{what}: cleared"
    before = "escalated: " if kind is NotificationKind.ESCALATED else ""
    return f"{what}: {before}{describe_action(finding)}"


def describe_action(finding: NotifiedFinding) -> str:
    """`reboot the node after the running job`."""
    return finding.action.phrase + _MOMENTS.get(finding.when, "")


def describe_flags(flags: NodeFlags) -> str:
    """`unhealthy, reboot required`, or `reboot due` where it may happen now."""
    words = [flags.status.value]
    if flags.replacement_required or flags.replacement_due:
        words.append("replacement due" if flags.replacement_due else "replacement required")
    if flags.reboot_required or flags.reboot_due:
        words.append("reboot due" if flags.reboot_due else "reboot required")
    return ", ".join(words)


def _find_strongest(digest: Digest) -> Action:
    return Action.find_strongest(group.action for group in digest.groups)


def _describe_digest(digest: Digest) -> str:
    if not digest.groups:
        return f"cleared: {count_noun(digest.count, 'finding')} of earlier digests"
    groups = [
        f"{group.count} {group.kind.value} {limit_name(group.code)}" for group in digest.groups
    ]
    return f"{digest.count} changes of findings at once: {join_first(groups, _MAX_GROUPS)}"
