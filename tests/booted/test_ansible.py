"""The Ansible role on a booted machine: installed, changed, played again, removed. The tests go in
this order, on one machine.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.booted.ansible import Ansible, create_ansible, succeeded
from tests.booted.machine import PACKAGES, SUITE, Machine, root_file_system
from tests.booted.package import version_of
from tests.booted.service import Service

pytestmark = pytest.mark.timeout(600)

FILE = "/root/vitald.deb"
REPOSITORY = "/srv/repository"
UNIT = "vitald-publish.service"
APPLY = "Apply the configuration"


@pytest.fixture
def calm() -> None:
    """Not the machine of the other tests."""


@pytest.fixture(scope="module")
def machine(package: Path, old_package: Path) -> Iterator[Machine]:
    """With both packages as files, the older one also in a repository, and nothing installed."""

    def prepare(root: Path) -> None:
        shutil.copy(package, root / FILE.lstrip("/"))
        (root / "etc/apt/sources.list").write_text("")  # there is no network to reach them
        folder = root / REPOSITORY.lstrip("/")
        folder.mkdir(parents=True)
        shutil.copy(old_package, folder / "old.deb")
        (folder / "Packages").write_text(describe_package(old_package, "./old.deb"))

    packages = (*PACKAGES, "python3-apt")  # which Ansible's module asks for

    def base() -> Path:
        return root_file_system(SUITE, packages)

    with Machine("vitald-ansible", base, prepare) as made:
        yield made


def describe_package(package: Path, path: str) -> str:
    """Its paragraph in a repository's Packages file. Source: Debian Wiki, "RepositoryFormat"."""
    fields = subprocess.check_output(["dpkg-deb", "--field", str(package)], text=True)
    data = package.read_bytes()
    return (
        f"{fields.rstrip()}\nFilename: {path}\nSize: {len(data)}\n"
        f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
    )


@pytest.fixture(scope="module")
def service(machine: Machine) -> Service:
    return Service(machine)


@pytest.fixture(scope="module")
def ansible(machine: Machine) -> Ansible:
    return create_ansible(machine)


def test_its_syntax(ansible: Ansible) -> None:
    played = ansible.play("--syntax-check")
    assert played.code == 0, played.text
    refused = ansible.play(vitald_state="gone")
    assert refused.code != 0
    assert "value of vitald_state must be one of" in refused.text


def test_a_check_changes_nothing(machine: Machine, ansible: Ansible) -> None:
    """On a node without the package, which then cannot be looked at."""
    succeeded(ansible.play("--check", vitald_package_file=FILE))
    for path in ("/usr/bin/vitald", "/etc/vitald", "/var/cache/vitald-ansible"):
        assert machine.run("test", "-e", path, check=False).returncode != 0, path


def test_from_a_repository(
    machine: Machine, service: Service, ansible: Ansible, old_package: Path
) -> None:
    """Twice: the second run changes nothing."""
    machine.run("useradd", "scheduler")
    variables = {
        "vitald_apt_repository": f"deb [trusted=yes] file:{REPOSITORY} ./",
        "vitald_version": version_of(old_package),
        "vitald_config": '[kernel_log]\nuserspace = "ignore"\n',
        "vitald_socket_users": ["scheduler"],
    }
    first = succeeded(ansible.play(**variables))
    print(first.changed)
    service.ready()
    assert version_of(old_package) in service.vitald("version").stdout
    assert service.get("/v1/status", user="scheduler")[0] == 200
    assert "Ansible managed" in machine.run("cat", "/etc/vitald/config.toml").stdout
    assert machine.run("systemctl", "is-enabled", UNIT, check=False).stdout == "disabled\n"
    again = succeeded(ansible.play(**variables))
    assert again.changed == set()


def test_upgraded_from_a_file(service: Service, ansible: Ansible, package: Path) -> None:
    variables = {
        "vitald_package_file": FILE,
        "vitald_config": '[kernel_log]\nuserspace = "ignore"\n',
    }
    succeeded(ansible.play(**variables))
    service.ready()
    assert f"vitald {version_of(package)} " in service.vitald("version").stdout
    assert succeeded(ansible.play(**variables)).changed == set()


