"""
Which libnvidia-ml.so.1 is loaded.

Where the NVIDIA GPU Operator installs the driver, its whole tree, library included, is below
`/run/nvidia/driver`, and the node itself has none. It comes first: it belongs to the driver that
runs now, while a library that the NVIDIA runtime put into a container is that of the container's
start, and the operator may have upgraded the driver since.

Only the library's own path is given to the loader. A search path (LD_LIBRARY_PATH) would find the
tree's other libraries too, and its C library is of another system.

Source: NVIDIA GPU Operator, value `hostPaths.driverInstallDir`; folders as NVIDIA's DRA driver
searches them (github.com/NVIDIA/k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin/root.go).
"""

from __future__ import annotations

from vitald.collectors.nvml.settings import NvmlSettings

NAME = "libnvidia-ml.so.1"
DEFAULT = ""  # the loader's own search
_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)


def find_library(settings: NvmlSettings) -> str:
    """The configured library, else that of the driver's tree, else DEFAULT. The tree may come and
    go while vitald runs.
    """
    if settings.library is not None:
        return str(settings.library)
    for folder in _FOLDERS:
        path = settings.driver_root / folder / NAME
        try:
            if path.is_file():
                return str(path)
        except OSError:  # on its way out, or not for this user
            continue
    return DEFAULT
