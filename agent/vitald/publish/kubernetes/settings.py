"""`[kubernetes]` of the configuration, which `vitald publish` reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald.checking import read_flag, read_match
from vitald.config.errors import FileReport
from vitald.config.readers import one_of, period_within, read_command, read_path, some_of
from vitald.config.section import Section, TakesEffect, duration, setting
from vitald.config.values import Config
from vitald.recovery.settings import RecoverySettings

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
_read_heartbeat = period_within("at least 60s", least_s=60.0)


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
        lambda value: () if value == [] else read_command(value),
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
        some_of(*CONDITION_SETS),
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
    heartbeat_s: float = duration(
        "5m",
        "How often the heartbeat of the conditions is written while nothing changes, at least 60s.",
        _read_heartbeat,
    )
    driver_upgrades: bool = setting(
        False,
        read_flag,
        "Release the GPUs while the NVIDIA GPU Operator upgrades the driver of this node.",
    )


def _check_kubernetes(config: Config, report: FileReport) -> None:
    settings, wrong = config[KubernetesSettings], partial(report.add_error, KUBERNETES.name)
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
    if "hyperpod" in settings.conditions and config[RecoverySettings].mode != "automatic":
        wrong(
            "conditions",
            '"hyperpod" orders repairs from SageMaker: set [recovery] mode = "automatic"',
        )


KUBERNETES = Section(
    name="kubernetes",
    settings=KubernetesSettings,
    effect=TakesEffect.PUBLISHER,
    examples={
        "node": '#node = "ip-10-0-0-1.ec2.internal"',
        "server": '#server = "https://10.0.0.1:6443"',
        "ca": '#ca = "/etc/kubernetes/pki/ca.crt"',
        "token_file": '#token_file = "/run/credentials/vitald-publish.service/token"',
        "client_certificate": (
            '#client_certificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"'
        ),
        "client_key": '#client_key = "/var/lib/kubelet/pki/kubelet-client-current.pem"',
    },
    check=_check_kubernetes,
)
