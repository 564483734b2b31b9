"""
The shipped manifests, with the choices made that a site makes in them: by their own comments, so
that a choice that is named wrongly there fails the test that makes it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.control_plane.plane import ControlPlane
from tests.harness import ROOT

KUBERNETES = ROOT / "packaging/kubernetes"
NAMESPACE, ACCOUNT = "vitald", "vitald"
IMAGE = "registry.example.com/vitald"


def copy_manifests(folder: Path) -> Path:
    """A copy of `packaging/kubernetes` that may be changed, with an image; and of the dashboards,
    which it may name.
    """
    manifests = Path(shutil.copytree(KUBERNETES, folder / "kubernetes"))
    shutil.copytree(KUBERNETES.parent / "grafana", folder / "grafana")
    _replace(manifests / "kustomization.yaml", r"newName: .*", f"newName: {IMAGE}")
    return manifests


def choose_component(manifests: Path, name: str = "publish") -> None:
    """Take `# components: [NAME]` out of its comment."""
    _uncomment(manifests / "kustomization.yaml", f"components: [{name}]")


def choose(kustomization: Path, *files: str) -> None:
    """Take these files of a list out of their comments."""
    for file in files:
        _uncomment(kustomization, f"- {file}")


def drop(kustomization: Path, *files: str) -> None:
    """Put these files of a list into comments."""
    for file in files:
        _replace(kustomization, rf"^( *)- {re.escape(file)}\b", rf"\1# - {file}")


def _uncomment(path: Path, entry: str) -> None:
    _replace(path, rf"^( *)# {re.escape(entry)}(?=\s)", rf"\1{entry}")


def _replace(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"), flags=re.MULTILINE)
    assert count == 1, f"{path}: {pattern} is there {count} times"
    path.write_text(text)


@contextmanager
def apply_manifests(plane: ControlPlane, manifests: Path) -> Iterator[None]:
    """`kubectl apply -k`; everything is deleted afterwards, the namespace apart, since no
    controller would complete its end. Raises AssertionError with kubectl's text.
    """
    try:
        try:
            plane.kubectl("apply", "-k", str(manifests))
        except subprocess.CalledProcessError as error:
            raise AssertionError(error.stderr) from error
        yield
    finally:
        for pod in plane.kubectl("-n", NAMESPACE, "get", "pods", "-o", "name").split():
            plane.kubectl("-n", NAMESPACE, "delete", pod, "--force", "--grace-period=0")
        listed = plane.kubectl("kustomize", str(manifests)).split("\n---\n")
        kept = [document for document in listed if "\nkind: Namespace\n" not in f"\n{document}"]
        plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin="\n---\n".join(kept))
