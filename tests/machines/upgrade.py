"""
Upgrades from the package of another commit to this checkout's on a booted machine, and goes back,
by hand:

    .venv/bin/python -m tests.machines.upgrade COMMIT [--new FILE] [--old FILE]

Over a ledger with open and cleared findings, a changed configuration, a drop-in and a unit of the
administrator's own. Takes some three minutes, and needs what tests/booted needs. With
VITALD_BOOTED_OLD=FILE, tests/booted upgrades from a released package in the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.booted.installer import Run, put_checkout
from tests.booted.machine import Machine
from tests.booted.package import build_deb
from tests.booted.service import Service, fresh_pci
from tests.harness import ROOT

CONFIG = "# mine\n[policy]\ndevice_reset = true\n"
DROP_IN = "[Service]\nEnvironment=MINE=1\nMemoryMax=200M\n"
TIMER = "/etc/systemd/system/vitald-retry.timer"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machines.upgrade")
    parser.add_argument("commit")
    parser.add_argument("--old", type=Path, help="its package, built before")
    parser.add_argument("--new", type=Path, help="this checkout's, built before")
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="vitald-upgrade-") as name,
        Machine("vitald-upgrade") as machine,
    ):
        folder = Path(name)
        put_checkout(machine)
        shutil.copy(wanted.old or built_from(wanted.commit, folder), machine.root / "root/old.deb")
        shutil.copy(wanted.new or build_deb(folder / "new"), machine.root / "root/new.deb")
        upgrade_and_back(machine)
    return 0


def built_from(commit: str, folder: Path) -> Path:
    """By its own build, dated with it."""
    tree, out = folder / "tree", folder / "old"
    tree.mkdir()
    git = ["git", "-C", str(ROOT)]
    archive = subprocess.run([*git, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    date = subprocess.check_output([*git, "log", "-1", "--format=%ct", commit], text=True).strip()
    command = [sys.executable, str(tree / "packaging/build"), "--deb", "--quick", "--out", str(out)]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": date})
    (package,) = out.glob("*.deb")
    return package


def install(machine: Machine, package: str) -> int:
    run = Run(machine, "--package", f"/root/{package}")
    code = run.end(300.0)
    print(f"--- packaging/install --package {package}: exit {code}\n{run.said}", flush=True)
    return code


def upgrade_and_back(machine: Machine) -> None:
    service = Service(machine)
    assert install(machine, "old.deb") == 0
    service.configure(CONFIG)
    service.drop_in("vitald.service", DROP_IN)
    shipped = (machine.root / "usr/lib/systemd/system/vitald-retry.timer").read_text()
    machine.write(TIMER, shipped + "# mine\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    kept, cleared = fresh_pci(), fresh_pci()
    for pci, code in ((kept, 64), (cleared, 79)):
        service.vitald("drill", "xid", str(code), "--device", pci, "--for", "1h")
    service.clear(cleared)
    before = known(service, kept, cleared)

    assert install(machine, "new.deb") == 0
    still_mine(machine, service)
    assert known(service, kept, cleared) == before
    print(f"upgraded: {len(before)} facts kept, schema {schema(machine)}")
    later = fresh_pci()
    service.vitald("drill", "xid", "79", "--device", later, "--for", "1h")

    files = sums(machine)
    if install(machine, "old.deb") == 0:
        still_mine(machine, service)
        assert known(service, kept, cleared) == before
        (found,) = service.findings(later)
        assert found["code"] == "xid/79"
        print("the older package goes on with what the newer one wrote: same schema")
    else:
        refused(machine, service)
        assert sums(machine) == files
        print("the older package refuses what the newer one wrote, and leaves it byte for byte")
        assert install(machine, "new.deb") == 0

    machine.run("systemctl", "stop", "vitald.socket")
    known_schema = schema(machine)
    set_schema(machine, known_schema + 1)
    files = sums(machine)
    assert install(machine, "old.deb") == 69
    refused(machine, service)
    assert sums(machine) == files
    print(
        f"a ledger of schema {known_schema + 1} is refused, and left byte for"
        f" byte:\n{said(service)}"
    )
    machine.run("systemctl", "stop", "vitald.socket")
    set_schema(machine, known_schema)
    assert install(machine, "new.deb") == 0
    still_mine(machine, service)
    assert known(service, kept, cleared) == before
    print("and the newer package goes on from there")


def known(service: Service, *pcis: str) -> list[str]:
    """What must not change: findings and events of these devices, what the node is and why."""
    service.ready()
    facts: list[object] = [(service.findings(pci), service.events(pci)) for pci in pcis]
    return [json.dumps(fact, sort_keys=True) for fact in facts]


def still_mine(machine: Machine, service: Service) -> None:
    service.ready()
    assert (machine.root / "etc/vitald/config.toml").read_text() == CONFIG
    assert service.status["status"] == "unhealthy"
    assert machine.show("vitald", "Environment") == "MINE=1"
    assert machine.show("vitald", "MemoryMax") == str(200 * 2**20)
    assert machine.show("vitald-retry.timer", "FragmentPath") == TIMER
    assert set(service.states()) == {"active"}
    assert machine.run("dpkg", "--audit").stdout == ""
    assert "Traceback" not in service.log()


def refused(machine: Machine, service: Service) -> None:
    assert service.states()[0] != "active"
    assert "written by a newer vitald" in service.log()
    assert machine.run("vitald", "check", check=False).returncode == 30


def said(service: Service) -> str:
    lines = [line for line in service.log().splitlines() if "newer vitald" in line]
    return "\n".join([lines[-1], service.vitald("status", check=False).stdout])


def ledger(machine: Machine) -> Path:
    return machine.root / "var/lib/vitald/ledger.db"


def schema(machine: Machine) -> int:
    with closing(sqlite3.connect(f"file:{ledger(machine)}?mode=ro", uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def set_schema(machine: Machine, version: int) -> None:
    with closing(sqlite3.connect(ledger(machine))) as db:
        db.execute(f"PRAGMA user_version = {version}")


def sums(machine: Machine) -> dict[str, str]:
    """Of every file in the state folder but the one that SQLite's readers share."""
    machine.run("systemctl", "stop", "vitald.socket")
    found = sorted(ledger(machine).parent.iterdir())
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in found
        if file.is_file() and not file.name.endswith("-shm")
    }


if __name__ == "__main__":
    sys.exit(main())
