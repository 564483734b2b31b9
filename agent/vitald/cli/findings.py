"""`vitald findings`: the open findings in full; with --cleared those that ended."""

from __future__ import annotations

import argparse
import sys

from vitald.cli import argument_types, client, finding_text, render
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, PAGE


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--cleared", action="store_true", help="those that were cleared, newest first"
    )
    parser.add_argument(
        "--limit",
        type=argument_types.parse_number(1, MAX_PAGE),
        metavar="N",
        default=None,
        help=f"at most so many (default: {MAX_PAGE} open ones, {PAGE} cleared)",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--ids", action="store_true", help="only the findings' numbers, one a line")
    shape.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    answer = client.get(
        arguments,
        endpoints.FINDINGS,
        state="cleared" if arguments.cleared else None,
        limit=arguments.limit or (PAGE if arguments.cleared else MAX_PAGE),
    )
    if arguments.json:
        render.emit_json(answer)
        return 0
    findings = answer["findings"]
    if arguments.ids:
        for finding in findings:
            print(int(finding["id"]))  # shells evaluate it
        if answer["more"]:
            print("vitald: others are left out: --limit says how many", file=sys.stderr)
        return 0
    if not findings:
        print("no cleared findings" if arguments.cleared else "no open findings")
    for number, finding in enumerate(findings):
        if number:
            print()
        for line in finding_text.format_finding(finding, full=True):
            render.print_line(line)
    if answer.get("more"):
        print("\nand others: --limit says how many are listed")
    return 0
