"""
The health check of `vitald slurm`: brings Slurm's node and vitald's jobs up to date.

Owns     when a node that we drained is resumed, and which jobs have ended unreported.
Refuses  doing anything without a verdict.
"""

from __future__ import annotations

from pathlib import Path

from vitald.cli import client
from vitald.cli.slurm.daemon_client import SCONTROL_S, DaemonClient, ScriptSettings
from vitald.cli.slurm.handover import find_obstacle
from vitald.server import endpoints
from vitald.slurm import drain, scontrol, slurmd
from vitald.slurm.owner import (
    Owner,
    find_owner,
    first_reason,
    forget_reasons,
    read_recorded_reasons,
)
from vitald.slurm.report import report
from vitald.slurm.slurmd import find_jobs_with_steps

_PROCFS = Path("/proc")
_MAX_UNREPORTED = 16  # jobs looked up in Slurm in one health check


def check_node(settings: ScriptSettings, daemon: DaemonClient) -> None:
    """Drain an unfit node, resume one that we drained, report the job ends that no epilog did."""
    try:
        _drain_or_resume(settings, daemon)
    except (client.NoAnswer, client.DaemonRefused) as error:
        report(f"unknown, nothing done: {error}")
    else:
        report_ended_jobs(settings, daemon)


def _drain_or_resume(settings: ScriptSettings, daemon: DaemonClient) -> None:
    """Without a verdict nothing is done: an unknown node is neither fit nor unfit."""
    verdict = daemon.read_verdict()
    if verdict["status"] == "unknown":
        report(f"unknown, nothing done: {first_reason(verdict)}")
        return
    name = slurmd.read_node_name()
    node = scontrol.read_node_state(name, SCONTROL_S)
    if isinstance(node, str):
        report(f"nothing done: {node}")
        return
    if verdict["status"] == "unhealthy":
        is_drained = drain.drain_node(
            settings,
            verdict,
            name,
            node,
            SCONTROL_S,
            lambda: find_obstacle(settings.config, name, verdict, SCONTROL_S),
        )
        if is_drained:
            daemon.report_state("drained")
        return
    owner, obstacle = find_owner(settings, node)
    if owner is Owner.SLURM:
        if read_recorded_reasons(settings):  # an administrator has resumed it
            daemon.report_state("in_service")
        forget_reasons(settings)
    elif owner is Owner.VITALD:
        # Once more: a prolog may have drained it since we asked.
        status = daemon.read_verdict()["status"]
        if status not in ("healthy", "degraded"):
            report(f"{name}: not resumed: {status}")
            return
        if drain.resume_node(settings, name, str(status), SCONTROL_S):
            daemon.report_state("in_service")
    elif node.reason.startswith(settings.prefix):
        report(f"{name}: not resumed: {obstacle}")
    drain.remove_comment(settings, name, node, SCONTROL_S)


def report_ended_jobs(settings: ScriptSettings, daemon: DaemonClient) -> None:
    """Report to vitald the ends of jobs whose epilog could not: a job that seems to run keeps the
    node from being idle.

    A job with a process here runs. The others are looked up in Slurm: a job may hold a node without
    a step.
    """
    try:
        jobs = daemon.get(endpoints.JOBS)["running"]
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
        diagnose = settings.level_2_after_failure
        try:
            daemon.report_job("end", {"job": name, **end.exit_state, "diagnose": diagnose})
        except (client.NoAnswer, client.DaemonRefused) as error:
            report(f"the end of job {name} was not noted: {error}")
        else:
            state = end.state or "Slurm does not know it any more"
            report(f"job {name} is over ({state}), and nobody had told: noted")
