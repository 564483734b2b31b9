"""The brake: what counts as too many nodes, who is counted, and what an attempt makes of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitald.config.values import Config
from vitald.recovery import brake
from vitald.recovery.brake import GateProgram, Leases, NodeCount, create_brake
from vitald.recovery.kubernetes import Kubernetes
from vitald.recovery.scheduler import ActionContext, Pool
from vitald.recovery.settings import Limit, Method, RecoverySettings
from vitald.recovery.slurm_cluster import SlurmCluster
from vitald.slurm import scontrol
from vitald.timestamps import format_rfc3339

CONTEXT = ActionContext(action="reboot", request_id="r" * 8, verdict={}, boot_id="boot-b")


def config(**changes: Any) -> Config:
    return Config(RecoverySettings(**{"node": "n001", **changes}))


def test_a_share_is_one_node_at_least() -> None:
    shares = [Limit(percent=10).apply_to(total) for total in (1, 9, 10, 19, 20, 200, 2049)]
    assert shares == [1, 1, 1, 1, 2, 20, 204]
    assert [Limit(percent=29).apply_to(100), Limit(percent=100).apply_to(7)] == [29, 7]
    assert [Limit(count=3).apply_to(total) for total in (1, 1000)] == [3, 3]


class Counted:
    """A scheduler that shows these pools."""

    def __init__(self, pools: list[Pool] | str) -> None:
        self.pools = pools

    def list_pools(self) -> list[Pool] | str:
        return self.pools


def count(pools: list[Pool] | str, limit: Limit) -> str:
    counted: Any = Counted(pools)
    return NodeCount(counted, RecoverySettings(brake_limit=limit)).ask(CONTEXT, take=True)


def test_this_node_is_one_of_those_that_may_be_taken() -> None:
    def pool(taken: int, total: int = 200, name: str = "the cluster") -> Pool:
        names = tuple(f"n{number:03}" for number in range(2, taken + 2))
        return Pool(name=name, total=total, taken=names)

    assert count([pool(19)], Limit(percent=10)) == ""
    assert count([pool(20)], Limit(percent=10)) == (
        "20 other nodes of the cluster are out of service by vitald or unhealthy, and [recovery]"
        " brake_limit allows 20 of 200: n002, n003, n004 and 17 more"
    )
    assert (count([pool(2)], Limit(count=3)), bool(count([pool(3)], Limit(count=3)))) == ("", True)
    # In the smallest pool that this node is in, too
    small = pool(1, total=4, name="partition small of Slurm")
    assert "partition small" in count([pool(1), small], Limit(percent=10))
    assert count("Slurm did not answer", Limit(count=3)).endswith(
        "is not known: Slurm did not answer"
    )


NODE = """NodeName={name} Arch=x86_64 CoresPerSocket=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions={partitions}
   Reason={reason} [root@2026-11-27T19:35:52]

"""


def test_whom_slurm_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what scontrol prints: those that vitald drained, by whichever program, and those that
    HyperPod repairs; in each partition of this node.
    """
    nodes = [
        ("n001", "IDLE+DRAIN", "a,b", "vitald: this node"),
        ("n002", "IDLE+DRAIN", "a", "vitald: gpu/0000:65:00.0: fell off"),
        ("n003", "DOWN*+DRAIN", "b", "vitald: it reboots"),
        ("n004", "IDLE+FAIL", "b,c", "Action:Replace"),
        ("n005", "IDLE+DRAIN", "a,b", "ticket 4711"),
        ("n006", "IDLE", "a,b", "vitald: back again"),
        ("n007", "IDLE+DRAIN", "c", "vitald: elsewhere"),
    ]
    shown = "".join(
        NODE.format(name=name, state=state, partitions=partitions, reason=reason)
        for name, state, partitions, reason in nodes
    )
    monkeypatch.setattr(scontrol, "run_scontrol", lambda *_: (shown, ""))
    assert SlurmCluster(config()).list_pools() == [
        Pool(name="the cluster", total=7, taken=("n002", "n003", "n004", "n007")),
        Pool(name="partition a of Slurm", total=4, taken=("n002",)),
        Pool(name="partition b of Slurm", total=5, taken=("n003", "n004")),
    ]
    unknown = SlurmCluster(config(node="n999")).list_pools()
    assert unknown == "Slurm does not know node n999"
    # One that cannot be read is not one in service.
    for broken in (shown.replace("   State=DOWN*+DRAIN", "   Sate=DOWN"), f"{shown}NodeName=\n"):
        monkeypatch.setattr(scontrol, "run_scontrol", lambda *_, text=broken: (text, ""))
        assert str(SlurmCluster(config()).list_pools()).startswith("scontrol shows a node as")
    monkeypatch.setattr(scontrol, "run_scontrol", lambda *_: ("", "scontrol did not answer"))
    assert SlurmCluster(config()).list_pools() == "scontrol did not answer"


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr("vitald.recovery.programs.RECOVERY_PATH", f"{folder}:/usr/bin:/bin")


