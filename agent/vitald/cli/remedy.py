"""`vitald remedy ID --reason TEXT`: somebody begins what a finding asks for. It stands until the
evidence says that it held.
"""

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
        help="what is being done, and by whom",
    )
    parser.add_argument("--json", action="store_true", help="the finding as JSON")


def run(arguments: argparse.Namespace) -> int:
    answer = client.ask(
        arguments, "/v1/findings/{id}/remedy", {"reason": arguments.reason}, id=arguments.id
    )
    if arguments.json:
        render.emit_json(answer)
    else:
        finding = answer["finding"]
        print(
            f"in remedy #{finding['id']}: {render.safe(finding['component'])} "
            f" {render.safe(finding['title'])}  {finding['code']}"
        )
        print(f"it stands until {'; '.join(finding['clears'])}")
    return 0
