"""
What sinks publish: the node's summary as the daemon gives it (`/v1/summary`), or that the daemon is
silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union, cast

from vitald.model import Action, Status
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema


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
    when: str
    since: float  # seconds since the epoch
    confirmed: bool
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
            reason=answer["reason"],
            lines=tuple(answer["reasons"]),
            reboot_reason=answer["rebootDue"] or "",
            replacement_reason=answer["replacementDue"] or "",
            changed_at=parse_rfc3339(answer["changedAt"]).timestamp(),
            findings=tuple(_parse_finding(finding) for finding in answer["findings"]),
            open_findings=answer["openFindings"],
            is_complete=answer["complete"],
            accelerators=tuple(answer["accelerators"]),
            boot_id=answer["bootId"],
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NoSummary(f"{type(error).__name__}: {error}") from error


def _parse_finding(finding: schema.SummarizedFinding) -> FindingSummary:
    return FindingSummary(
        id=finding["id"],
        component=finding["component"],
        code=finding["code"],
        reason=finding["reason"],
        action=Action(finding["action"]),
        when=finding["when"],
        since=parse_rfc3339(finding["since"]).timestamp(),
        confirmed=finding["confirmed"],
        simulated=finding["simulated"],
        due=finding["due"],
        device=finding["device"],
    )
