"""Findings, incidents, events and their flags in words, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.server import schema

from vitald.cli import render
from vitald.model.words import Action, When
from vitald.text import count_noun, join_first

_MAX_COLUMNS = 120  # of a text: longer lines are hard to read
_MAX_MEMBERS, _MAX_JOBS = 12, 3  # of an incident


_DUE = {when.value: when.phrase for when in When}
_MAKING_UNFIT = {action.value for action in Action if action.makes_unfit}
MORE_FINDINGS = "the weakest findings are left out here: too many are open"
_ACTION_COLOURS = {
    "replace_node": "red",
    "reboot_node": "red",
    "reset_device": "red",
    "restart_workload": "yellow",
    "inspect": "yellow",
}


def describe_flags(findings: Iterable[schema.ApiFinding], flags: Mapping[str, object]) -> list[str]:
    """The flags that are up, whether they are confirmed, and why a reboot is required if no finding
    requires it.
    """
    flagged = []
    if flags["rebootRequired"]:
        why = " (for a device reset: [policy] device_reset is false)"
        if any(_requires_reboot(finding) for finding in findings):
            why = ""
        confirmation = _describe_confirmation(flags.get("rebootConfirmed"))
        flagged.append(f"reboot required{why}{confirmation}")
    if flags["replacementRequired"]:
        confirmation = _describe_confirmation(flags.get("replacementConfirmed"))
        flagged.append(f"replacement required{confirmation}")
    return flagged


def _requires_reboot(finding: schema.ApiFinding) -> bool:
    is_reboot = finding["action"] == "reboot_node" and finding["when"] != "maintenance"
    return is_reboot and finding["accepted"] is None


def _describe_confirmation(confirmed: object) -> str:
    """`confirmed`: None where it cannot be known, as for a saved log."""
    if confirmed is None:
        return ""
    return " (confirmed)" if confirmed else " (unconfirmed)"


def describe_device(device: schema.ApiDevice | None) -> str:
    """`GPU 3, serial 1650523000123, slot 7, GPU-5f0c1d2e...`; empty if nothing is known."""
    if device is None:
        return ""
    text, uuid = device.get("text", ""), device.get("uuid", "")
    return ", ".join(filter(None, (text, uuid if uuid not in text else "")))


def describe_when(when: object) -> str:
    """The words after those of an action: when it is due."""
    return _DUE.get(str(when), f" ({render.escape_text(when)})")


def makes_unfit(action: object) -> bool:
    """Whether an action by itself takes the node out of service."""
    return action in _MAKING_UNFIT


def describe_action(finding: schema.ApiFinding) -> str:
    unusable = ""
    if finding["unusable"] and not makes_unfit(finding["action"]):
        # As in the verdict's reasons: that the device is unusable matters more than the action.
        unusable = "it cannot be used: "
    colour = _ACTION_COLOURS.get(str(finding["action"]))
    text = f"{unusable}{finding['instruction']}{describe_when(finding['when'])}"
    return render.colour_text(text, colour) if colour else text


def format_title(finding: schema.ApiFinding) -> str:
    """`#1: gpu/0000:65:00.0  GPU has fallen off the bus  xid/79`, without colour."""
    component, title = (
        render.escape_text(finding["component"]),
        render.escape_text(finding["title"]),
    )
    return f"#{finding['id']}: {component}  {title}  {finding['code']}"


def format_brief(finding: schema.ApiFinding) -> str:
    """`GPU has fallen off the bus  xid/79  #1: reboot the node`, below its component."""
    code = render.colour_text(str(finding["code"]), "dim")
    title = f"{_mark_drill(finding)}{render.escape_text(finding['title'])}"
    accepted = " (accepted)" if finding["accepted"] is not None else ""
    return f"{title}  {code}  #{finding['id']}{accepted}: {describe_action(finding)}"


def _format_heading(finding: schema.ApiFinding, *colours: str) -> str:
    """`gpu/0000:65:00.0 (GPU 3)  GPU has fallen off the bus  xid/79  #1`. `colours`: of the
    component.
    """
    name = name_component(finding["component"], finding.get("device"))
    component = render.colour_text(name, *colours)
    title, code = render.escape_text(finding["title"]), str(finding["code"])
    shown = f"{component}  {title}  {render.colour_text(code, 'dim')}  #{finding['id']}"
    return f"{_mark_drill(finding)}{shown}"


def name_component(component: str, device: schema.ApiDevice | None) -> str:
    """`gpu/0000:65:00.0 (GPU 3)`: with its number, where it has one."""
    name = render.escape_text(component)
    if not device or "index" not in device:
        return name
    kind = render.name_kind(component.partition("/")[0])
    return f"{name} ({kind} {device['index']})"


def format_finding(finding: schema.ApiFinding, *, full: bool = False) -> Iterable[str]:
    """What, which device, since when, the raw line, what to do."""
    columns = render.get_width()
    yield f"  {_format_heading(finding, 'bold')}"
    if device := describe_device(finding.get("device")):
        yield from _wrap_text("device", device, columns)
    begun = " (begun)" if finding["state"] == "in_remedy" else ""
    yield f"      do     {describe_action(finding)}{begun}"
    accepted = finding["accepted"]
    if accepted is not None:
        until, by = render.describe_time(accepted["until"]), render.escape_text(accepted["by"])
        text = f"until {until}, by {by}: {render.escape_text(accepted['reason'])}"
        yield from _wrap_text("accept", text, columns)
    if finding["actionReason"]:
        yield from _wrap_text("why", str(finding["actionReason"]), columns)
    if full and finding["meaning"]:
        yield from _wrap_text("means", str(finding["meaning"]), columns)
    if finding["advice"]:
        yield from _wrap_text("hint", str(finding["advice"]), columns)
    yield f"      when   {finding.get('seen') or _describe_occurrences(finding)}"
    if witness := describe_witness(finding, full=full):
        yield from _wrap_text("seen", witness, columns)
    if finding["clearedAt"]:
        cleared = render.describe_time(finding["clearedAt"])
        yield f"      clear  {cleared}: {render.escape_text(finding['clearedBy'])}"
    elif full:
        yield f"      clears {'; '.join(finding['clears'])}"
    yield f"      line   {_format_raw(finding, None if full else columns)}"


def mark_simulated() -> str:
    return render.colour_text("SIMULATED", "bold", "magenta")


def _mark_drill(finding: schema.ApiFinding) -> str:
    return f"{mark_simulated()} " if finding["simulated"] else ""


def _format_raw(finding: schema.ApiFinding, columns: int | None) -> str:
    """The raw line of the log, cut to the width of the terminal; None: whole."""
    absent = ""
    if finding["fields"].get("on_pci") is False:
        absent = "  (not on PCI now)"
    raw = render.escape_text(finding["raw"])
    if columns is not None:
        raw = render.cut_line(raw, columns - render.LABEL_COLUMNS - len(absent))
    return f"{raw}{absent}"


def describe_witness(finding: schema.ApiFinding, *, full: bool) -> str:
    """Whether a second source confirmed it, if recovery or the scheduler depend on that, and which
    sources could.
    """
    if finding["simulated"]:
        return ""
    answer: Mapping[str, object] = finding  # a saved log has no other source
    confirmed = answer.get("confirmed")
    if confirmed:
        return f"confirmed: {render.escape_text(finding['confirmedBy'])}" if full else ""
    if not full and not makes_unfit(finding["action"]):
        return ""
    written = bool(finding.get("writtenByProcess"))
    source = "written by a process" if written else "the kernel log alone"
    if confirmed is None:
        return source if written else ""
    if finding["confirmedBy"]:
        by = render.escape_text(finding["confirmedBy"])
        return f"unconfirmed: {by} confirms no more than {finding['confirmedAction']}"
    witnesses = ", ".join(finding["witnesses"])
    if witnesses:
        return f"{source}, unconfirmed: {witnesses} could confirm it"
    return f"{source}, unconfirmed: no other source can see it"


def _describe_occurrences(finding: schema.ApiFinding) -> str:
    """Since when, how often, and when a drill ends."""
    since, count = finding["since"], render.describe_count(finding["count"])
    text = f"since {render.describe_time(since)}, {count}"
    if finding["count"] != 1:
        text += f", last {render.describe_time(finding['last'])}"
    if finding["simulatedUntil"]:
        text += f", drill ends {render.describe_time(finding['simulatedUntil'])}"
    return text


def format_incident(
    incident: schema.ApiIncident,
    findings: Mapping[int, schema.ApiFinding],
    names: Mapping[str, str],
) -> Iterable[str]:
    """One incident: the finding that heads it, the others that require an action, and the
    consequences. `names`: those of components, for people.
    """
    own = [findings[number] for number in incident["findings"] if number in findings]
    if not own:
        return
    head = find_head(incident, own)
    yield from format_finding(head)
    for other in own:
        if other is not head:
            yield f"      and    {describe_action(other)}: {_format_heading(other)}"
            if other["actionReason"] and other["actionReason"] != head["actionReason"]:
                yield f"             {render.escape_text(other['actionReason'])}"
    named = {(found["component"], found["code"]) for found in own}
    rest = [
        _format_member(member, head["component"], names)
        for member in incident["members"]
        if (member["component"], member["code"]) not in named
    ]
    if rest:
        yield from _wrap_text("with", join_first(rest, _MAX_MEMBERS), render.get_width())
    jobs = list(describe_jobs(incident))
    for job in jobs[:_MAX_JOBS]:
        yield from _wrap_text("work", job, render.get_width())
    if len(jobs) > _MAX_JOBS:
        yield f"      {'':<6} and {len(jobs) - _MAX_JOBS} more: vitald why"


def find_head(
    incident: schema.ApiIncident, findings: Sequence[schema.ApiFinding]
) -> schema.ApiFinding:
    """The finding of the incident's cause, else the first. `findings`: its own, at least one."""
    cause = (incident["component"], incident["code"])
    same = (found for found in findings if (found["component"], found["code"]) == cause)
    return next(same, findings[0])


