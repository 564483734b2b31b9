"""What a person sees: short lines, the worst first, colour on a terminal only, nothing that could
drive the terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.server import schema

from vitald.text import escape_unprintable, join_first
from vitald.timestamps import parse_rfc3339

Json = dict[str, object]

_LABELS = 13  # columns before the text of a finding: `      hint   `
_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2", "magenta": "35"}
_STATUS = {"healthy": "green", "degraded": "yellow", "unhealthy": "red", "unknown": "magenta"}
WHEN_WORDS = {
    "now": "",
    "after_job": " after the running job",
    "maintenance": " at the next maintenance",
}
_ACTION = {
    "replace_node": "red",
    "reboot_node": "red",
    "reset_device": "red",
    "restart_workload": "yellow",
    "inspect": "yellow",
}


def colour(text: str, *names: str) -> str:
    if not names or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{';'.join(_COLOURS[name] for name in names)}m{text}\033[0m"


def status_word(status: str) -> str:
    return colour(status.upper(), "bold", _STATUS.get(status, "bold"))


def flag_words(findings: Iterable[schema.Finding], flags: Mapping[str, object]) -> list[str]:
    """The flags that are up, and whether they are confirmed; and why a reboot is required where no
    finding asks for one.
    """
    words = []
    if flags["rebootRequired"]:
        asked = any(
            one["action"] == "reboot_node"
            and one["accepted"] is None
            and one["when"] != "maintenance"
            for one in findings
        )
        why = "" if asked else " (for a device reset: [policy] device_reset is false)"
        words.append(f"reboot required{why}{_unconfirmed(flags.get('rebootConfirmed'))}")
    if flags["replacementRequired"]:
        words.append(f"replacement required{_unconfirmed(flags.get('replacementConfirmed'))}")
    return words


def _unconfirmed(confirmed: object) -> str:
    """None: nobody could tell, as where a saved log is judged."""
    return "" if confirmed is None else " (confirmed)" if confirmed else " (unconfirmed)"


def when_words(when: object) -> str:
    """What follows the words of an action, by when it is due; as `When.words` of the model, which
    is slow to import.
    """
    return WHEN_WORDS[str(when)]


def unfit(action: object) -> bool:
    """Whether an action by itself takes the node out of service."""
    return action in ("reset_device", "reboot_node", "replace_node")


def action_words(finding: schema.Finding) -> str:
    # As in the verdict's reasons: what cannot be used matters more than what is to be done about
    # it.
    unusable = "it cannot be used: " if finding["unusable"] and not unfit(finding["action"]) else ""
    return colour(
        f"{unusable}{finding['todo']}{when_words(finding['when'])}",
        *filter(None, [_ACTION.get(str(finding["action"]))]),
    )


def safe(text: object) -> str:
    """Text that came from outside, without anything a terminal would obey."""
    return escape_unprintable(str(text))


def width() -> int:
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 200


def tell(line: str) -> None:
    """Print a line; on a terminal that is narrower, as several."""
    print("\n".join(folded(line, width())) if sys.stdout.isatty() else line)


def folded(line: str, columns: int) -> Iterable[str]:
    """Broken between words; what follows is indented as the text behind the label is. A word that
    is too long stays whole.
    """
    import re

    def seen(text: str) -> int:
        return len(re.sub(r"\x1b\[[0-9;]*m", "", text))

    behind_label = re.fullmatch(r" {6}[a-z]* +", line[:_LABELS])
    indent, out = (
        " " * (_LABELS if behind_label else min(4 + len(line) - len(line.lstrip()), columns // 2)),
        "",
    )
    for gap, word in re.findall(r"(\s*)(\S+)", line):
        if out.strip() and seen(out + gap + word) > columns:
            yield out
            out = indent + word
        else:
            out += gap + word
    yield out


def cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(1, columns - 1)] + "…"


def parse(moment: object) -> datetime | None:
    return parse_rfc3339(str(moment)) if moment else None


def clock(moment: object) -> str:
    """Local time: the hour if it was today, else the day too."""
    when = parse(moment)
    if when is None:
        return "never"
    local = when.astimezone()
    return local.strftime(
        "%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S"
    )


def age(moment: object) -> str:
    """`12 s`, `5 min`, `3 h`, `4 d`."""
    when = parse(moment)
    if when is None:
        return "never"
    return span(max(0.0, (datetime.now(timezone.utc) - when).total_seconds()))


def span(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def times(count: object) -> str:
    return "seen once" if count == 1 else f"seen {count} times"


def emit_json(value: object) -> None:
    print(json.dumps(value, indent=None if not sys.stdout.isatty() else 2))


def finding_lines(finding: schema.Finding, *, full: bool = False) -> Iterable[str]:
    """What, which device, since when, the raw line, what to do."""
    columns = width()
    drill = colour("SIMULATED ", "bold", "magenta") if finding["simulated"] else ""
    yield (
        f"  {drill}{colour(safe(finding['component']), 'bold')}  {safe(finding['title'])} "
        f" {colour(str(finding['code']), 'dim')}  #{finding['id']}"
    )
    begun = " (begun)" if finding["state"] == "in_remedy" else ""
    yield f"      do     {action_words(finding)}{begun}"
    accepted = finding["accepted"]
    if accepted is not None:
        until = (
            f"until {clock(accepted['until'])}, by {safe(accepted['by'])}:"
            f" {safe(accepted['reason'])}"
        )
        yield from _wrapped("accept", until, columns)
    if finding["because"]:
        yield from _wrapped("why", str(finding["because"]), columns)
    if full and finding["meaning"]:
        yield from _wrapped("means", str(finding["meaning"]), columns)
    if finding["advice"]:
        yield from _wrapped("hint", str(finding["advice"]), columns)
    yield f"      when   {finding.get('seen') or _seen_words(finding)}"
    if words := witness_words(finding, full=full):
        yield from _wrapped("seen", words, columns)
    if finding["clearedAt"]:
        yield f"      clear  {clock(finding['clearedAt'])}: {safe(finding['clearedBy'])}"
    elif full:
        yield f"      clears {'; '.join(finding['clears'])}"
    fields = finding["fields"]
    absent = "  (no such PCI device on this node now)" if fields.get("on_pci") is False else ""
    raw = safe(finding["raw"])
    yield f"      line   {raw if full else cut(raw, columns - 13 - len(absent))}{absent}"


def witness_words(finding: schema.Finding, *, full: bool) -> str:
    """Whether it is confirmed, where that decides what others may do to the node; who could confirm
    it.
    """
    told: Mapping[str, object] = finding  # nobody could tell where a saved log is judged
    confirmed = told.get("confirmed")
    if finding["simulated"]:
        return ""
    if confirmed:
        return f"confirmed: {safe(finding['confirmedBy'])}" if full else ""
    if not full and not unfit(finding["action"]):
        return ""
    who = "written by a process" if finding.get("writtenByProcess") else "the kernel log alone"
    if confirmed is None:
        return who if finding.get("writtenByProcess") else ""
    could = ", ".join(finding["witnesses"])
    return (
        f"{who}, unconfirmed:"
        f" {f'{could} could confirm it' if could else 'no other source can see it'}"
    )


def _seen_words(finding: schema.Finding) -> str:
    """Since when, how often, and when a drill ends."""
    seen = (
        f"since {clock(finding['since'])} ({age(finding['since'])} ago), {times(finding['count'])}"
    )
    if finding["count"] != 1:
        seen += f", last {clock(finding['last'])}"
    if finding["simulatedUntil"]:
        seen += f", drill ends {clock(finding['simulatedUntil'])}"
    return seen


def incident_lines(
    incident: schema.Incident, findings: Mapping[int, schema.Finding]
) -> Iterable[str]:
    """One incident: the finding that heads it, what else asks for something, and what is a
    consequence.
    """
    own = [findings[number] for number in incident["findings"] if number in findings]
    head = next(
        (
            one
            for one in own
            if (one["component"], one["code"]) == (incident["component"], incident["code"])
        ),
        own[0] if own else None,
    )
    if head is None:
        return
    yield from finding_lines(head)
    for other in own:
        if other is not head:
            drill = colour("SIMULATED ", "bold", "magenta") if other["simulated"] else ""
            yield (
                f"      and    {action_words(other)}: {drill}{safe(other['component'])} "
                f" {safe(other['title'])}  {colour(str(other['code']), 'dim')}  #{other['id']}"
            )
            if other["because"] and other["because"] != head["because"]:
                yield f"             {safe(other['because'])}"
    named = {(one["component"], one["code"]) for one in own}
    rest = [one for one in incident["members"] if (one["component"], one["code"]) not in named]
    if rest:
        told = [
            f"{one['code']}{'' if one['component'] == head['component'] else ' on ' + safe(one['component'])}{'' if one['count'] == 1 else ' x ' + str(one['count'])}"
            for one in rest
        ]
        yield from _wrapped("with", join_first(told, 12), width())
    work = list(job_words(incident))
    for words in work[:3]:
        yield from _wrapped("work", words, width())
    if len(work) > 3:
        yield f"      {'':<6} and {len(work) - 3} more: vitald why"


def job_words(incident: schema.Incident) -> Iterable[str]:
    """The jobs near an incident: `job 1234 of alice ended with exit 1, 12 s after`, told from when
    it began.
    """
    since = parse(incident["since"])
    for job in incident.get("jobs") or []:
        name = f"job {job['job']}" + (f" of {job['user']}" if job["user"] else "")
        ended = parse(job["ended"])
        if since is None or ended is None:
            yield f"{name} has run since {clock(job['began'])}"
            continue
        how = f"signal {job['signal']}" if job["signal"] else f"exit {job['exitCode']}"
        end = (
            f"ended with {how}"
            if job["state"] == "died"
            else "was lost"
            if job["state"] == "lost"
            else "ended"
        )
        reason = f" ({job['reason']})" if job["reason"] else ""
        seconds = (ended - since).total_seconds()
        yield f"{name} {end}{reason}, {span(abs(seconds))} {'after' if seconds >= 0 else 'before'}"


def _wrapped(label: str, text: str, columns: int) -> Iterable[str]:
    import textwrap

    for number, line in enumerate(textwrap.wrap(safe(text), max(40, min(columns, 120) - 13))):
        yield f"      {label if number == 0 else '':<6} {line}"


def event_line(event: schema.Event) -> str:
    fields = event.get("fields") or {}
    marks = []
    if event["simulated"]:
        marks.append("SIMULATED")
    if event["trust"] == "untrusted":
        marks.append(
            f"UNTRUSTED ({safe(fields.get('untrusted') or 'written by a process')}, not judged)"
        )
    elif event["trust"] == "accepted":
        marks.append("written by a process")
    if "untrusted" not in fields and fields.get("on_node") is False:
        marks.append("no such device here")
    if (facility := fields.get("facility")) is not None:
        marks.append(f"facility {facility}")
    mark = colour(f"[{', '.join(marks)}] ", "magenta") if marks else ""
    more = event.get("followedBy") or []
    tail = f"  (+{len(more)} records)" if more else ""
    when = parse(event["time"])
    stamp = when.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if when else "?"
    return (
        f"{stamp}  {colour(str(event['code']), 'bold')}  {safe(event['component'])} "
        f" {mark}{safe(event['raw'])}{tail}"
    )
