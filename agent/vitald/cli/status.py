"""`vitald status`: the whole node on one screen, the worst first. Exit code as `vitald check
--strict`.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from vitald import __version__
from vitald.cli import client, render
from vitald.cli.check import EXIT
from vitald.text import count_noun, join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_INCIDENTS, _MAX_SHORT_INCIDENTS = 4, 8
_MAX_NAMES, _MAX_TRIALS = 6, 4
_ACCELERATORS = ("gpu", "neuron")
_MAX_WAIT_S = 30.0  # of a sink of `vitald publish`


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="the answer of GET /v1/status")


def run(arguments: argparse.Namespace) -> int:
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
        show_status(status)
    return EXIT[str(status["status"])]


def show_status(status: schema.NodeStatus) -> None:
    flags = render.describe_flags(status["findings"], status)
    if status["simulated"]:
        flags.append("simulated")
    host = render.colour_text(render.escape_text(status["host"]), "bold")
    word = render.colour_status(str(status["status"]))
    flagged = render.colour_text(", ".join(flags), "bold")
    render.print_line(f"{host}  {word}  {flagged}".rstrip())
    _show_incidents(status)
    _show_advice(status)
    print()
    _show_sources(status["sources"])
    _show_problems(status)
    codes = {finding.get("code", "") for finding in status["findings"]}
    _show_diagnostics(status.get("diagnostics"), codes)
    _show_recovery(status.get("recovery"))
    _show_publishers(status)
    _show_configuration(status)
    watched = [component for component in status["components"] if component["kind"] != "node"]
    unknown = [
        render.escape_text(component["name"])
        for component in watched
        if component["status"] == "unknown"
    ]
    if unknown:
        names = join_first(unknown, _MAX_NAMES)
        render.print_line(f"  status unknown: {names}: vitald components")
    _show_absence(status)
    other = f" (this command: {__version__})" if status["version"] != __version__ else ""
    daemon = f"profile {status['profile']}, vitald {status['version']}{other}"
    age = render.format_age(status["startedAt"])
    line = f"  {_count_kinds(watched)}; {daemon}, up {age}"
    render.print_line(render.colour_text(line, "dim"))


def _show_incidents(status: schema.NodeStatus) -> None:
    findings = {finding["id"]: finding for finding in status["findings"]}
    incidents = status["incidents"]
    for incident in incidents[:_MAX_INCIDENTS]:
        print()
        for line in render.format_incident(incident, findings):
            render.print_line(line)
    rest = incidents[_MAX_INCIDENTS:]
    if not rest:
        return
    print()
    for incident in rest[:_MAX_SHORT_INCIDENTS]:
        render.print_line(f"  {render.escape_text(incident['line'])}")
    if len(rest) > _MAX_SHORT_INCIDENTS:
        more = len(rest) - _MAX_SHORT_INCIDENTS
        render.print_line(f"  and {count_noun(more, 'more incident')}: vitald findings")


def _show_absence(status: schema.NodeStatus) -> None:
    """What to do on a node without accelerators, unless a finding says that some are missing, or a
    source cannot read what there is.
    """
    kinds = {component["kind"] for component in status["components"] if _is_here(component)}
    was_read = all(source["state"] in ("ok", "not present") for source in status["sources"])
    if was_read and kinds.isdisjoint(_ACCELERATORS) and not status["findings"]:
        print("  no GPU and no Neuron device on PCI; if this node should have some, say how many:")
        print("      [nvml] expected_gpus = 8, or [expect] neuron = 16: fewer make it unfit")


def _is_here(component: schema.ApiComponent) -> bool:
    """Whether it is on PCI, or a source reads it: a finding may name one that is gone."""
    return bool(component["attributes"] or component["sources"])


def _count_kinds(watched: list[schema.ApiComponent]) -> str:
    """`8 GPUs, 4 NVSwitches`: the components that are here."""
    counts: dict[str, int] = {}
    for component in watched:
        kind = str(component["kind"])
        counts[kind] = counts.get(kind, 0) + _is_here(component)
    counted = ", ".join(render.count_kind(count, kind) for kind, count in counts.items() if count)
    return counted or "no accelerators on PCI"


def _show_sources(sources: list[schema.ApiSource]) -> None:
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
            render.print_line(f"  source {name}: {state}, {polled}{tail}")
    if working:
        render.print_line(f"  looked at: {', '.join(working)}")
    if absent:
        render.print_line(f"  not present: {', '.join(absent)}")


def _show_diagnostics(outline: schema.DiagnosticOutline | None, codes: Container[str]) -> None:
    """The run that is active or queued, and the last runs that failed. `codes`: of the open
    findings.
    """
    if outline is None:
        return
    for run in (outline.get("going") or [])[:1]:
        state = "runs"
        if run["stage"] == "waiting":
            state = f"waits for {render.escape_text(run['waitsFor']) or 'its turn'}"
        render.print_line(f"  diagnostic {_name_diagnostic(run)} {state}: vitald diag list")
    for ended in _list_failed(outline.get("last") or [], codes):
        failed = render.colour_text("FAILED", "bold", "red")
        why = ""
        if ended["why"]:
            why = f": {render.cut_text(render.escape_text(ended['why']), 80)}"
        age, id_ = render.format_age(ended["ended"]), render.escape_text(ended["id"])
        name = _name_diagnostic(ended)
        render.print_line(f"  diagnostic {name} {failed} {age} ago{why}: vitald diag show {id_}")


def _list_failed(
    runs: Iterable[schema.DiagnosticRun], codes: Container[str]
) -> Iterator[schema.DiagnosticRun]:
    """The runs that failed, without those of the site's checks that an open finding shows."""
    for run in runs:
        if run["outcome"] == "fail" and not run["preempted"]:
            from vitald.model.codes import SITE_CHECK  # costs 50 ms, and most nodes are well

            if f"{SITE_CHECK}/{run['check']}" not in codes:
                yield run


