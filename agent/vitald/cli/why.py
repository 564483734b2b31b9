"""`vitald why [FINDING|CODE]`: how a finding came to be, from the raw lines to the flags, or a
notice. Without either: all open findings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from vitald.cli import EX_UNAVAILABLE, CommandFailed, client, render, why_notice, words
from vitald.cli.gpu_numbers import add_gpu_numbers, remove_gpu_number

if TYPE_CHECKING:
    from vitald.server import schema


class NothingOpen(CommandFailed):
    """No open notice or finding has the code."""

    exit_code = EX_UNAVAILABLE


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "finding",
        nargs="?",
        type=words.parse_finding_or_code,
        metavar="ID",
        help="a finding's number, as vitald status shows it (also one that was cleared), or the"
        " code of open notices or findings, e.g. job/stalled",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    if arguments.finding and "/" in arguments.finding:
        return _explain_code(arguments, arguments.finding)
    if arguments.finding:
        return _explain_findings(arguments, [arguments.finding])
    status = client.read_status(arguments)
    done = _explain_findings(arguments, _list_heads(status))
    codes = dict.fromkeys(notice["code"] for notice in status.get("notices") or [])
    if codes and not arguments.json:
        print(f"\nopen notices: {', '.join(f'vitald why {code}' for code in codes)}")
    return done


def _explain_code(arguments: argparse.Namespace, code: str) -> int:
    """The open notices of a code, or the open findings."""
    status = client.read_status(arguments)
    notices = [notice for notice in status.get("notices") or [] if notice["code"] == code]
    if notices:
        return _explain_notices(arguments, notices)
    numbers = [finding["id"] for finding in status["findings"] if finding["code"] == code]
    if not numbers:
        raise NothingOpen(
            f"no open notice or finding has the code {code}; vitald events --code {code} has"
            " earlier ones"
        )
    return _explain_findings(arguments, numbers)


def _explain_notices(arguments: argparse.Namespace, notices: Sequence[schema.WorkNotice]) -> int:
    histories = [why_notice.read_history(arguments, notice) for notice in notices]
    if arguments.json:
        explained = [{"notice": each.notice, "events": each.events} for each in histories]
        render.emit_json({"notices": explained})
        return 0
    for number, history in enumerate(histories):
        add_gpu_numbers(arguments, history.notice, history.events)
        if number:
            print()
        for line in why_notice.format_history(history):
            render.print_line(line)
    return 0


def _explain_findings(arguments: argparse.Namespace, numbers: Sequence[int | str]) -> int:
    is_one = bool(arguments.finding) and "/" not in arguments.finding
    chains = [client.call_api(arguments, "/v1/findings/{id}/why", id=number) for number in numbers]
    if arguments.json:
        render.emit_json(chains[0] if is_one else {"why": chains})
        return 0
    add_gpu_numbers(arguments, chains)
    if not chains:
        render.print_line("no open findings: nothing to explain")
    for number, chain in enumerate(chains):
        if number:
            print()
        for line in format_chain(chain):
            render.print_line(line)
    return 0


def _list_heads(status: schema.NodeStatus) -> list[int]:
    """The strongest finding of each open incident: the first that it lists."""
    return [incident["findings"][0] for incident in status["incidents"] if incident["findings"]]


def format_chain(chain: schema.Why) -> Iterable[str]:
    """How a finding came to be: lines, incident, rule, requirements, flags, history."""
    finding, rule = chain["finding"], chain["rule"]
    drill = "SIMULATED " if finding["simulated"] else ""
    component, title = (
        render.escape_text(finding["component"]),
        render.escape_text(finding["title"]),
    )
    heading = f"#{finding['id']} {drill}{component}  {title}  {finding['code']}"
    yield render.colour_text(heading, "bold")
    yield "  lines"
    for event in chain["events"]:
        yield f"    {render.format_event(event)}"
    count = finding["count"]
    if count > len(chain["events"]):
        name = remove_gpu_number(finding["component"])
        options = f"--code {finding['code']} --component {name}"
        yield f"    ({count} in all; vitald events {options} shows them)"
    if chain["incident"] is not None:
        yield from _format_incident(chain["incident"])
    yield f"  rule     {rule['code']}: {rule['title']}"
    yield "  asked"
    for layer in chain["asked"]:
        mark = "->" if layer["decides"] else "  "
        action = f"{layer['action']}{render.describe_when(layer['when'])}"
        because = render.escape_text(layer["because"])
        yield f"    {mark} {layer['layer']!s:<10} {action}: {because}"
    flags = render.describe_flags([finding], chain["flags"])
    yield f"  flags    {', '.join(flags) or 'none'}"
    if witness := render.describe_witness(finding, full=True):
        yield f"  witness  {witness}"
    if response := chain.get("response"):
        yield f"  response {_describe_response(response)}"
    yield "  history"
    for change in chain["transitions"]:
        state = f"{change['state']}, {change['action']}"
        cause = render.escape_text(change["cause"])
        yield f"    {render.format_time(change['time'])}  {state}: {cause}"
    if finding["state"] != "cleared":
        yield f"  cleared by {'; '.join(finding['clears'])}"


def _describe_response(response: schema.ApiResponse) -> str:
    """What followed the fault, in seconds from its own time."""
    steps = cast("Mapping[str, float]", response["steps"])
    reached = [f"{step} {_format_seconds(seconds)}" for step, seconds in steps.items()]
    open_end = "" if response["over"] else "; not back yet"
    return f"after the fault: {', '.join(reached)}{open_end}"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else render.format_span(seconds)


def _format_incident(incident: schema.ApiIncident) -> Iterable[str]:
    rule = f": {incident['story']}" if incident["story"] else ""
    yield f"  incident {incident['id']}, {incident['state']}{rule}"
    for member in incident["members"]:
        role = "cause" if member["role"] == "root" else "     "
        where = f"{member['code']} on {render.escape_text(member['component'])}"
        count = render.describe_count(member["count"])
        first = render.format_time(member["first"])
        yield f"    {role} {first}  {where}, {count}  {member['title']}"
    for job in render.describe_jobs(incident):
        yield f"    work  {render.escape_text(job)}"
