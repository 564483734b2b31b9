"""
The owner of a node in Slurm: the one rule for draining and resuming it, and for rebooting it.

Owns     which states and reasons are an administrator's order, and which are vitald's.
Refuses  querying Slurm, and changing a node.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from vitald.slurm.reasons import read_recorded_reasons
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import SlurmSettings

ACTION = "Action:"  # HyperPod acts on a node whose reason begins so
# Flags of a state begin so: a reservation for maintenance, a change of power, `scontrol reboot`.
_ORDERED = ("MAINT", "POWER", "REBOOT")
_DRAINED = {"DRAIN", "DRAINED", "DRAINING"}
# Slurm adds this to the reason of a drained node that it reboots, and which stays drained.
_REBOOTED = " : reboot issued"


class Owner(Enum):
    SLURM = "slurm"  # in service: vitald may drain it
    VITALD = "vitald"  # drained by vitald: it may change the reason, and resume it
    OTHERS = "others"  # an administrator, Slurm itself, HyperPod: vitald changes nothing


class Ownership(NamedTuple):
    """`obstacle`: why vitald may not change the node; empty if it may."""

    owner: Owner
    obstacle: str = ""


def find_owner(settings: SlurmSettings, node: SlurmNode) -> Ownership:
    """The owner of a node, by its state and reason in Slurm and the record of our reasons.

    Slurm shows no reason of a node in service, except for a reboot or a change of power.
    """
    state, reason = "+".join(sorted(node.states)), node.reason or "no reason given"
    if node.reason.startswith(ACTION):
        return Ownership(Owner.OTHERS, f"{node.reason} is under way")
    if any(flag.startswith(_ORDERED) for flag in node.states):
        return Ownership(Owner.OTHERS, f"it is {state}, for: {reason}")
    if not node.held:
        return Ownership(Owner.SLURM)
    if not (node.states & _DRAINED and node.reason.startswith(settings.prefix)):
        return Ownership(Owner.OTHERS, f"it is {state} already, for: {reason}")
    if is_our_reason(settings, node.reason):
        return Ownership(Owner.VITALD)
    return Ownership(
        Owner.OTHERS, f"its reason is not the one recorded in {settings.record}: {reason}"
    )


def is_our_reason(settings: SlurmSettings, reason: str) -> bool:
    """Whether it is one of the last that we gave the node, unchanged by anybody but Slurm."""
    return reason.removesuffix(_REBOOTED) in read_recorded_reasons(settings)
