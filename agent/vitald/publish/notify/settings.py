"""The tables [notify.NAME] of the configuration, which `vitald publish` reads: keys, defaults and
help.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from vitald.checking import read_flag
from vitald.config.errors import FileReport
from vitald.config.readers import one_of, period_within, read_command, read_path, some_of
from vitald.config.section import SectionGroup, TakesEffect, duration, setting
from vitald.config.values import Config
from vitald.model.words import Action

MAX_RECEIVERS = 8  # with all other sinks, no more than the daemon takes reports of
CHANGES = ("opened", "escalated", "cleared", "flags")
_MAX_URLS, _MAX_URL, _MAX_LABEL = 8, 2048, 63
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1")


def read_url(value: object) -> str:
    """The value is not repeated in an error: it may hold a secret. Raises ValueError."""
    text = value if isinstance(value, str) else ""
    is_plain = text.isascii() and text.isprintable() and not {" ", "#"}.intersection(text)
    if not is_plain or len(text) > _MAX_URL or not _is_safe(text):
        raise ValueError(
            "expected an address https://HOST/... without user, blanks and #; http:// only for"
            " this machine itself"
        )
    return text


def _is_safe(text: str) -> bool:
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:  # of a port or an address of IPv6
        return False
    is_encrypted = url.scheme == "https" or (
        url.scheme == "http" and _LOOPBACK.fullmatch(host) is not None
    )
    # What cannot be resolved has an empty or a long part between its dots.
    labels = host.removesuffix(".").split(".")
    is_host = all(1 <= len(label) <= _MAX_LABEL for label in labels)
    return is_encrypted and is_host and url.username is None and port != 0


def describe_server(url: str) -> str:
    """`https://hooks.example.com:8443`: what may be shown of an address that may be a secret."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def _read_urls(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= _MAX_URLS:
        raise ValueError(f"expected an address, or a list of at most {_MAX_URLS}")
    return tuple(read_url(each) for each in values)


