"""`vitald advise save --for 20m --reason TEXT`: advise the jobs of this node to save a checkpoint,
before a planned reset or reboot. It ends by itself, or by `vitald advise none`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import UsageError, client, finding_action, render, words
from vitald.model.advice import MIN_ANNOUNCED_S

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "advice",
        choices=("save", "none"),
        metavar="ADVICE",
        help="save: jobs should save a checkpoint; none: end what was announced",
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=words.parse_duration(MIN_ANNOUNCED_S, words.DAY_S, "1m to 24h"),
        metavar="TIME",
        help="for how long, e.g. 20m; needed with save",
    )
    finding_action.add_reason_option(parser, "what is planned; jobs get it with the advice")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    is_save = arguments.advice == "save"
    if is_save and arguments.seconds is None:
        raise UsageError("advise save needs an end: --for TIME")
    if not is_save and arguments.seconds is not None:
        raise UsageError("--for is for advise save")
    body: schema.AdviseRequest = {"advice": arguments.advice, "reason": arguments.reason}
    if is_save:
        body["seconds"] = arguments.seconds
    answer = client.call_api(arguments, "/v1/advice", body)
    if arguments.json:
        render.emit_json(answer)
        return 0
    if not answer["changed"]:
        render.print_line("nothing was announced")
    render.print_line(render.describe_advice(answer["advice"]))
    return 0