def _show_recovery(outline: schema.ApiRecovery | None) -> None:
    """What is requested of root, and what prevents it."""
    if outline is None:
        return
    request, brake = outline["request"], outline["brake"]
    if outline["mode"] == "automatic" and brake.startswith("none: "):
        render.print_line(f"  recovery: no brake: {brake.removeprefix('none: ')}")
    if request is not None:
        findings = ", ".join(f"#{number}" for number in request["findings"][:_MAX_NAMES])
        what = "a reboot" if request["action"] == "reboot" else "a replacement"
        since = render.format_time(request["since"])
        render.print_line(
            f"  recovery: {what} is asked for since {since}, for {findings}: vitald recovery"
        )
        decision = request["decision"]
        if decision is not None and decision["why"]:
            step = "waiting" if decision["step"] == "wait" else decision["step"]
            at, why = render.format_time(decision["time"]), render.escape_text(decision["why"])
            render.print_line(f"            {step} at {at}: {why}")


def _show_publishers(status: schema.NodeStatus) -> None:
    """The sinks that do not get the node's state; nothing while all do."""
    publishers = status.get("publishers")
    if publishers is None:
        return
    log = "journalctl -u vitald-publish"
    if publishers["silent"]:
        silent = render.colour_text("SILENT", "bold", "magenta")
        since = render.format_time(publishers["reported"])
        render.print_line(f"  vitald publish: {silent} since {since}: {log}")
        return
    for sink in publishers["sinks"]:
        is_late = _is_late(sink["waitingSince"], status["time"])
        if sink["up"] and not is_late:
            continue
        word = "PARTLY" if sink["refused"] else "DOWN"
        state = "behind" if sink["up"] else render.colour_text(word, "bold", "magenta")
        state += f", without {', '.join(sink['refused'])}" if sink["refused"] else ""
        since = f" since {render.format_time(sink['waitingSince'])}" if is_late else ""
        why = f": {render.escape_text(sink['error'])}" if sink["error"] else ""
        name = render.escape_text(sink["name"])
        render.print_line(f"  publishing to {name}: {state}{since}{why}: {log}")


def _is_late(waiting_since: object, now: object) -> bool:
    began, ended = render.parse_time(waiting_since), render.parse_time(now)
    if began is None or ended is None:
        return False
    return (ended - began).total_seconds() > _MAX_WAIT_S


def _name_diagnostic(run: schema.DiagnosticAsk) -> str:
    level = f" level {run['level']}" if run["level"] else ""
    return f"{render.escape_text(run['check'])}{level}"


def _show_advice(status: schema.NodeStatus) -> None:
    """What requires no action by itself: devices with a record of faults, rules on trial."""
    suspects = [suspect for suspect in status["suspects"] if suspect["suspect"]]
    trials = status["trials"]
    if suspects or trials:
        print()
    for suspect in suspects:
        parts = ", ".join(
            f"{part['count']} {str(part['kind']).replace('_', ' ')}" for part in suspect["parts"]
        )
        where = suspect["component"]
        if suspect["device"] != where:
            where = f"{where} ({suspect['device']})"
        score = f"score {suspect['score']} in 28 days"
        render.print_line(f"  suspect {render.escape_text(where)}: {score}: {parts}")
    for trial in trials[:_MAX_TRIALS]:
        rule = f"on trial {trial['code']} would have asked to {trial['todo']}"
        component = render.escape_text(trial["component"])
        render.print_line(f"  {rule}: {component}, {render.describe_count(trial['count'])}")


def _show_configuration(status: schema.NodeStatus) -> None:
    """What differs between the file and what is in force; nothing if they agree."""
    configuration = status.get("configuration")
    if configuration is None:
        return
    if errors := configuration["errors"]:
        refused = render.colour_text("REFUSED", "bold", "magenta")
        more = " (and others)" if len(errors) > 1 else ""
        render.print_line(f"  configuration: {refused}: {render.escape_text(errors[0])}{more}")
        effect = "the former one is in force, a start would fail"
        render.print_line(f"{' ' * 17}{effect}: correct it, then vitald config reload")
    for keys, what, command in (
        (configuration["needsReload"], "reload", "vitald config reload"),
        (configuration["needsRestart"], "restart", "systemctl restart vitald"),
    ):
        if keys:
            names = render.escape_text(join_first(keys, _MAX_NAMES))
            render.print_line(f"  configuration: needs a {what}: {names}: {command}")


def _show_problems(status: schema.NodeStatus) -> None:
    ledger, kernel = status["ledger"], status["kernelLog"]
    if not ledger["ok"]:
        line = f"  ledger: CANNOT BE WRITTEN: {render.escape_text(ledger['error'])}"
        render.print_line(render.colour_text(line, "bold", "magenta"))
        render.print_line(
            f"          {count_noun(ledger['unsavedEvents'], 'event')} held in memory; check space,"
            " mount and permissions of the state folder"
        )
    if kernel["recordsLost"]:
        render.print_line(
            f"  kernel log: {count_noun(kernel['recordsLost'], 'record')} lost since the start; see"
            " journalctl -k"
        )
    if kernel["untrusted"]:
        render.print_line(
            f"  kernel log: ignored {count_noun(kernel['untrusted'], 'fault-like line')}, written"
            " by user processes or about devices that this node does not have (see vitald events)"
        )
