"""The rpm on a booted machine with dnf: installed, upgraded, put back and removed, in this order;
by hand and by the Ansible role.

The machine is a Debian, whose dnf knows none of its packages: what vitald's package requires is
there, and one more package says so.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.booted.ansible import create_ansible, succeeded
from tests.booted.machine import PACKAGES, SUITE, Done, Machine, root_file_system
from tests.booted.package import OLD, build
from tests.booted.service import Service, fresh_pci
from tests.conftest import require

FOUNDATION = """\
Name: foundation
Version: 1
Release: 1
Summary: What the machine has from Debian
License: none
BuildArch: noarch
Provides: glibc = 2.36
Provides: python3 = 3.11
Provides: shadow-utils
Provides: /bin/sh
%description
%files
"""


@pytest.fixture
def calm() -> None:
    """Not the machine of the other tests."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    require(shutil.which("rpmbuild"), "rpmbuild (apt-get install rpm)")
    folder = tmp_path_factory.mktemp("rpm")

    def prepare(root: Path) -> None:
        shutil.copy(build(folder / "new", "--rpm"), root / "root/new.rpm")
        shutil.copy(build(folder / "old", "--rpm", "--version", OLD), root / "root/old.rpm")
        (folder / "foundation.spec").write_text(FOUNDATION)
        define = f"_topdir {folder}"
        subprocess.run(
            ["rpmbuild", "-bb", "--define", define, str(folder / "foundation.spec")],
            check=True,
            capture_output=True,
        )
        (foundation,) = folder.glob("RPMS/noarch/*.rpm")
        shutil.copy(foundation, root / "root/foundation.rpm")
        # On a Debian, Ansible uses apt.
        (root / "etc/debian_version").unlink()
        (root / "etc/os-release").unlink()
        (root / "etc/os-release").write_text('NAME="Rocky Linux"\nID=rocky\nVERSION_ID=9.4\n')
        (root / "etc/redhat-release").write_text("Rocky Linux release 9.4\n")

    def base() -> Path:
        return root_file_system(SUITE, (*PACKAGES, "dnf", "rpm"))

    with Machine("vitald-dnf", base, prepare) as made:
        made.run("rpm", "--install", "/root/foundation.rpm")
        yield made


@pytest.fixture(scope="module")
def service(machine: Machine) -> Service:
    return Service(machine)


def dnf(machine: Machine, *arguments: str) -> Done:
    return machine.run("dnf", "--assumeyes", "--nogpgcheck", *arguments, timeout=120.0)


def running(service: Service) -> object:
    service.ready()
    return service.get("/healthz")[1]["version"]


def test_upgraded_and_put_back(machine: Machine, service: Service) -> None:
    dnf(machine, "install", "/root/old.rpm")
    assert running(service) == OLD
    pci = fresh_pci()
    finding = service.drill(pci, 79)

    dnf(machine, "install", "/root/new.rpm")
    new = machine.run("rpm", "--query", "--queryformat=%{VERSION}", "vitald").stdout
    assert new != OLD
    assert running(service) == new
    (kept,) = service.findings(pci)
    assert (kept["id"], kept["count"]) == (finding["id"], 1)

    dnf(machine, "downgrade", "/root/old.rpm")
    assert running(service) == OLD
    (kept,) = service.findings(pci)
    assert (kept["id"], kept["count"]) == (finding["id"], 1)


def test_ansible_puts_it_back_only_if_allowed(machine: Machine, service: Service) -> None:
    ansible = create_ansible(machine)
    succeeded(ansible.play(vitald_package_file="/root/new.rpm"))
    new = running(service)
    assert new != OLD
    refused = ansible.play(vitald_package_file="/root/old.rpm")
    assert refused.code != 0
    assert f"package vitald-{OLD}-1.x86_64 is not installed" in refused.text
    assert running(service) == new
    succeeded(ansible.play(vitald_package_file="/root/old.rpm", vitald_downgrade=True))
    assert running(service) == OLD
    assert succeeded(ansible.play(vitald_version=OLD)).changed == set()


def test_removed(machine: Machine) -> None:
    dnf(machine, "remove", "vitald")
    assert machine.run("test", "-e", "/usr/bin/vitald", check=False).returncode != 0
    assert machine.run("test", "-s", "/var/lib/vitald/ledger.db").returncode == 0
    assert machine.run("systemctl", "is-active", "vitald", check=False).stdout == "inactive\n"
