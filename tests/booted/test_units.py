"""The units beside the daemon's, on a booted machine as their documents enable them: the sensor
reader, the health check of ft_launcher, the job socket. The tests go in this order, on one machine.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from grpclib.exceptions import StreamTerminatedError

from tests.booted.machine import Machine
from tests.booted.service import Json, Service, fresh_pci
from tests.booted.test_machine import exposure, install, purge
from tests.harness import ROOT
from tests.pace import patient
from tests.system.test_nvhcd import ask_at

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(300)]

TIMER, READER = "vitald-sensors.timer", "vitald-sensors.service"
HEALTH_SOCKET, HEALTH = "vitald-nvhcd.socket", "vitald-nvhcd.service"
HEALTH_RETRY = "vitald-nvhcd-retry.timer"
FOLDER, FILE = "/run/vitald-sensors", "/run/vitald-sensors/sensors.json"
JOBS = "/run/vitald/job"
USER = "alice"
# Lines of other tests in the kernel log are not this machine's.
DEAF = "[kernel_log]\nuserspace = 'ignore'\n"


@pytest.fixture
def calm() -> None:
    """Not the machine of the other tests."""


@pytest.fixture(scope="module")
def machine(package: Path, old_package: Path) -> Iterator[Machine]:
    """With the older package, and a user."""

    def prepare(root: Path) -> None:
        shutil.copy(package, root / "root/new.deb")
        shutil.copy(old_package, root / "root/old.deb")
        shutil.copy(ROOT / "tests/job_rank.py", root / "usr/local/lib/rank.py")
        (root / "etc/vitald").mkdir()
        (root / "etc/vitald/config.toml").write_text(DEAF)

    with Machine("vitald-units", prepare=prepare) as made:
        install(made, "old.deb")
        made.run("useradd", USER)
        yield made


@pytest.fixture(scope="module")
def service(machine: Machine) -> Service:
    return Service(machine)


def is_active(machine: Machine, unit: str) -> bool:
    return machine.run("systemctl", "is-active", "-q", unit, check=False).returncode == 0


def stat(machine: Machine, *paths: str) -> list[str]:
    return machine.run("stat", "--format=%U:%G %a %F", *paths).stdout.splitlines()


def source(service: Service, name: str) -> Json:
    sources = cast("list[Json]", service.status["sources"])
    return next(each for each in sources if each["name"] == name)


def ask_health(machine: Machine) -> tuple[bool, Json]:
    """As ft_launcher does, from outside of the machine: whether the node may take part, and why."""
    answer = ask_at(machine.reach(f"{JOBS}/nvhcd.sock"))
    return answer.get(1) == 1, cast("Json", json.loads(answer[3]))


def start_rank(machine: Machine, unit: str, *properties: str) -> None:
    """A rank of USER's, as a service of its own."""
    hello = '{"rank": 0, "job": "999", "world": 1}'
    command = ("python3", "/usr/local/lib/rank.py", f"{JOBS}/job.sock", hello, "0.1")
    options = (f"--unit={unit}", f"--uid={USER}", *(f"--property={each}" for each in properties))
    machine.run("systemd-run", "--quiet", *options, *command)


def reported(service: Service) -> list[Json]:
    return cast("list[Json]", service.get("/v1/jobs")[1]["reported"])


def has_rank(service: Service) -> bool:
    return [job["claimed"] for job in reported(service)] == ["999"]


def test_installed_and_not_enabled(machine: Machine, service: Service) -> None:
    service.ready()
    found = machine.run("systemctl", "is-enabled", TIMER, HEALTH_SOCKET, check=False).stdout
    assert found.split() == ["disabled", "disabled"]
    units = machine.sh("cd /usr/lib/systemd/system; ls vitald*").split()
    assert machine.run("systemd-analyze", "verify", *units, check=False).stderr == ""
    assert not is_active(machine, TIMER) and not is_active(machine, HEALTH_SOCKET)
    assert source(service, "board")["state"] == "not present"


