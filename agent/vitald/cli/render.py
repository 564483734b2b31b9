"""Output for people: short lines, the worst first, colour on a terminal only, no control characters
from outside.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.collectors.kernel_log.saved_coverage import Stamp
    from vitald.server import schema

from vitald.text import count_noun, escape_unprintable, join_first
from vitald.timestamps import parse_rfc3339

Json = dict[str, object]

_LABEL_COLUMNS = 13  # before the text of a finding: `      hint   `
_MAX_MEMBERS, _MAX_JOBS = 12, 3  # of an incident
_MIN_LINE = 49  # characters: `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034` has 48
_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2", "magenta": "35"}
_STATUS_COLOURS = {
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "red",
    "unknown": "magenta",
}
WHEN_WORDS = {
    "now": "",
    "after_job": " after the running job",
    "maintenance": " at the next maintenance",
}
_KIND_NOUNS = {
    "gpu": "GPU",
    "nvswitch": "NVSwitch",
    "neuron": "Neuron device",
    "nic": "NIC",
    "pci": "PCI device",
    "cpu": "CPU",
    "dimm": "DIMM",
}
_ACTION_COLOURS = {
    "replace_node": "red",
    "reboot_node": "red",
    "reset_device": "red",
    "restart_workload": "yellow",
    "inspect": "yellow",
}


def colour_text(text: str, *names: str) -> str:
    if not names or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{';'.join(_COLOURS[name] for name in names)}m{text}\033[0m"


def colour_status(status: str) -> str:
    return colour_text(status.upper(), "bold", _STATUS_COLOURS.get(status, "bold"))


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
    """The words after those of an action: when it is due. As `When.words` of the model, which is
    slow to import.
    """
    return WHEN_WORDS[str(when)]


def makes_unfit(action: object) -> bool:
    """Whether an action by itself takes the node out of service."""
    return action in ("reset_device", "reboot_node", "replace_node")


def describe_action(finding: schema.ApiFinding) -> str:
    unusable = ""
    if finding["unusable"] and not makes_unfit(finding["action"]):
        # As in the verdict's reasons: that the device is unusable matters more than the action.
        unusable = "it cannot be used: "
    colour = _ACTION_COLOURS.get(str(finding["action"]))
    text = f"{unusable}{finding['todo']}{describe_when(finding['when'])}"
    return colour_text(text, colour) if colour else text


def format_title(finding: schema.ApiFinding) -> str:
    """`#1: gpu/0000:65:00.0  GPU has fallen off the bus  xid/79`, without colour."""
    component, title = escape_text(finding["component"]), escape_text(finding["title"])
    return f"#{finding['id']}: {component}  {title}  {finding['code']}"


def _format_heading(finding: schema.ApiFinding) -> str:
    """`gpu/0000:65:00.0  GPU has fallen off the bus  xid/79`, the code in colour."""
    component, title = escape_text(finding["component"]), escape_text(finding["title"])
    return f"{component}  {title}  {colour_text(str(finding['code']), 'dim')}  #{finding['id']}"


def escape_text(text: object) -> str:
    """Text from outside, with control characters escaped."""
    return escape_unprintable(str(text))


def get_width() -> int:
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 200


def print_line(line: str) -> None:
    """Print a line; folded, on a terminal that is narrower."""
    print("\n".join(fold_line(line, get_width())) if sys.stdout.isatty() else line)


def count_columns(text: str) -> int:
    """The columns that a text takes, without its colours."""
    if "\x1b" not in text:
        return len(text)
    import re

    return len(re.sub(r"\x1b\[[0-9;]*m", "", text))


def fold_line(line: str, columns: int) -> Iterable[str]:
    """The line, broken between words; what follows is indented as the text behind the label is. A
    word that is too long stays whole.
    """
    import re

    indent = min(4 + len(line) - len(line.lstrip()), columns // 2)
    if re.fullmatch(r" {6}[a-z]* +", line[:_LABEL_COLUMNS]):
        indent = _LABEL_COLUMNS
    out = ""
    for gap, word in re.findall(r"(\s*)(\S+)", line):
        if out.strip() and count_columns(out + gap + word) > columns:
            yield out
            out = " " * indent + word
        else:
            out += gap + word
    yield out


def cut_text(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(1, columns - 1)] + "…"


def cut_line(line: str, columns: int) -> str:
    """A kernel log line, cut, but never so short that the number of an Xid or SXid is lost."""
    return cut_text(line, max(columns, _MIN_LINE))


def parse_time(moment: object) -> datetime | None:
    return parse_rfc3339(str(moment)) if moment else None


def use_utc() -> None:
    """Have this process show times in UTC: their reader may be in another time zone."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def format_time(moment: object) -> str:
    """Local time; with the date unless it is today."""
    when = parse_time(moment)
    if when is None:
        return "never"
    local = when.astimezone()
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def format_age(moment: object) -> str:
    """`12 s`, `5 min`, `3 h`, `4 d`."""
    when = parse_time(moment)
    if when is None:
        return "never"
    return format_span(max(0.0, (datetime.now(timezone.utc) - when).total_seconds()))


