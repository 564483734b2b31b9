"""
`vitald notify show`: what each receiver that the configuration names would be sent for the open
findings. `vitald notify test NAME`: sends one of them a test notification, by the code that sends
real ones, and prints what came back.

Exit codes of `test`:

    0     delivered
    2     no receiver has this name
    69    not delivered
    78    the configuration or a file with a secret is wrong
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, CommandFailed, UsageError, client, render
from vitald.cli.config_options import ConfigRejected, add_config_option
from vitald.cli.progress import WorkProgress
from vitald.cli.resident_memory import import_aiohttp
from vitald.config.paths import Paths
from vitald.publish.notify.settings import NotifySettings, describe_server
from vitald.publish.settings import PublishSettings
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE
from vitald.server.settings import find_socket

if TYPE_CHECKING:
    import pwd

    from vitald.config.values import Config
    from vitald.publish.notify.notification import NodeIdentity, NotifiedFinding
    from vitald.publish.notify.send_test import SentTest
    from vitald.publish.summary import NodeSummary

_CREDENTIALS = "/run/credentials/"  # systemd hands the files there to the unit alone


class SecretRejected(CommandFailed):
    """A file with a secret is wrong."""

    exit_code = EX_CONFIG


def options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    help_ = "what would be sent for the open findings"
    show = what.add_parser("show", help=help_, description=help_)
    show.add_argument("name", metavar="NAME", nargs="?", help="to this receiver only")
    client.add_connection_options(show)
    help_ = "send a test notification, and print what came back"
    test = what.add_parser("test", help=help_, description=help_)
    test.add_argument("name", metavar="NAME", help="of [notify.NAME]")
    for verb, content in ((show, "the whole messages"), (test, "what was sent and came back")):
        add_config_option(verb)
        verb.add_argument("--json", action="store_true", help=f"{content} as JSON")


def run(arguments: argparse.Namespace) -> int:
    from vitald.config.errors import ConfigError
    from vitald.config.file import DEFAULT_PATH
    from vitald.publish.config import load_config

    is_absent = arguments.config == DEFAULT_PATH and not DEFAULT_PATH.exists()
    try:
        config = load_config(None if is_absent else arguments.config)
    except ConfigError as error:
        raise ConfigRejected(error.errors) from None
    if arguments.what == "test":
        return _test_receiver(config, arguments.name, as_json=arguments.json)
    return _show_receivers(config, arguments)


def _find_receiver(config: Config, name: str) -> NotifySettings:
    """Raises UsageError."""
    from vitald.text import replace_unprintable
    from vitald.tomlfile import suggest_word

    receivers = config.get_group(NotifySettings)
    if name in receivers:
        return receivers[name]
    shown = replace_unprintable(name[:64])
    if not receivers:
        raise UsageError(f"no receiver {shown!r}: the configuration has no [notify.NAME]")
    names = ", ".join(receivers)
    raise UsageError(f"no receiver {shown!r}; there are {names}{suggest_word(name, receivers)}")


def _describe_target(settings: NotifySettings) -> str:
    """A program, or servers without the path, which may be a secret."""
    if settings.type == "exec":
        return settings.command[0]
    if settings.url_file is not None:
        return f"the address in {settings.url_file}"
    return ", ".join(describe_server(url) for url in settings.url)


# --- show


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one receiver would be sent. `lines`: one for each body. `left_out`: how many findings
    its filters leave out.
    """

    lines: Sequence[str]
    bodies: Sequence[Mapping[str, object]]
    left_out: int


def _show_receivers(config: Config, arguments: argparse.Namespace) -> int:
    chosen = config.get_group(NotifySettings)
    if arguments.name is not None:
        chosen = {arguments.name: _find_receiver(config, arguments.name)}
    if not chosen:
        render.print_line("no receiver is configured: [notify.NAME], see docs/notifications.md")
        return 0
    import_aiohttp()
    from vitald.publish.daemon_request import AnswerUnusable
    from vitald.publish.notify.findings import parse_findings
    from vitald.publish.notify.notification import identify_node
    from vitald.publish.summary import NoSummary, parse_summary

    if arguments.socket is None:
        arguments.socket = find_socket(config)
    try:
        findings = parse_findings(client.get(arguments, endpoints.FINDINGS, limit=MAX_PAGE))
        summary = parse_summary(client.get(arguments, endpoints.SUMMARY))
    except (AnswerUnusable, NoSummary) as error:
        raise CommandFailed(f"the daemon's answer is not usable: {error}") from None
    node = replace(identify_node(config[Paths]), boot_id=summary.boot_id)
    planned = {
        name: _plan_messages(settings, findings, summary, node) for name, settings in chosen.items()
    }
    if arguments.json:
        receivers = [
            {
                "name": name,
                "type": settings.type,
                "to": _describe_target(settings),
                "leftOut": planned[name].left_out,
                "messages": [*planned[name].bodies],
            }
            for name, settings in chosen.items()
        ]
        render.emit_json({"receivers": receivers})
        return 0
    for name, settings in chosen.items():
        kind = settings.format if settings.type == "webhook" else settings.type
        render.print_line(f"{name}: {kind}, to {_describe_target(settings)}")
        for line in planned[name].lines:
            render.print_line(f"  {line}")
        if not planned[name].lines:
            print("  nothing")
        if left_out := planned[name].left_out:
            print(f"  not sent, by its filters: {left_out} of {len(findings)} open findings")
    return 0


