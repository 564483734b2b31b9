"""What `vitald accept`, `clear` and `remedy` share: each records an action, with a reason, on the
findings that were chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vitald.cli import Parser, UsageError, argument_types, client, finding_text, render
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, Post

if TYPE_CHECKING:
    from vitald.server import schema


def add_finding_options(parser: Parser) -> None:
    """How to reach the daemon, and which findings."""
    parser.intermixed = True
    client.add_connection_options(parser)
    parser.add_argument(
        "ids",
        nargs="*",
        type=argument_types.parse_finding,
        metavar="ID",
        help="findings' numbers, as vitald status shows them",
    )
    parser.add_argument(
        "--code",
        type=argument_types.parse_code,
        metavar="CODE",
        help="those of one code, e.g. xid/94",
    )
    parser.add_argument(
        "--component",
        type=argument_types.parse_device,
        metavar="NAME",
        help="those of one component: gpu/0000:65:00.0, or its index, serial number, UUID, PCI"
        " address",
    )
    parser.add_argument("--all", action="store_true", help="all open findings")
    parser.add_argument(
        "--dry-run", action="store_true", help="only list the findings, and change nothing"
    )


def add_record_options(parser: argparse.ArgumentParser, reason: str) -> None:
    """The reason that is recorded, with its help, and --json."""
    parser.add_argument(
        "--reason", type=argument_types.parse_reason, required=True, metavar="TEXT", help=reason
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a finding")


def act_on_findings(
    arguments: argparse.Namespace,
    action: Post[Any, schema.OneFinding],
    body: dict[str, object],
    *,
    would: str,
    describe: Callable[[schema.ApiFinding], str],
    is_meant: Callable[[schema.ApiFinding], bool] = lambda _finding: True,
) -> int:
    """Sends the action for each finding that was chosen, and prints what `describe` makes of
    the finding as it is then; with --dry-run only its title, behind `would`. `is_meant`: whether a
    finding that was not chosen by its ID is. Returns the exit code.
    """
    code = 0
    for number, listed in _choose_findings(arguments, is_meant).items():
        try:
            answer = (
                {"finding": listed or _read_open(arguments, number)}
                if arguments.dry_run
                else client.post(arguments, action, {"reason": arguments.reason, **body}, id=number)
            )
        except client.DaemonRefused as error:
            if error.status != 404:
                raise
            print(f"vitald: {error}", file=sys.stderr)
            # One of a selection was closed since it was listed, perhaps by the action before.
            code = error.exit_code if arguments.ids else code
            continue
        if arguments.json:
            render.emit_json(answer)
        elif arguments.dry_run:
            print(f"would {would} {finding_text.format_title(answer['finding'])}")
        else:
            print(describe(answer["finding"]))
    return code


def _choose_findings(
    arguments: argparse.Namespace, is_meant: Callable[[schema.ApiFinding], bool]
) -> dict[str, schema.ApiFinding | None]:
    """By number; None of those that were chosen by it. Raises UsageError unless they are chosen in
    exactly one way.
    """
    is_narrowed = bool(arguments.code or arguments.component)
    if bool(arguments.ids) + is_narrowed + arguments.all != 1:
        raise UsageError("which findings? Either IDs, or --code and --component, or --all")
    if arguments.ids:
        return dict.fromkeys(arguments.ids)
    answer = client.get(
        arguments,
        endpoints.FINDINGS,
        code=arguments.code,
        component=arguments.component,
        limit=MAX_PAGE,
    )
    if answer["more"]:
        raise UsageError(f"more than {MAX_PAGE} findings: narrow them by --code or --component")
    chosen = {str(finding["id"]): finding for finding in answer["findings"] if is_meant(finding)}
    if not chosen:
        print("vitald: no such finding is open", file=sys.stderr)
    return {**chosen}


def _read_open(arguments: argparse.Namespace, number: str) -> schema.ApiFinding:
    """An open finding. Raises DaemonRefused."""
    finding = client.get(arguments, endpoints.WHY, id=number)["finding"]
    if finding["state"] == "cleared":
        raise client.DaemonRefused(404, f"no open finding {number}", "it was cleared")
    return finding
