"""`vitald clear ID --reason TEXT`: close a finding. Caller, time and reason are recorded."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import client, finding_action, render

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: argparse.ArgumentParser) -> None:
    finding_action.add_finding_options(parser)
    finding_action.add_reason_option(parser, "why it is no longer true")
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
    return finding_action.show_answer(arguments, answer, _describe_clearing)


def _describe_clearing(finding: schema.ApiFinding) -> str:
    return f"cleared {render.format_title(finding)}"
