"""What is remembered of a receiver over a restart: which findings it got, and the flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from vitald.model import Status
from vitald.publish.notify.notification import NodeFlags


class Delivery(Enum):
    """What the receiver knows of an open finding."""

    DUE = "due"  # nothing of its own yet, and it is to get that
    REPEAT = "repeat"  # it got a message on it, which it is to get again
    SINGLE = "single"  # it got a message on it
    DIGEST = "digest"  # it got one that stands for several

    @property
    def is_due(self) -> bool:
        return self in (Delivery.DUE, Delivery.REPEAT)

    @property
    def had_own(self) -> bool:
        """Whether it got a message on this finding alone."""
        return self in (Delivery.SINGLE, Delivery.REPEAT)


@dataclass(frozen=True, slots=True)
class TimedFlags:
    """Flags, and since when, in seconds since the epoch."""

    flags: NodeFlags
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`deliveries`: by the finding's number. `flags` were sent; `pending` are being sent. Times in
    seconds since the epoch; 0 is never.
    """

    deliveries: Mapping[int, Delivery] = field(default_factory=dict)
    flags: TimedFlags | None = None
    pending: TimedFlags | None = None
    repeated_at: float = 0.0  # when what is open became due again


def format_progress(progress: Progress) -> str:
    """As JSON, for publish.db."""
    return json.dumps(
        {
            "deliveries": {str(number): each.value for number, each in progress.deliveries.items()},
            "flags": _format_flags(progress.flags),
            "pending": _format_flags(progress.pending),
            "repeatedAt": progress.repeated_at,
        },
        separators=(",", ":"),
    )


def parse_progress(text: str) -> Progress:
    """The inverse of format_progress. Raises ValueError."""
    try:
        document = json.loads(text)
        return Progress(
            deliveries={
                int(number): Delivery(each) for number, each in document["deliveries"].items()
            },
            flags=_parse_flags(document["flags"]),
            pending=_parse_flags(document["pending"]),
            repeated_at=float(document["repeatedAt"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no progress of a receiver: {error}") from None


def _format_flags(timed: TimedFlags | None) -> dict[str, object] | None:
    if timed is None:
        return None
    return {
        "at": timed.at,
        "status": timed.flags.status.value,
        "rebootRequired": timed.flags.reboot_required,
        "replacementRequired": timed.flags.replacement_required,
        "rebootDue": timed.flags.reboot_due,
        "replacementDue": timed.flags.replacement_due,
        "simulated": timed.flags.simulated,
    }


def _parse_flags(document: Mapping[str, object] | None) -> TimedFlags | None:
    if document is None:
        return None
    flags = NodeFlags(
        status=Status(document["status"]),
        reboot_required=bool(document["rebootRequired"]),
        replacement_required=bool(document["replacementRequired"]),
        # An older version did not store these.
        reboot_due=bool(document.get("rebootDue", False)),
        replacement_due=bool(document.get("replacementDue", False)),
        simulated=bool(document["simulated"]),
    )
    return TimedFlags(flags, float(str(document["at"])))
