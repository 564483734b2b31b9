"""The node's flags, as a receiver gets them."""

from __future__ import annotations

from dataclasses import replace

from vitald.model import Status
from vitald.publish.notify.notification import NodeFlags
from vitald.publish.sink import SEVERITY
from vitald.publish.summary import NodeSummary, PublishedState

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
