"""
`vitald slurm prolog|epilog|health`: what the scripts of packaging/slurm call, as root, on the node.

    prolog   0 the job may begin, 20 it may not: the node has been drained with our reason (or
             somebody else had done so)
    epilog   always 0: the job's end is noted, and a diagnostic asked for where the job failed
    health   always 0: drains a node that is unfit, and resumes one that we drained and that is fit
             again

A refusal is 20 and never 1: a traceback exits 1, and a broken installation must not drain a whole
cluster. The script turns 20 into what Slurm wants. Everything has a deadline, scontrol too; where
vitald does not know, the configuration decides.

Owns     what is done at each edge of a job, and in which order.
Refuses  judging, and waiting for Slurm. How a node is drained is in agent/vitald/slurm.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import client
from vitald.cli.slurm_daemon import FOR_SCONTROL, DaemonClient, run_level_1
from vitald.slurm import drain, scontrol, slurmd
from vitald.slurm.reasons import first_reason, forget_reasons, is_our_reason
from vitald.slurm.report import report
from vitald.slurm.settings import REASONS_FILE, Settings, read_settings
from vitald.slurm.steps import find_jobs_with_steps

if TYPE_CHECKING:
    from vitald.server import schema

_CONFIG = Path("/etc/vitald/config.toml")
_PROCFS = Path("/proc")
_REASONS_VARIABLE = "VITALD_SLURM_RECORD"  # names another place for REASONS_FILE
_ALLOWED, _REFUSED = 0, 20
_SCONTROL_S = 5.0
_ANSWER_S = 5.0  # where no job waits
_STARTING_S = 0.1  # what the interpreter and the script have taken of the budget already
_MAX_UNREPORTED = 16  # jobs that Slurm is asked about in one health check


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "edge",
        choices=[*_EDGES],
        metavar="prolog|epilog|health",
        help="which of Slurm's programs this is",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=_CONFIG,
        metavar="FILE",
        help=f"the daemon's configuration (default: {_CONFIG})",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        default=None,
        metavar="PATH",
        help="the daemon's socket (default: as configured)",
    )


def run(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    settings = Settings()
    edge = arguments.edge
    try:
        settings = read_settings(arguments.config)
        reasons_file = Path(os.environ.get(_REASONS_VARIABLE) or REASONS_FILE)
        settings = settings._replace(reasons_file=reasons_file)
        allowed_s = settings.budget_s - _STARTING_S if edge == "prolog" else _ANSWER_S
        daemon = DaemonClient(arguments.socket or settings.socket, begun + allowed_s)
        return _EDGES[edge](settings, daemon)
    except Exception as error:
        # Our own failure must neither block the cluster nor count as healthy.
        problem = f"{type(error).__name__}: {error}"
    if edge == "prolog":
        return _decide_unknown(settings, problem)
    report(f"{edge}: not done: {problem}")
    return 0


# What is done at each edge.


def run_prolog(settings: Settings, daemon: DaemonClient) -> int:
    """The cached verdict first: a job that may not begin need not pre-empt anything."""
    try:
        verdict = daemon.read_verdict(1 - FOR_SCONTROL)
    except (client.NoAnswer, client.Refused) as error:
        return _decide_unknown(settings, str(error), daemon.seconds_left)
    code = _decide(settings, verdict, daemon)
    if code:
        return code
    job = slurmd.read_job()
    if not job:
        report("no SLURM_JOB_ID: not called by slurmd? The job was not noted")
        return _ALLOWED
    name = str(job["job"])
    try:
        daemon.ask("/v1/jobs", {"event": "begin", **job})
    except (client.NoAnswer, client.Refused) as error:
        trouble = "vitald did not say that the devices are free"
        report(f"job {name} may begin, but {trouble}: {error}")
        return _ALLOWED
    if settings.level_1_age_s and run_level_1(settings, daemon, name):
        try:
            code = _decide(settings, daemon.read_verdict(1 - FOR_SCONTROL), daemon)
        except (client.NoAnswer, client.Refused) as error:
            report(f"going by the verdict before the diagnostic: {error}")
            return _ALLOWED
        if code:
            with suppress(client.NoAnswer, client.Refused):  # the epilog tells it, too
                reason = "refused by the prolog"
                daemon.ask("/v1/jobs", {"event": "end", **job, "reason": reason})
    return code


def run_epilog(settings: Settings, daemon: DaemonClient) -> int:
    """Report how a job ended; ask for a diagnostic after one that failed. Waits for nothing."""
    job = slurmd.read_job()
    if not job:
        report("no SLURM_JOB_ID: not called by slurmd?")
        return 0
    name = str(job["job"])
    body = {"event": "end", **job, **slurmd.read_exit_state(name)}
    try:
        answer = daemon.ask("/v1/jobs", {**body, "diagnose": settings.level_2_after_failure})
    except (client.NoAnswer, client.Refused) as error:
        report(f"the end of job {name} was not noted: {error}")
        return 0
    run = answer.get("diagnostic")
    if isinstance(run, dict):
        asked = "asked for a level 2 diagnostic" if run.get("asked") else "no level 2 diagnostic"
        report(f"{asked}: {run.get('why')}")
    return 0


def run_health_check(settings: Settings, daemon: DaemonClient) -> int:
    """Drain an unfit node, resume one that we drained, report the job ends that no epilog did."""
    try:
        _drain_or_resume(settings, daemon)
    except (client.NoAnswer, client.Refused) as error:
        report(f"unknown, nothing done: {error}")
    else:
        _report_ended_jobs(settings, daemon)
    return 0


def _drain_or_resume(settings: Settings, daemon: DaemonClient) -> None:
    """Without a verdict nothing is done: an unknown node is neither fit nor unfit."""
    verdict = daemon.read_verdict()
    if verdict["status"] == "unknown":
        report(f"unknown, nothing done: {first_reason(verdict)}")
        return
    name = slurmd.read_node_name()
    node = scontrol.read_node_state(name, _SCONTROL_S)
    if isinstance(node, str):
        report(f"nothing done: {node}")
        return
    if verdict["status"] == "unhealthy":
        drain.drain_node(settings, verdict, name, node, _SCONTROL_S)
        return
    if not node.held:
        forget_reasons(settings)
    elif is_our_reason(settings, node):
        # Once more: a prolog may have drained it since we asked.
        status = daemon.read_verdict()["status"]
        if status not in ("healthy", "degraded"):
            report(f"{name}: not resumed: {status}")
            return
        drain.resume_node(settings, name, node.reason, str(status), _SCONTROL_S)
    elif node.reason.startswith(settings.prefix):
        theirs = "somebody changed our reason, so the node is theirs"
        report(f"{name}: not resumed: {theirs}: {node.reason}")
    drain.remove_comment(settings, name, node, _SCONTROL_S)


def _report_ended_jobs(settings: Settings, daemon: DaemonClient) -> None:
    """Report to vitald the ends of jobs whose epilog could not: a job that seems to run keeps the
    node from being idle.

    A job with a process here runs. Slurm is asked about the others: a job may hold a node without
    a step.
    """
    try:
        jobs: list[schema.Job] = daemon.ask("/v1/jobs")["running"]
    except (client.NoAnswer, client.Refused):
        return
    names = [str(job["job"]) for job in jobs]
    here = find_jobs_with_steps(_PROCFS) if names else []
    # What is no number was reported by another scheduler.
    asked = [name for name in names if name.isascii() and name.isdigit() and name not in here]
    for name in asked[:_MAX_UNREPORTED]:
        end = scontrol.read_job_end(name, daemon.seconds_left)
        if end is None:
            continue
        body = {"event": "end", "job": name, **end.exit_state}
        try:
            daemon.ask("/v1/jobs", {**body, "diagnose": settings.level_2_after_failure})
        except (client.NoAnswer, client.Refused) as error:
            report(f"the end of job {name} was not noted: {error}")
        else:
            state = end.state or "Slurm does not know it any more"
            report(f"job {name} is over ({state}), and nobody had told: noted")


_EDGES: dict[str, Callable[[Settings, DaemonClient], int]] = {
    "prolog": run_prolog,
    "epilog": run_epilog,
    "health": run_health_check,
}


# What a verdict means for a job.


def _decide(settings: Settings, verdict: schema.NodeStatus, daemon: DaemonClient) -> int:
    if verdict["status"] == "unknown":
        return _decide_unknown(settings, first_reason(verdict), daemon.seconds_left)
    if verdict["status"] != "unhealthy":
        return _ALLOWED
    report(f"refused: {first_reason(verdict)}")
    _drain(settings, verdict, daemon.seconds_left)
    return _REFUSED


def _decide_unknown(settings: Settings, why: str, seconds: float = _SCONTROL_S) -> int:
    """Nothing is known of the node: the configured choice."""
    if settings.unknown == "allow":
        report(f"unknown, and jobs are let through then ([slurm] unknown): {why}")
        return _ALLOWED
    report(f"refused: unknown ([slurm] unknown): {why}")
    _drain(settings, {"status": "unknown", "reasons": [f"unknown: {why}"]}, seconds)
    return _REFUSED


def _drain(settings: Settings, verdict: Mapping[str, object], seconds: float) -> None:
    """Drain this node before Slurm does so for the refusal, with a reason that names no cause.

    Where that fails, or no time is left, Slurm's reason has to do.
    """
    try:
        name, end = slurmd.read_node_name(), time.monotonic() + seconds
        node = scontrol.read_node_state(name, seconds)
        if isinstance(node, str):
            report(f"not drained with a reason: {node}")
        else:
            drain.drain_node(settings, verdict, name, node, end - time.monotonic())
    except Exception as error:  # the job is refused all the same
        report(f"not drained with a reason: {type(error).__name__}: {error}")
