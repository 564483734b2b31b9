"""Sections of the configuration that `vitald publish` reads: keys, defaults and help."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald import tomlfile
from vitald.checking import Unexpected, read_flag, read_match
from vitald.settings import one_of, read_names, read_path, setting

# A DNS subdomain, as the prefix of a label or condition: Kubernetes, "Labels and Selectors". It is
# shorter than the 253 characters allowed, so that a condition's type stays within 316.
_PREFIX = re.compile(r"(?=.{1,200}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
                     r"(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")  # fmt: skip
_NODE = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SERVER = re.compile(r"https://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9./_-]*)?")
CONDITION_SETS = ("own", "eks", "npd", "hyperpod")
TAINT_EFFECTS = ("PreferNoSchedule", "NoSchedule")
TAINT_SINK = "kubernetes-taint"  # the sink of a taint that keeps pods off an unhealthy node
# Domains of projects that write to nodes themselves, and their owners. Source: Kubernetes,
# "Well-Known Labels, Annotations and Taints", and the documentation of each project's labels.
RESERVED_DOMAINS = {
    "amazonaws.com": "AWS",
    "amd.com": "AMD",
    "azure.com": "Azure",
    "cattle.io": "Rancher",
    "cilium.io": "Cilium",
    "coreos.com": "CoreOS",
    "coreweave.cloud": "CoreWeave",
    "gke.io": "Google Cloud",
    "google.com": "Google Cloud",
    "googleapis.com": "Google Cloud",
    "intel.com": "Intel",
    "k3s.io": "K3s",
    "k8s.aws": "AWS",
    "k8s.io": "Kubernetes",
    "karpenter.sh": "Karpenter",
    "kubernetes.io": "Kubernetes",
    "kured.dev": "kured",
    "medik8s.io": "medik8s",
    "nvidia.com": "NVIDIA",
    "openshift.io": "OpenShift",
    "oraclecloud.com": "Oracle Cloud",
    "projectcalico.org": "Calico",
    "rke2.io": "RKE2",
    "run.ai": "Run:ai",
    "volcano.sh": "Volcano",
    "x-k8s.io": "Kubernetes",
}


def _read_prefix(value: object) -> str:
    prefix = read_match(value, _PREFIX, 'a DNS name such as "vitald.io"')
    for domain, owner in RESERVED_DOMAINS.items():
        if f".{prefix}".endswith(f".{domain}"):
            raise ValueError(f"{domain} belongs to {owner}: expected a domain of your own")
    return prefix


read_node_name = partial(read_match, pattern=_NODE, expected="the name of a Node object")
_read_server = partial(
    read_match, pattern=_SERVER, expected='an address such as "https://10.0.0.1:6443"'
)


def _read_condition_sets(value: object) -> tuple[str, ...]:
    names = read_names(value)
    for name in names:
        if name not in CONDITION_SETS:
            raise Unexpected(f"a list of {', '.join(CONDITION_SETS)}", name)
    return names


def _read_textfile(value: object) -> Path:
    path = read_path(value)
    if path.suffix != ".prom":  # node_exporter reads no others
        raise Unexpected("the path of a file *.prom", value)
    return path


def _read_program(value: object) -> tuple[str, ...]:
    argv = read_names(value)
    if argv and not argv[0].startswith("/"):
        raise Unexpected("a list of the absolute path of a program and its arguments", value)
    return argv


def _read_heartbeat(value: object) -> float:
    seconds = tomlfile.parse_duration(value)
    if seconds < 60.0:
        raise Unexpected("at least 60s", value)
    return seconds


def _find_state_folder() -> Path:
    """What systemd gives (`StateDirectory=`), else `/var/lib/vitald-publish`."""
    first = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(first) if first.startswith("/") else Path("/var/lib/vitald-publish")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """`vitald publish`, a process of its own, which writes the node's state to other systems."""

    state: Path = setting(
        _find_state_folder,
        read_path,
        "Folder of publish.db: what has been written, and since when.",
    )
    user: str = setting(
        "vitald-publish",
        partial(read_match, pattern=re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"),
                expected="the name of a user"),
        "User that it runs as. The daemon accepts its reports, and its requests to release the GPUs"
        " for a driver upgrade.",
    )  # fmt: skip
    drills: bool = setting(
        False,
        read_flag,
        "Publish simulated findings like real ones. Only for tests: others act on them.",
    )
    nfd: Path | None = setting(
        None,
        read_path,
        "Folder of Node Feature Discovery's feature files, where the labels are written with an"
        ' expiry time: "/etc/kubernetes/node-feature-discovery/features.d".',
    )
    textfile: Path | None = setting(
        None,
        _read_textfile,
        "File of metrics for the textfile collector of Prometheus' node_exporter, by its path"
        " (*.prom).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """What `vitald publish` writes to the node's Node object (docs/kubernetes.md)."""

    enabled: bool = setting(False, read_flag, "Write to the Kubernetes API.")
    node: str = setting(
        "",
        read_node_name,
        "Name of this node's Node object. Default: the variable NODE_NAME, then the host name.",
    )
    server: str = setting(
        "",
        _read_server,
        "Address of the API server. Default: that of the cluster that this pod runs in.",
    )
    ca: Path | None = setting(
        None, read_path, "File of the certificate authority of the API server."
    )
    token_file: Path | None = setting(
        None, read_path, "File with a bearer token. It is read again when it changes."
    )
    client_certificate: Path | None = setting(None, read_path, "File of a client certificate.")
    client_key: Path | None = setting(None, read_path, "File of its key.")
    exec: tuple[str, ...] = setting(
        (),
        _read_program,
        "A credential plugin and its arguments (client.authentication.k8s.io/v1), as a kubeconfig"
        " names it.",
    )
    impersonate: bool = setting(
        False,
        read_flag,
        "Write as system:node:NODE, by constrained impersonation (Kubernetes 1.36).",
    )
    prefix: str = setting(
        "vitald.io",
        _read_prefix,
        "Prefix of conditions, labels, annotations and taints: a domain of your own.",
    )
    conditions: tuple[str, ...] = setting(
        ("own",),
        _read_condition_sets,
        '"own": PREFIX/Healthy, PREFIX/RebootRequired, PREFIX/ReplacementRequired. "eks", "npd",'
        ' "hyperpod": what the repair controllers of EKS, GKE or SageMaker HyperPod read.',
    )
    labels: bool = setting(True, read_flag, "Write the labels PREFIX/status and PREFIX/action.")
    annotation: bool = setting(
        True, read_flag, "Write the open findings as JSON to the annotation PREFIX/findings."
    )
    events: bool = setting(True, read_flag, "Create an Event for each change of a finding.")
    taint: str = setting(
        "off",
        one_of("off", *TAINT_EFFECTS),
        "Effect of the taint PREFIX/unhealthy of an unhealthy node. It requires the right to patch"
        " nodes.",
    )
    heartbeat_s: float = setting(
        tomlfile.parse_duration("5m"),
        _read_heartbeat,
        "How often the heartbeat of the conditions is written while nothing changes, at least 60s.",
    )
    driver_upgrades: bool = setting(
        False,
        read_flag,
        "Release the GPUs while the NVIDIA GPU Operator upgrades the driver of this node.",
    )


def check_kubernetes(
    settings: KubernetesSettings, recovery_mode: str, wrong: Callable[[str, str], None]
) -> None:
    """Report, as (key, problem), what is wrong only in combination, where it is in use."""
    if not settings.enabled:
        return
    if not settings.server and any(
        (settings.ca, settings.token_file, settings.client_certificate, settings.exec)
    ):
        wrong("server", "credentials are given, but no address of the API server")
    if bool(settings.client_key) != bool(settings.client_certificate):
        wrong("client_key", "client_certificate and client_key are given together")
    if settings.token_file and settings.exec:
        wrong("exec", "either token_file or exec")
    if "hyperpod" in settings.conditions and recovery_mode != "automatic":
        wrong(
            "conditions",
            '"hyperpod" orders repairs from SageMaker: set [recovery] mode = "automatic"',
        )
