"""
One fact, and who told it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from vitald.model.component import Component

Value = Union[str, int, float, bool, None, "list[int]"]
Fields = Mapping[str, Value]


class Trust(Enum):
    """Who wrote the line an event was read from, and whether it is believed."""

    KERNEL = "kernel"  # facility 0, or a file that the operator named as the kernel's log
    # Written from user space, and judged: as hearsay, or where the configuration vouches for it
    # like the kernel's
    ACCEPTED = "accepted"
    ANNOUNCED = "announced"  # written from user space by a drill that announced itself
    # Written from user space, or about a device that is not here: shown and counted, never judged
    UNTRUSTED = "untrusted"
    DAEMON = "daemon"  # vitald's own observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact, once. `identity` says where it came from: read twice, it is still one fact."""

    identity: str
    time: float
    source: str
    kind: str
    code: str
    component: Component
    boot_id: str
    raw: str = ""
    trust: Trust = Trust.KERNEL
    fields: Fields = field(default_factory=dict)
    follows: str | None = (
        None  # identity of the event that this record continues (SXid severity and data records)
    )
    simulated_until: float | None = (
        None  # set for a drill: the event is simulated, and its finding ends then
    )

    @property
    def is_simulated(self) -> bool:
        return self.simulated_until is not None

    @property
    def is_trusted(self) -> bool:
        return self.trust is not Trust.UNTRUSTED

    @property
    def is_hearsay(self) -> bool:
        """Whether a process wrote it, and nobody vouches for it: it may open a finding of its own,
        and change nothing else.
        """
        return is_hearsay(self.fields)

    @property
    def vouched_by(self) -> str:
        """Who says that this is so, where that is enough to have the node repaired for it. Empty
        for the text of a log.
        """
        if self.trust is Trust.DAEMON:
            return self.source
        return "[kernel_log] userspace" if self.fields.get(VOUCHED) is True else ""


# Field of a record that a process wrote: whether the configuration takes it for a confirmed fault
VOUCHED = "vouched"


def is_hearsay(fields: Fields) -> bool:
    return fields.get(VOUCHED) is False
