"""
Runs scontrol with a time limit, and parses what it prints about nodes and jobs.

Owns     how scontrol is found and run, and the meaning of its output and of its failures.
Refuses  deciding what follows from the state of a node or a job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from vitald.config.paths import PATH

_HELD = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILG", "FAILING", "ERROR"}
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
_REQUEUED = "PENDING"
_UNKNOWN_JOB = "Invalid job id"
_SIGTERM = 15
_MAX_MESSAGE = 300  # characters of scontrol's error message


class SlurmNode(NamedTuple):
    """A node in Slurm: the parts of its state, its reason, its comment, its name and partitions."""

    states: frozenset[str]
    reason: str
    comment: str = ""
    name: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether it is out of service, by us or by others."""
        return bool(self.states & _HELD)


class JobEnd(NamedTuple):
    """A job that has ended: its state, empty if Slurm no longer knows the job, and how it ended.

    `exit_state` has `exitCode`, `signal` and `reason`, each only if it is known.
    """

    state: str
    exit_state: dict[str, object]


def read_node_state(name: str, seconds: float) -> SlurmNode | str:
    """A node's state, reason and comment, or why they are not known."""
    shown, problem = run_scontrol(["show", "node", name], seconds)
    return problem or parse_node_state(shown) or f"scontrol shows no state of node {name}"


def list_nodes(seconds: float) -> list[SlurmNode] | str:
    """All nodes of the cluster, or why they are not known: of each, or of none."""
    shown, problem = run_scontrol(["show", "nodes"], seconds)
    if problem:
        return problem
    nodes = []
    for block in re.split(r"^(?=NodeName=)", shown, flags=re.MULTILINE):
        node = parse_node_state(block)
        if node is not None and node.name:
            nodes.append(node)
        elif block.strip():
            return f"scontrol shows a node as {block.strip()[:80]!r}"
    return nodes


def parse_node_state(shown: str) -> SlurmNode | None:
    """Parse the output of `scontrol show node`. None if it has no state."""
    state = re.search(r"^\s+State=(\S+)", shown, re.MULTILINE)
    if state is None:
        return None
    reason = re.search(r"^ +Reason=(.*)$", shown, re.MULTILINE)
    comment = re.search(r"^ +Comment=(.*)$", shown, re.MULTILINE)
    name = re.match(r"NodeName=(\S+)", shown)
    partitions = re.search(r"^ +Partitions=(\S+)", shown, re.MULTILINE)
    return SlurmNode(
        states=frozenset(re.findall(r"[A-Z_]+", state[1])),
        # The reason is followed by who set it, and when: `[root@2026-11-21T21:12:13]`.
        reason=re.sub(r" \[[^\[\]]*@[^\[\]]*\]$", "", reason[1]) if reason else "",
        comment=comment[1] if comment else "",
        name=name[1] if name else "",
        partitions=tuple(partitions[1].split(",")) if partitions else (),
    )


def update_node(name: str, changes: Sequence[str], seconds: float) -> str:
    """Change a node, for example by `state=resume`. Why that failed; empty if it did not."""
    return run_scontrol(["update", f"nodename={name}", *changes], seconds)[1]


def read_exit_state(job: str, seconds: float) -> dict[str, object]:
    """A job's `exitCode`, `signal` and `reason`; empty if Slurm does not report them in time."""
    return parse_exit_state(_show_job(job, seconds)[0])


def read_job_end(job: str, seconds: float) -> JobEnd | None:
    """How a job ended. None if it has not, or if that is not certain."""
    shown, problem = _show_job(job, seconds)
    if problem and _UNKNOWN_JOB not in problem:
        return None
    if not shown:
        return JobEnd("", {})
    state = re.search(r" JobState=([A-Z_]+)", shown)
    if state is not None and state[1] == _REQUEUED:
        return JobEnd(_REQUEUED, {"reason": "requeued"})
    if state is None or state[1] not in _ENDED:
        return None
    return JobEnd(state[1], parse_exit_state(shown))


def parse_exit_state(shown: str) -> dict[str, object]:
    """How a job ended, from its line of `scontrol show job -o`; empty if the line has no exit
    code.
    """
    found = re.search(r" ExitCode=([0-9]{1,3}):([0-9]{1,3})( |$)", shown)
    if not found:
        return {}
    reason = re.search(r" JobState=(\w+) Reason=(\w+)", shown)
    exit_code, signal = int(found[1]), int(found[2])
    words = {"reason": reason[2]} if reason and reason[2] != "None" else {}
    died = reason and reason[2] in ("JobLaunchFailure", "NonZeroExitCode")
    if signal == _SIGTERM and not died:  # scancel or the time limit: no failure
        return {"exitCode": 0, "signal": 0, **words}
    return {"exitCode": exit_code, "signal": signal, **words}


def _show_job(job: str, seconds: float) -> tuple[str, str]:
    """A job's line of `scontrol show job -o`, and why there is none.

    For an array or a heterogeneous job scontrol prints a line for each member.
    """
    shown, problem = run_scontrol(["show", "job", job, "-o"], seconds)
    lines = [line for line in shown.splitlines() if line.startswith(f"JobId={job} ")]
    return lines[0] if lines else "", problem


def run_scontrol(arguments: list[str], seconds: float) -> tuple[str, str]:
    """What scontrol printed, and why it failed; empty if it did not."""
    import subprocess  # a large part of a prolog's cost, and most prologs need no scontrol

    if seconds <= 0.0:
        return "", f"no time left to ask scontrol to {arguments[0]}"
    # slurmd gives its scripts no search path.
    path = f"{os.environ.get('PATH', '')}:{PATH}".lstrip(":")
    try:
        done = subprocess.run(
            ["scontrol", *arguments],
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"scontrol did not answer within {seconds:.1f} s"
    except OSError as error:
        return "", f"scontrol cannot be run: {error.strerror}"
    shown = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        lines = (done.stderr.decode("utf-8", "replace") or shown).strip().splitlines()
        message = lines[-1][:_MAX_MESSAGE] if lines else f"exit {done.returncode}"
        return "", f"scontrol {arguments[0]} failed: {message}"
    return shown, ""
