"""
The packages that the booted machines install: the one that this checkout gives, and an older one to
come from.

`VITALD_BOOTED_DEB` names a package to test instead of building one, `VITALD_BOOTED_OLD` a released
one to upgrade from. Without the latter the same files are packed under a lower version: what
packaging does on an upgrade is tried, not what an older daemon had written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT
from vitald import __version__

OLD = f"{__version__}+1.gabc1234"  # an earlier commit of the same release


def build_deb(folder: Path) -> Path:
    given = os.environ.get("VITALD_BOOTED_DEB")
    return Path(given) if given else build(folder, "--deb")


def build_old_deb(folder: Path) -> Path:
    given = os.environ.get("VITALD_BOOTED_OLD")
    return Path(given) if given else build(folder, "--deb", "--version", OLD)


def build(folder: Path, *options: str) -> Path:
    """One package, with these options of packaging/build."""
    command = [sys.executable, str(ROOT / "packaging/build"), *options]
    done = subprocess.run(
        [*command, "--quick", "--wheels", str(folder.parent / "wheels"), "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"packaging/build: {done.stderr[-4000:]}"
    return Path(done.stdout.split()[-1])


def version_of(deb: Path) -> str:
    command = ["dpkg-deb", "--field", str(deb), "Version"]
    return subprocess.check_output(command, text=True).strip()
