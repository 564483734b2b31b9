"""`vitald why [FINDING]`: how it came to be, from the raw lines to the flags. Without a number:
everything that is open.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vitald.cli import client, render, words

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument(
        "finding",
        nargs="?",
        type=words.finding,
        metavar="ID",
        help="a finding's number, as vitald status shows it (also one that was cleared)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    numbers = [arguments.finding] if arguments.finding else _heads(client.status(arguments))
    chains = [client.ask(arguments, "/v1/findings/{id}/why", id=number) for number in numbers]
    if arguments.json:
        render.emit_json(chains[0] if arguments.finding else {"why": chains})
        return 0
    if not chains:
        print("no open findings: nothing to explain")
    for number, chain in enumerate(chains):
        if number:
            print()
        for line in lines(chain):
            render.tell(line)
    return 0


def _heads(status: schema.NodeStatus) -> list[int]:
    """One finding of each open incident: the first that it lists is the strongest."""
    return [incident["findings"][0] for incident in status["incidents"] if incident["findings"]]


def lines(chain: schema.Why) -> Iterable[str]:
    finding, rule = chain["finding"], chain["rule"]
    drill = "SIMULATED " if finding["simulated"] else ""
    yield render.colour(
        f"#{finding['id']} {drill}{render.safe(finding['component'])} "
        f" {render.safe(finding['title'])}  {finding['code']}",
        "bold",
    )
    yield "  lines"
    for event in chain["events"]:
        yield f"    {render.event_line(event)}"
    count = finding["count"]
    if count > len(chain["events"]):
        yield (
            f"    ({count} in all; vitald events --code {finding['code']} --component"
            f" {finding['component']} shows them)"
        )
    incident = chain["incident"]
    if incident is not None:
        yield f"  incident {incident['id']}, {incident['state']}" + (
            f": {incident['story']}" if incident["story"] else ""
        )
        for member in incident["members"]:
            role = "cause" if member["role"] == "root" else "     "
            yield (
                f"    {role} {render.clock(member['first'])}  {member['code']} on"
                f" {render.safe(member['component'])}, {render.times(member['count'])} "
                f" {member['title']}"
            )
        for words in render.job_words(incident):
            yield f"    work  {render.safe(words)}"
    yield f"  rule     {rule['code']}: {rule['title']}"
    yield "  asked"
    for layer in chain["asked"]:
        mark = "->" if layer["decides"] else "  "
        when = render.when_words(layer["when"])
        yield (
            f"    {mark} {layer['layer']!s:<10} {layer['action']}{when}:"
            f" {render.safe(layer['because'])}"
        )
    up = chain["flags"]
    flags = render.flag_words([finding], up)
    yield f"  flags    {', '.join(flags) or 'none'}"
    if words := render.witness_words(finding, full=True):
        yield f"  witness  {words}"
    yield "  history"
    for change in chain["transitions"]:
        yield (
            f"    {render.clock(change['time'])}  {change['state']}, {change['action']}:"
            f" {render.safe(change['cause'])}"
        )
    if finding["state"] != "cleared":
        yield f"  cleared by {'; '.join(finding['clears'])}"
