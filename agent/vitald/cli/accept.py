"""`vitald accept ID --for 7d --reason TEXT`: accept a finding for a time. The acceptance ends at
once when the fault gets worse.
"""

from __future__ import annotations

import argparse

from vitald.cli import client, render, words

_MAX_PERIOD_S = 90 * words.DAY_S


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "id",
        type=words.parse_finding,
        metavar="ID",
        help="the finding's number, as vitald status shows it",
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument(
        "--for",
        dest="seconds",
        type=words.parse_duration(60.0, _MAX_PERIOD_S, "1m to 90d"),
        metavar="TIME",
        help="for how long: 12h, 7d; at most 90d",
    )
    length.add_argument(
        "--end", dest="seconds", action="store_const", const=0.0, help="no longer: it counts again"
    )
    parser.add_argument(
        "--reason",
        type=words.parse_reason,
        required=True,
        metavar="TEXT",
        help="why the node may work with it",
    )
    parser.add_argument("--json", action="store_true", help="the finding as JSON")


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(
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
    state = "no longer accepted" if accepted is None else "accepted"
    print(f"{state} {render.format_title(finding)}")
    if accepted is not None:
        until = render.format_time(accepted["until"])
        print(f"it stays open and shown, and counts again at {until}, or as soon as it gets worse")
    return 0
