"""`vitald findings`: the open findings in full; with --cleared those that ended."""

from __future__ import annotations

import argparse

from vitald.cli import client, render, words
from vitald.cli.gpu_numbers import add_gpu_numbers


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--cleared", action="store_true", help="those that were cleared, newest first"
    )
    parser.add_argument(
        "--limit",
        type=words.parse_number(1, 1000),
        metavar="N",
        default=None,
        help="at most so many",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(
        arguments,
        "/v1/findings",
        state="cleared" if arguments.cleared else None,
        limit=arguments.limit,
    )
    if arguments.json:
        render.emit_json(answer)
        return 0
    findings = answer["findings"]
    add_gpu_numbers(arguments, findings)
    if not findings:
        render.print_line("no cleared findings" if arguments.cleared else "no open findings")
    for number, finding in enumerate(findings):
        if number:
            print()
        for line in render.format_finding(finding, full=True):
            render.print_line(line)
    return 0
