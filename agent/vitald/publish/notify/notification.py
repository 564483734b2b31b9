"""A notification: what a receiver gets, whatever the form in which that gets it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vitald.model import Action, Status


class NotificationKind(Enum):
    OPENED = "opened"
    ESCALATED = "escalated"
    CLEARED = "cleared"
    FLAGS = "flags"  # the node's status, or a repair that is required or due, changed
    DIGEST = "digest"  # one for many changes of findings
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Which node it is. `instance_id`: that of EC2. "" is what is not known."""

    host: str
    instance_id: str
    boot_id: str
    version: str  # of vitald


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedFinding:
    """The finding that changed, as it is by this change. `since`: in seconds since the epoch, 0 if
    it is not known. "" is what is not known.
    """

    id: int
    component: str
    kind: str  # of its code: xid, sxid, nvml
    code: str
    reason: str  # the stable word for its code
    title: str
    action: Action
    when: str
    todo: str  # the action in words
    since: float
    uuid: str
    serial: str
    raw: str  # the line that decided the action
    source: str  # what observes it
    cause: str  # why it changed
    confirmed: bool
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """Whether the node is fit, and which repairs it requires. `simulated`: because of a drill.

    Due is a repair that may happen now, for a finding that is confirmed.
    """

    status: Status
    reboot_required: bool
    replacement_required: bool
    reboot_due: bool
    replacement_due: bool
    simulated: bool


UNKNOWN_FLAGS = NodeFlags(
    status=Status.UNKNOWN,
    reboot_required=False,
    replacement_required=False,
    reboot_due=False,
    replacement_due=False,
    simulated=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestGroup:
    """So many changes of one kind, of findings with one code and action."""

    kind: NotificationKind
    code: str
    action: Action
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What one notification stands for: so many changes, from the ledger's transition `first_id` to
    `last_id`. `groups`: the most frequent ones; together they may count fewer than `count`.
    """

    first_id: int
    last_id: int
    count: int
    groups: tuple[DigestGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message. `key`: the same in all messages on one finding, from its opening to its end.
    `id`: another one in each message, but the same where a message is sent again. `time`: when it
    changed, in seconds since the epoch.
    """

    kind: NotificationKind
    key: str
    id: str
    time: float
    node: NodeIdentity
    flags: NodeFlags
    finding: NotifiedFinding | None = None  # of messages on a finding
    former_flags: NodeFlags | None = None  # of FLAGS; None where these are the first
    digest: Digest | None = None  # of DIGEST
