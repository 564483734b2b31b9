"""
Slack, incoming webhook: one message for each notification, as text and blocks.

`&`, `<` and `>` are escaped, so that no text of a process can mention @channel or hide a link;
`verbatim` keeps Slack from making links and mentions of plain text, and characters that format are
replaced.

Source: Slack, "Formatting message text" (escaping) and "Text object" (3000 characters, `verbatim`).
"""

from __future__ import annotations

from vitald.publish.notify.formats.text import (
    describe_action,
    describe_flags,
    describe_notification,
    is_resolved,
    rate_notification,
)
from vitald.publish.notify.notification import (
    Notification,
    NotificationKind,
    NotifiedFinding,
)
from vitald.text import join_first, limit_bytes
from vitald.timestamps import format_rfc3339

MAX_TEXT = 3000
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# They would begin or end bold, struck or code text. The replacements are similar characters.
_FORMATTING = str.maketrans({"*": "∗", "~": "∼", "`": "ˋ"})
# Bytes before escaping, which makes at most five of one: no block is longer than MAX_TEXT.
_MAX_SUMMARY, _MAX_DETAIL, _MAX_RAW = 500, 60, 500
_MAX_GROUPS, _MAX_NAMED = 4, 3  # of a digest; components of each
_ICONS = {
    "critical": ":red_circle:",
    "error": ":red_circle:",
    "warning": ":large_yellow_circle:",
    "info": ":white_circle:",
}
_DONE = ":large_green_circle:"


def build_body(notification: Notification) -> dict[str, object]:
    """`text` is what a notification of the phone shows; the blocks are the message."""
    summary = limit_bytes(describe_notification(notification), _MAX_SUMMARY)
    blocks = [_build_section(f"{_choose_icon(notification)} *{_escape_markup(summary)}*")]
    if details := _list_details(notification):
        blocks.append(_build_section("\n".join(details)))
    if notification.finding is not None and notification.finding.raw:
        raw = limit_bytes(notification.finding.raw, _MAX_RAW)
        blocks.append(_build_section(f"```{_escape_code(raw)}```"))
    return {"text": _escape_markup(summary), "blocks": blocks}


def _choose_icon(notification: Notification) -> str:
    return _DONE if is_resolved(notification) else _ICONS[rate_notification(notification)]


def _list_details(notification: Notification) -> list[str]:
    details: list[tuple[str, str]] = []
    if notification.finding is not None:
        details += _list_finding(notification.kind, notification.finding)
    if notification.digest is not None:
        details += [
            (f"{group.count} {group.code}", join_first(group.components, _MAX_NAMED))
            for group in notification.digest.groups[:_MAX_GROUPS]
        ]
    details.append(("Instance", notification.node.instance_id))
    if notification.kind is not NotificationKind.TEST:
        details.append(("Node", describe_flags(notification.flags)))
    limited = [
        (limit_bytes(name, _MAX_DETAIL), limit_bytes(value, _MAX_DETAIL))
        for name, value in details
        if value
    ]
    return [f"{_escape_markup(name)}: {_escape_markup(value)}" for name, value in limited]


def _list_finding(kind: NotificationKind, finding: NotifiedFinding) -> list[tuple[str, str]]:
    is_over = kind is NotificationKind.CLEARED
    return [
        ("Cause", finding.cause) if is_over else ("What to do", describe_action(finding)),
        ("Device", finding.device or finding.serial or finding.uuid),
        ("Since", format_rfc3339(finding.since, "seconds") if finding.since else ""),
    ]


def _build_section(text: str) -> dict[str, object]:
    return {
        "type": "section",
        "text": {"type": "mrkdwn", "text": text, "verbatim": True},
    }


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)


def _escape_markup(text: str) -> str:
    return _escape(text.translate(_FORMATTING))


def _escape_code(text: str) -> str:
    return _escape(text.replace("`", "ˋ"))