def _format_member(member: schema.ApiMember, component: str, names: Mapping[str, str]) -> str:
    """`xid/45 on gpu/0000:ca:00.0 (GPU 6) x 2`; the component only if it is another."""
    text, other = str(member["code"]), member["component"]
    if other != component:
        text += f" on {names.get(other) or render.escape_text(other)}"
    if member["count"] != 1:
        text += f" x {member['count']}"
    return text


def describe_jobs(incident: schema.ApiIncident) -> Iterable[str]:
    """The jobs near an incident, relative to its start: `job 1234 of alice ended with exit 1, 12 s
    after`.
    """
    since = render.parse_time(incident["since"])
    for job in incident.get("jobs") or []:
        name = f"job {job['job']}" + (f" of {job['user']}" if job["user"] else "")
        ended = render.parse_time(job["ended"])
        if since is None or ended is None:
            yield f"{name} has run since {render.format_time(job['began'])}"
            continue
        reason = f" ({job['reason']})" if job["reason"] else ""
        seconds = (ended - since).total_seconds()
        side = "after" if seconds >= 0 else "before"
        yield f"{name} {describe_end(job)}{reason}, {render.format_span(abs(seconds))} {side}"


def describe_end(job: schema.ApiJob) -> str:
    """How a job ended: `ended with exit 1`."""
    if job["state"] == "lost":
        return "was lost"
    if job["state"] != "died":
        return "ended"
    how = f"signal {job['signal']}" if job["signal"] else f"exit {job['exitCode']}"
    return f"ended with {how}"


