"""
Escalation: what a fault asks for when it comes back on the same device.

Only this counts: a remedy that was completed and did not hold, a fault that outlived a reset, the
same fault in different processes, and, where its remedy may wait for maintenance, how long and how
often it was seen meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitald.model import Action, Requirement, When


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationStep:
    """One rung. One of `of`, `processes`, `survived`, `waited_s` and `times` says what it takes."""

    within_s: float  # the window in which they count; of `of` and `processes`
    action: Action
    when: When = When.NOW
    of: Action | None = (
        None  # so many remedies of at least this strength were completed, and did not hold
    )
    remedies: int = 1
    survived: bool = False  # it stands open and is seen again after a reset or a reboot
    processes: int = 0  # it was seen in so many different processes
    waited_s: float = 0.0  # its remedy was left to maintenance for so long
    times: int = 0  # its open finding was seen so often
    same: tuple[
        str, ...
    ] = ()  # fields that must be equal to count together, e.g. the GPC and TPC of an Xid 13

    @property
    def requirement(self) -> Requirement:
        return Requirement(self.action, self.when)


@dataclass(frozen=True, slots=True)
class EscalationPolicy:
    """`serves` is the action whose findings climb it where a case changed what their entry asks
    for.
    """

    name: str
    steps: tuple[EscalationStep, ...]
    serves: Action | None = None
