"""
The packages that the booted machines install: the one that this checkout gives, and an older one to
come from.

`VITALD_BOOTED_DEB` names a package to test instead of building one, `VITALD_BOOTED_OLD` a released
one to upgrade from. Without the latter the same files are packed again under a lower version: what
packaging does on an upgrade is tried, not what an older daemon had written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT
from vitald import __version__

OLD = "0.0.1"


def built(folder: Path) -> Path:
    given = os.environ.get("VITALD_BOOTED_DEB")
    if given:
        return Path(given)
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging/build"), "--deb", "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"packaging/build: {done.stderr[-4000:]}"
    (package,) = folder.glob("*.deb")
    return package


def older(package: Path, folder: Path) -> Path:
    given = os.environ.get("VITALD_BOOTED_OLD")
    if given:
        return Path(given)
    tree, made = folder / "tree", folder / "old.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
    lower(tree / "DEBIAN/control", f"Version: {__version__}", f"Version: {OLD}")
    for file in tree.rglob("vitald/__init__.py"):
        lower(file, f'"{__version__}"', f'"{OLD}"')
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(tree), str(made)],
        check=True,
        capture_output=True,
    )
    return made


def version_of(package: Path) -> str:
    command = ["dpkg-deb", "--field", str(package), "Version"]
    return subprocess.check_output(command, text=True).strip()


def lower(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, file
    file.write_text(text.replace(old, new))
