"""
Escalation policies: what a fault requires when it comes back on the same device.

These conditions count: a remedy that was completed and failed, a fault that survived a reset, the
same fault in different processes, and, if its remedy may wait for maintenance, how long it waited
and how often it was seen meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitald.model import Action, Requirement, When


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationStep:
    """One step of a policy. One of `of`, `processes`, `survived`, `waited_s`, `times` is its
    condition.
    """

    within_s: float  # the window in which they count, for `of` and `processes`
    action: Action
    when: When = When.NOW
    # `remedies` remedies of at least this strength were completed, and failed
    of: Action | None = None
    remedies: int = 1
    survived: bool = False  # its open finding is seen again after a reset or a reboot
    processes: int = 0  # number of different processes in which it was seen
    waited_s: float = 0.0  # time for which its remedy has waited for maintenance
    times: int = 0  # how often its open finding was seen
    # Fields that must be equal to count together, e.g. the GPC and TPC of an Xid 13
    same: tuple[str, ...] = ()

    @property
    def requirement(self) -> Requirement:
        return Requirement(self.action, self.when)


@dataclass(frozen=True, slots=True)
class EscalationPolicy:
    """The escalation steps that entries name. `serves`: the policy also applies to findings with
    this action, if a case changed what their entry requires.
    """

    name: str
    steps: tuple[EscalationStep, ...]
    serves: Action | None = None
