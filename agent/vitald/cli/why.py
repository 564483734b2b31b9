"""`vitald why [FINDING]`: how a finding came to be, from the raw lines to the flags. Without a
number: all open findings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vitald.cli import argument_types, client, finding_text, render
from vitald.server import endpoints

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "finding",
        nargs="?",
        type=argument_types.parse_finding,
        metavar="ID",
        help="a finding's number, as vitald status shows it (also one that was cleared)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    numbers = (
        [arguments.finding] if arguments.finding else _list_heads(client.read_status(arguments))
    )
    chains = [client.get(arguments, endpoints.WHY, id=number) for number in numbers]
    if arguments.json:
        render.emit_json(chains[0] if arguments.finding else {"why": chains})
        return 0
    if not chains:
        print("no open findings: nothing to explain")
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
    component = finding_text.name_component(finding["component"], finding.get("device"))
    title = render.escape_text(finding["title"])
    heading = f"#{finding['id']} {drill}{component}  {title}  {finding['code']}"
    yield render.colour_text(heading, "bold")
    if device := finding_text.describe_device(finding.get("device")):
        yield f"  device   {render.escape_text(device)}"
    yield "  lines"
    for event in chain["events"]:
        yield f"    {finding_text.format_event(event)}"
    count = finding["count"]
    if count > len(chain["events"]):
        options = f"--code {finding['code']} --component {finding['component']}"
        yield f"    ({count} in all; vitald events {options} shows them)"
    if chain["incident"] is not None:
        yield from _format_incident(chain["incident"])
    yield f"  rule     {rule['code']}: {rule['title']}"
    yield "  requires"
    for layer in chain["layers"]:
        mark = "->" if layer["decides"] else "  "
        action = f"{layer['action']}{finding_text.describe_when(layer['when'])}"
        reason = render.escape_text(layer["reason"])
        yield f"    {mark} {layer['layer']!s:<10} {action}: {reason}"
    flags = finding_text.describe_flags([finding], chain["flags"])
    yield f"  flags    {', '.join(flags) or 'none'}"
    if witness := finding_text.describe_witness(finding, full=True):
        yield f"  witness  {witness}"
    yield "  history"
    for change in chain["transitions"]:
        state = f"{change['state']}, {change['action']}"
        cause = render.escape_text(change["cause"])
        yield f"    {render.describe_time(change['time'])}  {state}: {cause}"
    if finding["state"] != "cleared":
        yield f"  cleared by {'; '.join(finding['clears'])}"


def _format_incident(incident: schema.ApiIncident) -> Iterable[str]:
    rule = f": {incident['correlation']}" if incident["correlation"] else ""
    yield f"  incident {incident['id']}, {incident['state']}{rule}"
    for member in incident["members"]:
        role = "cause" if member["role"] == "root" else "     "
        where = f"{member['code']} on {render.escape_text(member['component'])}"
        count = render.describe_count(member["count"])
        first = render.describe_time(member["first"])
        yield f"    {role} {first}  {where}, {count}  {member['title']}"
    for job in finding_text.describe_jobs(incident):
        yield f"    work  {render.escape_text(job)}"
