"""
A notification: what a receiver gets, whatever the form in which that gets it; the node's flags
among it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass, replace
from enum import Enum

from vitald.config.paths import Paths
from vitald.model.words import Action, Status
from vitald.publish.sink import SEVERITY
from vitald.publish.summary import NodeSummary, PublishedState, read_short

# On Nitro instances, DMI's asset tag of the board is the id of the instance (EC2 User Guide,
# "Detect whether a host is an EC2 instance").
_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")


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
    boot_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedFinding:
    """The finding that changed, as it is by this change. `since`: in seconds since the epoch, 0 if
    it is not known. "" is what is not known.
    """

    id: int
    component: str
    code: str
    title: str
    action: Action
    simulated: bool
    when: str = ""
    since: float = 0.0
    device: str = ""  # names for people: GPU 3, serial number
    uuid: str = ""
    serial: str = ""
    raw: str = ""  # the line that decided the action
    cause: str = ""  # why it changed
    confirmed: bool = False

    @property
    def key(self) -> str:
        """The same for a fault that comes again: it is at most one finding at a time."""
        return f"{self.component}/{self.code}{'/drill' if self.simulated else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """Whether the node is fit, and which repairs it requires. Due is a repair that may happen now,
    for a finding that is confirmed.
    """

    status: Status
    reboot_required: bool = False
    replacement_required: bool = False
    reboot_due: bool = False
    replacement_due: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestGroup:
    """So many changes of one kind, of findings with one code and action; of some, the component."""

    kind: NotificationKind
    code: str
    action: Action
    count: int
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What one notification stands for. `groups`: the most frequent ones; together they may count
    fewer than `count`. Without any, so many findings of former digests are over.
    """

    count: int
    groups: tuple[DigestGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message. `key`: the same in all messages on one fault, from its opening to its end. `id`:
    another one in each message, but the same where a message is sent again. `time`: when it
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


def build_notification(
    kind: NotificationKind,
    time: float,
    node: NodeIdentity,
    flags: NodeFlags,
    *,
    subject: str,
    occasion: object,
    finding: NotifiedFinding | None = None,
    former_flags: NodeFlags | None = None,
    digest: Digest | None = None,
) -> Notification:
    """`subject`: what it is about; `occasion`: which change of that, the same in each attempt."""
    seed = repr((node.host, kind.value, subject, occasion))
    return Notification(
        kind=kind,
        key=f"{node.host}/{subject}",
        id=hashlib.sha256(seed.encode(errors="replace")).hexdigest()[:32],
        time=time,
        node=node,
        flags=flags,
        finding=finding,
        former_flags=former_flags,
        digest=digest,
    )


def identify_node(paths: Paths) -> NodeIdentity:
    """All but the boot, which the daemon tells."""
    try:
        tag = (paths.sysfs / "class/dmi/id/board_asset_tag").read_text(errors="replace").strip()
    except OSError:
        tag = ""
    return NodeIdentity(
        # The host name of a pod is the pod's own.
        host=read_short(os.environ.get("NODE_NAME", "") or socket.gethostname()),
        instance_id=tag if _INSTANCE_ID.fullmatch(tag) else "",
    )


WELL = NodeFlags(status=Status.HEALTHY)


def read_flags(state: PublishedState | None, former: NodeFlags | None) -> NodeFlags:
    """`former`: what the receiver knows. While the daemon is silent, the status is unknown, no
    repair is known to be done, and none is due.
    """
    if isinstance(state, NodeSummary):
        return NodeFlags(
            status=state.status,
            reboot_required=state.reboot_required,
            replacement_required=state.replacement_required,
            reboot_due=bool(state.reboot_reason),
            replacement_due=bool(state.replacement_reason),
        )
    return replace(former or WELL, status=Status.UNKNOWN, reboot_due=False, replacement_due=False)


def is_worse(before: NodeFlags, after: NodeFlags) -> bool:
    """In any respect. That the state is unknown is worse only if it lasts: an upgrade passes."""
    if after.status is Status.UNKNOWN:
        return False
    pairs = zip(_rank_flags(after), _rank_flags(before), strict=True)
    return any(new > old for new, old in pairs)


def _rank_flags(flags: NodeFlags) -> tuple[int, bool, bool, bool, bool]:
    return (
        SEVERITY[flags.status],
        flags.reboot_required,
        flags.replacement_required,
        flags.reboot_due,
        flags.replacement_due,
    )