def format_span(seconds: float) -> str:
    """A duration in seconds, in the unit that suits it."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def count_kind(count: int, kind: str) -> str:
    """`8 GPUs`, `1 disk`: components of a kind, as the API names it."""
    return count_noun(count, name_kind(kind))


def name_kind(kind: str) -> str:
    """`GPU`, `disk`: a kind of component, as the API names it, in words."""
    return _KIND_NOUNS.get(kind, kind)


def describe_count(count: object) -> str:
    return "seen once" if count == 1 else f"seen {count} times"


def emit_json(value: object) -> None:
    print(json.dumps(value, indent=None if not sys.stdout.isatty() else 2))


def format_finding(finding: schema.ApiFinding, *, full: bool = False) -> Iterable[str]:
    """What, which device, since when, the raw line, what to do."""
    columns = get_width()
    component, title = escape_text(finding["component"]), escape_text(finding["title"])
    code = colour_text(str(finding["code"]), "dim")
    drill = _mark_drill(finding)
    yield f"  {drill}{colour_text(component, 'bold')}  {title}  {code}  #{finding['id']}"
    if device := describe_device(finding.get("device")):
        yield from _wrap_text("device", device, columns)
    begun = " (begun)" if finding["state"] == "in_remedy" else ""
    yield f"      do     {describe_action(finding)}{begun}"
    accepted = finding["accepted"]
    if accepted is not None:
        until, by = format_time(accepted["until"]), escape_text(accepted["by"])
        text = f"until {until}, by {by}: {escape_text(accepted['reason'])}"
        yield from _wrap_text("accept", text, columns)
    if finding["because"]:
        yield from _wrap_text("why", str(finding["because"]), columns)
    if full and finding["meaning"]:
        yield from _wrap_text("means", str(finding["meaning"]), columns)
    if finding["advice"]:
        yield from _wrap_text("hint", str(finding["advice"]), columns)
    yield f"      when   {finding.get('seen') or _describe_occurrences(finding)}"
    if witness := describe_witness(finding, full=full):
        yield from _wrap_text("seen", witness, columns)
    if finding["clearedAt"]:
        cleared = format_time(finding["clearedAt"])
        yield f"      clear  {cleared}: {escape_text(finding['clearedBy'])}"
    elif full:
        yield f"      clears {'; '.join(finding['clears'])}"
    yield f"      line   {_format_raw(finding, None if full else columns)}"


def _mark_drill(finding: schema.ApiFinding) -> str:
    return colour_text("SIMULATED ", "bold", "magenta") if finding["simulated"] else ""


def _format_raw(finding: schema.ApiFinding, columns: int | None) -> str:
    """The raw line of the log, cut to the width of the terminal; None: whole."""
    absent = ""
    if finding["fields"].get("on_pci") is False:
        absent = "  (not on PCI now)"
    raw = escape_text(finding["raw"])
    if columns is not None:
        raw = cut_line(raw, columns - _LABEL_COLUMNS - len(absent))
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
        return f"confirmed: {escape_text(finding['confirmedBy'])}" if full else ""
    if not full and not makes_unfit(finding["action"]):
        return ""
    written = bool(finding.get("writtenByProcess"))
    source = "written by a process" if written else "the kernel log alone"
    if confirmed is None:
        return source if written else ""
    if finding["confirmedBy"]:
        by = escape_text(finding["confirmedBy"])
        return f"unconfirmed: {by} confirms no more than {finding['confirmedAction']}"
    witnesses = ", ".join(finding["witnesses"])
    if witnesses:
        return f"{source}, unconfirmed: {witnesses} could confirm it"
    return f"{source}, unconfirmed: no other source can see it"


def _describe_occurrences(finding: schema.ApiFinding) -> str:
    """Since when, how often, and when a drill ends."""
    since, count = finding["since"], describe_count(finding["count"])
    text = f"since {format_time(since)} ({format_age(since)} ago), {count}"
    if finding["count"] != 1:
        text += f", last {format_time(finding['last'])}"
    if finding["simulatedUntil"]:
        text += f", drill ends {format_time(finding['simulatedUntil'])}"
    return text


def format_incident(
    incident: schema.ApiIncident, findings: Mapping[int, schema.ApiFinding]
) -> Iterable[str]:
    """One incident: the finding that heads it, the others that require an action, and the
    consequences.
    """
    own = [findings[number] for number in incident["findings"] if number in findings]
    if not own:
        return
    head = find_head(incident, own)
    yield from format_finding(head)
    for other in own:
        if other is not head:
            heading = f"{_mark_drill(other)}{_format_heading(other)}"
            yield f"      and    {describe_action(other)}: {heading}"
            if other["because"] and other["because"] != head["because"]:
                yield f"             {escape_text(other['because'])}"
    named = {(found["component"], found["code"]) for found in own}
    rest = [
        _format_member(member, head["component"])
        for member in incident["members"]
        if (member["component"], member["code"]) not in named
    ]
    if rest:
        yield from _wrap_text("with", join_first(rest, _MAX_MEMBERS), get_width())
    jobs = list(describe_jobs(incident))
    for job in jobs[:_MAX_JOBS]:
        yield from _wrap_text("work", job, get_width())
    if len(jobs) > _MAX_JOBS:
        yield f"      {'':<6} and {len(jobs) - _MAX_JOBS} more: vitald why"


def find_head(
    incident: schema.ApiIncident, findings: Sequence[schema.ApiFinding]
) -> schema.ApiFinding:
    """The finding of the incident's cause, else the first. `findings`: its own, at least one."""
    cause = (incident["component"], incident["code"])
    same = (found for found in findings if (found["component"], found["code"]) == cause)
    return next(same, findings[0])