def test_exposures_are_those_of_the_document(machine: Machine) -> None:
    text = (ROOT / "docs/security.md").read_text().partition("\n## Sandbox")[2]
    first = re.findall(r"security (vitald\.service)`\s+reports an exposure of ([0-9.]+)", text)
    others = re.findall(r"([0-9]\.[0-9])\s+for\s+`(vitald-[a-z]+\.service)`", text)
    documented = {**dict(first), **{unit: number for number, unit in others}}
    services = machine.sh("cd /usr/lib/systemd/system; ls vitald*.service").split()
    assert {unit: str(exposure(machine, unit)) for unit in services} == documented


def test_the_job_socket_is_every_users(machine: Machine, service: Service) -> None:
    expected = ["vitald:vitald 755 directory", "vitald:vitald 666 socket"]
    assert stat(machine, JOBS, f"{JOBS}/job.sock") == expected
    start_rank(machine, "rank")
    machine.until(lambda: has_rank(service), patient(10.0), "the rank")
    (job,) = reported(service)
    assert (job["slurm"], job["uid"]) == ("", int(machine.run("id", "-u", USER).stdout))

    folder = machine.run("stat", "--format=%i", JOBS).stdout
    machine.run("systemctl", "restart", "vitald")  # a pod that mounts the folder sees the new one
    service.ready()
    assert stat(machine, JOBS, f"{JOBS}/job.sock") == expected
    assert machine.run("stat", "--format=%i", JOBS).stdout == folder
    machine.until(lambda: has_rank(service), patient(10.0), "the rank to come back")


def test_sensors_are_read_every_five_minutes(machine: Machine, service: Service) -> None:
    """There is no BMC: a clear state and no failure. The timer's wait is made short here."""
    assert "OnUnitInactiveUSec=5min" in machine.show(TIMER, "TimersMonotonic")
    soon = (
        "[Timer]\nOnActiveSec=1s\nOnUnitInactiveSec=2s\nRandomizedDelaySec=0\nAccuracySec=100ms\n"
    )
    drop_in = service.drop_in(TIMER, soon)
    machine.run("systemctl", "enable", "--now", TIMER)
    written = lambda: machine.run("stat", "--format=%i", FILE, check=False).stdout  # noqa: E731
    machine.until(written, patient(20.0), "the file")
    before = written()
    machine.until(lambda: written() not in ("", before), patient(20.0), "the next one")
    assert stat(machine, FOLDER, FILE) == [
        "root:vitald 750 directory",
        "root:vitald 640 regular file",
    ]
    assert machine.show(READER, "Result") == "success"
    log = machine.run("journalctl", "-u", READER, "-b", "--no-pager", "-o", "cat").stdout
    assert "Traceback" not in log and "failed" not in log.lower()
    for command in (("cat", FILE), ("ls", FOLDER)):
        assert machine.run(*command, user=USER, check=False).returncode != 0
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    board = source(service, "board")
    assert board["state"] == "not present", board
    components = service.vitald("components").stdout
    assert "this node has neither a BMC nor a transceiver" in components
    assert service.status["status"] == "healthy"
    service.undo(drop_in)
    machine.run("systemctl", "restart", TIMER)


def test_ft_launcher_is_answered(machine: Machine, service: Service) -> None:
    """The first request starts the service, under a user that exists only meanwhile."""
    machine.run("systemctl", "enable", "--now", HEALTH_SOCKET)
    assert (is_active(machine, HEALTH), is_active(machine, HEALTH_RETRY)) == (False, True)
    assert stat(machine, f"{JOBS}/nvhcd.sock") == ["root:root 666 socket"]
    fit, answer = ask_health(machine)
    assert fit, answer
    assert is_active(machine, HEALTH)
    pid = machine.show(HEALTH, "MainPID")
    status = machine.run("cat", f"/proc/{pid}/status").stdout
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    uid = re.findall(r"Uid:\t([0-9]+)", status)[0]
    assert 61184 <= int(uid) <= 65519  # a dynamic one: systemd.exec(5)

    pci = fresh_pci()
    service.injected(pci, 79)
    fit, answer = ask_health(machine)
    assert fit is False and pci in str(answer["failed_checks"])
    service.clear(pci)
    machine.run("systemctl", "stop", HEALTH)
    assert ask_health(machine)[0]  # started again
    machine.run("systemctl", "stop", "vitald.socket")
    fit, answer = ask_health(machine)
    assert fit and cast("Json", answer["vitald"])["answers"] is False
    machine.run("systemctl", "start", "vitald")
    service.ready()


