"""
`vitald notify list`: the receivers that the configuration names. `vitald notify test NAME`: sends
one of them a test notification, by the code that sends real ones, and prints what came back.

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
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, CommandFailed, UsageError, render
from vitald.cli.config_options import ConfigRejected, add_config_option
from vitald.cli.memory import import_aiohttp
from vitald.cli.table import Column, format_table

if TYPE_CHECKING:
    import pwd

    from vitald.publish.config import PublisherConfig
    from vitald.publish.notify.send_test import SentTest
    from vitald.publish_sections import NotifySettings

# systemd hands the files of LoadCredential= to the unit alone.
_COLUMNS = (
    Column("name"),
    Column("format"),
    Column("from action"),
    Column("to", folded=True),
)
_CREDENTIALS = "/run/credentials/"


class SecretRejected(CommandFailed):
    """A file with a secret is wrong."""

    exit_code = EX_CONFIG


def options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    help_ = "the receivers of notifications that the configuration names"
    list_ = what.add_parser("list", help=help_, description=help_)
    add_config_option(list_)
    list_.add_argument("--json", action="store_true", help="as JSON")
    help_ = "send a test notification to one of them, and print what came back"
    test = what.add_parser("test", help=help_, description=help_)
    test.add_argument("name", metavar="NAME", help="as vitald notify list shows it")
    add_config_option(test)
    test.add_argument("--json", action="store_true", help="what was sent and came back as JSON")


def run(arguments: argparse.Namespace) -> int:
    from vitald.config_file import ConfigError
    from vitald.publish.config import load_config

    try:
        config = load_config(arguments.config)
    except ConfigError as error:
        raise ConfigRejected(error.errors) from None
    if arguments.what == "list":
        return _list_receivers(config, as_json=arguments.json)
    return _test_receiver(config, arguments.name, as_json=arguments.json)


def _list_receivers(config: PublisherConfig, *, as_json: bool) -> int:
    if as_json:
        render.emit_json({"receivers": [_describe_receiver(each) for each in config.notify]})
    elif config.notify:
        for line in format_table(_COLUMNS, [_list_cells(each) for each in config.notify]):
            print(line)
    else:
        print("no receiver is configured: [[notify]] in docs/notifications.md")
    return 0


def _list_cells(settings: NotifySettings) -> tuple[str, ...]:
    what = settings.format if settings.type == "webhook" else settings.type
    return settings.name, what, settings.min_action, _describe_target(settings)


def _describe_receiver(settings: NotifySettings) -> dict[str, object]:
    return {
        "name": settings.name,
        "type": settings.type,
        "format": settings.format if settings.type == "webhook" else None,
        "to": _describe_target(settings),
        "on": list(settings.on),
        "minAction": settings.min_action,
        "drills": settings.drills,
    }


def _describe_target(settings: NotifySettings) -> str:
    """A program, or servers without the path, which may be a secret."""
    from vitald.publish.notify.server_name import describe_server

    if settings.type == "exec":
        return settings.command[0]
    if settings.url_file is not None:
        return f"the address in {settings.url_file}"
    return ", ".join(describe_server(url) for url in settings.urls)


def _test_receiver(config: PublisherConfig, name: str, *, as_json: bool) -> int:
    settings = next((each for each in config.notify if each.name == name), None)
    if settings is None:
        raise UsageError(_explain_unknown(config, name))
    user = _find_user(config.publish.user)
    _check_user(settings, user)
    results = _send(config, settings)
    for result in results:
        if as_json:
            continue
        _print_result(settings, result)
    if as_json:
        render.emit_json({"name": name, "results": [_describe_result(each) for each in results]})
    else:
        for path in _list_unreadable(settings, user):
            print(f"note: {config.publish.user}, as which vitald publish runs, cannot read {path}")
    return EX_UNAVAILABLE if any(result.error for result in results) else 0


def _explain_unknown(config: PublisherConfig, name: str) -> str:
    from vitald.text import replace_unprintable
    from vitald.tomlfile import suggest_word

    names = [each.name for each in config.notify]
    shown = replace_unprintable(name[:64])
    if not names:
        return f"no receiver {shown!r}: the configuration has no [[notify]]"
    return f"no receiver {shown!r}; there are {', '.join(names)}{suggest_word(name, names)}"


def _send(config: PublisherConfig, settings: NotifySettings) -> list[SentTest]:
    import asyncio

    import_aiohttp()
    from vitald.publish.notify.node import identify_node
    from vitald.publish.notify.secret_file import SecretUnusable
    from vitald.publish.notify.send_test import send_test

    try:
        return asyncio.run(send_test(settings, identify_node(config.paths)))
    except SecretUnusable as error:
        raise SecretRejected(str(error)) from None


def _print_result(settings: NotifySettings, result: SentTest) -> None:
    print(f"{settings.name}: {settings.type} to {result.to}")
    print("sent:")
    print(json.dumps(json.loads(result.sent), indent=2, ensure_ascii=True))
    if result.status is not None:
        what = "exit status" if settings.type == "exec" else "status"
        said = f": {result.answer}" if result.answer else ""
        print(f"answer: {what} {result.status} after {result.seconds:.2f} s{said}")
    if result.error:
        again = "it would not be tried again" if result.is_final else "it would be tried again"
        print(f"not delivered, {again}: {result.error}")
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


def _check_user(settings: NotifySettings, user: pwd.struct_passwd | None) -> None:
    """A program of the publisher's is not run as root."""
    if settings.type == "exec" and user is not None and os.geteuid() == 0 != user.pw_uid:
        raise UsageError(
            f"{settings.command[0]} would run as root: runuser -u {user.pw_name} -- vitald notify"
            f" test {settings.name}"
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
