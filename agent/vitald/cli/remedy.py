"""`vitald remedy ID --reason TEXT`: record that the remedy of a finding has begun. The finding
stays open until evidence shows that the remedy held.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import client, finding_action, render

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: argparse.ArgumentParser) -> None:
    finding_action.add_finding_options(parser)
    finding_action.add_reason_option(parser, "what is being done, and by whom")
    parser.add_argument("--json", action="store_true", help="the finding as JSON")


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(
        arguments, "/v1/findings/{id}/remedy", {"reason": arguments.reason}, id=arguments.id
    )
    return finding_action.show_answer(arguments, answer, _describe_remedy)


def _describe_remedy(finding: schema.ApiFinding) -> str:
    clears = "; ".join(finding["clears"])
    return f"in remedy {render.format_title(finding)}\nit stays open until {clears}"
