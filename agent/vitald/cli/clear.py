"""`vitald clear ID... --reason TEXT`: close findings. Caller, time and reason are recorded."""

from __future__ import annotations

import argparse

from vitald.cli import Parser, UsageError, finding_action, finding_text
from vitald.server import endpoints


def options(parser: Parser) -> None:
    finding_action.add_finding_options(parser)
    parser.add_argument(
        "--replaced",
        action="store_true",
        help="because its device was replaced: the device's record begins afresh",
    )
    finding_action.add_record_options(parser, "why they are no longer true")


def run(arguments: argparse.Namespace) -> int:
    if arguments.replaced and arguments.all:
        raise UsageError("--replaced: name the devices, by ID, --code or --component")
    return finding_action.act_on_findings(
        arguments,
        endpoints.CLEAR,
        {"replaced": arguments.replaced},
        would="clear, with all others of its device," if arguments.replaced else "clear",
        describe=lambda finding: f"cleared {finding_text.format_title(finding)}",
    )
