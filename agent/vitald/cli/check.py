"""
`vitald check`: may this node take work? One line that says why, and an exit code.

    0 fit   10 degraded (only with --strict; otherwise fit)   20 not fit   30 unknown

Never 1 or 2 for a verdict: Python exits 1 with a traceback and argparse 2 on a usage error. `--as`
translates to the codes of others: node-problem-detector's custom plugin protocol (0 ok, 1 problem,
2 unknown), Nagios plugins (0 ok, 1 warning, 2 critical, 3 unknown), Slurm's prolog and health check
(0, or 1 and the node drains).

`--for` says what the answer is for. A remedy that may wait for the running job leaves the node fit
while that runs; at the prolog of the next, and at the epilog, it is due.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitald.cli import client, render

if TYPE_CHECKING:
    from vitald.server import schema

EXIT = {"healthy": 0, "degraded": 10, "unhealthy": 20, "unknown": 30}
# Protocol -> status -> exit code. Degraded is fit unless --strict.
PROTOCOLS = {
    "vitald": {"healthy": 0, "degraded": 10, "unhealthy": 20, "unknown": 30},
    "npd": {"healthy": 0, "degraded": 1, "unhealthy": 1, "unknown": 2},
    "nagios": {"healthy": 0, "degraded": 1, "unhealthy": 2, "unknown": 3},
    "slurm": {"healthy": 0, "degraded": 1, "unhealthy": 1, "unknown": 1},
}
_NAGIOS = {0: "OK", 1: "WARNING", 2: "CRITICAL", 3: "UNKNOWN"}


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument(
        "--for",
        dest="work",
        choices=["prolog", "epilog", "running"],
        default="running",
        help="a job is about to begin, has ended, or runs (default)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="degraded is not good enough: exit 10"
    )
    parser.add_argument(
        "--as",
        dest="protocol",
        choices=[*PROTOCOLS],
        default="vitald",
        help="whose exit codes to use",
    )
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")


def run(arguments: argparse.Namespace) -> int:
    try:
        verdict = client.status(arguments, work=arguments.work)
        status = str(verdict["status"])
        line = f"{status}: {why(verdict)}"
        answer: Mapping[str, object] = verdict
    except (client.NoAnswer, client.Refused) as error:
        answer, status = {"status": "unknown", "reasons": [str(error)]}, "unknown"
        line = f"unknown: {error}"
    # Nagios has a code of its own for a warning, so a degraded node is told there in any case.
    softened = (
        "healthy"
        if status == "degraded" and not arguments.strict and arguments.protocol != "nagios"
        else status
    )
    code = PROTOCOLS[arguments.protocol][softened]
    if arguments.json:
        keys = (
            "status",
            "rebootRequired",
            "rebootConfirmed",
            "replacementRequired",
            "replacementConfirmed",
            "action",
            "simulated",
            "reasons",
        )
        render.emit_json({key: answer[key] for key in keys if key in answer})
    else:
        print(
            f"VITALD {_NAGIOS[code]} - {render.safe(line)}"
            if arguments.protocol == "nagios"
            else render.safe(line)
        )
    return code


def why(verdict: schema.Verdict) -> str:
    """The strongest reason, and how many more there are."""
    reasons = verdict["reasons"]
    if not reasons:
        return "no open findings"
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0] + more
