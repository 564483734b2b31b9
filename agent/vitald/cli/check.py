"""
`vitald check`: may this node take work? One line that says why, and an exit code.

    0 fit   10 degraded (only with --strict; otherwise fit)   20 not fit   30 unknown

Never 1 or 2 for a verdict: Python exits 1 with a traceback and argparse 2 on a usage error. `--as`
translates to the codes of others: node-problem-detector's custom plugin protocol (0 ok, 1 problem,
2 unknown), Nagios plugins (0 ok, 1 warning, 2 critical, 3 unknown), Slurm's prolog and health check
(0, or 1 and the node drains).

`--for` is the phase of a job. A remedy that may wait for the running job leaves the node fit while
that job runs; it is due at its epilog and at the prolog of the next job.

`--due` is the question of a program that repairs nodes: is a reboot, or a replacement, due now?

    0 yes   10 no   30 unknown

Only a confirmed, real finding makes it due, and not while a job runs that it should wait for. A
drill is ignored, and the line says so. What is unknown is never a yes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from vitald.cli import UsageError, client, render
from vitald.model.words import WorkPhase
from vitald.text import count_noun

if TYPE_CHECKING:
    from vitald.server import schema

# Protocol -> status -> exit code. Degraded is fit unless --strict.
PROTOCOLS = {
    "vitald": {"healthy": 0, "degraded": 10, "unhealthy": 20, "unknown": 30},
    "npd": {"healthy": 0, "degraded": 1, "unhealthy": 1, "unknown": 2},
    "nagios": {"healthy": 0, "degraded": 1, "unhealthy": 2, "unknown": 3},
    "slurm": {"healthy": 0, "degraded": 1, "unhealthy": 1, "unknown": 1},
}
EXIT = PROTOCOLS["vitald"]
DUE, NOT_DUE, DUE_UNKNOWN = 0, 10, 30  # of --due
_DUE_KEYS: Mapping[str, Literal["rebootDue", "replacementDue"]] = {
    "reboot": "rebootDue",
    "replacement": "replacementDue",
}
_NAGIOS = {0: "OK", 1: "WARNING", 2: "CRITICAL", 3: "UNKNOWN"}
_JSON_KEYS = (
    "status",
    "rebootRequired",
    "rebootConfirmed",
    "replacementRequired",
    "replacementConfirmed",
    "action",
    "simulated",
    "reasons",
)


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--for",
        dest="work",
        choices=[phase.value for phase in WorkPhase],
        default=None,
        help="a job is about to begin, has ended, or runs (default)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="degraded is not good enough: exit 10"
    )
    parser.add_argument(
        "--as",
        dest="protocol",
        choices=[*PROTOCOLS],
        default=None,
        help="whose exit codes to use (default: vitald)",
    )
    parser.add_argument(
        "--due",
        choices=[*_DUE_KEYS],
        default=None,
        help="is this repair due now? exit 0 yes, 10 no, 30 unknown",
    )
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.due is not None:
        return _check_repair(arguments)
    try:
        verdict = client.read_status(arguments, work=arguments.work)
        status = str(verdict["status"])
        line = f"{status}: {summarize_reasons(verdict)}"
        answer: Mapping[str, object] = verdict
    except (client.NoAnswer, client.DaemonRefused) as error:
        answer, status = {"status": "unknown", "reasons": [str(error)]}, "unknown"
        line = f"unknown: {error}"
    code = _choose_exit_code(arguments, status)
    if arguments.json:
        render.emit_json({key: answer[key] for key in _JSON_KEYS if key in answer})
    elif arguments.protocol == "nagios":
        render.print_line(f"VITALD {_NAGIOS[code]} - {render.escape_text(line)}")
    else:
        render.print_line(render.escape_text(line))
    return code


def _choose_exit_code(arguments: argparse.Namespace, status: str) -> int:
    # Nagios has a code of its own for a warning, so it gets a degraded node in any case.
    protocol = arguments.protocol or "vitald"
    is_fit = status == "degraded" and not arguments.strict and protocol != "nagios"
    return PROTOCOLS[protocol]["healthy" if is_fit else status]


def _check_repair(arguments: argparse.Namespace) -> int:
    """Whether a repair is due now. The phase of a job and other protocols' codes do not apply."""
    if arguments.work is not None or arguments.strict or arguments.protocol is not None:
        raise UsageError("--due goes with none of --for, --strict, --as")
    repair = arguments.due
    answer: dict[str, object]
    try:
        summary = client.read_summary(arguments)
        word, status = summary[_DUE_KEYS[repair]], str(summary["status"])
        why = f"{status}: {_summarize(summary['reasons'])}"
        answer = {"status": status, "reasons": summary["reasons"]}
        ignored = summary["ignoredDrills"]
        if ignored:
            answer["ignoredDrills"] = ignored
            why += f"; ignored: {count_noun(ignored, 'finding')} of a drill (vitald status)"
    except (client.NoAnswer, client.DaemonRefused) as error:
        word, status, why = None, "unknown", f"unknown: {error}"
        answer = {"status": status, "reasons": [str(error)]}
    code, is_due = DUE_UNKNOWN, None
    line = f"whether a {repair} is due is {why}"
    if word is not None:
        code, is_due, line = DUE, True, f"{repair} due for {word}: {why}"
    elif status != "unknown":
        code, is_due, line = NOT_DUE, False, f"no {repair} due: {why}"
    if arguments.json:
        render.emit_json({"repair": repair, "due": is_due, "reason": word, **answer})
    else:
        render.print_line(render.escape_text(line))
    return code


def summarize_reasons(verdict: schema.ApiVerdict) -> str:
    """The strongest reason, and how many more there are."""
    return _summarize(verdict["reasons"])


def _summarize(reasons: Sequence[str]) -> str:
    if not reasons:
        return "no open findings"
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0] + more
