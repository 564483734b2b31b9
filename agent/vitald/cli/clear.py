"""`vitald clear ID --reason TEXT`: a named person closes a finding. Who, when and why is kept."""

from __future__ import annotations

import argparse

from vitald.cli import client, render, words


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument(
        "id",
        type=words.finding,
        metavar="ID",
        help="the finding's number, as vitald status shows it",
    )
    parser.add_argument(
        "--reason",
        type=words.reason,
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
    answer = client.ask(
        arguments,
        "/v1/findings/{id}/clear",
        {"reason": arguments.reason, "replaced": arguments.replaced},
        id=arguments.id,
    )
    if arguments.json:
        render.emit_json(answer)
    else:
        finding = answer["finding"]
        print(
            f"cleared #{finding['id']}: {render.safe(finding['component'])} "
            f" {render.safe(finding['title'])}  {finding['code']}"
        )
    return 0
