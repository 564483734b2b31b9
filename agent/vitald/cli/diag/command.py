"""
`vitald diag run|list|show|cancel|read`: programs that test the hardware.

`run` requests a run of the daemon and follows it to its end. Exit codes of `run`:

    0     pass
    10    correct the settings of the node first (config, not_applicable)
    20    fail
    30    no verdict: inconclusive, error, pre-empted

Ctrl-C ends the display, not the run.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from vitald.cli import (
    EX_UNAVAILABLE,
    INTERRUPTED,
    CommandFailed,
    UsageError,
    argument_types,
    client,
    render,
)
from vitald.cli.diag import read as diag_read
from vitald.cli.diag import views
from vitald.cli.diag.views import format_duration, format_name
from vitald.cli.progress import clear_line, draw_line
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE

if TYPE_CHECKING:
    from vitald.server import schema


# Of the levels with full load for long, unless the daemon knows better.
_EXPECTED_S = {3: 1800.0, 4: 7200.0}
_POLL_S = 0.5
# A daemon may be restarting, or still writing the result to disk.
_MAX_SILENCE_S = 20.0
_DEFAULT_REASON = "asked on the command line"
_BAR_COLUMNS = 24
_REPEAT_S = 60.0


def options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    _add_run_options(_add_verb(what, "run", "run one now, and follow it to its end"))
    list_ = _add_verb(
        what, "list", "what can be run here, what comes next, and the outcomes of the last runs"
    )
    list_.add_argument(
        "--limit",
        type=argument_types.parse_number(1, MAX_PAGE),
        default=10,
        metavar="N",
        help="number of recent runs (default: 10)",
    )
    shape = list_.add_mutually_exclusive_group()
    shape.add_argument("--ids", action="store_true", help="only the IDs of runs, one a line")
    shape.add_argument("--json", action="store_true", help="both as JSON")
    show = _add_verb(what, "show", "one run in full")
    show.add_argument(
        "id", type=_parse_run_id, metavar="ID|last", help="the run, as vitald diag list shows it"
    )
    show.add_argument("--raw", action="store_true", help="only what its program printed")
    show.add_argument(
        "--json", action="store_true", help="the answer of GET /v1/diagnostics/runs/ID"
    )
    cancel = _add_verb(what, "cancel", "end a run, or take it out of the queue")
    cancel.add_argument(
        "id",
        nargs="?",
        type=_parse_run_id,
        default=None,
        metavar="ID",
        help="which (default: the one that runs)",
    )
    cancel.add_argument(
        "--reason",
        type=argument_types.parse_reason,
        required=True,
        metavar="TEXT",
        help="reason, recorded with the caller",
    )
    cancel.add_argument("--json", action="store_true", help="the answer as JSON")
    help_ = "explain what a diagnostic printed, wherever it ran: vitald diag read FILE|-"
    read = what.add_parser("read", help=help_, description=help_)
    read.set_defaults(do=diag_read.run)
    diag_read.options(read)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "level",
        nargs="?",
        type=_parse_level,
        metavar="LEVEL",
        help="of dcgm: 1 seconds, 2 minutes, 3 half an hour, 4 up to two hours",
    )
    parser.add_argument(
        "--check",
        default="dcgm",
        metavar="NAME",
        help="which check (default: dcgm); vitald diag list shows them",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        type=_parse_gpu,
        default=[],
        metavar="GPU",
        help="only this GPU: index, serial number, UUID or PCI address; repeatable",
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="also while the devices are in use: both get slower, and it may fail for that alone",
    )
    parser.add_argument(
        "--reason",
        type=argument_types.parse_reason,
        default=None,
        metavar="TEXT",
        help="reason, recorded with the caller; needed from level 3 on",
    )
    parser.add_argument("--yes", action="store_true", help="skip confirmation from level 3 on")
    parser.add_argument("--no-wait", action="store_true", help="request it, and do not follow it")
    parser.add_argument("--json", action="store_true", help="the result as JSON")


def _add_verb(
    what: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_: str
) -> argparse.ArgumentParser:
    parser = what.add_parser(name, help=help_, description=help_)
    client.add_connection_options(parser)
    parser.set_defaults(
        do={"run": _run_diagnostic, "list": _list_runs, "show": _show_run, "cancel": _cancel_run}[
            name
        ]
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    run_verb: Callable[[argparse.Namespace], int] = arguments.do
    return run_verb(arguments)


def _parse_level(text: str) -> int:
    if text not in ("1", "2", "3", "4"):
        raise argument_types.InvalidArgument(
            "a level from 1 to 4 (a check is named with --check)", text
        )
    return int(text)


def _parse_gpu(text: str) -> int | str:
    """An index, or another name, which the daemon looks up."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else argument_types.parse_device(text)


def _parse_run_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}", text):
        raise argument_types.InvalidArgument("a run's id as vitald diag list shows it", text)
    return text


# --- run


