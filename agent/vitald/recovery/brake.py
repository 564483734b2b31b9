"""
The brake of a cluster: whether this node may be taken out of service now, beside others.

    slurm, kubernetes   the nodes that vitald took out of service are counted there
    lease               a semaphore: one Lease in Kubernetes for each node that may be taken
    a program           exit 0: go ahead; anything else: no
    none                always

Counting is safe although nodes do not wait for each other: a node is drained first and counted
again afterwards, so of two that begin at once at least one sees the other, and goes back.

Owns     what counts as too many.
Refuses  draining, and every check that concerns this node alone.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vitald.config.values import Config
from vitald.recovery import programs
from vitald.recovery.kubernetes import Kubectl, Kubernetes
from vitald.recovery.scheduler import (
    ActionContext,
    Pool,
    describe_missing_network,
    get_node_name,
)
from vitald.recovery.settings import Method, RecoverySettings
from vitald.recovery.slurm_cluster import SlurmCluster
from vitald.text import join_first, replace_unprintable
from vitald.timestamps import format_rfc3339, parse_rfc3339

_MAX_LISTED = 3
_LEASE = "vitald-recovery"  # Leases are called so, with a number


class Brake(Protocol):
    def ask(self, context: ActionContext, *, take: bool) -> str:
        """Why the node may not be taken out of service now; empty if it may. `take`: it will be;
        else nothing is changed.
        """

    def keep(self) -> str:
        """What this node was granted stays granted: it still asks for recovery. Why that failed;
        empty if it did not.
        """


def create_brake(config: Config, method: Method | None = None) -> Brake:
    """`method`: instead of the one in force."""
    brake = method or config[RecoverySettings].brake_in_force
    if brake.argv:
        return GateProgram(brake.argv, config)
    if brake.word == "lease":
        return Leases(config)
    if brake.word == "slurm":
        return NodeCount(SlurmCluster(config), config[RecoverySettings])
    if brake.word == "kubernetes":
        return NodeCount(Kubernetes(config), config[RecoverySettings])
    return NoBrake()


class NoBrake:
    def ask(self, context: ActionContext, *, take: bool) -> str:  # noqa: ARG002
        return ""

    def keep(self) -> str:
        return ""


class NodeCount:
    """Counts the nodes that vitald took out of service, whether root or a health check did it."""

    def __init__(self, scheduler: SlurmCluster | Kubernetes, settings: RecoverySettings) -> None:
        self._scheduler = scheduler
        self._limit = settings.brake_limit

    def ask(self, context: ActionContext, *, take: bool) -> str:  # noqa: ARG002
        pools = self._scheduler.list_pools()
        if isinstance(pools, str):
            return f"how many nodes are out of service is not known: {pools}"
        return next(filter(None, map(self._describe_excess, pools)), "")

    def _describe_excess(self, pool: Pool) -> str:
        most = self._limit.apply_to(pool.total)
        if len(pool.taken) < most:
            return ""
        return (
            f"{len(pool.taken)} other nodes of {pool.name} are out of service by vitald or"
            f" unhealthy, and [recovery] brake_limit allows {most} of {pool.total}:"
            f" {join_first(pool.taken, _MAX_LISTED)}"
        )

    def keep(self) -> str:
        return ""


class GateProgram:
    """A program of the site, with the environment of the others."""

    def __init__(self, argv: tuple[str, ...], config: Config) -> None:
        self._argv = argv
        self._deadline_s = config[RecoverySettings].deadline_s
        self._node = get_node_name(config)

    def ask(self, context: ActionContext, *, take: bool) -> str:
        if not take:
            return ""
        environment = context.build_environment(self._node)
        return programs.run_program(self._argv, self._deadline_s, environment).trouble

    def keep(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Lease:
    """One that exists. `holder`: the node that has it at the moment; empty if it is free."""

    name: str
    version: str
    holder: str


class Leases:
    """Nodes that hold one of the Leases vitald-recovery-0, -1, ... may go. A node keeps its own
    while it asks for recovery, and for `lease_duration` after that, by the clocks of the nodes.
    """

    def __init__(self, config: Config) -> None:
        given = config[RecoverySettings]
        kubeconfig = given.lease_kubeconfig or given.kubeconfig
        self._settings = replace(given, kubeconfig=kubeconfig)
        self._node = get_node_name(config)
        self._kubectl = Kubectl(self._settings)
        self._cluster = Kubernetes(config.replace(self._settings))

    def ask(self, context: ActionContext, *, take: bool) -> str:  # noqa: ARG002
        most = self._find_limit()
        if isinstance(most, str):
            return most
        leases = self._list_leases()
        if isinstance(leases, str):
            return leases
        held = [lease for lease in leases.values() if lease.holder]
        own = next((lease for lease in held if lease.holder == self._node), None)
        if own is not None:
            return self._write_lease(own.name, own) if take else ""
        free = [name for name in _list_names(most) if name not in leases or not leases[name].holder]
        if len(held) >= most or not free:
            holders = join_first([lease.holder for lease in held], _MAX_LISTED)
            return f"all {most} Leases are held: {holders}"
        if not take:
            return ""
        # Other nodes may take one or all of them meanwhile.
        troubles = []
        for name in free:
            trouble = self._write_lease(name, leases.get(name))
            if not trouble:
                return ""
            troubles.append(trouble)
        return f"no Lease was to be had: {troubles[-1]}"

    def keep(self) -> str:
        leases = self._list_leases()
        if isinstance(leases, str):
            return leases
        own = [lease for lease in leases.values() if lease.holder == self._node]
        return self._write_lease(own[0].name, own[0]) if own else ""

    def _find_limit(self) -> int | str:
        limit = self._settings.brake_limit
        if limit.count:
            return limit.count
        pools = self._cluster.list_pools()
        if isinstance(pools, str):
            return f"of how many nodes {limit} may be taken is not known: {pools}"
        return limit.apply_to(pools[0].total)

    def _list_leases(self) -> dict[str, Lease] | str:
        """Ours, by name; or why they are not known."""
        trouble = describe_missing_network(self._settings.brake)
        if trouble:
            return trouble
        answer = self._run("get", "leases", "--output=json")
        if answer.trouble:
            return answer.trouble
        try:
            shown = {item["metadata"]["name"]: item for item in json.loads(answer.output)["items"]}
            ours = {name: item for name, item in shown.items() if name.startswith(f"{_LEASE}-")}
            return {name: _read_lease(name, item) for name, item in ours.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"kubectl does not show the Leases as JSON: {type(error).__name__}: {error}"

    def _write_lease(self, name: str, former: Lease | None) -> str:
        """Make it this node's. Why that failed; empty if it did not. Of two nodes that write the
        same version, the API server refuses one.
        """
        now = format_rfc3339(time.time(), "microseconds")
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": max(1, round(self._settings.lease_duration_s)),
            "renewTime": now,
        }
        if former is None or former.holder != self._node:
            spec["acquireTime"] = now
        if former is None:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": spec,
            }
            return self._run("create", "--filename=-", given=json.dumps(lease).encode()).trouble
        patch = {"metadata": {"resourceVersion": former.version}, "spec": spec}
        return self._run(
            "patch", "lease", name, "--type=merge", f"--patch={json.dumps(patch)}"
        ).trouble

    def _run(self, *arguments: str, given: bytes = b"") -> programs.ProgramResult:
        namespace = f"--namespace={self._settings.lease_namespace}"
        return self._kubectl.run(namespace, *arguments, given=given)


def _list_names(most: int) -> list[str]:
    return [f"{_LEASE}-{number}" for number in range(most)]


def _read_lease(name: str, item: Any) -> Lease:
    """Raises ValueError, KeyError, TypeError, AttributeError for what is no Lease."""
    spec = item["spec"]
    holder = replace_unprintable(str(spec.get("holderIdentity") or ""))
    if holder:
        renewed = parse_rfc3339(spec["renewTime"]).timestamp()
        if time.time() >= renewed + int(spec["leaseDurationSeconds"]):
            holder = ""
    return Lease(name, str(item["metadata"]["resourceVersion"]), holder)
