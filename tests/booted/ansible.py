"""
Ansible in a booted machine: ansible-core from PyPI, in a folder of the cache, run there with a
local connection.

The machine needs no network. Its Python is the one that the libraries are fetched for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.booted.machine import CACHE, Machine
from tests.conftest import require
from tests.harness import ROOT

RELEASE = "2.19"  # the last one that runs with Python 3.11, which bookworm has
_PYTHON = "3.11"
_TASK = re.compile(r"(?:TASK|RUNNING HANDLER) \[vitald : (.*)\]")
_PLACE, _ROLES = "/root/ansible-core", "/root/roles"


class NoAnsible(Exception):
    """It cannot be had. The text is pip's."""


def find_ansible() -> Path:
    """A folder with ansible-core and its libraries. Raises NoAnsible."""
    kept = CACHE / f"ansible-core-{RELEASE}-python{_PYTHON}"
    if kept.is_dir():
        return kept
    CACHE.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{kept.name}.", dir=CACHE))
    platforms = [
        f"--platform={name}_{os.uname().machine}" for name in ("manylinux2014", "manylinux_2_28")
    ]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(made)]
    command += [f"--python-version={_PYTHON}", "--only-binary=:all:", *platforms]
    done = subprocess.run(
        [*command, f"ansible-core=={RELEASE}.*"], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        shutil.rmtree(made)
        raise NoAnsible(done.stderr[-1000:])
    made.rename(kept)
    return kept


@dataclass(frozen=True, slots=True)
class Played:
    """One run of a playbook."""

    code: int
    text: str

    @property
    def changed(self) -> set[str]:
        """The names of the tasks and handlers that changed something."""
        found, task = set(), ""
        for line in self.text.splitlines():
            if named := _TASK.match(line):
                task = named[1]
            elif line.startswith("changed: "):
                found.add(task)
        return found


def succeeded(played: Played) -> Played:
    assert played.code == 0, played.text[-6000:]
    return played


class Ansible:
    """The role of this checkout, played on one machine."""

    def __init__(self, machine: Machine, core: Path) -> None:
        self._machine = machine
        shutil.copytree(core, machine.root / _PLACE.lstrip("/"))
        shutil.copytree(ROOT / "packaging/ansible/roles", machine.root / _ROLES.lstrip("/"))

    def play(self, *options: str, **variables: object) -> Played:
        """With these variables of the role."""
        book = [
            {
                "hosts": "localhost",
                "roles": [{"role": "vitald", "vars": variables}],
            }
        ]
        self._machine.write("/root/play.yml", json.dumps(book))
        done = self._machine.run(
            "env",
            f"PYTHONPATH={_PLACE}",
            f"ANSIBLE_ROLES_PATH={_ROLES}",
            "ANSIBLE_NOCOLOR=1",
            "HOME=/root",
            "python3",
            "-m",
            "ansible",
            "playbook",
            "--inventory=localhost,",
            "--connection=local",
            "-v",
            *options,
            "/root/play.yml",
            check=False,
            timeout=300.0,
        )
        return Played(done.returncode, f"{done.stdout}\n{done.stderr}")


def create_ansible(machine: Machine) -> Ansible:
    """Skips the test, or fails it in CI, where ansible-core cannot be had."""
    try:
        return Ansible(machine, find_ansible())
    except NoAnsible as error:
        require(False, f"ansible-core from PyPI: {error}")
        raise
