"""
Kubernetes as the scheduler of recovery: the node is cordoned with an annotation of ours. Pods of
DaemonSets and static pods do not count as work.

Owns     how kubectl is called: with the credentials of `[recovery] kubeconfig`, a time limit, and a
         limit on how much of its output is read.
Refuses  evicting pods.
"""

from __future__ import annotations

import json
from dataclasses import replace

from vitald.config.values import Config
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.recovery import programs
from vitald.recovery.decision import SchedulerState
from vitald.recovery.programs import ProgramResult
from vitald.recovery.scheduler import ActionContext, Pool, get_node_name
from vitald.recovery.settings import RecoverySettings
from vitald.text import join_first

Json = dict[str, object]

_FORMER_ANNOTATION = "vitald/drained"  # of versions that had no prefix: a node may still have it
_ABSENT = "<none>"  # as kubectl prints it
_MAX_LISTED = 3
_MAX_OUTPUT_BYTES = 4 * 1024 * 1024


class Kubernetes:
    def __init__(self, config: Config) -> None:
        self._node = get_node_name(config)
        self._kubectl = Kubectl(config[RecoverySettings])
        self._label = config[RecoverySettings].label
        self._annotation = f"{config[KubernetesSettings].prefix}/drained"
        self._condition = f"{config[KubernetesSettings].prefix}/Healthy"

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

    def _patch_node(self, patch: Json) -> ProgramResult:
        text = json.dumps(patch)
        return self._kubectl.run("patch", "node", self._node, "--type=merge", f"--patch={text}")

    def mark_for_replacement(self, context: ActionContext) -> str:  # noqa: ARG002
        return self._kubectl.run("label", "node", self._node, self._label, "--overwrite").trouble


def _escape_key(key: str) -> str:
    """A key of an object, as a path of kubectl names it."""
    return key.replace(".", "\\.")


class Kubectl:
    def __init__(self, settings: RecoverySettings) -> None:
        self._kubeconfig = settings.kubeconfig
        self._deadline_s = settings.deadline_s

    def run(self, *arguments: str, given: bytes = b"") -> ProgramResult:
        """`given`: its standard input. An answer that is too long is trouble."""
        # Without a cache, which would be in root's home: no folder can have this name.
        argv = (
            "kubectl",
            f"--kubeconfig={self._kubeconfig}",
            "--request-timeout=20s",
            "--cache-dir=/dev/null/none",
            *arguments,
        )
        done = programs.run_program(
            argv, self._deadline_s, max_output=_MAX_OUTPUT_BYTES, given=given
        )
        if not done.trouble and len(done.output) >= _MAX_OUTPUT_BYTES:
            return ProgramResult(exit_code=done.exit_code, trouble="kubectl shows too much")
        return done