_read_timeout = period_within("from 1s to 60s", least_s=1.0, most_s=60.0)
_read_wait = period_within('at most 1h, or "off"', most_s=3600.0, may_be_off=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """A receiver of notifications (docs/notifications.md), by a name of its own."""

    type: str = setting(
        "webhook",
        one_of("webhook", "alertmanager", "exec"),
        '"webhook": an HTTP request for each notification. "alertmanager": the open findings, as'
        ' alerts. "exec": a program for each notification.',
    )
    url: tuple[str, ...] = setting(
        (),
        _read_urls,
        "Its address, with https; with http only for this machine itself. For alertmanager also a"
        " list: each of them gets all alerts.",
    )
    url_file: Path | None = setting(
        None,
        read_path,
        "File of the address of a webhook, instead of url: that of a chat channel is a secret.",
    )
    format: str = setting(
        "vitald",
        one_of("vitald", "cloudevents", "slack", "pagerduty"),
        "Body of the request of a webhook.",
    )
    on: tuple[str, ...] = setting(
        CHANGES,
        some_of(*CHANGES, least=1),
        "Which changes are sent. flags: the node's status, or whether a reboot or replacement is"
        " required or due.",
    )
    min_action: str = setting(
        Action.INSPECT.value,
        one_of(*(action.value for action in Action)),
        "Findings that require less are not sent.",
    )
    drills: bool = setting(
        False,
        read_flag,
        "Send simulated findings, too. For alertmanager, [publish] drills decides.",
    )
    quiet_s: float = duration(
        "2m",
        "After a start of vitald publish, nothing is sent for so long, and never what came and went"
        " in that time. At most 1h.",
        _read_wait,
    )
    settle_s: float = duration(
        "5m",
        "How long a finding must be over, or the status better or unknown, before that is sent."
        " What comes back sooner is not sent again. At most 1h.",
        _read_wait,
    )
    headers_file: Path | None = setting(
        None, read_path, 'File of more headers, "Name: value" on each line.'
    )
    secret_file: Path | None = setting(
        None, read_path, "File of the key that the requests of a webhook are signed with."
    )
    routing_key_file: Path | None = setting(
        None, read_path, "File of PagerDuty's integration key, for the format pagerduty."
    )
    command: tuple[str, ...] = setting(
        (),
        read_command,
        "Program and its arguments, for exec: it gets the notification as JSON on standard input.",
    )
    ca: Path | None = setting(
        None, read_path, "File of the certificate authority. Default: those of the system."
    )
    timeout_s: float = duration("10s", "Longest time for a request, 1s to 60s.", _read_timeout)


# The keys that only some types have a use for
_KEYS_OF_TYPES = {
    "url": ("webhook", "alertmanager"),
    "url_file": ("webhook",),
    "format": ("webhook",),
    "on": ("webhook", "exec"),
    "drills": ("webhook", "exec"),
    "headers_file": ("webhook", "alertmanager"),
    "secret_file": ("webhook",),
    "routing_key_file": ("webhook",),
    "command": ("exec",),
    "ca": ("webhook", "alertmanager"),
    "timeout_s": ("webhook", "alertmanager"),
}


def _check_receivers(config: Config, report: FileReport) -> None:
    receivers = config.get_group(NotifySettings)
    if len(receivers) > MAX_RECEIVERS:
        found = f"expected at most {MAX_RECEIVERS} receivers, found {len(receivers)}"
        report.add_error(NOTIFY.name, "", found)
    for name, settings in receivers.items():
        _check_receiver(settings, partial(report.add_error, f"{NOTIFY.name}.{name}"))


def _check_receiver(settings: NotifySettings, wrong: Callable[[str, str], None]) -> None:
    default = NotifySettings()
    for key, types in _KEYS_OF_TYPES.items():
        if settings.type not in types and getattr(settings, key) != getattr(default, key):
            wrong(key.removesuffix("_s"), f"it has no effect for the type {settings.type}")
    if "cleared" in settings.on and not {"opened", "escalated"}.intersection(settings.on):
        wrong("on", "cleared needs opened or escalated: only the end of what was sent is sent")
    if settings.type == "exec" and not settings.command:
        wrong("command", "the type exec needs it")
    if settings.type == "alertmanager" and not settings.url:
        wrong("url", "the type alertmanager needs it")
    if settings.type == "webhook":
        _check_webhook(settings, wrong)


def _check_webhook(settings: NotifySettings, wrong: Callable[[str, str], None]) -> None:
    if bool(settings.url) == bool(settings.url_file):
        wrong("url", "it or url_file is needed, and not both")
    if len(settings.url) > 1:
        wrong("url", "a webhook has one address: make a table for each")
    is_pagerduty = settings.format == "pagerduty"
    if is_pagerduty != bool(settings.routing_key_file):
        why = (
            "the format pagerduty needs it" if is_pagerduty else "only the format pagerduty has it"
        )
        wrong("routing_key_file", why)


NOTIFY = SectionGroup(
    name="notify",
    settings=NotifySettings,
    # `notify-NAME` is the sink by which the daemon shows a receiver: 32 characters at most.
    pattern=re.compile(r"[a-z][a-z0-9_-]{0,24}", re.ASCII),
    expected="a name of at most 25 lower-case letters, digits, _ and -",
    example="oncall",
    effect=TakesEffect.PUBLISHER,
    examples={
        "url": 'url = "https://hooks.example.com/vitald"',
        "url_file": '#url_file = "/etc/vitald/slack.url"',
        "headers_file": '#headers_file = "/etc/vitald/hook.headers"',
        "secret_file": '#secret_file = "/etc/vitald/hook.key"',
        "routing_key_file": '#routing_key_file = "/etc/vitald/pagerduty.key"',
        "command": '#command = ["/usr/local/libexec/vitald-notify/sns", "eu-west-1"]',
        "ca": '#ca = "/etc/vitald/hook-ca.crt"',
    },
    check=_check_receivers,
)
