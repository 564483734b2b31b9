"""
Where libcublas is installed: by CUDA's packages, by the distribution's, or by pip.

Source: CUDA installation guide (/usr/local/cuda-VERSION); pip's nvidia-cublas-cu11, nvidia-cublas-
cu12 (nvidia/cublas/lib) and nvidia-cublas 13 (nvidia/cu13/lib).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitald.diagnostics.run import tool

_NAME = re.compile(r"libcublas\.so\.(\d{1,3})")
_PACKAGES = (
    "/usr/lib/python3*/dist-packages",
    "/usr/local/lib/python3*/dist-packages",
    "/usr/lib/python3*/site-packages",
    "/usr/local/lib/python3*/site-packages",
    "/opt/*/lib/python3*/site-packages",
)
FOLDERS = (
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-*/lib64",
    f"/usr/lib/{platform.machine()}-linux-gnu",
    "/usr/lib64",
    *(f"{folder}/nvidia/cublas/lib" for folder in _PACKAGES),
    *(f"{folder}/nvidia/cu*/lib" for folder in _PACKAGES),
)
_WHERE = "/usr/local/cuda*/lib64, the system's libraries and pip's packages"
NEXT_STEP = "install cuBLAS (libcublas of CUDA 11 to 13) or name its file in [gemm] library"


def find_libraries(configured: Path | None, folders: Sequence[str] = FOLDERS) -> tuple[str, ...]:
    """Paths of libcublas, the newest version first; the configured one alone if there is one. As
    root, none that an ordinary user could have put there.
    """
    if configured:
        found = [str(configured)] if configured.is_file() else []
    else:
        paths = (path for folder in folders for path in sorted(_list_files(folder)))
        versions = ((_NAME.fullmatch(path.name), str(path)) for path in paths)
        known = [(int(match[1]), path) for match, path in versions if match]
        found = [path for _, path in sorted(known, key=lambda pair: -pair[0])]
    return tuple(path for path in found if not tool.find_tampering(path))


def _list_files(folder: str) -> Iterator[Path]:
    """Those of libcublas in a folder, which may be a pattern."""
    return Path("/").glob(f"{folder.lstrip('/')}/libcublas.so.*")


def explain_absence(configured: Path | None) -> str:
    """Why there is none, and the next step."""
    if configured and not configured.is_file():
        return f"{configured} of [gemm] library is not there"
    if configured:
        return f"{configured} is not loaded as root: {tool.find_tampering(str(configured))}"
    return f"libcublas is not in {_WHERE}: {NEXT_STEP}"
