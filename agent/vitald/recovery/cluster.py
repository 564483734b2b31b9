"""
The node's scheduler: whether work runs here, draining the node, marking it for replacement.

    none         no draining; refused if the daemon of a scheduler runs here
    slurm        scontrol, by the rules of agent/vitald/slurm/drain.py: a node that others have
                 taken out of service is left alone
    kubernetes   kubectl: the node is cordoned with an annotation of ours; pods of DaemonSets and
                 static pods do not count as work
    a program    exit 0: drained, and nothing runs; 75: work still runs; anything else: it failed

Owns     how each scheduler is queried, and what its answer means.
Refuses  ending work. Nothing here evicts a pod or cancels a job.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from vitald.config import Config
from vitald.config_sections import Method
from vitald.recovery import programs
from vitald.recovery.decision import SchedulerState
from vitald.recovery.kubectl import Kubectl
from vitald.slurm import scontrol
from vitald.slurm.drain import ACTION, REPLACE, drain_node, resume_node
from vitald.slurm.reasons import is_our_reason
from vitald.slurm.settings import REASONS_FILE, Settings
from vitald.slurm.steps import find_jobs_with_steps
from vitald.text import join_first, replace_unprintable

Json = dict[str, object]

_SCONTROL_TIMEOUT_S = 10.0
_STILL_RUNS = 75  # EX_TEMPFAIL
_FREE_STATES, _BUSY_STATES = {"IDLE", "DOWN"}, {"ALLOCATED", "MIXED", "COMPLETING"}
_OPERATOR_STATES = {
    "MAINT",
    "MAINTENANCE",
    "REBOOT",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
    "POWERING_DOWN",
    "POWERED_DOWN",
    "POWER_DOWN",
}
_SCHEDULERS = ("slurmd", "kubelet")
_FORMER_ANNOTATION = "vitald/drained"  # of versions that had no prefix: a node may still have it
_ABSENT = "<none>"  # as kubectl prints it
_MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionContext:
    """What a scheduler or a program is given: the action, the request's id, and the daemon's
    verdict (the answer of GET /v1/status).
    """

    action: str
    request_id: str
    verdict: Mapping[str, object]
    boot_id: str

    @property
    def reason(self) -> str:
        """The verdict's first reason, at most 500 characters."""
        reasons = self.verdict.get("reasons")
        first = reasons[0] if isinstance(reasons, list) and reasons else self.action
        return replace_unprintable(str(first))[:500]

    def build_environment(self, node: str) -> Mapping[str, str]:
        """The same as environment variables of a program."""
        return {
            "VITALD_ACTION": self.action,
            "VITALD_NODE": node,
            "VITALD_REASON": self.reason,
            "VITALD_REQUEST": self.request_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that are counted together, this one among them. `taken`: the names of the other nodes
    that vitald took out of service.
    """

    name: str
    total: int
    taken: tuple[str, ...]


class Scheduler(Protocol):
    def read_state(self, context: ActionContext) -> SchedulerState:
        """Whether the node is drained, and what runs here. Changes nothing."""

    def drain_node(self, context: ActionContext) -> SchedulerState:
        """Keep new work away; the state afterwards."""

    def undo_drain(self, context: ActionContext) -> str:
        """Put a node back that `drain_node` has just drained. Why that failed; else empty."""

    def mark_for_replacement(self, context: ActionContext) -> str:
        """Have the node replaced. Why that failed; empty if it did not."""


def create_scheduler(method: Method, config: Config) -> Scheduler:
    """The scheduler of `[recovery] drain` or `replace`."""
    if method.argv:
        return Program(method.argv, config)
    if method.word == "slurm":
        return SlurmCluster(config)
    if method.word == "kubernetes":
        return Kubernetes(config)
    return NoScheduler(config)


def get_node_name(config: Config) -> str:
    return config.recovery.node or socket.gethostname()


def describe_missing_network(*methods: Method) -> str:
    """Why these methods cannot reach a scheduler, if it is for the sandbox of our unit; empty if
    they can.
    """
    if not any(method.word in ("slurm", "kubernetes", "lease") for method in methods):
        return ""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    except OSError as error:
        return (
            f"no scheduler can be asked without a network: {error.strerror}: vitald-recover.service"
            " needs a drop-in with RestrictAddressFamilies=AF_INET AF_INET6"
        )
    return ""


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
        self._procfs = config.paths.procfs

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


class SlurmCluster:
    def __init__(self, config: Config) -> None:
        self._node = config.recovery.node or socket.gethostname().partition(".")[0]
        self._hyperpod = config.slurm.hyperpod
        self._timeout_s = min(_SCONTROL_TIMEOUT_S, config.recovery.deadline_s)
        # systemd creates the folder
        reasons_file = REASONS_FILE if REASONS_FILE.parent.is_dir() else None
        self._settings = Settings(reason=config.slurm.reason, reasons_file=reasons_file)

    def read_state(self, context: ActionContext) -> SchedulerState:  # noqa: ARG002
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if isinstance(known, str):
            return SchedulerState(trouble=known)
        return self._interpret_state(known)

    def _interpret_state(self, known: scontrol.SlurmNode) -> SchedulerState:
        state = "+".join(sorted(known.states))
        ours = known.held and is_our_reason(self._settings, known)
        others = sorted(known.states & _OPERATOR_STATES)
        held = ""
        if others:
            held = f"in Slurm the node is {state}: somebody is at work on it"
        elif known.held and not ours:
            held = (
                f"somebody else holds the node in Slurm: it is {state}, for:"
                f" {known.reason or 'no reason given'}"
            )
        free = bool(known.states & _FREE_STATES) and not known.states & _BUSY_STATES
        return SchedulerState(
            drained=ours, held=held, busy="" if free else f"in Slurm the node is {state}"
        )

    def drain_node(self, context: ActionContext) -> SchedulerState:
        self._withdraw_node(context, hyperpod=False)
        after = self.read_state(context)
        if after.trouble or after.held or after.drained:
            return after
        return replace(after, trouble="Slurm was told to drain the node, and it is not drained")

    def mark_for_replacement(self, context: ActionContext) -> str:
        self._withdraw_node(context, hyperpod=self._hyperpod)
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if isinstance(known, str):
            return known
        by_prefix = known.reason.startswith(self._settings.prefix)
        marked = known.reason == REPLACE if self._hyperpod else by_prefix
        if known.held and marked:
            return ""
        state = "+".join(sorted(known.states))
        return f"the node is not marked: {state}, {known.reason or 'no reason'}"

    def undo_drain(self, context: ActionContext) -> str:
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if isinstance(known, str):
            return known
        if is_our_reason(self._settings, known):
            resume_node(
                self._settings, self._node, known.reason, "the brake refuses", self._timeout_s
            )
        after = self.read_state(context)
        return after.trouble or ("the node is still drained" if after.drained else "")

    def list_pools(self) -> list[Pool] | str:
        """The cluster and the node's partitions, or why they are not known."""
        nodes = scontrol.list_nodes(self._timeout_s)
        if isinstance(nodes, str):
            return nodes
        own = next((node for node in nodes if node.name == self._node), None)
        if own is None:
            return f"Slurm does not know node {self._node}"
        parts = {f"partition {name} of Slurm": name for name in own.partitions}
        members = {
            "the cluster": nodes,
            **{title: [n for n in nodes if part in n.partitions] for title, part in parts.items()},
        }
        return [
            Pool(
                name=title,
                total=len(pool),
                taken=tuple(n.name for n in pool if n is not own and self._is_taken(n)),
            )
            for title, pool in members.items()
        ]

    def _is_taken(self, node: scontrol.SlurmNode) -> bool:
        """By us, or handed to HyperPod, whoever did that."""
        return node.held and node.reason.startswith((self._settings.prefix, ACTION))

    def _withdraw_node(self, context: ActionContext, *, hyperpod: bool) -> None:
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if not isinstance(known, str):
            changed = self._settings._replace(hyperpod=hyperpod)
            drain_node(changed, context.verdict, self._node, known, self._timeout_s)


class Kubernetes:
    def __init__(self, config: Config) -> None:
        self._node = get_node_name(config)
        self._kubectl = Kubectl(config.recovery)
        self._label = config.recovery.label
        self._annotation = f"{config.kubernetes.prefix}/drained"
        self._condition = f"{config.kubernetes.prefix}/Healthy"

    def read_state(self, context: ActionContext) -> SchedulerState:
        answer = self._kubectl.run("get", "node", self._node, "--output=json")
        if answer.trouble:
            return SchedulerState(trouble=answer.trouble)
        try:
            shown = json.loads(answer.output)
            cordoned = shown["spec"].get("unschedulable", False) is True
            annotations = shown["metadata"].get("annotations") or {}
            former = annotations.get(_FORMER_ANNOTATION, "")
            mark = str(annotations.get(self._annotation, former))
        except (ValueError, KeyError, TypeError, AttributeError):
            return SchedulerState(trouble="kubectl does not show the node as JSON")
        if cordoned and mark != context.boot_id:
            by = "vitald in an earlier boot, and it was not taken back" if mark else "somebody else"
            return SchedulerState(held=f"the node is cordoned by {by}")
        return self._add_running_pods(SchedulerState(drained=cordoned))

    def _add_running_pods(self, state: SchedulerState) -> SchedulerState:
        columns = (
            ".metadata.namespace,NAME:.metadata.name,PHASE:.status.phase"
            ",OWNER:.metadata.ownerReferences[*].kind"
        )
        answer = self._kubectl.run(
            "get",
            "pods",
            "--all-namespaces",
            f"--field-selector=spec.nodeName={self._node}",
            "--no-headers",
            f"--output=custom-columns=NAMESPACE:{columns}",
        )
        if answer.trouble:
            return replace(state, trouble=answer.trouble)
        busy = []
        for line in answer.output.decode("utf-8", "replace").splitlines():
            words = line.split()
            if len(words) != 4:
                if words[:2] == ["No", "resources"]:
                    continue
                return replace(state, trouble=f"kubectl shows a pod as {line[:80]!r}")
            namespace, name, phase, owner = words
            if phase not in ("Succeeded", "Failed") and owner not in ("DaemonSet", "Node"):
                busy.append(f"{namespace}/{name}")
        if not busy:
            return replace(state, busy="")
        return replace(state, busy=f"pods run here: {join_first(busy, _MAX_LISTED)}")

    def drain_node(self, context: ActionContext) -> SchedulerState:
        patch: Json = {
            "spec": {"unschedulable": True},
            "metadata": {
                "annotations": {self._annotation: context.boot_id, _FORMER_ANNOTATION: None}
            },
        }
        done = self._patch_node(patch)
        return SchedulerState(trouble=done.trouble) if done.trouble else self.read_state(context)

    def undo_drain(self, context: ActionContext) -> str:  # noqa: ARG002
        patch: Json = {
            "spec": {"unschedulable": None},
            "metadata": {"annotations": {self._annotation: None}},
        }
        return self._patch_node(patch).trouble

    def list_pools(self) -> list[Pool] | str:
        """The nodes that `vitald publish` writes to, if it writes to this one, else all; or why
        they are not known.
        """
        columns = {
            "NAME": ".metadata.name",
            "CORDONED": ".spec.unschedulable",
            "DRAINED": f".metadata.annotations.{_escape_key(self._annotation)}",
            "HEALTHY": f'.status.conditions[?(@.type=="{self._condition}")].status',
        }
        output = ",".join(f"{name}:{path}" for name, path in columns.items())
        answer = self._kubectl.run(
            "get", "nodes", "--no-headers", f"--output=custom-columns={output}"
        )
        if answer.trouble:
            return answer.trouble
        rows = [line.split() for line in answer.output.decode("utf-8", "replace").splitlines()]
        if unknown := [row for row in rows if len(row) != len(columns)]:
            return f"kubectl shows a node as {' '.join(unknown[0])[:80]!r}"
        own = [row for row in rows if row[0] == self._node]
        if not own:
            return f"Kubernetes does not know node {self._node}"
        if own[0][3] != _ABSENT:
            rows = [row for row in rows if row[3] != _ABSENT]
        taken = [
            name
            for name, cordoned, drained, healthy in rows
            if name != self._node
            and (healthy == "False" or (cordoned == "true" and drained != _ABSENT))
        ]
        return [Pool(name="the cluster", total=len(rows), taken=tuple(taken))]

    def _patch_node(self, patch: Json) -> programs.ProgramResult:
        text = json.dumps(patch)
        return self._kubectl.run("patch", "node", self._node, "--type=merge", f"--patch={text}")

    def mark_for_replacement(self, context: ActionContext) -> str:  # noqa: ARG002
        return self._kubectl.run("label", "node", self._node, self._label, "--overwrite").trouble


def _escape_key(key: str) -> str:
    """A key of an object, as a path of kubectl names it."""
    return key.replace(".", "\\.")


class Program:
    """A program of the site. Its environment says which action it is run for."""

    def __init__(self, argv: tuple[str, ...], config: Config) -> None:
        self._argv = argv
        self._deadline_s = config.recovery.deadline_s
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
        ).trouble

    def undo_drain(self, context: ActionContext) -> str:  # noqa: ARG002
        return f"{self._argv[0]} cannot undo what it did"
