"""`vitald config check [FILE]`: every mistake of a configuration file at once. `vitald config
example`: all keys and defaults.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vitald.cli import EX_CONFIG, render


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
    help_ = "print a file with every key and its default"
    example = what.add_parser("example", help=help_, description=help_)
    for verb in (check, example):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document"
        )


def run(arguments: argparse.Namespace) -> int:
    from vitald import config as configs
    from vitald import config_file

    if arguments.what == "example":
        text = configs.example()
        if arguments.json:
            render.emit_json({"example": text})
        else:
            print(text, end="")
        return 0
    path = arguments.file or arguments.config or config_file.DEFAULT_PATH
    errors: list[str] = []
    notes: tuple[str, ...] = ()
    try:
        notes = configs.load(path).notes
    except config_file.ConfigError as error:
        errors = error.errors
    if arguments.json:
        render.emit_json({"file": str(path), "ok": not errors, "errors": errors, "notes": notes})
    elif errors:
        print("\n".join(errors), file=sys.stderr)
    else:
        print("\n".join([*notes, f"{path}: ok"]))
    return EX_CONFIG if errors else 0
