"""
Programs that hold devices and are no work: by where they are and whose they are, as anybody may take a name.

Owns     the list, what a configuration may add to it, and when a process is one of them.
Refuses  procfs: the table of processes says what a process runs, and for whom.

Where a process's program cannot be looked at, which takes rights that the service does not have, its name counts only for
an account of the system's: a user can name a process as he likes, but not run it for another account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_COMM = 15  # the kernel keeps so many characters of a name
SYSTEM_ACCOUNTS = range(1000)  # login.defs(5), SYS_UID_MAX


@dataclass(frozen=True, slots=True)
class Running:
    """What a process runs. `path` is empty where that cannot be looked at."""

    name: str
    owner: int | None = None
    path: str = ""
    of_root: bool = False  # the file belongs to root, so that no user has put his own there


# Of packages and images as their vendors make them.
PROGRAMS: Mapping[str, str] = {
    "/usr/bin/nv-hostengine": "DCGM's host engine",
    "/usr/bin/dcgm-exporter": "metrics",
    "/usr/bin/nvidia-cuda-mps-control": "CUDA's Multi-Process Service: its clients are told by themselves",
    "/usr/bin/nvidia-cuda-mps-server": "CUDA's Multi-Process Service: its clients are told by themselves",
    "/usr/bin/nvidia-persistenced": "keeps the driver loaded",
    "/usr/bin/nv-fabricmanager": "the NVSwitch fabric",
    "/opt/nvidia/nvlsm/sbin/nvlsm": "the NVLink subnet manager",
    "/usr/bin/nvidia-imex": "memory exchange between nodes",
    "/usr/bin/nvidia-powerd": "power management",
    "/usr/bin/nvidia-smi": "looks",
    "/usr/bin/nvtop": "looks",
    "/usr/bin/nvidia-device-plugin": "Kubernetes' device plugin",
    "/usr/bin/gpu-feature-discovery": "labels of Kubernetes nodes",
    "/usr/bin/nvidia-mig-manager": "Kubernetes' MIG manager",
    "/usr/bin/nvidia_gpu_exporter": "metrics",
    "/usr/sbin/slurmd": "reads energy counters through NVML; jobs have processes of their own",
    "/opt/aws/neuron/bin/neuron-monitor": "metrics",
    "/opt/aws/neuron/bin/neuron-ls": "looks",
    "/opt/aws/neuron/bin/neuron-top": "looks",
    "/usr/bin/neuron-device-plugin": "Kubernetes' device plugin",
    "/usr/local/bin/gpud": "monitoring",
    "/usr/sbin/netdata": "monitoring",
    "/usr/bin/telegraf": "monitoring",
    "/usr/bin/otelcol-contrib": "monitoring",
    "/opt/datadog-agent/bin/agent/agent": "monitoring",
    "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent": "monitoring",
}
# The driver lists them as if they computed. Whatever else it lists is work, though it were a monitor.
LISTED = ("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server")
# The host engine starts it, so neither it nor what it starts descends from us.
TESTS = ("/usr/libexec/datacenter-gpu-manager-4/nvvs", "/usr/share/nvidia-validation-suite/nvvs", "/usr/bin/dcgmi")


class Programs:
    """Some programs, and whether a process runs one of them."""

    def __init__(self, known: Iterable[str], system: range = SYSTEM_ACCOUNTS) -> None:
        self._paths = frozenset(known)
        self._names = frozenset(path.rpartition("/")[2][:_COMM] for path in self._paths)
        self._system = system

    def run_by(self, process: Running) -> bool:
        if process.path:
            return process.path in self._paths and process.of_root
        return process.name in self._names and process.owner in self._system
