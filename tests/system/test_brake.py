"""One bad rule on 200 nodes, before a real slurmctld and a real API server: how many are taken.

Each node is `vitald recovery run` with its own name and its own memory; the daemon that all of them ask,
and its request, are those of one real daemon.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import require
from tests.control_plane.build import find_built_programs
from tests.control_plane.cluster_node import NAMES
from tests.control_plane.plane import ADMIN, ControlPlane
from tests.harness import ROOT, Node
from tests.system.lines import vouched, xid
from tests.system.test_slurm import Slurm
from tests.waiting import until
from vitald.cli.recovery.run import start_attempt
from vitald.recovery import inputs
from vitald.recovery.decision_log import read_records
from vitald.recovery.recovery_request import FILE
from vitald.slurm.scontrol import list_nodes

NODES = tuple(f"n{number:03}" for number in range(1, 201))
AT_A_TIME = 16
LEASES = "/apis/coordination.k8s.io/v1/namespaces/vitald/leases"
SLURM_NODES = """
SlurmdTimeout=0
HealthCheckInterval=0
NodeName=n[001-200] NodeAddr=127.0.0.1 CPUs=2 State=IDLE
PartitionName=all Nodes=ALL Default=YES State=UP
PartitionName=small Nodes=n[181-200] State=UP
"""


class Fleet:
    """Nodes whose daemon requests a reboot."""

    def __init__(self, folder: Path, node: Node, names: tuple[str, ...], settings: str) -> None:
        self.folder, self.names = folder, names
        self._ran = folder / "ran"
        self._ran.touch()
        reboot = folder / "reboot"
        reboot.write_text(f'#!/bin/sh\necho "$VITALD_NODE" >>{self._ran}\n')
        reboot.chmod(0o755)
        processes = folder / "proc"
        processes.mkdir()
        (processes / "sys").symlink_to("/proc/sys")
        common = node.settings.replace("[paths]", f'[paths]\nprocfs = "{processes}"')
        recovery = f'[recovery]\nmode = "automatic"\nafter = "200ms"\nmin_uptime = "off"\nreboot = ["{reboot}"]'
        for name in names:
            own = folder / name
            own.mkdir()
            text = (
                f'{common}\n[slurm]\nrecord = "{own}/slurm-reason"\n'
                f'{recovery}\nnode = "{name}"\nstate = "{own}/state"\n{settings}\n'
            )
            (own / "config.toml").write_text(text)
        node.settings = (folder / names[0] / "config.toml").read_text()
        node.config.write_text(node.settings)
        node.start()
        node.write(vouched(xid(1)))
        until((node.runtime / FILE).exists, "a request")

    @property
    def rebooted(self) -> list[str]:
        return self._ran.read_text().split()

    def recover(self, name: str) -> None:
        """`vitald recovery run` of a node."""
        start_attempt(inputs.read_config(self.folder / name / "config.toml"), dry_run=False).run()

    def recover_all(self) -> None:
        """All of them, many at the same time."""
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(self.recover, self.names))

    def list_refused(self) -> set[str]:
        """The nodes whose last decision is a refusal for the brake, and for nothing else."""
        last = {name: read_records(self.folder / name / "state")[-1] for name in self.names}
        return {name for name, record in last.items() if record["checks"] == ["brake"]}


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that is not in memory."""
    folder = Path(tempfile.mkdtemp(prefix="vitald-brake-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _as_root() -> None:
    require(os.geteuid() == 0, "root")


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    programs = ("munged", "slurmctld", "scontrol")
    require(
        all(map(shutil.which, programs)), "Slurm (apt-get install slurmctld slurm-client munge)"
    )
    made = Slurm(tmp_path_factory.mktemp("slurm"), SLURM_NODES)
    try:
        made.start_controller()
        until(lambda: "n200" in made("scontrol", "show", "nodes", check=False), "200 nodes")
        yield made
    finally:
        made.stop()


@pytest.mark.core
def test_slurm_loses_at_most_the_configured_number(
    slurm: Slurm, disk: Path, make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    settings = 'drain = "slurm"\nbrake_limit = 7\nbrake_delay = "off"'
    fleet = Fleet(disk, make_node(), NODES, settings)

    def list_drained() -> set[str]:
        nodes = list_nodes(10.0)
        assert not isinstance(nodes, str), nodes
        return {node.name for node in nodes if node.held}

    # All at once: of those that see each other, each goes back.
    fleet.recover_all()
    assert len(fleet.rebooted) <= 7
    assert list_drained() == set(fleet.rebooted)
    # One after the other, as the random delay has it: as many as may, and no more.
    for name in NODES[:30]:
        fleet.recover(name)
    assert len(fleet.rebooted) == len(set(fleet.rebooted)) == 7
    assert list_drained() == set(fleet.rebooted)
    assert fleet.list_refused() == set(NODES) - set(fleet.rebooted)
    # One that is back makes room for one other.
    slurm("scontrol", "update", f"nodename={fleet.rebooted[0]}", "state=resume")
    waiting = sorted(set(NODES) - set(fleet.rebooted))[:10]
    for name in waiting:
        fleet.recover(name)
    assert fleet.rebooted[7:] == waiting[:1]


def test_a_share_holds_in_each_partition(
    slurm: Slurm, disk: Path, make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default: 10 %, which is 2 of the 20 nodes of one partition, and 20 of all."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    fleet = Fleet(disk, make_node(), NODES, 'drain = "slurm"\nbrake_delay = "off"')
    for name in reversed(NODES):
        fleet.recover(name)
    assert fleet.rebooted == ["n200", "n199", *(f"n{number:03}" for number in range(180, 162, -1))]
    for name, why in (
        ("n181", "2 other nodes of partition small of Slurm are out of service"),
        ("n001", "20 other nodes of the cluster are out of service"),
    ):
        assert str(read_records(disk / name / "state")[-1]["why"]).startswith(why)


def install_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitald.recovery.programs.RECOVERY_PATH", f"{find_built_programs()}:/bin")


@pytest.fixture
def plane(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    """With 200 nodes, and what packaging/kubernetes/recovery.yaml permits."""
    install_kubectl(monkeypatch)
    control_plane.kubectl("apply", f"--filename={ROOT}/packaging/kubernetes/namespace.yaml")
    rights = f"--filename={ROOT}/packaging/kubernetes/recovery.yaml"
    control_plane.kubectl("apply", rights)
    for name in NAMES:
        control_plane.create_node(name)
    yield control_plane
    control_plane.demand("DELETE", "/api/v1/nodes")
    control_plane.demand("DELETE", LEASES)
    control_plane.kubectl("delete", rights)


@pytest.mark.control_plane
def test_kubernetes_loses_at_most_as_many_as_there_are_leases(
    plane: ControlPlane, disk: Path, make_node: Callable[..., Node]
) -> None:
    token = plane.kubectl("create", "token", "vitald-recovery", "--namespace=vitald").strip()
    lease_kubeconfig = plane.write_kubeconfig(token)
    settings = (
        'drain = "kubernetes"\nbrake = "lease"\nbrake_limit = 7\nbrake_delay = "off"'
        f'\nlease_kubeconfig = "{lease_kubeconfig}"'
        f'\nkubeconfig = "{plane.write_kubeconfig(ADMIN)}"'
    )
    fleet = Fleet(disk, make_node(), NAMES, settings)
    fleet.recover_all()
    assert len(fleet.rebooted) == len(set(fleet.rebooted)) == 7
    assert fleet.list_refused() == set(NAMES) - set(fleet.rebooted)
    leases = plane.demand("GET", LEASES)["items"]
    holders = {lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in leases}
    holders.pop("vitald-sweep", None)  # another test's, on the same control plane
    assert set(holders) == {f"vitald-recovery-{number}" for number in range(7)}
    assert set(holders.values()) == set(fleet.rebooted)
    cordoned = plane.kubectl("get", "nodes", "--field-selector=spec.unschedulable=true", "-oname")
    assert set(cordoned.split()) == {f"node/{name}" for name in fleet.rebooted}


@pytest.mark.control_plane
def test_kubernetes_counts_nodes_by_default(
    plane: ControlPlane, disk: Path, make_node: Callable[..., Node]
) -> None:
    """With the identity of a kubelet, which may change its own node and list the others."""
    fleet = Fleet(disk, make_node(), NAMES, 'drain = "kubernetes"\nbrake_delay = "off"')
    for name in NAMES:
        config = fleet.folder / name / "config.toml"
        kubeconfig = plane.write_kubeconfig(f"{name}-token")
        config.write_text(f'{config.read_text()}\nkubeconfig = "{kubeconfig}"\n')
    fleet.recover_all()
    assert len(fleet.rebooted) <= 20
    for name in NAMES[:40]:
        fleet.recover(name)
    assert len(fleet.rebooted) == len(set(fleet.rebooted)) == 20
    cordoned = plane.kubectl("get", "nodes", "--field-selector=spec.unschedulable=true", "-oname")
    assert set(cordoned.split()) == {f"node/{name}" for name in fleet.rebooted}
