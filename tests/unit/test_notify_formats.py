"""Bodies of notifications: what receivers require of them, and hostile text in every field."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import fields, replace
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.notifications import (
    DIGEST,
    FINDING,
    NODE,
    UNHEALTHY,
    make_notification,
)
from tests.unit.builders import ROOT
from vitald.model.words import Action
from vitald.publish.notify.formats import FORMATS, encode_json
from vitald.publish.notify.formats.text import describe_flags, describe_notification
from vitald.publish.notify.notification import WELL, Notification, NotificationKind
from vitald.publish.notify.webhook import build_headers

SCHEMA = json.loads((ROOT / "docs/reference/notification.schema.json").read_text())
HOSTILE = {
    "channel": "<!channel> <!here> @channel",
    "link": "<https://evil.example|https://vitald.example/runbook>",
    "entities": "&lt;!channel&gt; &amp;",
    "control": "a\x00\x1b[2J\r\nSubject: x\x7f\x9b",
    "bidi": "safe\u202eexe.gpj\u2066\u200b\u2028",
    "surrogate": "\udc80\ud800",
    "long": "A" * 10_000,
    "long to escape": "&<>`*" * 2_000,
    "wide": "\U0001f525" * 5_000,
    "code": "``` </pre><script>alert(1)</script> ```",
    "json": '","severity":"info","x":"',
}


def make_hostile(kind: NotificationKind, text: str) -> Notification:
    """A notification with this text wherever it has one."""
    notification = make_notification(kind, key=f"{text[:64]}/12", id=f"{text[:64]}/12/101")
    node = replace(NODE, **{each.name: text for each in fields(NODE)})
    finding = notification.finding and replace(
        notification.finding,
        **{each.name: text for each in fields(FINDING) if each.type == "str"},
    )
    digest = notification.digest and replace(
        DIGEST,
        groups=tuple(
            replace(group, code=text, components=(text,) * 8) for group in DIGEST.groups * 5
        ),
    )
    return replace(notification, node=node, finding=finding, digest=digest)


def list_texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in (key, *list_texts(part))]
    if isinstance(value, list):
        return [text for part in value for text in list_texts(part)]
    return [value] if isinstance(value, str) else []


def build(format_: str, notification: Notification) -> dict[str, Any]:
    """As a receiver reads it."""
    document: dict[str, Any] = json.loads(encode_json(FORMATS[format_].build(notification)))
    return document


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", NotificationKind)
@pytest.mark.parametrize("format_", FORMATS)
def test_hostile_text(format_: str, kind: NotificationKind, text: str) -> None:
    notification = make_hostile(kind, text)
    body = encode_json(FORMATS[format_].build(notification))
    assert len(body) < 64 * 1024
    own = {notification.key, notification.id}  # made by vitald, of the host name and numbers
    for part in list_texts(json.loads(body)):
        assert part in own or part.replace("\n", "").isprintable(), part


@pytest.mark.parametrize("kind", NotificationKind)
def test_the_schema_describes_the_own_format(kind: NotificationKind) -> None:
    validator = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=True)
    body = build("vitald", make_notification(kind))
    validator.validate(body)
    assert set(body) == set(SCHEMA["properties"])
    for part in ("finding", "flags", "digest"):
        if body[part] is not None:
            assert set(body[part]) == set(SCHEMA["$defs"][part]["properties"])
    for text in HOSTILE.values():
        validator.validate(build("vitald", make_hostile(kind, text)))


def test_the_schema_knows_the_actions() -> None:
    actions = SCHEMA["$defs"]["finding"]["properties"]["action"]["enum"]
    assert actions == [action.value for action in Action]
    kinds = SCHEMA["properties"]["transition"]["enum"]
    assert kinds == [kind.value for kind in NotificationKind]


def test_a_finding_in_full() -> None:
    body = build("vitald", make_notification(NotificationKind.OPENED))
    assert body["finding"] == {
        "id": 12,
        "component": "gpu/0000:65:00.0",
        "device": "GPU 3, serial 1654922006333",
        "uuid": FINDING.uuid,
        "serial": "1654922006333",
        "code": "xid/79",
        "title": "GPU has fallen off the bus",
        "action": "reboot_node",
        "when": "now",
        "instruction": "reboot the node",
        "since": "2026-11-06T21:20:00.250Z",
        "raw": FINDING.raw,
        "cause": "xid/79 seen",
        "confirmed": True,
    }
    assert body["dedupKey"] == "gpu-node-1.example.com/gpu/0000:65:00.0/xid/79"
    unknown = replace(FINDING, since=0.0)
    body = build("vitald", make_notification(NotificationKind.OPENED, finding=unknown))
    assert body["finding"]["since"] is None


# --- CloudEvents


@pytest.mark.parametrize("kind", NotificationKind)
def test_a_cloud_event(kind: NotificationKind) -> None:
    """Required attributes are not empty, names are small letters and digits, `source` is a URI
    reference.
    """
    notification = make_notification(kind)
    event = build("cloudevents", notification)
    assert event["specversion"] == "1.0"
    assert (event["id"], event["source"]) == (notification.id, "/vitald/gpu-node-1.example.com")
    assert re.fullmatch(r"io\.vitald\.[a-z.]+", event["type"])
    assert event["data"] == build("vitald", notification)
    assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in event)
    assert all(value for value in event.values())
    assert FORMATS["cloudevents"].content_type == "application/cloudevents+json"


def test_a_hostile_host_stays_a_uri_reference() -> None:
    node = replace(NODE, host="a b/../<x>?q#f")
    event = build("cloudevents", make_notification(NotificationKind.TEST, node=node))
    assert event["source"] == "/vitald/a%20b%2F..%2F%3Cx%3E%3Fq%23f"
    nameless = make_notification(NotificationKind.TEST, node=replace(NODE, host=""))
    assert build("cloudevents", nameless)["source"] == "/vitald/unknown"


# --- Slack


def list_slack_texts(body: dict[str, Any]) -> list[str]:
    return [body["text"], *(block["text"]["text"] for block in body["blocks"])]


@given(st.text(max_size=3000))
def test_slack_gets_no_markup_of_others(text: str) -> None:
    for kind in (NotificationKind.OPENED, NotificationKind.DIGEST):
        body = build("slack", make_hostile(kind, text))
        for part in list_slack_texts(body):
            assert 1 <= len(part) <= 3000
            assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", part)
            assert part.count("```") in (0, 2) and part.count("`") in (0, 6)
        assert len(body["blocks"]) <= 50
        assert all(block["text"]["verbatim"] is True for block in body["blocks"])


def test_slack_escapes_at_the_limits() -> None:
    """No entity is cut in two, no code block stays open."""
    for text in ("&" * 10_000, "<!channel>" * 1000):
        for part in list_slack_texts(build("slack", make_hostile(NotificationKind.OPENED, text))):
            assert len(part) <= 3000
            assert re.fullmatch(r"(?:[^&<>]|&(?:amp|lt|gt);)*", part)


def test_slack_shows_when_it_is_over() -> None:
    icons = {
        kind: build("slack", make_notification(kind))["blocks"][0]["text"]["text"].split()[0]
        for kind in NotificationKind
    }
    assert icons[NotificationKind.OPENED] == ":red_circle:"
    assert icons[NotificationKind.CLEARED] == ":large_green_circle:"
    well = make_notification(NotificationKind.FLAGS, flags=WELL, former_flags=UNHEALTHY)
    assert build("slack", well)["blocks"][0]["text"]["text"].startswith(":large_green_circle:")


# --- PagerDuty


def test_pagerduty_resolves_what_it_opened() -> None:
    opened, escalated, cleared = (
        build("pagerduty", make_notification(kind))
        for kind in (
            NotificationKind.OPENED,
            NotificationKind.ESCALATED,
            NotificationKind.CLEARED,
        )
    )
    assert opened["dedup_key"] == escalated["dedup_key"] == cleared["dedup_key"]
    actions = [event["event_action"] for event in (opened, escalated, cleared)]
    assert actions == ["trigger", "trigger", "resolve"]
    assert opened["payload"]["component"] == "gpu/0000:65:00.0"
    assert opened["payload"]["class"] == "xid/79"
    well = make_notification(NotificationKind.FLAGS, flags=WELL, former_flags=UNHEALTHY)
    assert build("pagerduty", well)["event_action"] == "resolve"


@pytest.mark.parametrize(
    ("action", "severity"),
    [
        (Action.REPLACE_NODE, "critical"),
        (Action.REBOOT_NODE, "error"),
        (Action.RESET_DEVICE, "error"),
        (Action.INSPECT, "warning"),
        (Action.RESTART_WORKLOAD, "warning"),
        (Action.OBSERVE, "info"),
        (Action.NONE, "info"),
    ],
)
def test_severity_follows_the_action(action: Action, severity: str) -> None:
    finding = replace(FINDING, action=action)
    event = build("pagerduty", make_notification(NotificationKind.OPENED, finding=finding))
    assert event["payload"]["severity"] == severity


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_pagerduty_limits(text: str) -> None:
    event = build("pagerduty", make_hostile(NotificationKind.OPENED, text))
    assert len(event["payload"]["summary"]) <= 1024
    long = make_notification(NotificationKind.OPENED, key=text)
    assert 1 <= len(build("pagerduty", long)["dedup_key"]) <= 255


def test_long_keys_stay_apart() -> None:
    """Two keys that differ only after 255 characters are two alerts."""
    keys = {
        build("pagerduty", make_notification(NotificationKind.OPENED, key="k" * 300 + end))[
            "dedup_key"
        ]
        for end in "ab"
    }
    assert len(keys) == 2


# --- the summary


def test_summaries() -> None:
    host = "gpu-node-1.example.com"
    gpu = f"{host}: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79)"
    assert [describe_notification(make_notification(kind)) for kind in NotificationKind] == [
        f"{gpu}: reboot the node",
        f"{gpu}: escalated: reboot the node",
        f"{gpu}: cleared",
        f"{host}: unhealthy, reboot due",
        f"{host}: 43 changes of findings at once: 40 opened xid/79, 3 escalated xid/63",
        f"{host}: test notification, nothing is wrong",
    ]
    required = replace(UNHEALTHY, reboot_due=False)
    assert describe_flags(required) == "unhealthy, reboot required"
    drill = replace(FINDING, simulated=True, when="after_job")
    described = describe_notification(make_notification(NotificationKind.OPENED, finding=drill))
    assert described == f"SIMULATED: {gpu}: reboot the node after the running job"


# --- the signature


def test_the_signature_of_standard_webhooks() -> None:
    """Computed as the specification describes it: HMAC-SHA256 of `id.timestamp.body`, base64."""
    key, body = b"k" * 32, b'{"a":1}'
    headers = build_headers("0123abcd", 1794000000, body, [key, b"o" * 24])
    signed = f"{headers['webhook-id']}.1794000000.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    newest, older = headers["webhook-signature"].split(" ")
    assert newest == f"v1,{expected}"
    assert older.startswith("v1,") and older != newest
    assert headers["webhook-timestamp"] == "1794000000"
    assert "webhook-signature" not in build_headers("0123abcd", 1, body)
