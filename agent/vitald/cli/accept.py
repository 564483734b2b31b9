"""`vitald accept ID --for 7d --reason TEXT`: a named person lives with a finding for a time. It
ends at once when the fault gets worse.
"""

from __future__ import annotations

import argparse

from vitald.cli import client, render, words

_MOST_S = 90 * words.DAY_S


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument(
        "id",
        type=words.finding,
        metavar="ID",
        help="the finding's number, as vitald status shows it",
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument(
        "--for",
        dest="seconds",
        type=words.duration(60.0, _MOST_S, "1m to 90d"),
        metavar="TIME",
        help="for how long: 12h, 7d; at most 90d",
    )
    length.add_argument(
        "--end", dest="seconds", action="store_const", const=0.0, help="no longer: it counts again"
    )
    parser.add_argument(
        "--reason",
        type=words.reason,
        required=True,
        metavar="TEXT",
        help="why the node may work with it",
    )
    parser.add_argument("--json", action="store_true", help="the finding as JSON")


def run(arguments: argparse.Namespace) -> int:
    answer = client.ask(
        arguments,
        "/v1/findings/{id}/accept",
        {"reason": arguments.reason, "seconds": arguments.seconds},
        id=arguments.id,
    )
    if arguments.json:
        render.emit_json(answer)
        return 0
    finding = answer["finding"]
    accepted = finding["accepted"]
    said = "no longer accepted" if accepted is None else "accepted"
    print(
        f"{said} #{finding['id']}: {render.safe(finding['component'])} "
        f" {render.safe(finding['title'])}  {finding['code']}"
    )
    if accepted is not None:
        print(
            f"it stays open and shown, and counts again at {render.clock(accepted['until'])}, or as"
            " soon as it asks for more"
        )
    return 0
