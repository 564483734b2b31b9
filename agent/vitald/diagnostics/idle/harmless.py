"""
Programs that hold devices open without using them for work. They are recognised by path and owner,
because any process can choose its name.

Owns     the list, its extension by the configuration, and whether a process is one of them.
Refuses  procfs: the process table reads which program a process runs, and its owner.

If a process's program cannot be read, which takes rights that the service does not have, its name
counts only for a system account: users can name their processes as they like, but cannot run them
as another account.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MAX_NAME = 15  # the kernel keeps so many characters of a name
SYSTEM_ACCOUNTS = range(1000)  # login.defs(5), SYS_UID_MAX


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """The program that a process runs. `path` is empty if it cannot be read."""

    name: str
    owner: int | None = None
    path: str = ""
    file_owner: int | None = (
        # Of the program's file: a user may put his own in that place, in a mount namespace of his
        # own
        None
    )


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """`path`: as a package or image has it, by `source`. What lies in /usr/sbin counts in /usr/bin
    too, and the other way round.
    """

    path: str
    what: str
    source: str


PROGRAMS = (
    KnownProgram(
        "/usr/bin/nv-hostengine",
        "DCGM's host engine",
        "NVIDIA/DCGM, config-files/systemd/nvidia-dcgm.service.in",
    ),
    KnownProgram(
        "/usr/bin/dcgm-exporter", "metrics", "NVIDIA/dcgm-exporter, docker/Dockerfile and Makefile"
    ),
    KnownProgram(
        "/usr/bin/nvidia-cuda-mps-control",
        "Multi-Process Service: its clients are told by themselves",
        "Debian nvidia-cuda-mps",
    ),
    KnownProgram(
        "/usr/bin/nvidia-cuda-mps-server",
        "Multi-Process Service",
        "NVIDIA's driver installer; in Debian's nvidia-cuda-mps /usr/sbin",
    ),
    KnownProgram(
        "/usr/bin/mps-control-daemon",
        "starts MPS in Kubernetes",
        "NVIDIA/k8s-device-plugin, deployments/container/Dockerfile",
    ),
    KnownProgram(
        "/usr/bin/nvidia-persistenced", "keeps the driver loaded", "Debian nvidia-persistenced"
    ),
    KnownProgram(
        "/usr/bin/nv-fabricmanager", "the NVSwitch fabric", "NVIDIA's nvidia-fabricmanager.service"
    ),
    KnownProgram(
        "/opt/nvidia/nvlsm/sbin/nvlsm",
        "the NVLink subnet manager",
        "named by nv-fabricmanager where it is not installed",
    ),
    KnownProgram(
        "/usr/bin/nvidia-imex",
        "memory exchange between nodes",
        "aws-parallelcluster-cookbook, nvidia-imex.service",
    ),
    KnownProgram(
        "/usr/bin/nvidia-powerd",
        "power management",
        "Fedora xorg-x11-drv-nvidia-power; in Debian's nvidia-powerd /usr/sbin",
    ),
    KnownProgram("/usr/bin/nvidia-smi", "looks", "NVIDIA's driver installer"),
    KnownProgram("/usr/lib/nvidia/current/nvidia-smi", "looks", "Debian nvidia-smi"),
    KnownProgram("/usr/bin/nvtop", "looks", "Debian nvtop"),
    KnownProgram(
        "/usr/bin/nvidia-device-plugin",
        "Kubernetes' device plugin",
        "NVIDIA/k8s-device-plugin, deployments/container/Dockerfile",
    ),
    KnownProgram(
        "/usr/bin/gpu-feature-discovery",
        "labels of Kubernetes nodes",
        "NVIDIA/k8s-device-plugin, deployments/container/Dockerfile",
    ),
    KnownProgram(
        "/usr/bin/gpu-kubelet-plugin",
        "Kubernetes' DRA driver",
        "NVIDIA/k8s-dra-driver-gpu, its image",
    ),
    KnownProgram(
        "/usr/bin/compute-domain-kubelet-plugin",
        "Kubernetes' DRA driver",
        "NVIDIA/k8s-dra-driver-gpu, its image",
    ),
    KnownProgram(
        "/usr/bin/nvidia-mig-manager",
        "Kubernetes' MIG manager",
        "NVIDIA/mig-parted, deployments/container/Dockerfile",
    ),
    KnownProgram(
        "/usr/bin/nvidia_gpu_exporter", "metrics", "utkuozdemir/nvidia_gpu_exporter, Dockerfile"
    ),
    KnownProgram(
        "/usr/sbin/slurmd",
        "reads energy counters through NVML; jobs have processes of their own",
        "Slurm's own packages",
    ),
    KnownProgram("/usr/sbin/slurmd-wlm", "the same", "Debian slurmd"),
    KnownProgram(
        "/opt/slurm/sbin/slurmd",
        "the same",
        "AWS ParallelCluster and SageMaker HyperPod, slurmd.service",
    ),
    KnownProgram(
        "/opt/aws/neuron/bin/neuron-monitor",
        "metrics",
        "AWS Neuron documentation, aws-neuronx-tools",
    ),
    KnownProgram(
        "/opt/aws/neuron/bin/neuron-ls", "looks", "AWS Neuron documentation, aws-neuronx-tools"
    ),
    KnownProgram(
        "/opt/aws/neuron/bin/neuron-top", "looks", "AWS Neuron documentation, aws-neuronx-tools"
    ),
    KnownProgram(
        "/usr/local/bin/gpud", "monitoring", "leptonai/gpud, pkg/gpud-manager/systemd, since 0.5"
    ),
    KnownProgram(
        "/usr/sbin/gpud", "monitoring", "leptonai/gpud, pkg/gpud-manager/systemd, before 0.5"
    ),
    KnownProgram(
        "/usr/bin/SageMakerHealthMonitoringAgent",
        "HyperPod's own monitoring, which reads NVML",
        "field reports of HyperPod's Slurm images, sagemaker-health-monitoring-agent.service",
    ),
    KnownProgram("/usr/sbin/netdata", "monitoring", "Debian netdata-core"),
    KnownProgram("/usr/bin/telegraf", "monitoring", "influxdata/telegraf, telegraf.service"),
    KnownProgram(
        "/usr/bin/otelcol-contrib", "monitoring", "OpenTelemetry documentation, the Debian package"
    ),
    KnownProgram(
        "/otelcol-contrib", "monitoring", "the image otel/opentelemetry-collector-contrib"
    ),
    KnownProgram(
        "/opt/datadog-agent/bin/agent/agent",
        "monitoring",
        "DataDog/datadog-agent, omnibus/package-scripts: its files are dd-agent's",
    ),
    KnownProgram(
        "/opt/datadog-agent/embedded/bin/system-probe",
        "monitoring",
        "DataDog/datadog-agent, omnibus/package-scripts",
    ),
    KnownProgram(
        "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent",
        "monitoring",
        "aws/amazon-cloudwatch-agent, its RPM",
    ),
)
# The driver lists them as if they computed. Whatever else it lists is work, though it were a
# monitor.
LISTED = ("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server")
# The host engine starts it, so neither it nor what it starts descends from us.
# Source: NVIDIA/DCGM, modules/diag/DcgmDiagManager.cpp of 4.x and 3.x; dcgmi: the package
# datacenter-gpu-manager.
TESTS = (
    "/usr/libexec/datacenter-gpu-manager-4/nvvs",
    "/usr/share/nvidia-validation-suite/nvvs",
    "/usr/bin/dcgmi",
)


class KnownPrograms:
    """Some programs, and whether a process runs one of them."""

    def __init__(self, known: Iterable[str], system: range = SYSTEM_ACCOUNTS) -> None:
        self._paths = frozenset(map(_merge_bin_folders, known))
        self._names = frozenset(path.rpartition("/")[2][:_MAX_NAME] for path in self._paths)
        self._system = system

    def matches_process(self, process: RunningProgram) -> bool:
        if process.path:
            return (
                _merge_bin_folders(process.path) in self._paths
                and process.file_owner in self._system
            )
        return process.name in self._names and process.owner in self._system


def _merge_bin_folders(path: str) -> str:
    """Systems that have one folder for both lead the one to the other."""
    return f"/usr/bin/{path.removeprefix('/usr/sbin/')}" if path.startswith("/usr/sbin/") else path
