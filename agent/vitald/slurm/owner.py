"""
The owner of a node in Slurm: the one rule for draining and resuming it, and for rebooting it. And
the reason that we give a node, with the record of the last ones.

An administrator may add a note to our reason, or write another one after our prefix; from then on
vitald does not change the node. To notice that, the last reasons that we gave are recorded in a
file.

Owns     which states and reasons are an administrator's order, and which are vitald's; the text of
         a reason, and the file.
Refuses  querying Slurm, and changing a node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple, cast

from vitald.slurm.report import report
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import SlurmSettings

ACTION = "Action:"  # HyperPod acts on a node whose reason begins so
# Flags of a state begin so: a reservation for maintenance, a change of power, `scontrol reboot`.
_ORDERED = ("MAINT", "POWER", "REBOOT")
_DRAINED = {"DRAIN", "DRAINED", "DRAINING"}
# Slurm adds this to the reason of a drained node that it reboots, and which stays drained.
_REBOOTED = " : reboot issued"
Verdict = Mapping[str, object]  # the daemon's answer to /v1/status
_MAX_REASON = 200  # characters


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


def first_reason(verdict: Verdict) -> str:
    """The strongest reason of a verdict, or its status if it has none."""
    reasons = cast("list[str]", verdict["reasons"])
    return reasons[0] if reasons else str(verdict["status"])


def format_reason(settings: SlurmSettings, verdict: Verdict) -> str:
    """Our prefix and the strongest reason, as one short line of ASCII, which Slurm stores as is."""
    plain = re.sub(r"[^\x20-\x7e]+", " ", first_reason(verdict))
    reason = f"{settings.prefix}{' '.join(plain.split())}"
    return reason[:_MAX_REASON].rstrip(' "')  # scontrol takes a final quote for its own


def record_reasons(settings: SlurmSettings, *reasons: str, durable: bool = False) -> None:
    """Record the reasons of ours that the node may have now, instead of those recorded before.

    `durable`: wait until they are on the disk, so that they survive a crash of the node.
    """
    path = settings.record
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text("".join(f"{reason}\n" for reason in reasons if reason), encoding="utf-8")
        new.replace(path)
        if durable:
            _sync(path)
            _sync(path.parent)
    except OSError as error:
        lost = "so this drain will count as an administrator's"
        report(f"{path}: not written, {lost}: {error}")


def forget_reasons(settings: SlurmSettings) -> None:
    with suppress(OSError):
        settings.record.unlink(missing_ok=True)


def read_recorded_reasons(settings: SlurmSettings) -> list[str]:
    """The reasons that we gave the node last; none if there is no record that can be read."""
    try:
        return settings.record.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        report(f"{settings.record}: not read, so no reason counts as ours: {error}")
        return []


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
