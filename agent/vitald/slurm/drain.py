"""
Takes a node out of service in Slurm and resumes it: by draining it, or with a state and a reason on
which SageMaker HyperPod acts.

Owns     which nodes may be changed: never one that others took out of service, or on which HyperPod
         acts.
Refuses  verdicts, and waiting until the node is free.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from vitald.slurm import scontrol
from vitald.slurm.reasons import (
    Verdict,
    forget_reasons,
    format_reason,
    is_our_reason,
    record_reasons,
)
from vitald.slurm.report import report
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import Settings

ACTION = "Action:"  # HyperPod acts on a node whose reason begins so: it must not be changed then
# Exactly these reasons: HyperPod ignores any other text.
REBOOT, REPLACE = "Action:Reboot", "Action:Replace"


def drain_node(
    settings: Settings,
    verdict: Verdict,
    name: str,
    node: SlurmNode,
    seconds: float,
    ask_brake: Callable[[], str] | None = None,
) -> None:
    """Take a node out of service for the verdict's reason, within `seconds`, and report it.

    `node`: its present state in Slurm. A node that others took out of service is left as it is.
    `ask_brake`: why the node may not be handed to HyperPod now; empty if it may.
    """
    ours = is_our_reason(settings, node)
    if node.reason.startswith(ACTION):
        report(f"{name}: left alone: {node.reason} is under way")
        return
    if node.held and not ours:
        state = "+".join(sorted(node.states))
        why = node.reason or "no reason given"
        report(f"{name}: left alone: it is {state} already, for: {why}")
        return
    end = time.monotonic() + seconds
    reason = format_reason(settings, verdict)
    action = choose_hyperpod_action(verdict) if settings.hyperpod else ""
    # Before the brake is asked: nodes that ask at the same moment see each other.
    if not action or ask_brake is not None:
        changes = [] if node.held else ["state=drain"]
        if changes or node.reason != reason:
            problem = _set_reason(settings, name, node.reason, reason, changes, seconds)
            action = "" if problem else action
    if not action:
        return
    refusal = ask_brake() if ask_brake is not None else ""
    if refusal:
        report(f"{name}: not handed to HyperPod, only drained: {refusal}")
        return
    own_comment = not node.comment or node.comment.startswith(settings.prefix)
    _fail_node(name, action, reason, end - time.monotonic(), comment=own_comment)


def resume_node(settings: Settings, name: str, reason: str, why: str, seconds: float) -> bool:
    """Resume a node that we drained for `reason`, and report it. `why`: it may be resumed. Whether
    it was.
    """
    problem = scontrol.update_node(name, ["state=resume"], seconds)
    if problem:
        report(f"{name}: not resumed: {problem}")
        return False
    report(f"{name}: resumed: {why}; it was drained for: {reason}")
    forget_reasons(settings)
    return True


def retire_node(settings: Settings, name: str, node: SlurmNode, seconds: float) -> bool:
    """Resume a node that we drained, fit or not, and remove our comment. Whether it is not drained
    by us any more. A node that others took out of service, or whose reason they changed, is theirs.
    """
    if node.reason.startswith(ACTION):
        report(f"{name}: left alone: {node.reason} is under way")
        return False
    remove_comment(settings, name, node, seconds)
    if node.held and is_our_reason(settings, node):
        return resume_node(settings, name, node.reason, "vitald retires", seconds)
    why = ""
    if node.held:  # the record is kept: it says that the reason is not ours
        why = f", for: {node.reason or 'no reason given'}"
    else:
        forget_reasons(settings)
    report(f"{name}: not drained by vitald: {'+'.join(sorted(node.states))}{why}")
    return True


def remove_comment(settings: Settings, name: str, node: SlurmNode, seconds: float) -> None:
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
    settings: Settings,
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
    record_reasons(settings, reason)
    report(f"{name}: {' '.join(changes)}")
    return ""


def _fail_node(name: str, action: str, reason: str, seconds: float, *, comment: bool) -> None:
    """Hand a node to HyperPod. The reason goes into the comment, if that is free or ours."""
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
