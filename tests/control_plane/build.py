"""
Builds the programs of a Kubernetes control plane once, into the cache of tests/go_programs.py.

    python -m tests.control_plane.build

kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and helm come from the Go module
proxy (about 10 minutes of processor time), etcd from Debian's package, unpacked and not installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.go_programs import CACHE, CannotBuild, build_once, report_step, run_command

KUBERNETES, HELM = "1.36.1", "3.22.0"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_FOLDER = CACHE / f"control-plane-{KUBERNETES}-{HELM}"
_PROXY = "https://proxy.golang.org/k8s.io/kubernetes/@v/v{version}.mod"
_STAGING = re.compile(r"^\s*(k8s\.io/[a-z0-9-]+) => \./staging", re.MULTILINE)
_GO_LINE = re.compile(r"^go \S+$", re.MULTILINE)
_DOWNLOAD_S = 60


def find_built_programs() -> Path | None:
    """The folder with all programs; None until they have been built."""
    return _FOLDER if _FOLDER.is_dir() else None


def find_programs() -> Path:
    """The folder with all programs; builds them if it is not there. Raises CannotBuild."""
    return build_once(_FOLDER, _build_programs)


def _build_programs(go: str, scratch: Path, into: Path) -> None:
    report_step("the control plane, about ten minutes of processor time")
    _unpack_etcd(scratch / "etcd", into)
    _build_kubernetes(go, scratch, into)
    _build_helm(go, scratch, into)


def _unpack_etcd(scratch: Path, into: Path) -> None:
    if (into / "etcd").exists():
        return
    if installed := shutil.which("etcd"):
        shutil.copy2(installed, into / "etcd")
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise CannotBuild("there is no etcd, and no apt-get to fetch it with")
    report_step("etcd from Debian")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    download = ["apt-get", "download", "-q", "etcd-server"]
    try:
        run_command(download, scratch)
    except subprocess.CalledProcessError:  # the lists of packages are missing or old
        run_command(["apt-get", "update", "-q"], scratch)
        run_command(download, scratch)
    (package,) = scratch.glob("*.deb")
    run_command(["dpkg", "-x", package.name, "unpacked"], scratch)
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
    language = _GO_LINE.search(theirs)
    packages = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
    module = scratch / "kubernetes"
    _prepare_module(
        go,
        module,
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
    for program, package in zip(PROGRAMS, packages):
        if not (into / program).exists():
            report_step(program)
            run_command(
                [go, "build", "-ldflags", flags, "-o", f"{into}/", package], module, scratch
            )


def _build_helm(go: str, scratch: Path, into: Path) -> None:
    package = "helm.sh/helm/v3/cmd/helm"
    module = scratch / "helm"
    _prepare_module(go, module, f"go 1.24\n\nrequire helm.sh/helm/v3 v{HELM}\n", [package])
    report_step("helm")
    run_command([go, "build", "-ldflags", "-s -w", "-o", f"{into}/", package], module, scratch)


def _prepare_module(go: str, module: Path, requirements: str, packages: list[str]) -> None:
    report_step(f"the modules of {module.name}")
    module.mkdir(exist_ok=True)
    (module / "go.mod").write_text(f"module vitald/tests\n\n{requirements}")
    imports = "".join(f'\t_ "{package}"\n' for package in packages)
    (module / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n")
    run_command([go, "mod", "tidy"], module, module.parent)


if __name__ == "__main__":
    try:
        print(find_programs())
    except CannotBuild as error:
        sys.exit(f"control plane: cannot be built: {error}")
