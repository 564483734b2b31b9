"""
Events: single facts with their source; and the codes that vitald evaluates by more than their entry
in the catalogue.

Most of these are vitald's own observations of the node and its devices, or decisions of a person.
What such an event means beyond its entry is in `judge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from vitald.model.component import Component

BOOT = "vitald/boot"
CLEARED = "vitald/cleared"  # a person closed a finding
REMEDY_BEGUN = "vitald/remedy_begun"
ACCEPTED = "vitald/accepted"
CLOCK_STEPPED = "vitald/clock_stepped"
SOURCE_FAILED = "vitald/source_failed"
TOO_MANY = "vitald/too_many"  # replaces the findings beyond the maximum number
IDENTITY = "device/identity"
REPLACED = "device/replaced"
JOB_DIED = "job/died"
DIAGNOSTIC_FAILED = "diagnostic/failed"
SITE_CHECK = "check"  # the kind of what a check of the site finds: `check/NAME`


Value = Union[str, int, float, bool, None, "list[int]"]
Fields = Mapping[str, Value]
# Field of an event about a device: the others of its kind that are present, separated by commas
SIBLINGS = "siblings"
# Field of a state that was observed since the start or a driver load only, and may still change
SETTLING = "settling"
# Field of a line that was read late, and of which nothing shows when it was written
UNDATED = "undated"
# Field of an event of the node that stands for several devices: their names, separated by commas
ALIKE = "alike"
# Field of a record that a process wrote: whether the configuration accepts it as a confirmed fault
VOUCHED = "vouched"
# Field of a line that may be the rest of the record before it, and so a user's text: why
DOUBTED = "doubted"


class Trust(Enum):
    """Who wrote the line that an event was read from, and whether it is evaluated."""

    KERNEL = "kernel"  # facility 0, or a file that the operator named as the kernel's log
    # Written from user space, and evaluated: as hearsay, or like the kernel's if the configuration
    # says so
    ACCEPTED = "accepted"
    ANNOUNCED = "announced"  # written from user space by an announced drill
    # Written from user space, or about a device that is not present: counted, never evaluated
    UNTRUSTED = "untrusted"
    DAEMON = "daemon"  # vitald's own observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact. `identity` names its origin, so that it counts once if it is read twice."""

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
    # Identity of the event that this record continues (SXid severity and data records)
    follows: str | None = None
    # Set for a drill: the event is simulated, and its finding ends at this time
    simulated_until: float | None = None

    @property
    def is_simulated(self) -> bool:
        return self.simulated_until is not None

    @property
    def is_trusted(self) -> bool:
        return self.trust is not Trust.UNTRUSTED

    @property
    def is_hearsay(self) -> bool:
        """Whether a user process wrote it or may have written it, and the configuration does not
        accept it as a fault: it may open a finding of its own, and change nothing else.
        """
        return is_hearsay(self.fields)

    @property
    def vouched_by(self) -> str:
        """What confirms the event, so that the node may be repaired for it; empty for the text of
        a log.
        """
        if self.trust is Trust.DAEMON:
            return self.source
        if self.is_hearsay:
            return ""
        return "[kernel_log] userspace" if self.fields.get(VOUCHED) is True else ""


def is_hearsay(fields: Fields) -> bool:
    return fields.get(VOUCHED) is False or DOUBTED in fields
