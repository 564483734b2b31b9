"""The publisher as a service on a booted machine, against a real API server: from its installation
to what a removal leaves on the Node object. The tests go in this order, on one machine.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.booted.machine import Machine
from tests.booted.service import Service, fresh_pci
from tests.booted.test_machine import exposure, install
from tests.conftest import require
from tests.control_plane.build import find_programs
from tests.control_plane.plane import ControlPlane, Json, kubelet_token
from tests.waiting import until

UNIT, TIMER = "vitald-publish.service", "vitald-publish-retry.timer"
EXPOSURE = 1.1
NODE = "node1"
TOKEN = "/etc/kubernetes/vitald-token"  # readable for root only
CREDENTIAL = f"[Service]\nLoadCredential=token:{TOKEN}\n"
OWN = ("vitald.io/Healthy", "vitald.io/RebootRequired", "vitald.io/ReplacementRequired")


class Cluster:
    """The API server, and what the machine's configuration says of it."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        # The machine shares the host's ports; lines of other tests in the kernel log are not its.
        self.daemon = '[metrics]\nlisten = "off"\n[kernel_log]\nuserspace = "ignore"\n'
        self.settings = (
            f"{self.daemon}[publish]\ndrills = true\n[kubernetes]\nenabled = true\n"
            f'node = "{NODE}"\nserver = "{plane.server}"\nca = "/etc/kubernetes/ca.crt"\n'
            'token_file = "/run/credentials/vitald-publish.service/token"\n'
        )

    def conditions(self) -> dict[str, Json]:
        """By type, those of vitald."""
        found = self.plane.read_node(NODE).get("status", {}).get("conditions", [])
        return {each["type"]: each for each in found if each["type"].startswith("vitald.io/")}

    def health(self) -> str:
        return str(self.conditions().get("vitald.io/Healthy", {}).get("status", ""))


@pytest.fixture
def calm() -> None:
    """Not the machine of the other tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require(find_programs(), "a control plane")
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        plane.create_node(NODE)
        yield Cluster(plane)


@pytest.fixture(scope="module")
def machine(package: Path, old_package: Path, cluster: Cluster) -> Iterator[Machine]:
    """With the older package and its own configuration."""

    def prepare(root: Path) -> None:
        shutil.copy(package, root / "root/new.deb")
        shutil.copy(old_package, root / "root/old.deb")
        (root / "etc/vitald").mkdir()
        (root / "etc/vitald/config.toml").write_text(cluster.daemon)

    with Machine("vitald-publish", prepare=prepare, network=True) as made:
        install(made, "old.deb")
        yield made


@pytest.fixture(scope="module")
def service(machine: Machine) -> Service:
    return Service(machine)


def main_pid(machine: Machine) -> int:
    return int(machine.show(UNIT, "MainPID"))


def is_active(machine: Machine) -> bool:
    return machine.run("systemctl", "is-active", "-q", UNIT, check=False).returncode == 0


def log_of(machine: Machine) -> str:
    return machine.run("journalctl", "-u", UNIT, "-b", "--no-pager", "-o", "cat").stdout


def test_installed_and_not_enabled(machine: Machine, service: Service) -> None:
    service.ready()
    found = machine.run("systemctl", "is-enabled", UNIT, TIMER, check=False).stdout.split()
    assert found == ["disabled", "static"]
    assert not is_active(machine)
    assert machine.run("systemd-analyze", "verify", UNIT, TIMER, check=False).stderr == ""
    assert exposure(machine, UNIT) <= EXPOSURE
    depends = machine.run("systemctl", "show", "-p", "Requires,BindsTo,PartOf", UNIT).stdout
    assert "vitald.service" not in depends  # it goes on when the daemon ends


def test_nothing_to_publish_to(machine: Machine, service: Service) -> None:
    """It says so and waits for a change, without a loop of restarts."""
    done = machine.run("systemctl", "enable", "--now", UNIT, check=False)
    assert done.returncode != 0
    until(lambda: machine.show(UNIT, "ActiveState") == "failed", "the end of it")
    assert machine.show(UNIT, "ExecMainStatus") == "78"
    assert machine.show(UNIT, "NRestarts") == "0"
    said = machine.run("systemctl", "status", "--no-pager", UNIT, check=False).stdout
    assert "nothing to publish to: set [kubernetes] enabled" in said
    print(said)
    assert log_of(machine).count("nothing to publish to") == 1
    assert "Traceback" not in log_of(machine)
    assert machine.show(TIMER, "ActiveState") == "active"  # the next try


def test_missing_credentials_are_waited_for(
    machine: Machine, service: Service, cluster: Cluster
) -> None:
    """Those that a kubelet writes when it joins. The timer's minute is made 2 s here."""
    assert "OnUnitInactiveUSec=1min" in machine.show(TIMER, "TimersMonotonic")
    quick = service.drop_in(
        TIMER, "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=2s\nAccuracySec=100ms\n"
    )
    machine.write(f"/etc/systemd/system/{UNIT}.d/credentials.conf", CREDENTIAL)
    machine.run("systemctl", "daemon-reload")
    service.configure(cluster.settings)
    machine.run("systemctl", "restart", "vitald")
    assert machine.run("systemctl", "restart", UNIT, check=False).returncode != 0
    assert machine.show(UNIT, "ExecMainStatus") == "243"
    assert machine.show(UNIT, "NRestarts") == "0"
    machine.write("/etc/kubernetes/ca.crt", cluster.plane.certificate.read_text())
    machine.write(TOKEN, kubelet_token(NODE), mode=0o600)
    until(lambda: is_active(machine), "the next try")
    until(lambda: cluster.health() == "True", "the conditions")
    assert tuple(sorted(cluster.conditions())) == OWN
    service.undo(quick)


