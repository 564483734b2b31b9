"""
What sinks publish: the node's summary as the daemon gives it (`/v1/summary`), or that the daemon is
silent.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union, cast

from vitald.checking import (
    read_flag,
    read_list,
    read_match,
    read_text,
    read_texts,
    read_whole,
)
from vitald.model.words import Action, Status, When
from vitald.text import replace_unprintable
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema


# The API server checks neither the reason of a condition nor its length: this is the only check.
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")
_MAX_LISTED, _MAX_CHARACTERS, _MAX_ERROR = 1000, 256, 200
_LATEST_S = 253_402_300_799  # the last second of the year 9999, the last that a date can have


class NoSummary(Exception):
    """The answer is no summary. The text names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSummary:
    """An open finding. `reason`: the stable word for its code, `Xid79`."""

    id: int
    component: str
    code: str
    reason: str
    action: Action
    when: When
    since: float  # seconds since the epoch
    confirmed: bool
    accepted: bool
    simulated: bool
    due: bool  # a repair of the node is due for it now
    device: str  # UUID or serial number, "" if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """The node's state at one moment. Times in seconds since the epoch."""

    status: Status
    action: Action
    reason: str  # why the status is what it is, in one word
    lines: tuple[str, ...]  # in sentences, the strongest first
    reboot_reason: str  # the word for the finding for which a reboot is due; "" if none is
    replacement_reason: str
    changed_at: float  # when a finding changed last
    findings: tuple[FindingSummary, ...]  # those due first; not all where there are many
    open_findings: int
    is_complete: bool  # everything that is watched could be read
    accelerators: tuple[str, ...]  # kinds of accelerators on PCI: gpu, neuron
    boot_id: str
    reboot_required: bool = False  # confirmed or not, perhaps after the running job only
    replacement_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSilent:
    """The daemon does not answer."""

    since: float  # seconds since the epoch
    detail: str


PublishedState = Union[NodeSummary, DaemonSilent]


def parse_summary(document: object) -> NodeSummary:
    """The answer of `/v1/summary`. Raises NoSummary: a daemon of another version may differ."""
    if not isinstance(document, Mapping):
        raise NoSummary("it is no table")
    answer = cast("schema.NodeSummary", document)
    try:
        return NodeSummary(
            status=Status(answer["status"]),
            action=Action(answer["action"]),
            reason=read_reason(answer["reason"]),
            lines=tuple(read_texts(read_list(answer["reasons"], 0, _MAX_LISTED))),
            # Older daemons say only what is due.
            reboot_required=read_flag(answer.get("rebootRequired", bool(answer["rebootDue"]))),
            replacement_required=read_flag(
                answer.get("replacementRequired", bool(answer["replacementDue"]))
            ),
            reboot_reason=read_reason(answer["rebootDue"] or ""),
            replacement_reason=read_reason(answer["replacementDue"] or ""),
            changed_at=read_time(answer["changedAt"]),
            findings=tuple(
                _parse_finding(cast("schema.SummarizedFinding", finding))
                for finding in read_list(answer["findings"], 0, _MAX_LISTED)
            ),
            open_findings=read_whole(answer["openFindings"], 0, sys.maxsize),
            is_complete=read_flag(answer["complete"]),
            accelerators=tuple(
                read_short(kind) for kind in read_list(answer["accelerators"], 0, _MAX_LISTED)
            ),
            boot_id=read_short(answer["bootId"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NoSummary(explain_error(error)) from error


def _parse_finding(finding: schema.SummarizedFinding) -> FindingSummary:
    return FindingSummary(
        id=read_whole(finding["id"], 0, sys.maxsize),
        component=read_short(finding["component"]),
        code=read_short(finding["code"]),
        reason=read_reason(finding["reason"]),
        action=Action(finding["action"]),
        when=When(finding["when"]),
        since=read_time(finding["since"]),
        confirmed=read_flag(finding["confirmed"]),
        accepted=read_flag(finding["accepted"]),
        simulated=read_flag(finding["simulated"]),
        due=read_flag(finding["due"]),
        device=read_short(finding["device"]),
    )


def explain_error(error: Exception) -> str:
    """In one line of a log: what was found may be as long as the answer."""
    return replace_unprintable(f"{type(error).__name__}: {error}"[:_MAX_ERROR])


def read_reason(value: object) -> str:
    """A word that can be the reason of a condition or Event, or nothing."""
    return value if value == "" else read_match(value, _REASON, "a word such as Xid79")


def read_short(value: object) -> str:
    """Texts of the kernel and of devices may be in it: one printable line."""
    return replace_unprintable(read_text(value)[:_MAX_CHARACTERS])


def read_time(value: object) -> float:
    """Seconds since the epoch, within what a date can have."""
    moment = parse_rfc3339(read_text(value)).timestamp()
    return min(max(moment, 0.0), _LATEST_S)
