"""What `vitald accept`, `clear` and `remedy` share: each records an action on one finding, with a
reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from vitald.cli import client, render, words

if TYPE_CHECKING:
    from vitald.server import schema


def add_finding_options(parser: argparse.ArgumentParser) -> None:
    """How to reach the daemon, and the finding's ID."""
    client.add_connection_options(parser)
    parser.add_argument(
        "id",
        type=words.parse_finding,
        metavar="ID",
        help="the finding's number, as vitald status shows it",
    )


def add_reason_option(parser: argparse.ArgumentParser, help_: str) -> None:
    parser.add_argument(
        "--reason", type=words.parse_reason, required=True, metavar="TEXT", help=help_
    )


def show_answer(
    arguments: argparse.Namespace,
    answer: schema.OneFinding,
    describe: Callable[[schema.ApiFinding], str],
) -> int:
    """Prints the answer: as JSON where --json is given, otherwise what `describe` makes of the
    finding. Returns the exit code.
    """
    if arguments.json:
        render.emit_json(answer)
    else:
        render.print_line(describe(answer["finding"]))
    return 0
