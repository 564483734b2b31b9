"""An incident as a card of the status page: what is wrong, the evidence, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from vitald.checking import parse_pci_address
from vitald.cli import finding_text
from vitald.cli.page import wording
from vitald.cli.page.model import Card, Command, Fact, Line, Requirement

if TYPE_CHECKING:
    from vitald.server import schema


def build_card(
    incident: schema.ApiIncident,
    findings: Sequence[schema.ApiFinding],
    chain: schema.Why | None,
    now: datetime,
) -> Card:
    """`findings`: the open ones of the incident, at least one. `chain`: how its first one came to
    be; None where that was not queried.
    """
    head = finding_text.find_head(incident, findings)
    return Card(
        number=head["id"],
        tone=wording.find_tone(head),
        title=head["title"],
        code=head["code"],
        component=head["component"],
        device=finding_text.describe_device(head.get("device")),
        since=wording.make_moment(head["since"], now),
        is_drill=head["simulated"],
        is_begun=head["state"] == "in_remedy",
        when=_describe_due(head),
        instruction=head["instruction"],
        hint=head["advice"],
        facts=tuple(_list_facts(head, incident, now)),
        raw=head["raw"],
        raw_note=_note_raw(head),
        lines=tuple(_list_lines(chain, head, now)),
        requirements=tuple(_list_requirements(chain)),
        others=tuple(_describe_other(other) for other in findings if other is not head),
        consequences=tuple(_list_consequences(incident, findings)),
        jobs=tuple(finding_text.describe_jobs(incident)),
        commands=tuple(list_commands(head)),
    )


def _describe_due(finding: schema.ApiFinding) -> str:
    """When its action is due; empty where it is no repair and due at no special time."""
    now = "now" if finding_text.makes_unfit(finding["action"]) else ""
    return finding_text.describe_when(finding["when"]).strip() or now


def _list_facts(
    finding: schema.ApiFinding, incident: schema.ApiIncident, now: datetime
) -> Iterator[Fact]:
    if finding["count"] != 1:
        seen = f"{finding['count']} times, last"
        yield Fact("Seen", seen, wording.make_moment(finding["last"], now))
    if finding["simulatedUntil"]:
        yield Fact("Drill ends", "", wording.make_moment(finding["simulatedUntil"], now))
    accepted = finding["accepted"]
    if accepted is not None:
        text = f"by {accepted['by']}: {accepted['reason']}; until"
        yield Fact("Accepted", text, wording.make_moment(accepted["until"], now))
    if witness := finding_text.describe_witness(finding, full=True):
        yield Fact("Witness", witness)
    if finding["unusable"]:
        yield Fact("Device", "it cannot be used")
    if finding["actionReason"]:
        yield Fact("Why this action", finding["actionReason"])
    if incident["correlation"]:
        yield Fact("Incident", f"{incident['id']}: {incident['correlation']}")
    if finding["meaning"]:
        yield Fact("Meaning", finding["meaning"])
    yield Fact("Ends with", "; ".join(finding["clears"]))


def _note_raw(finding: schema.ApiFinding) -> str:
    if finding["fields"].get("on_pci") is False:
        return "There is no such PCI device on this node now."
    return ""


def _list_lines(chain: schema.Why | None, head: schema.ApiFinding, now: datetime) -> Iterator[Line]:
    """The events that it was seen in; none where the only line is shown already."""
    events = chain["events"] if chain is not None else []
    if [event["raw"] for event in events] == [head["raw"]]:
        return
    for event in events:
        yield Line(
            wording.make_moment(event["time"], now),
            event["code"],
            event["component"],
            event["raw"],
            tuple(finding_text.list_marks(event)),
        )


def _list_requirements(chain: schema.Why | None) -> Iterator[Requirement]:
    for layer in chain["layers"] if chain is not None else ():
        action = layer["action"].replace("_", " ") + finding_text.describe_when(layer["when"])
        yield Requirement(wording.LAYERS[layer["layer"]], action, layer["reason"], layer["decides"])


def _describe_other(finding: schema.ApiFinding) -> str:
    drill = "DRILL " if finding["simulated"] else ""
    instruction = f"{finding['instruction']}{finding_text.describe_when(finding['when'])}"
    place = f"{finding['component']} ({finding['code']}, #{finding['id']})"
    return f"{drill}{instruction}: {finding['title']}, {place}"


def _list_consequences(
    incident: schema.ApiIncident, findings: Sequence[schema.ApiFinding]
) -> Iterator[str]:
    """The members of the incident that are no open findings of their own."""
    named = {(finding["component"], finding["code"]) for finding in findings}
    for member in incident["members"]:
        if (member["component"], member["code"]) not in named:
            times = f", {member['count']} times" if member["count"] != 1 else ""
            yield f"{member['title']}: {member['code']} on {member['component']}{times}"


def list_commands(finding: schema.ApiFinding) -> Iterator[Command]:
    """The command lines for a finding, in the order of their use. A person may copy them into a
    shell of root, so that nothing of the daemon's answer goes into them but numbers and addresses.
    """
    kind, _, place = finding["component"].partition("/")
    pci = parse_pci_address(place) or "ADDRESS"
    action = () if finding["simulated"] else wording.ACTION_COMMANDS.get(finding["action"], ())
    drill = wording.DRILL_COMMANDS if finding["simulatedUntil"] else ()
    values = {"id": int(finding["id"]), "pci": pci}
    for template in (*action, *drill, *wording.COMMON_COMMANDS):
        if not template.kinds or kind in template.kinds:
            yield Command(template.line.format_map(values), template.purpose)
