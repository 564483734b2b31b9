"""`vitald clear ID --reason TEXT`: close a finding. Caller, time and reason are recorded."""

from __future__ import annotations

import argparse

from vitald.cli import client, render, words


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "id",
        type=words.parse_finding,
        metavar="ID",
        help="the finding's number, as vitald status shows it",
    )
    parser.add_argument(
        "--reason",
        type=words.parse_reason,
        required=True,
        metavar="TEXT",
        help="why it is no longer true",
    )
    parser.add_argument(
        "--replaced",
        action="store_true",
        help="because its device was replaced: the device's record begins afresh",
    )
    parser.add_argument("--json", action="store_true", help="the closed finding as JSON")


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(
        arguments,
        "/v1/findings/{id}/clear",
        {"reason": arguments.reason, "replaced": arguments.replaced},
        id=arguments.id,
    )
    if arguments.json:
        render.emit_json(answer)
    else:
        print(f"cleared {render.format_title(answer['finding'])}")
    return 0
