"""`vitald status`: the whole node on one screen, the worst first. Exit code as `vitald check
--strict`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitald import __version__
from vitald.cli import client, layout, render, words
from vitald.cli.check import EXIT
from vitald.cli.gpu_numbers import add_gpu_numbers
from vitald.text import count_noun, join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_INCIDENTS, _MAX_SHORT_INCIDENTS = 4, 8
_BY_SUSPICION = "suspicion"  # the requester of a diagnostic
_MAX_NAMES, _MAX_TRIALS, _MAX_NOTICES = 6, 4, 8
_MAX_WAIT_S = 30.0  # of a sink of `vitald publish`


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="the answer of GET /v1/status")
    shown.add_argument(
        "--watch",
        nargs="?",
        type=words.parse_seconds(3600),
        const=2.0,
        default=None,
        metavar="SECONDS",
        help="show it again and again, every 2 seconds or as often as given, until Ctrl-C",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.watch is not None:
        from vitald.cli.watch import watch_status

        return watch_status(arguments, arguments.watch, format_status)
    try:
        status = client.read_status(arguments)
    except (client.NoAnswer, client.DaemonRefused) as error:
        if arguments.json:
            render.emit_json({"status": "unknown", "error": str(error)})
        else:
            render.print_line(f"{render.colour_status('unknown')}  {error}")
        return EXIT["unknown"]
    if arguments.json:
        render.emit_json(status)
    else:
        add_gpu_numbers(arguments, status)
        show_status(status)
    return EXIT[str(status["status"])]


def show_status(status: schema.NodeStatus) -> None:
    for line in format_status(status):
        render.print_line(line)


def format_status(status: schema.NodeStatus) -> Iterator[str]:
    """The lines of the screen, not yet folded."""
    flags = render.describe_flags(status["findings"], status)
    if status["simulated"]:
        drills = [finding["simulated"] for finding in status["findings"]]
        is_mixed = any(drills) and not all(drills)
        flags.append("partly simulated" if is_mixed else "simulated")
    host = render.colour_text(render.escape_text(status["host"]), "bold")
    word = render.colour_status(str(status["status"]))
    flagged = render.colour_text(", ".join(flags), "bold")
    yield f"{host}  {word}  {flagged}".rstrip()
    yield from _format_incidents(status)
    yield from _format_advice(status)
    yield from format_notices(status)
    yield ""
    yield from _format_sources(status["sources"])
    yield from _format_problems(status)
    yield from _format_diagnostics(status.get("diagnostics"))
    yield from _format_recovery(status.get("recovery"))
    yield from _format_save_advice(status)
    yield from _format_reported_jobs(status)
    yield from _format_publishers(status)
    watched = [component for component in status["components"] if component["kind"] != "node"]
    unknown = [
        render.escape_text(component["name"])
        for component in watched
        if component["status"] == "unknown"
    ]
    if unknown:
        names = join_first(unknown, _MAX_NAMES)
        yield f"  status unknown: {names}: vitald components"
    other = f" (this command: {__version__})" if status["version"] != __version__ else ""
    daemon = f"profile {status['profile']}, vitald {status['version']}{other}"
    age = render.format_age(status["startedAt"])
    line = f"  {_count_kinds(watched)}; {daemon}, up {age}"
    yield render.colour_text(line, "dim")


def _format_incidents(status: schema.NodeStatus) -> Iterator[str]:
    findings = {finding["id"]: finding for finding in status["findings"]}
    incidents = status["incidents"]
    for incident in incidents[:_MAX_INCIDENTS]:
        yield ""
        yield from render.format_incident(incident, findings)
    rest = incidents[_MAX_INCIDENTS:]
    if not rest:
        return
    yield ""
    for incident in rest[:_MAX_SHORT_INCIDENTS]:
        yield f"  {render.escape_text(incident['line'])}"
    if len(rest) > _MAX_SHORT_INCIDENTS:
        more = len(rest) - _MAX_SHORT_INCIDENTS
        yield f"  and {more} more incidents: vitald findings"


def _count_kinds(watched: list[schema.ApiComponent]) -> str:
    """`8 gpu, 4 nvswitch`: the components that are here."""
    counts: dict[str, int] = {}
    for component in watched:
        kind, is_here = str(component["kind"]), component["attributes"] or component["sources"]
        counts[kind] = counts.get(kind, 0) + bool(is_here)
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return counted or "no accelerators on PCI"


def _format_sources(sources: list[schema.ApiSource]) -> Iterator[str]:
    """Sources without a problem share a line, and so do those that have nothing to observe here."""
    working, absent = [], []
    for source in sources:
        name, detail = str(source["name"]), render.escape_text(source["detail"])
        age = f"{render.format_age(source['lastSeen'])} ago" if source["lastSeen"] else ""
        if source["state"] == "ok" and not detail:
            working.append(f"{name} {age}")
        elif source["state"] == "not present":
            absent.append(f"{name} ({detail})")
        else:
            state = "ok"
            if source["state"] != "ok":
                state = render.colour_text(str(source["state"]).upper(), "bold", "magenta")
            polled = f"looked {age}" if age else "initial scan incomplete"
            tail = f": {detail}" if detail else ""
            yield f"  source {name}: {state}, {polled}{tail}"
    if working:
        yield f"  looked at: {', '.join(working)}"
    if absent:
        yield f"  not present: {', '.join(absent)}"


def _format_diagnostics(outline: schema.DiagnosticOutline | None) -> Iterator[str]:
    """The run that is active or queued, and the last runs that failed."""
    if outline is None:
        return
    active = outline.get("going") or []
    for run in active[:1] + [run for run in active[1:] if run["by"] == _BY_SUSPICION]:
        state = "runs"
        if run["stage"] == "waiting":
            state = f"waits for {render.escape_text(run['waitsFor']) or 'its turn'}"
        because = ""
        if run["by"] == _BY_SUSPICION:
            because = f", because {render.escape_text(run['reason'])}"
        yield f"  diagnostic {_name_diagnostic(run)} {state}{because}: vitald diag list"
    for ended in outline.get("last") or []:
        if ended["outcome"] == "fail" and not ended["preempted"]:
            failed = render.colour_text("FAILED", "bold", "red")
            why = ""
            if ended["why"]:
                why = f": {layout.cut_text(render.escape_text(ended['why']), 80)}"
            age, id_ = render.format_age(ended["ended"]), render.escape_text(ended["id"])
            name = _name_diagnostic(ended)
            yield (f"  diagnostic {name} {failed} {age} ago{why}: vitald diag show {id_}")
    yield from _format_old_passes(outline)
    yield from _format_missed_validation(outline)


def _format_missed_validation(outline: schema.DiagnosticOutline) -> Iterator[str]:
    """What the node was not validated after. An older daemon does not report it."""
    validation = outline.get("validation")
    missed = validation.get("missed") if validation else None
    if missed is not None:
        because, reason = map(render.escape_text, (missed["because"], missed["reason"]))
        since = render.format_time(missed["since"])
        yield f"  not validated since {since}: {because}; {reason}: vitald diag list"


def _format_old_passes(outline: schema.DiagnosticOutline) -> Iterator[str]:
    """The scheduled checks whose last pass is no evidence any more."""
    for record in outline.get("passes") or []:
        if not record["old"]:
            continue
        age, every = render.format_age(record["since"]), render.format_span(record["every"])
        name = _name_diagnostic(record)
        yield f"  diagnostic {name} has not passed for {age} (every {every}): vitald diag list"


def _format_recovery(outline: schema.ApiRecovery | None) -> Iterator[str]:
    """What is requested of root."""
    request = outline.get("request") if outline is not None else None
    if request is not None:
        findings = ", ".join(f"#{number}" for number in request["findings"][:_MAX_NAMES])
        what = "a reboot" if request["action"] == "reboot" else "a replacement"
        since = render.format_time(request["since"])
        yield (f"  recovery: {what} is asked for since {since}, for {findings}: vitald recovery")


def _format_save_advice(status: schema.NodeStatus) -> Iterator[str]:
    advice = status.get("advice")  # a daemon before this version does not have it
    if advice is not None and advice["save"]:
        yield f"  {render.describe_advice(advice)}"


def _format_reported_jobs(status: schema.NodeStatus) -> Iterator[str]:
    """What jobs report of their progress."""
    for job in status.get("reportedJobs") or []:
        parts = [count_noun(job["ranks"], "rank")]
        if job["step"] is not None:
            parts.append(f"step {job['step']}")
        if job["stepSeconds"] is not None:
            parts.append(f"{job['stepSeconds']:.3g} s a step")
        if job["state"] not in ("", "train"):
            parts.append(job["state"])
        yield f"  {render.escape_text(job['name'])}: {', '.join(parts)}"


def _format_publishers(status: schema.NodeStatus) -> Iterator[str]:
    """The sinks that do not get the node's state; nothing while all do."""
    publishers = status.get("publishers")
    if publishers is None:
        return
    log = "journalctl -u vitald-publish"
    if publishers["silent"]:
        silent = render.colour_text("SILENT", "bold", "magenta")
        since = render.format_time(publishers["reported"])
        yield f"  vitald publish: {silent} since {since}: {log}"
        return
    for sink in publishers["sinks"]:
        is_late = _is_late(sink["waitingSince"], status["time"])
        if sink["up"] and not is_late:
            continue
        state = "behind" if sink["up"] else render.colour_text("DOWN", "bold", "magenta")
        since = f" since {render.format_time(sink['waitingSince'])}" if is_late else ""
        why = f": {render.escape_text(sink['error'])}" if sink["error"] else ""
        name = render.escape_text(sink["name"])
        yield f"  publishing to {name}: {state}{since}{why}: {log}"