def _run_diagnostic(arguments: argparse.Namespace) -> int:
    if arguments.level in _EXPECTED_S:
        _ask_for_consent(arguments)
    body: schema.RunDiagnosticRequest = {
        "check": arguments.check,
        "reason": arguments.reason or _DEFAULT_REASON,
        "gpus": list(dict.fromkeys(arguments.gpu)),
        "busy": arguments.busy,
    }
    if arguments.level is not None:
        body["level"] = arguments.level
    requested = client.post(arguments, endpoints.RUN_DIAGNOSTIC, body)["active"]
    if arguments.no_wait:
        if arguments.json:
            render.emit_json({"active": requested})
        else:
            name = views.format_name(requested)
            print(f"requested {name}: vitald diag show {requested['id']} when it has ended")
        return 0
    try:
        result = _follow_run(arguments, requested)
    except KeyboardInterrupt:
        print(f"\n{views.format_name(requested)} continues ({requested['id']})", file=sys.stderr)
        print(f"  end it: vitald diag cancel {requested['id']} --reason TEXT", file=sys.stderr)
        print(
            f"  its result, when it has ended: vitald diag show {requested['id']}", file=sys.stderr
        )
        return INTERRUPTED
    if result is None:
        print(
            f"vitald: run {requested['id']} left no result: the daemon was restarted, or cannot"
            " write its ledger",
            file=sys.stderr,
        )
        return views.EXIT["error"]
    if arguments.json:
        render.emit_json(result)
    else:
        for line in views.format_run(result):
            render.print_line(line)
        if choose_exit_code(result) == views.EXIT["error"]:
            _print_next_attempt(arguments, result)
    return choose_exit_code(result)


def _print_next_attempt(arguments: argparse.Namespace, ended: schema.DiagnosticRun) -> None:
    """A run without a verdict may be owed still: it will begin again by itself."""
    for run in client.get(arguments, endpoints.DIAGNOSTICS)["active"]:
        same = (run["check"], run["level"], run["by"]) == (
            ended["check"],
            ended["level"],
            ended["by"],
        )
        if same and run["stage"] == "waiting":
            print(f"still owed, waits for {render.escape_text(run['waitsFor'])}")
            print(f"  end that: vitald diag cancel {render.escape_text(run['id'])} --reason TEXT")


def choose_exit_code(result: schema.DiagnosticRun) -> int:
    if result["preempted"]:
        return views.EXIT["inconclusive"]
    return views.EXIT.get(str(result["outcome"]), views.EXIT["error"])


class _ConsentDenied(CommandFailed):
    """The operator did not confirm the run."""

    exit_code = EX_UNAVAILABLE


