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
    rate_notification,
)
from vitald.publish.notify.notification import Notification, NotificationKind
from vitald.text import limit_bytes
from vitald.timestamps import format_rfc3339

MAX_TEXT = 3000
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# They would begin or end bold, struck or code text. The replacements are similar characters.
_FORMATTING = str.maketrans({"*": "∗", "~": "∼", "`": "ˋ"})
# Bytes before escaping, which makes at most five of one: no block is longer than MAX_TEXT.
_MAX_SUMMARY, _MAX_TODO, _MAX_DETAIL, _MAX_RAW = 500, 300, 60, 500
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
    if notification.kind is NotificationKind.CLEARED:
        return _DONE
    severity = rate_notification(notification)
    is_well = notification.kind is NotificationKind.FLAGS and severity == "info"
    return _DONE if is_well else _ICONS[severity]


def _list_details(notification: Notification) -> list[str]:
    finding = notification.finding
    details: list[tuple[str, str]] = []
    if finding is not None:
        todo = limit_bytes(finding.todo or describe_action(finding), _MAX_TODO)
        details += [
            ("What to do", todo),
            ("Device", limit_bytes(finding.serial or finding.uuid, _MAX_DETAIL)),
            ("Since", format_rfc3339(finding.since, "seconds") if finding.since else ""),
        ]
    details.append(("Instance", limit_bytes(notification.node.instance_id, _MAX_DETAIL)))
    if notification.kind is not NotificationKind.TEST:
        details.append(("Node", describe_flags(notification.flags)))
    return [f"{name}: {_escape_markup(value)}" for name, value in details if value]


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
