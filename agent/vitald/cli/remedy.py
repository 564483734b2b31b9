"""`vitald remedy ID --reason TEXT`: record that the remedy of a finding has begun. The finding
stays open until evidence shows that the remedy held.
"""

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
        help="what is being done, and by whom",
    )
    parser.add_argument("--json", action="store_true", help="the finding as JSON")


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(
        arguments, "/v1/findings/{id}/remedy", {"reason": arguments.reason}, id=arguments.id
    )
    if arguments.json:
        render.emit_json(answer)
    else:
        finding = answer["finding"]
        print(f"in remedy {render.format_title(finding)}")
        print(f"it stands until {'; '.join(finding['clears'])}")
    return 0