def test_a_user_of_its_own_without_rights(machine: Machine, service: Service) -> None:
    pid = main_pid(machine)
    status = dict(
        line.split(":\t", 1)
        for line in machine.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    )
    user = machine.run("id", "-u", "vitald-publish").stdout.split()
    group = machine.run("getent", "group", "vitald").stdout.split(":")[2]
    assert status["Uid"].split() == user * 4
    assert group in status["Groups"].split()
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    as_it = (
        *("nsenter", f"--target={pid}", "--mount", "setpriv", f"--reuid={user[0]}"),
        *(f"--regid={user[0]}", f"--groups={group}", "--"),
    )
    for path in ("/var/lib/vitald/ledger.db", TOKEN, "/root"):
        assert machine.run(*as_it, "test", "-r", path, check=False).returncode != 0, path
    for path in ("/run/vitald/x", "/etc/x", "/var/lib/x", "/usr/x"):
        assert machine.run(*as_it, "touch", path, check=False).returncode != 0, path
    machine.run(*as_it, "test", "-r", "/etc/vitald/config.toml")
    machine.run(*as_it, "test", "-w", "/var/lib/vitald-publish/publish.db")
    made = machine.run("stat", "--format=%U:%G %a", "/var/lib/vitald-publish").stdout.strip()
    assert made == "vitald-publish:vitald-publish 700"
    memory = machine.run("grep", "RssAnon", f"/proc/{pid}/status").stdout.split()[1]
    print(f"anonymous memory: {int(memory) // 1024} MiB")


def test_a_fault_reaches_the_node(service: Service, machine: Machine, cluster: Cluster) -> None:
    pci = fresh_pci()
    service.drill(pci, 79)
    begun = time.monotonic()
    until(lambda: cluster.health() == "False", "the condition")
    print(f"in the API server {time.monotonic() - begun:.2f} s after the finding was seen")
    service.clear(pci)
    until(lambda: cluster.health() == "True", "better news")


def test_a_program_gets_notifications(machine: Machine, service: Service, cluster: Cluster) -> None:
    """In the sandbox of the unit, as the publisher's user."""
    got = "/var/lib/vitald-publish/got"
    service.configure(
        f'{cluster.settings}[notify.program]\ntype = "exec"\ndrills = true\nquiet = "off"\n'
        f'command = ["/bin/sh", "-c", "id -un > {got}; cat >> {got}"]\n'
    )
    machine.run("systemctl", "restart", UNIT)
    pci = fresh_pci()
    service.drill(pci, 79)
    until(lambda: pci in machine.run("cat", got, check=False).stdout, "the notification")
    user, _, body = machine.run("cat", got).stdout.partition("\n")
    assert user == "vitald-publish"
    assert json.loads(body)["simulated"] and json.loads(body)["bootId"]
    service.clear(pci)
    service.configure(cluster.settings)
    machine.run("rm", got)
    machine.run("systemctl", "restart", UNIT)
    until(lambda: cluster.health() == "True", "better news")


def test_it_outlives_the_daemon(machine: Machine, service: Service, cluster: Cluster) -> None:
    """One that is killed, and one that is gone; then the node's state is unknown."""
    before = main_pid(machine)
    for _ in range(3):
        machine.run("systemctl", "kill", "--signal=KILL", "vitald")
        service.ready()
    until(lambda: cluster.health() == "True", "the daemon's state")
    machine.run("systemctl", "stop", "vitald.socket")
    until(lambda: cluster.health() == "Unknown", "the word of it")
    machine.run("systemctl", "start", "vitald.service")
    until(lambda: cluster.health() == "True", "the daemon's state")
    assert main_pid(machine) == before


