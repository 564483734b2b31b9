"""
`[slurm] expedite`: whether the epilog of a job that died of a fault of this node fails on purpose.

Slurm 25.11 starts a batch job with `--requeue=expedite` again before all others if its script ended
with an exit code and an epilog on one of its nodes failed; if none failed, it holds the job. It
drains a node whose epilog failed, but leaves the reason of a node that is drained already. So the
node is drained with our reason first, and the epilog fails only once Slurm shows that.

Sources: Slurm, RELEASE_NOTES.md of 25.11; src/slurmctld/job_mgr.c (`job_epilog_complete`,
`batch_requeue_fini`) and node_mgr.c (`_drain_node`).

Owns     the conditions, and their order.
Refuses  judging: the daemon names the findings that began during the job and make the node unfit.
"""

from __future__ import annotations

from vitald.cli import client
from vitald.cli.slurm.daemon import SCONTROL_S, DaemonClient
from vitald.slurm import drain, scontrol, slurmd
from vitald.slurm.reasons_lock import ReasonsLocked, hold_reasons
from vitald.slurm.report import report
from vitald.slurm.settings import Settings


def drain_for_requeue(settings: Settings, daemon: DaemonClient, job: str) -> bool:
    """Drain this node if the job waits for an epilog that fails. Whether the epilog is to fail."""
    requested = scontrol.is_requeue_expedited(job, SCONTROL_S)
    if requested is None:
        report(f"job {job}: not known whether it was submitted with --requeue=expedite")
    if not requested:
        return False
    try:
        with hold_reasons(settings, SCONTROL_S):
            problem = _drain_node(settings, daemon)
    except ReasonsLocked as error:
        problem = str(error)
    if problem:
        report(f"job {job}: no expedited requeue: {problem}")
        return False
    report(f"job {job} died of a fault of this node: the epilog fails, so that Slurm requeues it")
    return True


def _drain_node(settings: Settings, daemon: DaemonClient) -> str:
    """Drain this node with our reason. Why it is not out of service then; empty if it is."""
    try:
        verdict = daemon.read_verdict()
    except (client.NoAnswer, client.DaemonRefused) as error:
        return f"unknown: {error}"
    if verdict["status"] != "unhealthy":
        return f"the node is {verdict['status']}"
    name = slurmd.read_node_name()
    node = scontrol.read_node_state(name, SCONTROL_S)
    if isinstance(node, str):
        return node
    drain.drain_node(settings, verdict, name, node, SCONTROL_S)
    drained = scontrol.read_node_state(name, SCONTROL_S)
    if isinstance(drained, str):
        return drained
    if drained.reason.startswith(drain.ACTION):
        return f"HyperPod acts on {name}, and requeues jobs itself"
    return "" if drained.held else f"{name} was not drained"
