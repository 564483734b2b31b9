"""
The health check of `vitald slurm`: brings Slurm's node and vitald's jobs up to date.

Owns     when a node that we drained is resumed, and which jobs have ended unreported.
Refuses  doing anything without a verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import client
from vitald.cli.slurm.daemon import SCONTROL_S, DaemonClient
from vitald.slurm import drain, job_signals, scontrol, slurmd
from vitald.slurm.reasons import first_reason, forget_reasons, is_our_reason
from vitald.slurm.reasons_lock import ReasonsLocked, hold_reasons
from vitald.slurm.report import report
from vitald.slurm.settings import Settings
from vitald.slurm.steps import find_jobs_with_steps

if TYPE_CHECKING:
    from vitald.server import schema

_PROCFS = Path("/proc")
_MAX_UNREPORTED = 16  # jobs looked up in Slurm in one health check


def check_node(settings: Settings, daemon: DaemonClient) -> None:
    """Drain an unfit node, resume one that we drained, report the job ends that no epilog did."""
    verdict, state = None, ""
    try:
        with hold_reasons(settings, SCONTROL_S):
            verdict = daemon.read_verdict()
            state = _drain_or_resume(settings, daemon, verdict)
    except ReasonsLocked as error:
        report(f"nothing done: {error}")
    except (client.NoAnswer, client.DaemonRefused) as error:
        report(f"unknown, nothing done: {error}")
        return
    if state:
        daemon.report_state(state)
    if verdict is not None:  # Without the lock: with many jobs it takes long, and prologs wait.
        job_signals.signal_jobs(settings, verdict, slurmd.read_node_name(), SCONTROL_S)
    report_ended_jobs(settings, daemon)


def _drain_or_resume(settings: Settings, daemon: DaemonClient, verdict: schema.NodeStatus) -> str:
    """Returns the state that the node has in Slurm now, as far as it is of our doing: `drained`,
    `in_service` or empty. Without a verdict nothing is done: an unknown node is neither fit nor
    unfit.
    """
    if verdict["status"] == "unknown":
        report(f"unknown, nothing done: {first_reason(verdict)}")
        return ""
    name = slurmd.read_node_name()
    node = scontrol.read_node_state(name, SCONTROL_S)
    if isinstance(node, str):
        report(f"nothing done: {node}")
        return ""
    if verdict["status"] == "unhealthy":
        is_drained = drain.drain_node(settings, verdict, name, node, SCONTROL_S)
        return "drained" if is_drained else ""
    state = ""
    if not node.held:
        forget_reasons(settings)
        state = "in_service"
    elif is_our_reason(settings, node):
        # Once more: a prolog may have drained it since we asked.
        status = daemon.read_verdict()["status"]
        if status not in ("healthy", "degraded"):
            report(f"{name}: not resumed: {status}")
            return ""
        if drain.resume_node(settings, name, node.reason, str(status), SCONTROL_S):
            state = "in_service"
    elif node.reason.startswith(settings.prefix):
        reason = "somebody changed our reason, so the node is theirs"
        report(f"{name}: not resumed: {reason}: {node.reason}")
    drain.remove_comment(settings, name, node, SCONTROL_S)
    return state


def report_ended_jobs(settings: Settings, daemon: DaemonClient) -> None:
    """Report to vitald the ends of jobs whose epilog could not: a job that seems to run keeps the
    node from being idle.

    A job with a process here runs. The others are looked up in Slurm: a job may hold a node without
    a step.
    """
    try:
        jobs: list[schema.ApiJob] = daemon.call_api("/v1/jobs")["running"]
    except (client.NoAnswer, client.DaemonRefused):
        return
    names = [str(job["job"]) for job in jobs]
    here = find_jobs_with_steps(_PROCFS) if names else []
    # What is no number was reported by another scheduler.
    lookups = [name for name in names if name.isascii() and name.isdigit() and name not in here]
    for name in lookups[:_MAX_UNREPORTED]:
        end = scontrol.read_job_end(name, daemon.seconds_left)
        if end is None:
            continue
        body = {"event": "end", "job": name, **end.exit_state}
        try:
            daemon.call_api("/v1/jobs", {**body, "diagnose": settings.level_2_after_failure})
        except (client.NoAnswer, client.DaemonRefused) as error:
            report(f"the end of job {name} was not noted: {error}")
        else:
            state = end.state or "Slurm does not know it any more"
            report(f"job {name} is over ({state}), and nobody had told: noted")
