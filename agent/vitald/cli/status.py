"""`vitald status`: the whole node on one screen, the worst first. Exit code as `vitald check
--strict`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald import __version__
from vitald.cli import client, render
from vitald.cli.check import EXIT
from vitald.text import join_first

if TYPE_CHECKING:
    from vitald.server import schema

_SHOWN, _NAMED = 4, 6


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument("--json", action="store_true", help="the answer of GET /v1/status")


def run(arguments: argparse.Namespace) -> int:
    try:
        status = client.status(arguments)
    except (client.NoAnswer, client.Refused) as error:
        if arguments.json:
            render.emit_json({"status": "unknown", "error": str(error)})
        else:
            render.tell(f"{render.status_word('unknown')}  {error}")
        return EXIT["unknown"]
    if arguments.json:
        render.emit_json(status)
    else:
        show(status)
    return EXIT[str(status["status"])]


def show(status: schema.NodeStatus) -> None:
    flags = render.flag_words(status["findings"], status)
    drill = "simulated" if status["simulated"] else ""
    head = [
        render.colour(render.safe(status["host"]), "bold"),
        render.status_word(str(status["status"])),
    ]
    render.tell(
        "  ".join([*head, render.colour(", ".join(filter(None, [*flags, drill])), "bold")]).rstrip()
    )
    findings = {finding["id"]: finding for finding in status["findings"]}
    incidents = status["incidents"]
    for incident in incidents[:_SHOWN]:
        print()
        for line in render.incident_lines(incident, findings):
            render.tell(line)
    rest = incidents[_SHOWN:]
    if rest:
        print()
        for incident in rest[:8]:
            render.tell(f"  {render.safe(incident['line'])}")
        if len(rest) > 8:
            render.tell(f"  and {len(rest) - 8} more incidents: vitald findings")
    _advice(status)
    print()
    _sources(status["sources"])
    _troubles(status)
    _diagnostics(status.get("diagnostics"))
    _recovery(status.get("recovery"))
    watched = [one for one in status["components"] if one["kind"] != "node"]
    unknown = [render.safe(one["name"]) for one in watched if one["status"] == "unknown"]
    if unknown:
        render.tell(f"  not known how they are: {join_first(unknown, _NAMED)}: vitald components")
    kinds: dict[str, int] = {}
    for component in watched:
        kinds[str(component["kind"])] = kinds.get(str(component["kind"]), 0) + bool(
            component["attributes"] or component["sources"]
        )
    other = f" (this command: {__version__})" if status["version"] != __version__ else ""
    counted = (
        ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        or "no accelerators on PCI"
    )
    render.tell(
        render.colour(
            f"  {counted}; profile {status['profile']}, vitald {status['version']}{other}, up"
            f" {render.age(status['startedAt'])}",
            "dim",
        )
    )


def _sources(sources: list[schema.Source]) -> None:
    """Those that look and have nothing to say share a line; so do those that have nothing to look
    at.
    """
    fine, absent = [], []
    for source in sources:
        name, detail = str(source["name"]), render.safe(source["detail"])
        looked = f"{render.age(source['lastSeen'])} ago" if source["lastSeen"] else ""
        if source["state"] == "ok" and not detail:
            fine.append(f"{name} {looked}")
        elif source["state"] == "not present":
            absent.append(f"{name} ({detail})")
        else:
            word = (
                "ok"
                if source["state"] == "ok"
                else render.colour(str(source["state"]).upper(), "bold", "magenta")
            )
            render.tell(
                f"  source {name}: {word},"
                f" {f'looked {looked}' if looked else 'has not seen all of it yet'}{f': {detail}' if detail else ''}"
            )
    if fine:
        render.tell(f"  looked at: {', '.join(fine)}")
    if absent:
        render.tell(f"  not present: {', '.join(absent)}")


def _diagnostics(told: schema.DiagnosticOutline | None) -> None:
    """What runs or waits, and what failed when it ran last."""
    if told is None:
        return
    for one in (told.get("going") or [])[:1]:
        how = (
            f"waits for {render.safe(one['waitsFor']) or 'its turn'}"
            if one["stage"] == "waiting"
            else "runs"
        )
        render.tell(f"  diagnostic {_diagnostic(one)} {how}: vitald diag list")
    for run in told.get("last") or []:
        if run["outcome"] == "fail" and not run["preempted"]:
            failed = render.colour("FAILED", "bold", "red")
            why = f": {render.cut(render.safe(run['why']), 80)}" if run["why"] else ""
            render.tell(
                f"  diagnostic {_diagnostic(run)} {failed} {render.age(run['ended'])} ago{why}:"
                f" vitald diag show {render.safe(run['id'])}"
            )


def _recovery(told: schema.Recovery | None) -> None:
    """What root is asked to do."""
    request = told.get("request") if told is not None else None
    if request is not None:
        findings = ", ".join(f"#{number}" for number in request["findings"][:_NAMED])
        what = "a reboot" if request["action"] == "reboot" else "a replacement"
        render.tell(
            f"  recovery: {what} is asked for since {render.clock(request['since'])}, for"
            f" {findings}: vitald recovery"
        )


def _diagnostic(one: schema.DiagnosticAsk) -> str:
    return (
        f"{render.safe(one['check'])} level {one['level']}"
        if one["level"]
        else render.safe(one["check"])
    )


def _advice(status: schema.NodeStatus) -> None:
    """What asks for nothing by itself: devices with a record, rules on trial."""
    suspects = [one for one in status["suspects"] if one["suspect"]]
    trials = status["trials"]
    if suspects or trials:
        print()
    for one in suspects:
        parts = ", ".join(
            f"{part['count']} {str(part['kind']).replace('_', ' ')}" for part in one["parts"]
        )
        where = (
            one["component"]
            if one["component"] == one["device"]
            else f"{one['component']} ({one['device']})"
        )
        render.tell(f"  suspect {render.safe(where)}: score {one['score']} in 28 days: {parts}")
    for trial in trials[:4]:
        render.tell(
            f"  on trial {trial['code']} would have asked to {trial['todo']}:"
            f" {render.safe(trial['component'])}, {render.times(trial['count'])}"
        )


def _troubles(status: schema.NodeStatus) -> None:
    ledger, kernel = status["ledger"], status["kernelLog"]
    if not ledger["ok"]:
        render.tell(
            render.colour(
                f"  ledger: CANNOT BE WRITTEN: {render.safe(ledger['error'])}", "bold", "magenta"
            )
        )
        render.tell(
            f"          {ledger['unsavedEvents']} events are held in memory; check space, mount and"
            " permissions of the state folder"
        )
    if kernel["recordsLost"]:
        render.tell(
            f"  kernel log: {kernel['recordsLost']} records were lost since the start; look at"
            " journalctl -k"
        )
    if kernel["untrusted"]:
        render.tell(
            f"  kernel log: {kernel['untrusted']} fault lines were not believed (written by"
            " processes, or about what this node does not have); vitald events shows them"
        )
