"""
What recovery asks of a scheduler, and what it is given.

Owns     the questions that every scheduler answers, and the name of this node.
Refuses  how one of them is queried: agent/vitald/recovery/cluster.py names them.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vitald.config.values import Config
from vitald.recovery.decision import SchedulerState
from vitald.recovery.settings import Method, RecoverySettings
from vitald.text import replace_unprintable


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
    that vitald took out of service or reports as unhealthy.
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
        """Have the node replaced. Why that failed; empty if it did not. Raises NotStarted if a
        program for it was not started.
        """


def get_node_name(config: Config) -> str:
    return config[RecoverySettings].node or socket.gethostname()


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
