"""The words of the status page by status, action and kind; and times, in UTC."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from vitald.cli import render
from vitald.cli.page.model import Moment, Tone

if TYPE_CHECKING:
    from vitald.server import schema

STATUS_TONES = {
    "healthy": Tone.OK,
    "degraded": Tone.WARNING,
    "unhealthy": Tone.BAD,
    "unknown": Tone.UNKNOWN,
}
STATUS_LEADS = {
    "healthy": "No fault is known. The node may take work.",
    "degraded": "The node may take work. What is below needs attention.",
    "unhealthy": "The node must take no new work.",
    "unknown": "vitald cannot observe all of this node. Do not rely on it.",
}
ACTION_TONES = {
    "none": Tone.OK,
    "observe": Tone.NOTE,
    "restart_workload": Tone.WARNING,
    "inspect": Tone.WARNING,
    "reset_device": Tone.BAD,
    "reboot_node": Tone.BAD,
    "replace_node": Tone.BAD,
}
# What a finding's requirement is made of, as the API names it.
LAYERS = {
    "base": "catalogue",
    "context": "other members of the incident",
    "implied": "suppressed consequence",
    "driver": "driver",
    "escalation": "escalation",
}
SOURCE_TONES = {
    "ok": Tone.OK,
    "not present": Tone.NOTE,
    "starting": Tone.NOTE,
    "released": Tone.WARNING,
    "stale": Tone.BAD,
    "failed": Tone.BAD,
}
OUTCOME_TONES = {"pass": Tone.OK, "fail": Tone.BAD, "not_applicable": Tone.NOTE}
SINK_TONES = {
    "up": Tone.OK,
    "behind": Tone.WARNING,
    "partly": Tone.BAD,
    "down": Tone.BAD,
    "unknown": Tone.UNKNOWN,
}
JOB_TONES = {
    "running": Tone.OK,
    "ended": Tone.NOTE,
    "died": Tone.WARNING,
    "lost": Tone.UNKNOWN,
}


class CommandTemplate(NamedTuple):
    """`line` may name `{id}` (of the finding) and `{pci}`. `kinds`: the components that it applies
    to; empty for all.
    """

    line: str
    purpose: str
    kinds: frozenset[str] = frozenset()


_GPU = frozenset({"gpu"})
_BEGIN = CommandTemplate('vitald remedy {id} --reason "TEXT"', "record that you began")
# By action, in the order of their use. docs/what-to-do.md has all of it.
ACTION_COMMANDS: dict[str, tuple[CommandTemplate, ...]] = {
    "inspect": (
        CommandTemplate('vitald diag run --reason "TEXT"', "run a diagnostic on an idle node"),
        CommandTemplate('vitald clear {id} --reason "TEXT"', "close it once it is explained"),
    ),
    "reset_device": (
        _BEGIN,
        CommandTemplate(
            'vitald release --for 10m --reason "TEXT"', "have vitald release the GPUs", _GPU
        ),
        CommandTemplate("nvidia-smi -r -i {pci}", "reset it, once no process uses it", _GPU),
        CommandTemplate("vitald release --end", "have vitald read the GPUs again", _GPU),
    ),
    "reboot_node": (
        _BEGIN,
        CommandTemplate("systemctl reboot", "reboot, once the node is drained"),
    ),
    "replace_node": (
        _BEGIN,
        CommandTemplate(
            'vitald clear {id} --replaced --reason "TEXT"', "close it after the replacement"
        ),
    ),
}
DRILL_COMMANDS = (CommandTemplate('vitald clear {id} --reason "drill over"', "end the drill"),)
COMMON_COMMANDS = (CommandTemplate("vitald why {id}", "how it came to be, in full"),)
AWAY_COMMANDS = (
    ("systemctl status vitald", "is the service running?"),
    ("journalctl -u vitald -n 50", "what it logged last"),
    ("systemctl start vitald", "start it"),
)


def find_tone(finding: schema.ApiFinding) -> Tone:
    """How urgent a finding is: less so where it takes no node out of service."""
    tone = ACTION_TONES[finding["action"]]
    if finding["accepted"] is not None:
        return Tone.NOTE
    return Tone.WARNING if tone is Tone.BAD and finding["when"] == "maintenance" else tone


def make_moment(moment: object, now: datetime) -> Moment | None:
    """A time of the API, as it is shown at `now`; None where there is none."""
    when = render.parse_time(moment)
    return describe_moment(when, now) if when is not None else None


def describe_moment(when: datetime, now: datetime) -> Moment:
    utc = when.astimezone(timezone.utc)
    seconds = (now - utc).total_seconds()
    span = render.format_span(abs(seconds))
    age = f"{span} ago" if seconds >= 0 else f"in {span}"
    return Moment(format_utc(utc), utc.strftime("%Y-%m-%dT%H:%M:%SZ"), age)


def format_utc(when: datetime) -> str:
    return f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
