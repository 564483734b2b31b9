"""`packaging/install` on a booted machine: killed again and again, twice at once, over changes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.booted.installer import Run, dpkg_state, put_checkout
from tests.booted.machine import Machine

PACKAGE = ("--package", "/root/new.deb")
# In the last line of `vitald status`, however the node is: its kernel log is the host's, which may
# hold faults of other tests, and more of them than are read before the status is shown.
STATUS_END = "; profile nvidia, vitald "


@pytest.fixture
def calm() -> None:
    """Not the machine of the other tests."""


@pytest.fixture(scope="module")
def machine(package: Path) -> Iterator[Machine]:
    """With the installer and the package, and nothing installed."""
    with Machine("vitald-install") as made:
        put_checkout(made)
        shutil.copy(package, made.root / "root/new.deb")
        yield made


def begun(machine: Machine, state: str, more_s: float = 0.0, *, program: str = "dpkg") -> Run:
    """An installation that has come that far, in which this program runs, and a little further."""
    run = Run(machine, *PACKAGE)

    def there() -> bool:  # not only as the one before left it
        return dpkg_state(machine)[0] == state and (state == "unpacked" or program in run.names())

    run.until(there, state)
    time.sleep(more_s)
    assert run.process.poll() is None, run.said
    return run


def sound(machine: Machine) -> None:
    assert machine.run("dpkg", "--audit").stdout == ""
    changed = machine.run("dpkg", "--verify", "vitald", check=False).stdout.splitlines()
    assert [line for line in changed if not line.endswith(" c /etc/vitald/config.toml")] == []
    assert machine.run("systemctl", "is-active", "vitald").stdout == "active\n"
    code = machine.run("vitald", "check", check=False).returncode
    assert code in (0, 20)  # the kernel log is everybody's
    assert machine.sh("ls -d /var/cache/vitald* || true") == ""


def test_without_systemd_the_daemon_runs_in_the_foreground(machine: Machine) -> None:
    """In a view of the machine in which no systemd runs; with the status, once there is one."""
    alone = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs run /run && exec "$@"', "sh")
    with Run(machine, *PACKAGE, "--run", under=alone) as run:
        run.until(lambda: STATUS_END in run.said, "the status")
        assert " notice   ready " in run.said
        assert "vitald" in run.names()
    machine.run("dpkg", "--purge", "vitald")


def test_killed_at_any_moment(machine: Machine) -> None:
    """Each run takes over from what the one before it left, and the last one gets to its end."""
    seen = set()
    for state, more_s, program in (
        ("half-installed", 0.0, "dpkg"),
        ("half-installed", 1.0, "dpkg"),
        ("unpacked", 0.0, "dpkg"),
        ("half-configured", 0.0, "deb-systemd-inv"),  # the service is being started
    ):
        begun(machine, state, more_s, program=program).kill()
        seen.add(dpkg_state(machine))
    assert {("half-installed", "reinstreq"), ("half-configured", "ok")} <= seen, seen

    run = begun(machine, "half-installed", 0.2)
    assert run.kill("dpkg") == ["dpkg"]
    assert run.end() == 69
    assert "failed after" in run.said
    assert "Then run packaging/install again" in run.said

    begun(machine, "half-configured").kill("install")  # its apt-get goes on
    run = Run(machine, *PACKAGE)
    assert run.end() == 0, run.said
    assert "waiting for process" in run.said
    sound(machine)


def test_again_over_what_a_person_changed(machine: Machine) -> None:
    """Two at once, one of which shows the log: for a person, in words."""
    config = machine.root / "etc/vitald/config.toml"
    # The log that is shown ends with the start, whatever others wrote to the kernel log before.
    config.write_text(mine := "# mine\n[kernel_log]\nuserspace = 'ignore'\n")
    machine.run("systemctl", "restart", "vitald")
    first = begun(machine, "half-installed")
    with Run(machine, *PACKAGE, "--run") as second:
        second.until(lambda: "another packaging/install is running" in second.said, "it to wait")
        assert first.end() == 0, first.said
        second.until(lambda: ": ready socket=/run/vitald/vitald.sock" in second.said, "the log")
    assert STATUS_END in second.said
    assert '{"' not in second.said
    assert config.read_text() == mine
    assert list(config.parent.iterdir()) == [config]
    sound(machine)


def test_a_service_that_does_not_start_is_told(machine: Machine) -> None:
    machine.write("/etc/vitald/config.toml", "[metric]\n")
    run = Run(machine, *PACKAGE)
    assert run.end() == 69
    assert "the service does not run" in run.said
    assert "did you mean metrics?" in run.said
    assert machine.run("dpkg", "--audit").stdout == ""
