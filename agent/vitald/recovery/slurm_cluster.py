"""
Slurm as the scheduler of recovery: scontrol, by the rules of agent/vitald/slurm/drain.py. A node
that others have taken out of service is left alone.
"""

from __future__ import annotations

import socket
from dataclasses import replace

from vitald.config.values import Config
from vitald.recovery.decision import SchedulerState
from vitald.recovery.scheduler import ActionContext, Pool
from vitald.recovery.settings import RecoverySettings
from vitald.slurm import scontrol
from vitald.slurm.drain import REPLACE, drain_node, resume_node
from vitald.slurm.owner import ACTION, Owner, find_owner
from vitald.slurm.settings import SlurmSettings

_SCONTROL_TIMEOUT_S = 10.0
_FREE_STATES, _BUSY_STATES = {"IDLE", "DOWN"}, {"ALLOCATED", "MIXED", "COMPLETING"}


class SlurmCluster:
    def __init__(self, config: Config) -> None:
        self._node = config[RecoverySettings].node or socket.gethostname().partition(".")[0]
        self._timeout_s = min(_SCONTROL_TIMEOUT_S, config[RecoverySettings].deadline_s)
        self._settings = config[SlurmSettings]

    def read_state(self, context: ActionContext) -> SchedulerState:  # noqa: ARG002
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if isinstance(known, str):
            return SchedulerState(trouble=known)
        return self._interpret_state(known)

    def _interpret_state(self, known: scontrol.SlurmNode) -> SchedulerState:
        owner, obstacle = find_owner(self._settings, known)
        free = bool(known.states & _FREE_STATES) and not known.states & _BUSY_STATES
        state = "+".join(sorted(known.states))
        return SchedulerState(
            drained=owner is Owner.VITALD,
            held=f"the node is held in Slurm: {obstacle}" if obstacle else "",
            busy="" if free else f"in Slurm the node is {state}",
        )

    def drain_node(self, context: ActionContext) -> SchedulerState:
        self._withdraw_node(context, hyperpod=False)
        after = self.read_state(context)
        if after.trouble or after.held or after.drained:
            return after
        return replace(after, trouble="Slurm was told to drain the node, and it is not drained")

    def mark_for_replacement(self, context: ActionContext) -> str:
        self._withdraw_node(context, hyperpod=self._settings.hyperpod)
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if isinstance(known, str):
            return known
        ours = find_owner(self._settings, known).owner is Owner.VITALD
        marked = known.held and known.reason == REPLACE if self._settings.hyperpod else ours
        if marked:
            return ""
        state = "+".join(sorted(known.states))
        return f"the node is not marked: {state}, {known.reason or 'no reason'}"

    def undo_drain(self, context: ActionContext) -> str:
        resume_node(self._settings, self._node, "the brake refuses", self._timeout_s)
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
        """Whether vitald drained it, or HyperPod repairs it."""
        return node.held and node.reason.startswith((self._settings.prefix, ACTION))

    def _withdraw_node(self, context: ActionContext, *, hyperpod: bool) -> None:
        known = scontrol.read_node_state(self._node, self._timeout_s)
        if not isinstance(known, str):
            changed = replace(self._settings, hyperpod=hyperpod)
            drain_node(changed, context.verdict, self._node, known, self._timeout_s)
