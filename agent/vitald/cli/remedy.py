"""`vitald remedy ID... --reason TEXT`: record that the remedy of findings has begun. They stay open
until evidence shows that the remedy held.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import Parser, finding_action, finding_text
from vitald.server import endpoints

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: Parser) -> None:
    finding_action.add_finding_options(parser)
    finding_action.add_record_options(parser, "what is being done, and by whom")


def run(arguments: argparse.Namespace) -> int:
    return finding_action.act_on_findings(
        arguments, endpoints.REMEDY, {}, would="begin the remedy of", describe=_describe_remedy
    )


def _describe_remedy(finding: schema.ApiFinding) -> str:
    clears = "; ".join(finding["clears"])
    return f"in remedy {finding_text.format_title(finding)}\n  open until {clears}"