def _plan_messages(
    settings: NotifySettings,
    findings: Sequence[NotifiedFinding],
    summary: NodeSummary,
    node: NodeIdentity,
) -> _Planned:
    if settings.type == "alertmanager":
        return _plan_alerts(settings, summary, node)
    from vitald.publish.notify.backlog import DeliveryRules
    from vitald.publish.notify.formats import FORMATS
    from vitald.publish.notify.formats.text import describe_notification
    from vitald.publish.notify.notification import NotificationKind, build_notification, read_flags

    rules, kind = DeliveryRules.from_settings(settings), NotificationKind.OPENED
    messages = [
        build_notification(
            kind,
            finding.since,
            node,
            read_flags(summary, None),
            subject=finding.key,
            occasion=finding.id,
            finding=finding,
        )
        for finding in findings
        if rules.is_of_interest(finding) and kind in rules.kinds
    ]
    form = FORMATS[settings.format if settings.type == "webhook" else "vitald"]
    return _Planned(
        lines=[describe_notification(message) for message in messages],
        bodies=[form.build(message) for message in messages],
        left_out=len(findings) - len(messages),
    )


def _plan_alerts(settings: NotifySettings, summary: NodeSummary, node: NodeIdentity) -> _Planned:
    from vitald.publish.notify.alertmanager import HOLD_S, FiringAlerts, build_document

    now = time.time()
    alerts = FiringAlerts(settings, node.host).list_alerts(summary, time.monotonic())
    return _Planned(
        lines=[dict(alert.annotations)["summary"] for alert in alerts],
        bodies=[build_document(alert, now + HOLD_S) for alert in alerts],
        left_out=len(summary.findings) - len(alerts),
    )


# --- test


def _test_receiver(config: Config, name: str, *, as_json: bool) -> int:
    settings = _find_receiver(config, name)
    user_name = config[PublishSettings].user
    user = _find_user(user_name)
    _check_user(name, settings, user)
    results = _send(config, name, settings)
    if as_json:
        render.emit_json({"name": name, "results": [_describe_result(each) for each in results]})
    else:
        for result in results:
            _print_result(name, settings, result)
        for path in _list_unreadable(settings, user):
            print(f"note: {user_name}, as which vitald publish runs, cannot read {path}")
    return EX_UNAVAILABLE if any(result.error for result in results) else 0


def _send(config: Config, name: str, settings: NotifySettings) -> list[SentTest]:
    import asyncio

    import_aiohttp()
    from vitald.publish.notify.notification import identify_node
    from vitald.publish.notify.secret_file import SecretUnusable
    from vitald.publish.notify.send_test import send_test

    node = identify_node(config[Paths])
    try:
        with WorkProgress(lambda: f"sends to {name}"):
            return asyncio.run(send_test(name, settings, node, time.time()))
    except SecretUnusable as error:
        raise SecretRejected(str(error)) from None


def _print_result(name: str, settings: NotifySettings, result: SentTest) -> None:
    render.print_line(f"{name}: {settings.type} to {result.to}")
    print("sent:")
    print(json.dumps(json.loads(result.sent), indent=2))
    if result.status is not None:
        what = "exit status" if settings.type == "exec" else "status"
        shown = f": {render.escape_text(result.answer)}" if result.answer else ""
        render.print_line(f"answer: {what} {result.status} after {result.seconds:.2f} s{shown}")
    if result.error:
        again = "it would not be tried again" if result.is_final else "it would be tried again"
        render.print_line(f"not delivered, {again}: {render.escape_text(result.error)}")
    else:
        print("delivered")


def _describe_result(result: SentTest) -> dict[str, object]:
    return {
        "to": result.to,
        "sent": json.loads(result.sent),
        "delivered": not result.error,
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "answer": result.answer,
        "error": result.error,
        "final": result.is_final,
    }


# --- the user that the publisher runs as


def _find_user(name: str) -> pwd.struct_passwd | None:
    import pwd

    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _check_user(name: str, settings: NotifySettings, user: pwd.struct_passwd | None) -> None:
    """A program of the publisher's is not run as root."""
    if settings.type == "exec" and user is not None and os.geteuid() == 0 != user.pw_uid:
        raise UsageError(
            f"{settings.command[0]} would run as root: runuser -u {user.pw_name} -- vitald notify"
            f" test {name}"
        )


def _list_unreadable(settings: NotifySettings, user: pwd.struct_passwd | None) -> Iterator[Path]:
    """The files that root can read, but the publisher not."""
    files = (
        settings.url_file,
        settings.headers_file,
        settings.secret_file,
        settings.routing_key_file,
        settings.ca,
    )
    if user is None or os.geteuid() != 0 or user.pw_uid == 0:
        return
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    for path in files:
        if path is None or str(path).startswith(_CREDENTIALS):
            continue
        status = path.stat()
        if status.st_uid == user.pw_uid:
            bit = stat.S_IRUSR
        elif status.st_gid in groups:
            bit = stat.S_IRGRP
        else:
            bit = stat.S_IROTH
        if not status.st_mode & bit:
            yield path
