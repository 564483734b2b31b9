"""One machine for all of these tests, which tell its story in order: installed, asked, hurt,
restarted, rebooted, upgraded, removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.booted.machine import Machine
from tests.booted.package import build_deb, build_old_deb
from tests.booted.service import Service
from tests.conftest import require


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the machine said lately goes with a failure."""
    report = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if report.failed and machine is not None:
        said = machine.run("journalctl", "--no-pager", "--lines=80", check=False).stdout
        report.sections.append(("journal", said))
    return report


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_deb(tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="session")
def old_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_old_deb(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="session")
def machine(package: Path) -> Iterator[Machine]:
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    for program in ("systemd-nspawn", "mmdebstrap", "nsenter"):
        require(shutil.which(program), f"{program} (tests/booted/run installs it)")
    setting = Path("/proc/sys/kernel/printk_devkmsg")
    with Path("/tmp/vitald-tests-kmsg.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # there is one kernel log, however many test runs
        before = setting.read_text()
        setting.write_text("on\n")
        try:
            with Machine("vitald-test") as made:
                shutil.copy(package, made.root / "root/new.deb")
                yield made
        finally:
            setting.write_text(before)


@pytest.fixture(scope="session")
def service(machine: Machine) -> Service:
    return Service(machine)


@pytest.fixture(autouse=True)
def calm(service: Service) -> None:
    """One test that fails is not to fail the next; and together they start it more often than its
    start limit allows.
    """
    service.calm()