def test_ft_launcher_is_answered_again_once_the_configuration_is_right(
    machine: Machine, service: Service
) -> None:
    """The timer's minute is made 2 s here."""
    assert "OnUnitInactiveUSec=1min" in machine.show(HEALTH_RETRY, "TimersMonotonic")
    soon = "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=2s\nAccuracySec=100ms\n"
    drop_in = service.drop_in(HEALTH_RETRY, soon)
    service.configure(f"{DEAF}[nvhcd]\nunknown = 'maybe'\n")
    machine.run("systemctl", "restart", HEALTH, check=False)
    assert machine.show(HEALTH, "ExecMainStatus") == "78"
    with pytest.raises((OSError, StreamTerminatedError)):
        ask_health(machine)
    machine.until(
        lambda: machine.show(HEALTH_SOCKET, "Result") == "service-start-limit-hit",
        patient(10.0),
        "the socket to be closed",
    )
    service.configure(DEAF)

    def is_answered() -> bool:
        try:
            return ask_health(machine)[0]
        except (OSError, StreamTerminatedError):
            return False

    machine.until(is_answered, patient(30.0), "an answer")
    service.undo(drop_in)
    machine.run("systemctl", "stop", HEALTH_SOCKET)
    assert not is_active(machine, HEALTH_RETRY) and not is_active(machine, HEALTH)
    machine.run("systemctl", "start", HEALTH_SOCKET)


def test_after_a_reboot(machine: Machine, service: Service) -> None:
    machine.reboot()
    service.ready()
    assert is_active(machine, TIMER) and is_active(machine, HEALTH_SOCKET)
    assert stat(machine, JOBS, f"{JOBS}/job.sock")[0] == "vitald:vitald 755 directory"
    assert ask_health(machine)[0]
    start_rank(machine, "rank")
    machine.until(lambda: has_rank(service), patient(10.0), "the rank")


@pytest.mark.parametrize("file", ["new.deb", "new.deb"], ids=["upgrade", "reinstall"])
def test_an_upgrade_keeps_all_of_them(machine: Machine, service: Service, file: str) -> None:
    folder = machine.run("stat", "--format=%i", JOBS).stdout
    pid = machine.show(HEALTH, "MainPID")
    install(machine, file)
    service.ready()
    assert machine.run("stat", "--format=%i", JOBS).stdout == folder
    assert is_active(machine, TIMER) and is_active(machine, HEALTH_SOCKET)
    assert machine.show(HEALTH, "MainPID") not in ("0", pid)  # it runs the new version
    assert ask_health(machine)[0]
    machine.until(lambda: has_rank(service), patient(10.0), "the rank to come back")


def test_remove_and_purge(machine: Machine, service: Service) -> None:
    machine.run("systemctl", "stop", "rank")
    machine.run("dpkg", "--remove", "vitald")
    running = "systemctl list-units --no-legend --state=active,failed 'vitald*'"
    assert machine.sh(running).strip() == ""
    assert machine.run("pgrep", "--full", "/opt/vitald", check=False).stdout == ""
    assert not (machine.root / "usr/share/vitald").exists()
    purge(machine)
    left = "find / -xdev -path '*vitald*'; find /run /tmp /var/tmp /dev -path '*vitald*'"
    assert machine.sh(left).splitlines() == []
    assert machine.run("systemctl", "--failed", "--no-legend").stdout.strip() == ""