def test_killed_and_stopped(machine: Machine, service: Service, cluster: Cluster) -> None:
    before, since = main_pid(machine), cluster.conditions()[OWN[0]]["lastTransitionTime"]
    begun = time.monotonic()
    machine.run("systemctl", "kill", "--signal=KILL", UNIT)
    until(lambda: is_active(machine) and main_pid(machine) not in (0, before), "it")
    print(f"ready again {time.monotonic() - begun:.1f} s after it was killed")
    machine.run("systemctl", "stop", UNIT)
    assert machine.show(UNIT, "Result") == "success"  # systemd did not have to kill it
    assert machine.show(TIMER, "ActiveState") == "inactive"
    machine.run("systemctl", "start", UNIT)
    assert cluster.conditions()[OWN[0]]["lastTransitionTime"] == since


def test_started_again_for_new_credentials(
    machine: Machine, service: Service, cluster: Cluster
) -> None:
    """`RuntimeMaxSec=`, by a drop-in, reads files that are replaced in place again."""
    drop_in = service.drop_in(UNIT, "[Service]\nRuntimeMaxSec=2\n")
    machine.run("systemctl", "restart", UNIT)
    before = main_pid(machine)
    shutil.copy(machine.root / TOKEN.lstrip("/"), machine.root / "root/kept")
    machine.write(TOKEN, "another", mode=0o600)
    given = "/run/credentials/vitald-publish.service/token"
    until(
        lambda: machine.run("cat", given, check=False).stdout == "another",
        "the new copy",
    )
    assert main_pid(machine) != before
    shutil.copy(machine.root / "root/kept", machine.root / TOKEN.lstrip("/"))
    service.undo(drop_in)
    machine.run("systemctl", "restart", UNIT)
    until(lambda: cluster.health() == "True", "the conditions")


class Watch(threading.Thread):
    """What the condition is said to be, until it is told to end."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._cluster, self._ended = cluster, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            self.seen.append(self._cluster.health())

    def end(self) -> set[str]:
        self._ended.set()
        self.join()
        return set(self.seen)


def test_an_upgrade_is_no_news(machine: Machine, service: Service, cluster: Cluster) -> None:
    """The publisher runs the new version, and the node was healthy all the time."""
    before, since = main_pid(machine), cluster.conditions()[OWN[0]]["lastTransitionTime"]
    watch = Watch(cluster)
    watch.start()
    seconds = install(machine, "new.deb")
    service.ready()
    time.sleep(11.0)  # longer than the grace of an announced stop: a silence would be told by now
    assert watch.end() == {"True"}
    print(f"upgraded in {seconds:.1f} s; asked {len(watch.seen)} times")
    assert is_active(machine)
    assert main_pid(machine) != before
    assert cluster.conditions()[OWN[0]]["lastTransitionTime"] == since
    assert "Traceback" not in log_of(machine)


def test_a_removal_leaves_nothing(machine: Machine, cluster: Cluster) -> None:
    """Neither on the Node object nor, once purged, on the machine."""
    begun = time.monotonic()
    done = machine.run("dpkg", "--remove", "vitald", timeout=120.0)
    print(f"removed in {time.monotonic() - begun:.1f} s")
    assert done.stderr == ""
    assert machine.run("pgrep", "--full", "/opt/vitald", check=False).stdout == ""
    node = cluster.plane.read_node(NODE)
    assert cluster.conditions() == {}
    metadata = node["metadata"]
    for kept in (metadata.get("labels", {}), metadata.get("annotations", {})):
        assert not [name for name in kept if name.startswith("vitald")]
    # The test's own.
    machine.sh(f"rm -r /etc/systemd/system/{UNIT}.d /run/systemd/system/{TIMER}.d {TOKEN}")
    machine.run("dpkg", "--purge", "vitald")
    left = machine.sh("find / -xdev -path '*vitald*'; find /run -path '*vitald*'").splitlines()
    assert left == []
    for name in ("vitald", "vitald-publish"):
        assert machine.run("getent", "passwd", name, check=False).returncode == 2
        assert machine.run("getent", "group", name, check=False).returncode == 2
    assert machine.run("systemctl", "--failed", "--no-legend").stdout.strip() == ""


def test_a_removal_without_a_cluster(machine: Machine, cluster: Cluster) -> None:
    """The API server is gone: the removal says what may remain, and is not held up by it."""
    machine.write("/etc/vitald/config.toml", cluster.settings)
    machine.write(f"/etc/systemd/system/{UNIT}.d/credentials.conf", CREDENTIAL)
    machine.write(TOKEN, kubelet_token(NODE), mode=0o600)
    install(machine, "new.deb")
    machine.run("systemctl", "enable", "--now", UNIT)
    cluster.plane.stop_api_server()
    done = machine.run("dpkg", "--remove", "vitald", timeout=120.0)
    assert "what was written to Kubernetes may remain" in done.stderr
    assert not (machine.root / "usr/bin/vitald").exists()
    assert machine.sh(f"ls /run/systemd/system/{UNIT}.d 2>/dev/null || true") == ""