def _format_member(member: schema.ApiMember, component: str) -> str:
    """`xid/45 on gpu/0000:ca:00.0 x 2`; the component only if it is another."""
    text = str(member["code"])
    if member["component"] != component:
        text += f" on {escape_text(member['component'])}"
    if member["count"] != 1:
        text += f" x {member['count']}"
    return text


def describe_jobs(incident: schema.ApiIncident) -> Iterable[str]:
    """The jobs near an incident, relative to its start: `job 1234 of alice ended with exit 1, 12 s
    after`.
    """
    since = parse_time(incident["since"])
    for job in incident.get("jobs") or []:
        name = f"job {job['job']}" + (f" of {job['user']}" if job["user"] else "")
        ended = parse_time(job["ended"])
        if since is None or ended is None:
            yield f"{name} has run since {format_time(job['began'])}"
            continue
        reason = f" ({job['reason']})" if job["reason"] else ""
        seconds = (ended - since).total_seconds()
        side = "after" if seconds >= 0 else "before"
        yield f"{name} {describe_end(job)}{reason}, {format_span(abs(seconds))} {side}"


def describe_end(job: schema.ApiJob) -> str:
    """How a job ended: `ended with exit 1`."""
    if job["state"] == "lost":
        return "was lost"
    if job["state"] != "died":
        return "ended"
    how = f"signal {job['signal']}" if job["signal"] else f"exit {job['exitCode']}"
    return f"ended with {how}"