def test_downgraded_only_if_allowed(
    machine: Machine, service: Service, ansible: Ansible, package: Path, old_package: Path
) -> None:
    for variables in (
        {"vitald_package_file": f"{REPOSITORY}/old.deb"},
        {"vitald_version": version_of(old_package)},
    ):
        played = ansible.play(**variables)
        assert played.code != 0
        assert f"vitald {version_of(package)} " in service.vitald("version").stdout
        succeeded(ansible.play(**variables, vitald_downgrade=True))
        service.ready()
        assert f"vitald {version_of(old_package)} " in service.vitald("version").stdout
        succeeded(ansible.play(vitald_package_file=FILE))


def test_a_wrong_configuration_is_not_written(
    machine: Machine, service: Service, ansible: Ansible
) -> None:
    before = machine.run("cat", "/etc/vitald/config.toml").stdout
    played = ansible.play(vitald_package_file=FILE, vitald_config="[metric]\n")
    assert played.code != 0
    assert "did you mean metrics?" in played.text
    assert machine.run("cat", "/etc/vitald/config.toml").stdout == before
    service.ready()


def test_reloaded_or_restarted(service: Service, ansible: Ansible) -> None:
    """A restart only for what needs one."""
    before = service.pid
    played = succeeded(
        ansible.play(
            vitald_package_file=FILE, vitald_config='[kernel_log]\nuserspace = "confirmed"\n'
        )
    )
    assert played.changed == {"Write the configuration", APPLY}
    assert '"stdout": "reloaded' in played.text
    assert service.pid == before
    played = succeeded(
        ansible.play(
            vitald_package_file=FILE, vitald_config='[metrics]\nlisten = "127.0.0.1:9821"\n'
        )
    )
    assert '"stdout": "restarted' in played.text
    service.ready()
    assert service.pid != before


def test_the_publisher(machine: Machine, service: Service, ansible: Ansible) -> None:
    """With credentials, and no API server: it runs and waits. Then it is taken away again."""
    machine.write("/root/token", "a-token\n", mode=0o600)
    variables = {
        "vitald_package_file": FILE,
        "vitald_config": (
            '[kubernetes]\nenabled = true\nserver = "https://127.0.0.1:1"\n'
            'token_file = "/run/credentials/vitald-publish.service/token"\n'
        ),
        "vitald_publisher": True,
        "vitald_publisher_credentials": {"token": "/root/token"},
        "vitald_publisher_addresses": ["localhost"],
        "vitald_publisher_writable": ["/srv"],
        "vitald_publisher_restart_every": "12h",
    }
    succeeded(ansible.play(**variables))
    assert machine.run("systemctl", "is-active", UNIT).stdout == "active\n"
    assert machine.run("systemctl", "is-enabled", UNIT).stdout == "enabled\n"
    assert machine.show(UNIT, "RuntimeMaxUSec") == "12h"
    assert machine.show(UNIT, "ReadWritePaths") == "/srv"
    assert set(machine.show(UNIT, "IPAddressAllow").split()) == {"127.0.0.0/8", "::1/128"}
    assert machine.show(UNIT, "DropInPaths").endswith(f"{UNIT}.d/ansible.conf")
    assert succeeded(ansible.play(**variables)).changed == set()

    succeeded(ansible.play(vitald_package_file=FILE))
    assert machine.run("systemctl", "is-active", UNIT, check=False).stdout == "inactive\n"
    assert machine.run("systemctl", "is-enabled", UNIT, check=False).stdout == "disabled\n"
    assert succeeded(ansible.play(vitald_package_file=FILE)).changed == set()
    service.ready()


def test_removed(machine: Machine, ansible: Ansible) -> None:
    succeeded(ansible.play(vitald_state="absent"))
    assert machine.run("test", "-e", "/usr/bin/vitald", check=False).returncode != 0
    assert machine.run("test", "-s", "/var/lib/vitald/ledger.db").returncode == 0
    assert succeeded(ansible.play(vitald_state="absent")).changed == set()
    succeeded(ansible.play(vitald_state="purged"))
    machine.run("rm", FILE)
    left = machine.sh(
        "find / -xdev -path /root -prune -o -path '*vitald*' -print; find /run -path '*vitald*'"
    )
    assert left.splitlines() == []
    assert succeeded(ansible.play(vitald_state="purged")).changed == set()
