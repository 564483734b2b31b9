"""Helm, and the chart."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import yaml

from tests.control_plane.manifests import IMAGE
from tests.control_plane.plane import ADMIN, ControlPlane
from tests.harness import ROOT
from tests.waiting import WAIT_S

CHART = ROOT / "packaging/helm/vitald"
WITH_IMAGE = ("--set", f"image.repository={IMAGE}")
Json = dict[str, Any]


def run_helm(
    plane: ControlPlane, *arguments: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """As the administrator of the cluster."""
    return subprocess.run(
        _command(plane, arguments), input=stdin, text=True, capture_output=True, timeout=WAIT_S
    )


def start_helm(plane: ControlPlane, *arguments: str) -> subprocess.Popen[str]:
    """Its errors are in its output."""
    return subprocess.Popen(
        _command(plane, arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _command(plane: ControlPlane, arguments: Sequence[str]) -> list[str]:
    kubeconfig = plane.write_kubeconfig(ADMIN)
    return [str(plane.programs / "helm"), f"--kubeconfig={kubeconfig}", *arguments]


def demand_helm(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    """What helm prints. Raises AssertionError with its errors."""
    done = run_helm(plane, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render_chart(
    plane: ControlPlane, namespace: str, values: Json, *, apis: Sequence[str] = ()
) -> list[Json]:
    """The objects of the chart with these values, the hook's apart. `apis`: what the cluster serves
    besides Kubernetes' own.
    """
    version = plane.demand("GET", "/version")["gitVersion"]
    text = demand_helm(
        plane,
        *("template", "vitald", str(CHART), "--namespace", namespace, "--no-hooks"),
        *("--kube-version", version, *WITH_IMAGE, "--values", "-"),
        *(f"--api-versions={api}" for api in apis),
        stdin=yaml.safe_dump(values),
    )
    return [document for document in yaml.safe_load_all(text) if document]