def test_whom_kubernetes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what kubectl prints: the nodes that vitald cordoned, or says are unhealthy; of those that
    it publishes to, if it publishes to this one.
    """
    rows = [
        ("n001", "true", "boot-b", "True"),
        ("n002", "true", "boot-x", "True"),  # cordoned by vitald
        ("n003", "<none>", "boot-y", "True"),  # uncordoned by a person
        ("n004", "true", "<none>", "True"),  # cordoned by somebody else
        ("n005", "<none>", "<none>", "False"),
        ("n006", "<none>", "<none>", "Unknown"),
        ("n007", "<none>", "<none>", "<none>"),  # no GPUs
    ]

    def pools(*shown: tuple[str, ...]) -> list[Pool] | str:
        (tmp_path / "nodes").write_text("".join(f"{'   '.join(row)}\n" for row in shown))
        return Kubernetes(config()).list_pools()

    kubectl(tmp_path, monkeypatch, f"cat {tmp_path}/nodes")
    assert pools(*rows) == [Pool(name="the cluster", total=6, taken=("n002", "n005"))]
    silent = ("n001", "<none>", "<none>", "<none>")
    assert pools(silent, *rows[1:]) == [Pool(name="the cluster", total=7, taken=("n002", "n005"))]
    assert pools(*rows[1:]) == "Kubernetes does not know node n001"
    assert "shows a node as" in str(pools(rows[0], ("n002", "what")))
    kubectl(tmp_path, monkeypatch, "echo 'nodes is forbidden' >&2; exit 1")
    assert "nodes is forbidden" in str(Kubernetes(config()).list_pools())


def test_leases_that_have_run_out_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()

    def lease(name: str, holder: str, age: float) -> object:
        renewed = format_rfc3339(now - age, "microseconds")
        spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 3600}
        return {"metadata": {"name": name, "resourceVersion": "7"}, "spec": spec}

    def ask(*leases: object, limit: int = 2, take: bool = True) -> tuple[str, list[str]]:
        (tmp_path / "leases").write_text(json.dumps({"items": leases}))
        (tmp_path / "written").write_text("")
        settings = config(brake=Method(word="lease"), brake_limit=Limit(count=limit))
        why = Leases(settings).ask(CONTEXT, take=take)
        return why, (tmp_path / "written").read_text().splitlines()

    kubectl(
        tmp_path,
        monkeypatch,
        f'case "$*" in *" get leases "*) cat {tmp_path}/leases ;;'
        f' *" create "*) echo "create $(cat)" >>{tmp_path}/written ;;'
        f' *) echo "$*" >>{tmp_path}/written ;; esac',
    )
    why, written = ask()
    assert why == "" and '"name": "vitald-recovery-0"' in written[0]
    held, expired = lease("vitald-recovery-0", "n002", 60), lease("vitald-recovery-1", "n003", 3601)
    why, written = ask(held, expired)
    assert why == "" and "patch lease vitald-recovery-1" in written[0]
    assert '"resourceVersion": "7"' in written[0], "not if somebody else has just taken it"
    why, written = ask(held, expired, take=False)
    assert (why, written) == ("", [])
    why, written = ask(held, lease("vitald-recovery-1", "n003", 3599))
    assert (why, written) == ("all 2 Leases are held: n002, n003", [])
    # Its own is renewed, whatever others have.
    why, written = ask(held, lease("vitald-recovery-1", "n001", 60))
    assert why == "" and "patch lease vitald-recovery-1" in written[0]
    assert "acquireTime" not in written[0]
    # And kept while the node asks for recovery, whatever is decided.
    for leases, kept in (([held, lease("vitald-recovery-1", "n001", 60)], 1), ([held], 0)):
        ask(*leases, take=False)
        assert Leases(config(brake=Method(word="lease"))).keep() == ""
        assert len((tmp_path / "written").read_text().splitlines()) == kept
    # Where more are held than are allowed by now
    others = [lease(f"vitald-recovery-{number}", f"n00{number}", 9) for number in (4, 5)]
    assert ask(*others)[0] == "all 2 Leases are held: n004, n005"
    # Others in the namespace are not ours, and what cannot be read is not free.
    leader = {
        "metadata": {"name": "leader", "resourceVersion": "7"},
        "spec": {"holderIdentity": "x"},
    }
    assert ask(lease("leader", "x", 1), leader, limit=1)[0] == ""
    broken = {"metadata": {"name": "vitald-recovery-0", "resourceVersion": "7"}, "spec": {}}
    assert ask({**broken, "spec": {"holderIdentity": "n002"}})[0].startswith(
        "kubectl does not show"
    )


def test_a_program_says_no_with_any_exit_code_but_0(tmp_path: Path) -> None:
    program = tmp_path / "may-go"
    for code, said in ((0, ""), (1, "exit 1: two racks are out"), (75, "exit 75: two racks")):
        program.write_text(f"#!/bin/sh\necho two racks are out\nexit {code}\n")
        program.chmod(0o755)
        gate = GateProgram((str(program),), config())
        assert said in gate.ask(CONTEXT, take=True)
        assert bool(gate.ask(CONTEXT, take=True)) is (code != 0)
        assert gate.ask(CONTEXT, take=False) == "", "nothing is run to look"


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({}, "NoBrake", "none: nothing limits how many nodes are taken at once: [recovery] drain"),
        ({"brake": "none", "drain": "slurm"}, "NoBrake", "none: nothing limits"),
        ({"drain": "slurm"}, "NodeCount", "at most 10% of the nodes, counted in Slurm"),
        ({"drain": "kubernetes"}, "NodeCount", "at most 10% of the nodes, counted in Kubernetes"),
        ({"brake": "lease"}, "Leases", "at most 10% of the nodes, by Leases in namespace vitald"),
    ],
)
def test_which_brake_is_in_force(settings: dict[str, str], kind: str, said: str) -> None:
    made = config(**{key: Method(word=word) for key, word in settings.items()})
    assert type(create_brake(made)).__name__ == kind
    assert made[RecoverySettings].describe_brake().startswith(said)
    program = replace(made[RecoverySettings], brake=Method(argv=("/opt/gate", "-v")))
    assert isinstance(create_brake(made.replace(program)), GateProgram)
    assert program.describe_brake() == "asks /opt/gate"


def test_a_unit_without_a_network_cannot_ask_for_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brake, "describe_missing_network", lambda *_: "no network")
    made = config(brake=Method(word="lease"), brake_limit=Limit(count=1))
    assert Leases(made).ask(CONTEXT, take=True) == "no network"
