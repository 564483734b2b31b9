"""`vitald status`: the whole node on one screen, the worst first. Exit code as `vitald check
--strict`.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vitald import __version__
from vitald.cli import argument_types, client, finding_text, render
from vitald.cli.check import EXIT
from vitald.cli.notices import are_all_simulated, list_advice, list_notices
from vitald.text import count_noun, join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_INCIDENTS, _MAX_SHORT_INCIDENTS = 4, 8
_MAX_NAMES = 6
_ACCELERATORS = ("gpu", "neuron")


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="the answer of GET /v1/status")
    shape.add_argument(
        "--watch",
        nargs="?",
        type=argument_types.parse_seconds(3600),
        const=2.0,
        default=None,
        metavar="SECONDS",
        help="redraw it in place, every 2 seconds or as often as given, until q or Ctrl-C",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.watch is not None:
        from vitald.cli.watch import watch_status

        return watch_status(arguments, format_status)
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
    for line in format_status(status):
        render.print_line(line)


def format_status(status: schema.NodeStatus) -> Iterator[str]:
    """The lines of the screen, not yet folded."""
    flags = finding_text.describe_flags(status["findings"], status)
    if status["simulated"]:
        flags.append("simulated" if are_all_simulated(status) else "partly simulated")
    host = render.colour_text(render.escape_text(status["host"]), "bold")
    word = render.colour_status(str(status["status"]))
    flagged = render.colour_text(", ".join(flags), "bold")
    yield f"{host}  {word}  {flagged}".rstrip()
    names = {
        component["name"]: finding_text.name_component(component["name"], component.get("device"))
        for component in status["components"]
    }
    yield from _format_incidents(status, names)
    if advice := [notice.text for notice in list_advice(status)]:
        yield ""
    for text in advice:
        yield f"  {text}"
    yield ""
    yield from _format_sources(status["sources"])
    for subject, state, detail in list_notices(status):
        yield f"  {subject}{render.colour_text(state, 'bold', 'magenta')}{detail}"
    codes = {finding.get("code", "") for finding in status["findings"]}
    yield from _format_diagnostics(status.get("diagnostics"), codes)
    watched = [component for component in status["components"] if component["kind"] != "node"]
    unknown = [
        names[component["name"]] for component in watched if component["status"] == "unknown"
    ]
    if unknown:
        listed = join_first(unknown, _MAX_NAMES)
        yield f"  status unknown: {listed}: vitald components"
    yield from _format_absence(status)
    other = f" (this command: {__version__})" if status["version"] != __version__ else ""
    daemon = f"profile {status['profile']}, vitald {status['version']}{other}"
    age = render.format_age(status["startedAt"])
    line = f"  {_count_kinds(watched)}; {daemon}, up {age}"
    yield render.colour_text(line, "dim")


def _format_incidents(status: schema.NodeStatus, names: Mapping[str, str]) -> Iterator[str]:
    findings = {finding["id"]: finding for finding in status["findings"]}
    incidents = status["incidents"]
    for incident in incidents[:_MAX_INCIDENTS]:
        yield ""
        yield from finding_text.format_incident(incident, findings, names)
    rest = incidents[_MAX_INCIDENTS:]
    if not rest:
        return
    yield ""
    for incident in rest[:_MAX_SHORT_INCIDENTS]:
        yield f"  {render.escape_text(incident['line'])}"
    if len(rest) > _MAX_SHORT_INCIDENTS:
        more = len(rest) - _MAX_SHORT_INCIDENTS
        yield f"  and {count_noun(more, 'more incident')}: vitald findings"


def _format_absence(status: schema.NodeStatus) -> Iterator[str]:
    """What to do on a node without accelerators, unless a finding says that some are missing, or a
    source cannot read what there is.
    """
    kinds = {component["kind"] for component in status["components"] if _is_here(component)}
    was_read = all(source["state"] in ("ok", "not present") for source in status["sources"])
    if was_read and kinds.isdisjoint(_ACCELERATORS) and not status["findings"]:
        yield "  no GPU and no Neuron device on PCI; if this node should have some, say how many:"
        yield "      [nvml] expected_gpus = 8, or [expect] neuron = 16: fewer make it unfit"


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


def _format_sources(sources: list[schema.ApiSource]) -> Iterator[str]:
    """Sources without a problem share a line, and so do those that have nothing to observe here."""
    working, absent = [], []
    for source in sources:
        name, detail = str(source["name"]), render.escape_text(source["detail"])
        age = f"{render.format_age(source['lastRead'])} ago" if source["lastRead"] else ""
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


def _format_diagnostics(
    outline: schema.DiagnosticOutline | None, codes: Container[str]
) -> Iterator[str]:
    """The run that is active or queued, and the last runs that failed. `codes`: of the open
    findings.
    """
    if outline is None:
        return
    for run in (outline.get("active") or [])[:1]:
        state = "runs"
        if run["stage"] == "waiting":
            state = f"waits for {render.escape_text(run['waitsFor']) or 'its turn'}"
        yield f"  diagnostic {_name_diagnostic(run)} {state}: vitald diag list"
    for ended in _list_failed(outline.get("last") or [], codes):
        failed = render.colour_text("FAILED", "bold", "red")
        why = ""
        if ended["why"]:
            why = f": {render.cut_text(render.escape_text(ended['why']), 80)}"
        age, id_ = render.format_age(ended["ended"]), render.escape_text(ended["id"])
        name = _name_diagnostic(ended)
        yield f"  diagnostic {name} {failed} {age} ago{why}: vitald diag show {id_}"


def _list_failed(
    runs: Iterable[schema.DiagnosticRun], codes: Container[str]
) -> Iterator[schema.DiagnosticRun]:
    """The runs that failed, without those of the site's checks that an open finding shows."""
    for run in runs:
        if run["outcome"] == "fail" and not run["preempted"]:
            from vitald.model.event import SITE_CHECK  # most nodes are well

            if f"{SITE_CHECK}/{run['check']}" not in codes:
                yield run


def _name_diagnostic(run: schema.DiagnosticRequest) -> str:
    level = f" level {run['level']}" if run["level"] else ""
    return f"{render.escape_text(run['check'])}{level}"
