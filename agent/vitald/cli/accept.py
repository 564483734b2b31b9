"""`vitald accept ID... --for 7d --reason TEXT`: accept findings for a time. The acceptance ends at
once when the fault gets worse.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import Parser, argument_types, finding_action, finding_text, render
from vitald.server import endpoints

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_PERIOD_S = 90 * argument_types.DAY_S


def options(parser: Parser) -> None:
    finding_action.add_finding_options(parser)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument(
        "--for",
        dest="seconds",
        type=argument_types.parse_duration(60.0, _MAX_PERIOD_S, "1m to 90d"),
        metavar="TIME",
        help="for how long: 12h, 7d; at most 90d",
    )
    length.add_argument(
        "--end", dest="seconds", action="store_const", const=0.0, help="no longer: it counts again"
    )
    finding_action.add_record_options(parser, "why the node may work with it")


def run(arguments: argparse.Namespace) -> int:
    return finding_action.act_on_findings(
        arguments,
        endpoints.ACCEPT,
        {"seconds": arguments.seconds},
        would="accept" if arguments.seconds else "no longer accept",
        describe=_describe_acceptance,
        is_meant=lambda finding: bool(arguments.seconds or finding["accepted"]),
    )


def _describe_acceptance(finding: schema.ApiFinding) -> str:
    title, accepted = finding_text.format_title(finding), finding["accepted"]
    if accepted is None:
        return f"no longer accepted {title}"
    until = render.describe_time(accepted["until"])
    return f"accepted {title}\n  shown until {until}, without effect unless it gets worse"
