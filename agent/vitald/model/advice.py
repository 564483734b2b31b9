"""
Advice to the jobs of this node: whether to save a checkpoint now, and why.

It is no verdict: status, flags and fitness are the same with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitald.model.action import Action, Repair, When

# What happens to the node besides a repair
INTERRUPTION = "interruption"  # the cloud provider interrupts the instance
ANNOUNCED = "announced"  # what a person announced
# How long a person may have jobs advised, and how long if nothing is said
MIN_ANNOUNCED_S, MAX_ANNOUNCED_S = 60, 86400
ANNOUNCED_S = 1200

ADVICE_ACTIONS = (
    *(action.value for action in Action if action.makes_unfit),
    INTERRUPTION,
    ANNOUNCED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether jobs are advised to save. `why`, `action` and `when` are empty if they are not.

    `by`: until when to save, in seconds since the epoch, where that is known. Nothing is forced
    then. `finding`: the number of the finding that is the reason, if one is.
    """

    save: bool
    why: str = ""
    action: str = ""  # one of ADVICE_ACTIONS: what the node or a device of it needs
    when: str = ""  # a value of `When`
    by: float | None = None
    finding: int | None = None


NO_ADVICE = Advice(save=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedSave:
    """A person announced a planned reset or reboot. Times in seconds since the epoch."""

    reason: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRepair:
    """The repair that root is requested to do, for the findings with these numbers."""

    repair: Repair
    findings: tuple[int, ...]
    by: float | None = None  # until when root waits for jobs that save, in seconds since the epoch


_REPAIR_ACTIONS = {Repair.REBOOT: Action.REBOOT_NODE, Repair.REPLACE: Action.REPLACE_NODE}


def advise_for_repair(requested: RequestedRepair, why: str, when: When) -> Advice:
    """The advice before a repair that was requested of root."""
    return Advice(
        save=True,
        why=why,
        action=_REPAIR_ACTIONS[requested.repair].value,
        when=when.value,
        by=requested.by,
        finding=requested.findings[0] if requested.findings else None,
    )