def _wrap_text(label: str, text: str, columns: int) -> Iterable[str]:
    line = f"      {label:<6} {render.escape_text(text)}"
    return render.fold_line(line, min(columns, _MAX_COLUMNS))


def format_event(event: schema.ApiEvent) -> str:
    """An event on one line: time, code, component, marks, raw line."""
    marks = list_marks(event)
    mark = render.colour_text(f"[{', '.join(marks)}] ", "magenta") if marks else ""
    more = event.get("followedBy") or []
    tail = f"  (+{count_noun(len(more), 'record')})" if more else ""
    code, component = (
        render.colour_text(str(event["code"]), "bold"),
        render.escape_text(event["component"]),
    )
    stamp = _format_stamp(event["time"])
    return f"{stamp}  {code}  {component}  {mark}{render.escape_text(event['raw'])}{tail}"


def _format_stamp(moment: object) -> str:
    when = render.parse_time(moment)
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if when else "?"


CHANGE_WORDS = {"in_remedy": "in remedy", "other": "changed"}


def format_transition(change: schema.ApiTransition) -> str:
    """A change of a finding on one line: time, number and change, component, title, action, cause;
    without an action where it was cleared.
    """
    kind, component = change["change"], render.escape_text(change["component"])
    is_open = kind != "cleared"
    colour = _ACTION_COLOURS.get(str(change["action"]), "bold") if is_open else "green"
    word = render.escape_text(f"#{change['finding']} {CHANGE_WORDS.get(kind, kind)}")
    mark = render.colour_text("[SIMULATED] ", "magenta") if change["simulated"] else ""
    action = f", {change['action']}" if is_open else ""
    text = render.escape_text(f"{change['title']} ({change['code']}){action}: {change['cause']}")
    stamp = _format_stamp(change["time"])
    return f"{stamp}  {render.colour_text(word, colour)}  {component}  {mark}{text}"


def list_marks(event: schema.ApiEvent) -> list[str]:
    """What is to be known of an event besides its line."""
    fields = event.get("fields") or {}
    marks = []
    if event["simulated"]:
        marks.append("SIMULATED")
    if event["trust"] == "untrusted":
        why = render.escape_text(fields.get("untrusted") or "written by a process")
        marks.append(f"UNTRUSTED ({why}, not judged)")
    elif event["trust"] == "accepted":
        marks.append("written by a process")
    if doubted := fields.get("doubted"):
        marks.append(f"DOUBTFUL: {render.escape_text(doubted)}")
    if "untrusted" not in fields and fields.get("on_node") is False:
        marks.append("no such device here")
    if (facility := fields.get("facility")) is not None:
        marks.append(f"facility {facility}")
    return marks
