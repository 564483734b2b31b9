"""
`vitald slurm prolog|epilog|health`: what the scripts of packaging/slurm call, as root, on the node;
`vitald slurm retire`: what a person calls before vitald is removed from it.

    prolog   0 the job may begin, 20 it may not: the node has been drained with our reason (or
             somebody else had done so)
    epilog   always 0: reports the job's end, and requests a diagnostic if the job failed
    health   always 0: drains a node that is unfit, and resumes one that we drained and that is fit
             again
    retire   0 the node is not drained by us any more, fit or not; 69 it is, or that is not known

A refusal is 20 and never 1: a traceback exits 1, and a broken installation must not drain a whole
cluster. The script turns 20 into what Slurm wants. Everything has a deadline, scontrol too; where
vitald does not know, the configuration decides.

Owns     what is done at each edge of a job, and in which order.
Refuses  judging, and waiting for Slurm. How a node is drained is in agent/vitald/slurm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from vitald.cli import EX_UNAVAILABLE, client
from vitald.cli.client import Json
from vitald.cli.slurm.daemon_client import (
    FOR_SCONTROL,
    SCONTROL_S,
    DaemonClient,
    ScriptSettings,
    read_settings,
    run_level_1,
)
from vitald.cli.slurm.handover import find_obstacle
from vitald.slurm import slurmd
from vitald.slurm.report import report

_ALLOWED, _REFUSED = 0, 20
_EXIT_STATE_S = 1.0  # the next job may wait for the epilog
_EPILOG_S = 2.0  # likewise, whatever a level 1 diagnostic may take before a job
_ANSWER_S = 5.0  # where no job waits
_STARTING_S = 0.1  # what the interpreter and the script have taken of the budget already


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "edge",
        choices=[*_EDGES],
        metavar="prolog|epilog|health|retire",
        help="which of Slurm's programs this is; retire: resume the node if vitald drained it",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=ScriptSettings().config,
        metavar="FILE",
        help=f"the daemon's configuration (default: {ScriptSettings().config})",
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
    settings = ScriptSettings()
    edge = arguments.edge
    try:
        settings = read_settings(arguments.config)
        end = begun + _find_time_limit(settings, edge)
        daemon = DaemonClient(arguments.socket or settings.socket, end)
        return _EDGES[edge](settings, daemon)
    except Exception as error:
        # Our own failure must neither block the cluster nor count as healthy.
        problem = f"{type(error).__name__}: {error}"
    if edge == "prolog":
        return _decide_unknown(settings, problem)
    report(f"{edge}: not done: {problem}")
    return EX_UNAVAILABLE if edge == "retire" else 0


def _find_time_limit(settings: ScriptSettings, edge: str) -> float:
    """Seconds."""
    if edge == "prolog":
        return settings.budget_s - _STARTING_S
    if edge == "epilog":
        return min(settings.budget_s, _EPILOG_S) - _STARTING_S
    return _ANSWER_S


# What is done at each edge.


def run_prolog(settings: ScriptSettings, daemon: DaemonClient) -> int:
    """The cached verdict first: a job that may not begin need not pre-empt anything."""
    try:
        verdict = daemon.read_verdict(1 - FOR_SCONTROL)
    except (client.NoAnswer, client.DaemonRefused) as error:
        return _decide_unknown(settings, str(error), daemon.seconds_left)
    code = _apply_verdict(settings, verdict, daemon)
    if code:
        return code
    job = slurmd.read_job()
    if not job:
        report("no SLURM_JOB_ID: not called by slurmd? The job was not noted")
        return _ALLOWED
    name = str(job["job"])
    try:
        daemon.report_job("begin", job)
    except (client.NoAnswer, client.DaemonRefused) as error:
        trouble = "vitald did not say that the devices are free"
        report(f"job {name} may begin, but {trouble}: {error}")
        return _ALLOWED
    if settings.level_1_age_s and run_level_1(settings, daemon, name):
        try:
            code = _apply_verdict(settings, daemon.read_verdict(1 - FOR_SCONTROL), daemon)
        except (client.NoAnswer, client.DaemonRefused) as error:
            report(f"going by the verdict before the diagnostic: {error}")
            return _ALLOWED
        if code:
            with suppress(client.NoAnswer, client.DaemonRefused):  # the epilog reports it, too
                daemon.report_job("end", {**job, "reason": "refused by the prolog"})
    return code


def run_epilog(settings: ScriptSettings, daemon: DaemonClient) -> int:
    """Report how a job ended; ask for a diagnostic after one that failed. Waits for nothing."""
    job = slurmd.read_job()
    if not job:
        report("no SLURM_JOB_ID: not called by slurmd?")
        return 0
    name = str(job["job"])
    ended = {**job, **_read_exit_state(name), "diagnose": settings.level_2_after_failure}
    try:
        answer = daemon.report_job("end", ended)
    except (client.NoAnswer, client.DaemonRefused) as error:
        report(f"the end of job {name} was not noted: {error}")
        return 0
    run = answer.get("diagnostic")
    if isinstance(run, dict):
        result = "requested a" if run.get("requested") else "no"
        report(f"{result} level 2 diagnostic: {run.get('why')}")
    return 0


def _read_exit_state(job: str) -> Json:
    """From slurmd, and only where it does not say it from scontrol."""
    known = slurmd.read_exit_state()
    if known:
        return known
    from vitald.slurm import scontrol

    return scontrol.read_exit_state(job, _EXIT_STATE_S)


def run_health_check(settings: ScriptSettings, daemon: DaemonClient) -> int:
    from vitald.cli.slurm import health  # no part of a prolog

    health.check_node(settings, daemon)
    return 0


def retire_node(settings: ScriptSettings, _daemon: DaemonClient) -> int:
    """Undo what vitald did to this node in Slurm, so that vitald can be removed."""
    from vitald.slurm import drain, scontrol

    name = slurmd.read_node_name()
    node = scontrol.read_node_state(name, SCONTROL_S)
    if isinstance(node, str):
        report(f"{name}: not retired: {node} (another name in Slurm: SLURMD_NODENAME=NAME)")
        return EX_UNAVAILABLE
    return 0 if drain.retire_node(settings, name, node, SCONTROL_S) else EX_UNAVAILABLE


_EDGES: dict[str, Callable[[ScriptSettings, DaemonClient], int]] = {
    "prolog": run_prolog,
    "epilog": run_epilog,
    "health": run_health_check,
    "retire": retire_node,
}


# What a verdict means for a job.


def _apply_verdict(
    settings: ScriptSettings, verdict: Mapping[str, object], daemon: DaemonClient
) -> int:
    if verdict["status"] not in ("unknown", "unhealthy"):
        return _ALLOWED
    from vitald.slurm.owner import first_reason  # few jobs are refused

    if verdict["status"] == "unknown":
        return _decide_unknown(settings, first_reason(verdict), daemon.seconds_left)
    report(f"refused: {first_reason(verdict)}")
    if _drain_node(settings, verdict, daemon.seconds_left):
        daemon.report_state("drained")
    return _REFUSED


def _decide_unknown(settings: ScriptSettings, why: str, seconds: float = SCONTROL_S) -> int:
    """Nothing is known of the node: the configured choice. The job is counted last, since a slow
    disk must delay no drain.
    """
    from vitald.slurm.unknown_jobs import count_job  # few jobs begin so

    if settings.unknown == "allow":
        code = _ALLOWED
        report(f"unknown, and jobs are let through then ([slurm] unknown): {why}")
    else:
        code = _REFUSED
        report(f"refused: unknown ([slurm] unknown): {why}")
        _drain_node(settings, {"status": "unknown", "reasons": [f"unknown: {why}"]}, seconds)
    count_job(settings)
    return code


def _drain_node(settings: ScriptSettings, verdict: Mapping[str, object], seconds: float) -> bool:
    """Drain this node with our reason, before Slurm drains it for the refusal with one that names
    no cause. Where that fails, or no time is left, Slurm's has to do. Whether it is drained.
    """
    try:
        from vitald.slurm import drain, scontrol  # few jobs are refused

        name, end = slurmd.read_node_name(), time.monotonic() + seconds
        node = scontrol.read_node_state(name, seconds)
        if isinstance(node, str):
            report(f"not drained with a reason: {node}")
            return False
        return drain.drain_node(
            settings,
            verdict,
            name,
            node,
            end - time.monotonic(),
            lambda: find_obstacle(settings.config, name, verdict, end - time.monotonic()),
        )
    except Exception as error:  # the job is refused all the same
        report(f"not drained with a reason: {type(error).__name__}: {error}")
        return False
