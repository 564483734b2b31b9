"""`vitald config check [FILE]`: every mistake of a configuration file at once. `vitald config
reload`: have the daemon read its file again. `vitald config example`: all keys and defaults.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, client, render
from vitald.server import endpoints

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: argparse.ArgumentParser) -> None:
    # Accepted before WHAT too, as other verbs accept it anywhere.
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    help_ = "check a file and report every mistake in it"
    check = what.add_parser("check", help=help_, description=help_)
    check.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=None,
        metavar="FILE",
        help="default: /etc/vitald/config.toml",
    )
    check.add_argument(
        "--config",
        type=Path,
        default=None,
        metavar="FILE",
        help="the same, for symmetry with vitald run",
    )
    help_ = "have the daemon read its file again; exit code 78 if it refuses it"
    reload = what.add_parser("reload", help=help_, description=help_)
    client.add_connection_options(reload, timeout_s=30.0)
    reload.add_argument("--quiet", action="store_true", help="print nothing but mistakes")
    help_ = "print a file with every key and its default"
    example = what.add_parser("example", help=help_, description=help_)
    for verb in (check, reload, example):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document"
        )


def run(arguments: argparse.Namespace) -> int:
    actions = {"check": _check_file, "reload": _reload_file, "example": _show_example}
    return actions[arguments.what](arguments)


def _show_example(arguments: argparse.Namespace) -> int:
    from vitald.config.sections import format_example

    text = format_example()
    if arguments.json:
        render.emit_json({"example": text})
    else:
        print(text, end="")
    return 0


def _check_file(arguments: argparse.Namespace) -> int:
    from vitald.config.errors import ConfigError
    from vitald.config.file import DEFAULT_PATH
    from vitald.config.sections import load_config

    path = arguments.file or arguments.config or DEFAULT_PATH
    errors: list[str] = []
    try:
        load_config(path)
    except ConfigError as error:
        errors = error.errors
    if arguments.json:
        render.emit_json({"file": str(path), "ok": not errors, "errors": errors})
    elif errors:
        print("\n".join(errors), file=sys.stderr)
    else:
        print(f"{path}: ok")
    return EX_CONFIG if errors else 0


def _reload_file(arguments: argparse.Namespace) -> int:
    body: schema.ReloadRequest = {}
    answer = client.post(arguments, endpoints.RELOAD, body)
    errors = answer["errors"]
    if arguments.json:
        render.emit_json(answer)
    elif errors:
        for line in (*errors, "refused: the former configuration stays in force"):
            print(render.escape_text(line), file=sys.stderr)
    elif not arguments.quiet:
        _show_reload(answer)
    return EX_CONFIG if errors else 0


def _show_reload(answer: schema.Reloaded) -> None:
    file = answer["file"]
    state = f"{file}: in force" if file is not None else "no file: the defaults are in force"
    changed = f"; changed: {', '.join(answer['applied'])}" if answer["applied"] else ""
    render.print_line(render.escape_text(f"{state}{changed}"))
    for keys, command in (
        (answer["needsRestart"], "systemctl restart vitald"),
        (answer["publisherNeedsRestart"], "systemctl restart vitald-publish"),
    ):
        if keys:
            names = render.escape_text(", ".join(keys))
            render.print_line(f"needs a restart: {names}: {command}")