def _wrap_text(label: str, text: str, columns: int) -> Iterable[str]:
    import textwrap

    width = max(40, min(columns, 120) - _LABEL_COLUMNS)
    for number, line in enumerate(textwrap.wrap(escape_text(text), width)):
        yield f"      {label if number == 0 else '':<6} {line}"


def format_event(event: schema.ApiEvent) -> str:
    """An event on one line: time, code, component, marks, raw line."""
    marks = list_marks(event)
    mark = colour_text(f"[{', '.join(marks)}] ", "magenta") if marks else ""
    more = event.get("followedBy") or []
    tail = f"  (+{count_noun(len(more), 'record')})" if more else ""
    code, component = colour_text(str(event["code"]), "bold"), escape_text(event["component"])
    stamp = _format_stamp(event["time"])
    return f"{stamp}  {code}  {component}  {mark}{escape_text(event['raw'])}{tail}"


def _format_stamp(moment: object) -> str:
    when = parse_time(moment)
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if when else "?"


CHANGE_WORDS = {"in_remedy": "in remedy", "other": "changed"}


def format_transition(change: schema.ApiTransition) -> str:
    """A change of a finding on one line: time, number and change, component, title, action, cause;
    without an action where it was cleared.
    """
    kind, component = change["change"], escape_text(change["component"])
    is_open = kind != "cleared"
    colour = _ACTION_COLOURS.get(str(change["action"]), "bold") if is_open else "green"
    word = escape_text(f"#{change['finding']} {CHANGE_WORDS.get(kind, kind)}")
    marks = (("SIMULATED", change["simulated"]), ("on trial", change["onTrial"]))
    shown = ", ".join(mark for mark, holds in marks if holds)
    mark = colour_text(f"[{shown}] ", "magenta") if shown else ""
    action = f", {change['action']}" if is_open else ""
    text = escape_text(f"{change['title']} ({change['code']}){action}: {change['cause']}")
    stamp = _format_stamp(change["time"])
    return f"{stamp}  {colour_text(word, colour)}  {component}  {mark}{text}"


def list_marks(event: schema.ApiEvent) -> list[str]:
    """What is to be known of an event besides its line."""
    fields = event.get("fields") or {}
    marks = []
    if event["simulated"]:
        marks.append("SIMULATED")
    if event["trust"] == "untrusted":
        why = escape_text(fields.get("untrusted") or "written by a process")
        marks.append(f"UNTRUSTED ({why}, not judged)")
    elif event["trust"] == "accepted":
        marks.append("written by a process")
    if doubted := fields.get("doubted"):
        marks.append(f"DOUBTFUL: {escape_text(doubted)}")
    if "untrusted" not in fields and fields.get("on_node") is False:
        marks.append("no such device here")
    if (facility := fields.get("facility")) is not None:
        marks.append(f"facility {facility}")
    return marks


def describe_stamp(stamp: Stamp) -> str:
    """When a line was written, and its number."""
    from vitald.server import serialize

    where = f"line {stamp.number}"
    if stamp.time is not None:
        moment = serialize.format_moment(stamp.time)
        return f"{format_time(moment)} ({format_age(moment)} ago, {where})"
    if stamp.usec is not None:
        return f"{stamp.usec / 1e6:.6f} s after the start ({where})"
    return f"{where}, which has no date"
