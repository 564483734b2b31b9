"""
Takes a node out of service in Slurm and resumes it: by draining it, or with a state and a reason on
which SageMaker HyperPod acts.

Owns     what is changed of a node, and in which order.
Refuses  verdicts, waiting until the node is free, and a node that is not Slurm's or vitald's (by
         agent/vitald/slurm/owner.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from vitald.slurm import scontrol
from vitald.slurm.owner import (
    ACTION,
    Owner,
    Verdict,
    find_owner,
    forget_reasons,
    format_reason,
    is_our_reason,
    record_reasons,
)
from vitald.slurm.report import report
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import SlurmSettings

# Exactly these reasons: HyperPod ignores any other text.
REBOOT, REPLACE = "Action:Reboot", "Action:Replace"


def drain_node(
    settings: SlurmSettings,
    verdict: Verdict,
    name: str,
    node: SlurmNode,
    seconds: float,
    find_obstacle: Callable[[], str] | None = None,
) -> bool:
    """Take a node out of service for the verdict's reason, within `seconds`, and report it. Whether
    Slurm gives it no more work, by whomever it was drained.

    `node`: its present state in Slurm. A node with another owner is left as it is.
    `find_obstacle`: why the node may not be handed to HyperPod now; empty if it may.
    """
    if _leave_to_others(settings, name, node):
        return node.held
    end, is_held = time.monotonic() + seconds, node.held
    reason = format_reason(settings, verdict)
    action = choose_hyperpod_action(verdict) if settings.hyperpod else ""
    # Before the brake is asked: nodes that ask at the same moment see each other.
    if not action or find_obstacle is not None:
        changes = [] if node.held else ["state=drain"]
        if changes or node.reason != reason:
            problem = _set_reason(settings, name, node.reason, reason, changes, seconds)
            action = "" if problem else action
            is_held = is_held or not problem
    if not action:
        return is_held
    if find_obstacle is not None:
        # Finding out may have taken long: the node's state is read again.
        known = find_obstacle() or scontrol.read_node_state(name, end - time.monotonic())
        if isinstance(known, str):
            report(f"{name}: not handed to HyperPod, only drained: {known}")
            return is_held
        node = known
        if _leave_to_others(settings, name, node):
            return node.held
    own_comment = not node.comment or node.comment.startswith(settings.prefix)
    has_failed = _fail_node(name, action, reason, end - time.monotonic(), comment=own_comment)
    return is_held or has_failed


def resume_node(settings: SlurmSettings, name: str, why: str, seconds: float) -> bool:
    """Resume a node if it is vitald's now, and report it. `why`: it may be resumed. Whether it was.

    Reads its state once more: `state=resume` also cancels a reboot that was ordered meanwhile.
    """
    end = time.monotonic() + seconds
    node = scontrol.read_node_state(name, seconds)
    if isinstance(node, str):
        report(f"{name}: not resumed: {node}")
        return False
    owner, obstacle = find_owner(settings, node)
    if owner is not Owner.VITALD:
        report(f"{name}: not resumed: {obstacle or 'it is in service'}")
        return False
    problem = scontrol.update_node(name, ["state=resume"], end - time.monotonic())
    if problem:
        report(f"{name}: not resumed: {problem}")
        return False
    report(f"{name}: resumed: {why}; it was drained for: {node.reason}")
    forget_reasons(settings)
    return True


def retire_node(settings: SlurmSettings, name: str, node: SlurmNode, seconds: float) -> bool:
    """Resume a node that we drained, fit or not, and remove our comment. Whether it is not drained
    by us any more: a node with another owner keeps its reason, and we our record.
    """
    remove_comment(settings, name, node, seconds)
    owner, obstacle = find_owner(settings, node)
    if owner is Owner.VITALD:
        return resume_node(settings, name, "vitald retires", seconds)
    if owner is Owner.SLURM:
        forget_reasons(settings)
        report(f"{name}: not drained by vitald: {'+'.join(sorted(node.states))}")
        return True
    report(f"{name}: left alone: {obstacle}")
    return not (node.reason.startswith(ACTION) or is_our_reason(settings, node.reason))


def _leave_to_others(settings: SlurmSettings, name: str, node: SlurmNode) -> bool:
    """Report a node with another owner. Whether it has one."""
    owner, obstacle = find_owner(settings, node)
    if owner is Owner.OTHERS:
        report(f"{name}: left alone: {obstacle}")
    return owner is Owner.OTHERS


def remove_comment(settings: SlurmSettings, name: str, node: SlurmNode, seconds: float) -> None:
    """Remove a comment of ours, unless HyperPod still acts on the node. Best effort."""
    if node.comment.startswith(settings.prefix) and not node.reason.startswith(ACTION):
        scontrol.update_node(name, ["comment="], seconds)


def choose_hyperpod_action(verdict: Verdict) -> str:
    """HyperPod's action for a confirmed reboot or replacement; empty for anything else.

    A drill requires no action: no instance is replaced for it.
    """
    replace = verdict.get("replacementConfirmed") is True
    reboot = verdict.get("rebootConfirmed") is True
    if verdict.get("simulated"):
        findings = cast("list[Verdict]", verdict.get("findings") or [])
        # If no finding is a drill's, the devices themselves are simulated: no finding is real.
        drill = any(finding["simulated"] for finding in findings)
        real = [finding for finding in findings if drill and not finding["simulated"]]
        actions = [finding["action"] for finding in real if finding.get("confirmed")]
        replace = replace and "replace_node" in actions
        reboot = reboot and "reboot_node" in actions
    if replace:
        return REPLACE
    return REBOOT if reboot else ""


def _set_reason(
    settings: SlurmSettings,
    name: str,
    former: str,
    reason: str,
    changes: list[str],
    seconds: float,
) -> str:
    """Give a node our reason. Until Slurm has accepted it, the former one counts as ours, too. Why
    that failed; empty if it did not.
    """
    changes = [*changes, f"reason={reason}"]
    record_reasons(settings, former, reason)
    problem = scontrol.update_node(name, changes, seconds)
    if problem:
        report(f"{name}: not drained: {problem}")
        return problem
    record_reasons(settings, reason, durable=True)  # only now: a slow disk delays no drain
    report(f"{name}: {' '.join(changes)}")
    return ""


def _fail_node(name: str, action: str, reason: str, seconds: float, *, comment: bool) -> bool:
    """Hand a node to HyperPod. The reason goes into the comment, if that is free or ours. Whether
    Slurm has accepted it.
    """
    end = time.monotonic() + seconds
    changes = ["state=fail", f"reason={action}"]
    problem = ""
    if comment:
        # In one call: between two calls others could change the node.
        problem = scontrol.update_node(name, [*changes, f"comment={reason}"], seconds / 2)
        if problem:
            report(f"{name}: not with a comment: {problem}")
    if problem or not comment:
        problem = scontrol.update_node(name, changes, end - time.monotonic())
    if problem:
        report(f"{name}: not drained: {problem}")
    else:
        report(f"{name}: {' '.join(changes)} ({reason})")
    return not problem
