"""
The node's scheduler: whether work runs here, draining the node, marking it for replacement.

    none         no draining; refused if the daemon of a scheduler runs here
    slurm        agent/vitald/recovery/slurm_cluster.py
    kubernetes   agent/vitald/recovery/kubernetes.py
    a program    exit 0: drained, and nothing runs; 75: work still runs; anything else: it failed

Refuses  ending work. Nothing here evicts a pod or cancels a job.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.recovery import programs
from vitald.recovery.decision import SchedulerState
from vitald.recovery.kubernetes import Kubernetes
from vitald.recovery.scheduler import ActionContext, Scheduler, get_node_name
from vitald.recovery.settings import Method, RecoverySettings
from vitald.recovery.slurm_cluster import SlurmCluster
from vitald.slurm.slurmd import find_jobs_with_steps

_STILL_RUNS = 75  # EX_TEMPFAIL
_SCHEDULERS = ("slurmd", "kubelet")


def create_scheduler(method: Method, config: Config) -> Scheduler:
    """The scheduler of `[recovery] drain` or `replace`."""
    if method.argv:
        return Program(method.argv, config)
    if method.word == "slurm":
        return SlurmCluster(config)
    if method.word == "kubernetes":
        return Kubernetes(config)
    return NoScheduler(config)


def list_job_steps(procfs: Path) -> tuple[str, ...]:
    """Slurm jobs that have a process here, whichever scheduler is configured."""
    return tuple(f"job {job} of Slurm" for job in find_jobs_with_steps(procfs))


def _find_processes(procfs: Path, *names: str) -> list[str]:
    """Ids of the processes with one of these names. A process chooses its own name: this is enough
    to refuse an action, never enough to take one.
    """
    found = []
    for process in procfs.iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if (process / "comm").read_text("utf-8", "replace").rstrip("\n") in names:
                    found.append(process.name)
    return found


class NoScheduler:
    def __init__(self, config: Config) -> None:
        self._procfs = config[Paths].procfs

    def read_state(self, context: ActionContext) -> SchedulerState:  # noqa: ARG002
        for name in _SCHEDULERS:
            if _find_processes(self._procfs, name):
                return SchedulerState(
                    trouble=(
                        f'{name} runs here, and [recovery] drain is "none": it could start work at'
                        " any moment"
                    )
                )
        return SchedulerState(drained=True)

    def drain_node(self, context: ActionContext) -> SchedulerState:
        return self.read_state(context)

    def undo_drain(self, context: ActionContext) -> str:  # noqa: ARG002
        return ""

    def mark_for_replacement(self, context: ActionContext) -> str:  # noqa: ARG002
        return '[recovery] replace is "none"'


class Program:
    """A program of the site. Its environment says which action it is run for."""

    def __init__(self, argv: tuple[str, ...], config: Config) -> None:
        self._argv = argv
        self._deadline_s = config[RecoverySettings].deadline_s
        self._node = get_node_name(config)

    def read_state(self, context: ActionContext) -> SchedulerState:  # noqa: ARG002
        """Unknown until the program is run."""
        return SchedulerState()

    def drain_node(self, context: ActionContext) -> SchedulerState:
        done = programs.run_program(
            self._argv, self._deadline_s, context.build_environment(self._node)
        )
        if done.exit_code == _STILL_RUNS:
            message = done.trouble.partition(": exit 75: ")[2] or "something still runs here"
            return SchedulerState(drained=True, busy=f"{self._argv[0]} says: {message}")
        if done.trouble:
            return SchedulerState(trouble=done.trouble)
        return SchedulerState(drained=True)

    def mark_for_replacement(self, context: ActionContext) -> str:
        return programs.run_program(
            self._argv, self._deadline_s, context.build_environment(self._node)
        ).require_start()

    def undo_drain(self, context: ActionContext) -> str:  # noqa: ARG002
        return f"{self._argv[0]} cannot undo what it did"