def _ask_for_consent(arguments: argparse.Namespace) -> None:
    """Ask for confirmation of a long run. Raises UsageError or _ConsentDenied without it."""
    level = arguments.level
    if not arguments.reason:
        raise UsageError(
            f"level {level} takes the node out of service for long: it needs --reason TEXT"
        )
    if arguments.yes:
        return
    usual = _EXPECTED_S[level]
    for check in client.get(arguments, endpoints.DIAGNOSTICS)["checks"]:
        if check["name"] == arguments.check:
            usual = check["expected"].get(str(level)) or usual
    print(
        f"{arguments.check} level {level} puts full load on every GPU for about"
        f" {views.format_duration(usual)}.",
        file=sys.stderr,
    )
    print(
        "No job can run on the node meanwhile; a job that arrives ends the run without a result.",
        file=sys.stderr,
    )
    if not sys.stdin.isatty():
        raise UsageError("not confirmed: standard input is no terminal, so say --yes")
    print("Run it? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise _ConsentDenied("not confirmed: nothing was requested")


def _follow_run(
    arguments: argparse.Namespace, requested: schema.ActiveDiagnostic
) -> schema.DiagnosticRunInFull | None:
    """The run, once it has ended; None if it left no result."""
    answered = time.monotonic()
    with Progress(sys.stderr if arguments.json else sys.stdout, quiet=arguments.json) as progress:
        progress.show_run(requested)
        while True:
            try:
                active_runs = client.get(arguments, endpoints.DIAGNOSTICS)["active"]
            except client.NoAnswer:
                if time.monotonic() - answered > _MAX_SILENCE_S:
                    raise
                progress.show_line("the daemon does not answer")
            else:
                answered = time.monotonic()
                current = next((run for run in active_runs if run["id"] == requested["id"]), None)
                if current is None:
                    break
                progress.show_run(
                    current, behind=None if current is active_runs[0] else active_runs[0]
                )
            time.sleep(_POLL_S)
    return _read_result(arguments, str(requested["id"]))


def _read_result(arguments: argparse.Namespace, id_: str) -> schema.DiagnosticRunInFull | None:
    until = time.monotonic() + _MAX_SILENCE_S
    while True:
        try:
            return client.get(arguments, endpoints.DIAGNOSTIC_RUN, id=id_)
        except client.DaemonRefused as error:
            if error.status not in (404, 503) or time.monotonic() > until:
                if error.status == 404:
                    return None
                raise
        except client.NoAnswer:
            if time.monotonic() > until:
                raise
        time.sleep(_POLL_S / 5)


# --- the others


def _list_runs(arguments: argparse.Namespace) -> int:
    ended = client.get(arguments, endpoints.DIAGNOSTIC_RUNS, limit=arguments.limit)
    if arguments.ids:
        for run in ended["runs"]:
            print(_parse_run_id(run["id"]))  # shells evaluate it
        return 0
    answer = client.get(arguments, endpoints.DIAGNOSTICS)
    more = ended.get("more", False)
    if arguments.json:
        render.emit_json({**answer, "runs": ended["runs"], "more": more})
        return 0
    for line in views.format_overview(answer, ended["runs"]):
        render.print_line(line)
    if more:
        print("and older ones: --limit says how many are listed")
    return 0


def _show_run(arguments: argparse.Namespace) -> int:
    id_ = arguments.id
    if id_ == "last":
        runs = client.get(arguments, endpoints.DIAGNOSTIC_RUNS, limit=1)["runs"]
        if not runs:
            print(
                "vitald: no runs yet: vitald diag list shows what can be run",
                file=sys.stderr,
            )
            return EX_UNAVAILABLE
        id_ = str(runs[0]["id"])
    found = client.get(arguments, endpoints.DIAGNOSTIC_RUN, id=id_)
    if arguments.json:
        render.emit_json(found)
    elif arguments.raw:
        _print_raw(str(found["raw"]))
    else:
        for line in views.format_run(found):
            render.print_line(line)
    return 0


def _print_raw(text: str) -> None:
    """Unchanged to a file or a pipe, such as `vitald diag read -`; escaped on a terminal."""
    if not text:
        print("nothing is kept of what it printed", file=sys.stderr)
    elif sys.stdout.isatty():
        for line in text.expandtabs().splitlines():
            print(render.escape_text(line))
    else:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def _cancel_run(arguments: argparse.Namespace) -> int:
    body: schema.CancelDiagnosticRequest = {"reason": arguments.reason}
    if arguments.id is not None:
        body["id"] = arguments.id
    answer = client.post(arguments, endpoints.CANCEL_DIAGNOSTIC, body)
    if arguments.json:
        render.emit_json(answer)
        return 0
    ended = answer["active"]
    how = "taken out of the queue" if ended["stage"] == "waiting" else "told to end"
    print(f"{views.format_name(ended)} was {how}: vitald diag show {ended['id']}")
    return 0


class Progress:
    """Shows the progress of a run. `quiet`: nothing if `to` is no terminal."""

    def __init__(self, to: TextIO, *, quiet: bool = False) -> None:
        self._to = to
        self._drawn = render.can_redraw(to)
        self._silent = quiet and not self._drawn
        self._shown = ""
        self._shown_at = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            clear_line(self._to)

    def show_run(
        self, run: schema.ActiveDiagnostic, behind: schema.ActiveDiagnostic | None = None
    ) -> None:
        """`behind`: the run that it waits for, if any."""
        if self._silent:
            return
        name = format_name(run)
        if run["stage"] == "waiting":
            waits_for = render.escape_text(run["waitsFor"])
            if not waits_for:
                waits_for = f"{format_name(behind)} to end" if behind is not None else "its turn"
            since = f", {render.format_age(run['requestedAt'])} so far"
            self.show_line(f"{name} waits for {waits_for}", since=since)
            return
        is_ending = run["stage"] == "ending"
        test = f", {render.escape_text(run['test'])}" if run["test"] else ""
        passed = format_time(run["elapsed"], run["expected"])
        if self._drawn:
            ending = ", is told to end" if is_ending else ""
            bar = draw_bar(run["elapsed"], run["expected"])
            self.show_line(f"{name} {bar} {passed}{ending}{test}")
        else:
            self.show_line(f"{name} {'ends' if is_ending else 'runs'}{test}", since=f", {passed}")

    def show_line(self, line: str, since: str = "") -> None:
        """`since` changes all the time: it alone is no reason for another line."""
        if self._drawn:
            draw_line(self._to, line + since)
            return
        news, now = re.sub(r"\d+", "", line), time.monotonic()
        if not self._silent and (news != self._shown or now - self._shown_at >= _REPEAT_S):
            self._shown, self._shown_at = news, now
            self._to.write(f"{line}{since}\n")
            self._to.flush()


def draw_bar(elapsed: float, expected: float) -> str:
    """At most 99 %: a run that takes longer than expected is not shown as ended."""
    share = min(elapsed / expected, 0.99) if expected > 0 else 0.0
    done = int(share * _BAR_COLUMNS)
    return f"[{'#' * done}{'.' * (_BAR_COLUMNS - done)}] {share:4.0%}"


def format_time(elapsed: float, expected: float) -> str:
    if expected <= 0:
        return format_duration(elapsed)
    if elapsed <= expected:
        return f"{format_duration(elapsed)} of about {format_duration(expected)}"
    return f"{format_duration(elapsed)}, usually {format_duration(expected)}"