def _is_late(waiting_since: object, now: object) -> bool:
    began, ended = render.parse_time(waiting_since), render.parse_time(now)
    if began is None or ended is None:
        return False
    return (ended - began).total_seconds() > _MAX_WAIT_S


def _name_diagnostic(run: schema.DiagnosticAsk | schema.DiagnosticPass) -> str:
    level = f" level {run['level']}" if run["level"] else ""
    return f"{render.escape_text(run['check'])}{level}"


def _format_advice(status: schema.NodeStatus) -> Iterator[str]:
    """What requires no action by itself: devices with a record of faults, rules on trial."""
    suspects = [suspect for suspect in status["suspects"] if suspect["suspect"]]
    trials = status["trials"]
    if suspects or trials:
        yield ""
    for suspect in suspects:
        parts = ", ".join(
            f"{part['count']} {str(part['kind']).replace('_', ' ')}" for part in suspect["parts"]
        )
        where = suspect["component"]
        if suspect["device"] != where:
            where = f"{where} ({suspect['device']})"
        score = f"score {suspect['score']} in 28 days"
        yield f"  suspect {render.escape_text(where)}: {score}: {parts}"
    for trial in trials[:_MAX_TRIALS]:
        rule = f"on trial {trial['code']} would have asked to {trial['todo']}"
        component = render.escape_text(trial["component"])
        yield f"  {rule}: {component}, {render.describe_count(trial['count'])}"


def format_notices(status: schema.NodeStatus) -> Iterator[str]:
    """What is worth knowing about the work; nothing if there is none."""
    notices = status.get("notices") or []
    if not notices:
        return
    yield ""
    yield "  notices (change no status):"
    for notice in notices[:_MAX_NOTICES]:
        text, code = render.escape_text(notice["text"]), render.escape_text(notice["code"])
        yield f"    {text} ({code}, since {render.format_time(notice['since'])})"
        if notice.get("story"):
            yield f"      {render.escape_text(notice['story'])}"
    more = status.get("openNotices", len(notices)) - _MAX_NOTICES
    if more > 0:
        yield f"    and {more} more: vitald status --json"


def _format_problems(status: schema.NodeStatus) -> Iterator[str]:
    ledger, kernel = status["ledger"], status["kernelLog"]
    if not ledger["ok"]:
        line = f"  ledger: CANNOT BE WRITTEN: {render.escape_text(ledger['error'])}"
        yield render.colour_text(line, "bold", "magenta")
        yield (
            f"          {ledger['unsavedEvents']} events are held in memory; check space, mount and"
            " permissions of the state folder"
        )
    if kernel["recordsLost"]:
        yield (
            f"  kernel log: {kernel['recordsLost']} records were lost since the start; see"
            " journalctl -k"
        )
    if kernel["untrusted"]:
        yield (
            f"  kernel log: ignored {kernel['untrusted']} fault-like lines, written by user"
            " processes or about devices that this node does not have (see vitald events)"
        )
