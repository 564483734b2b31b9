"""
The short answers of dcgmi, none of which is JSON: `discovery -l`, `--version`, `-v`, and the lines
that are printed instead of an answer.
"""

from __future__ import annotations

import re

from vitald.collectors.kernel_log.record import normalize_pci

_GPUS = re.compile(r"^\s*(\d{1,4}) GPUs? found", re.MULTILINE)
_GPU_ROW = re.compile(
    r"^\|\s*(?P<gpu>\d{1,4})?\s*\|\s*"
    r"(?:PCI Bus ID:\s*(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s)?",
    re.MULTILINE | re.IGNORECASE | re.ASCII,
)
_SHORT = re.compile(r"^\s*dcgmi\s+version:\s*([0-9][0-9A-Za-z.+~-]{0,40})\s*$", re.MULTILINE)
_LONG = re.compile(r"^\s*Version\s*:\s*([0-9][0-9A-Za-z.+~-]{0,40})\s*$", re.MULTILINE)
_NO_ENGINE = (
    "unable to establish a connection to the specified host",
    "unable to connect to host engine",
    "host engine connection invalid",
)
_NO_WATCHES = "health watches not enabled"
_NO_CONNECTION = 235
LIST_GPUS = ("discovery", "-l")


def find_gpu_count(text: str) -> int | None:
    """The number of GPUs that `discovery -l` lists; None if the text is not its answer."""
    found = _GPUS.search(text[:65536])
    return int(found[1]) if found else None


def list_addresses(text: str) -> dict[int, str]:
    """The PCI address of each GPU that `discovery -l` lists, as sysfs writes it, by DCGM's number.
    Those without one are left out.
    """
    found: dict[int, str] = {}
    gpu = -1
    for row in _GPU_ROW.finditer(text[:65536].partition("NvSwitch")[0]):
        gpu = int(row["gpu"]) if row["gpu"] else gpu
        if row["address"] and gpu >= 0:
            found[gpu] = normalize_pci(row["address"])
    return found


def find_version(text: str) -> str:
    """The version of dcgmi in the answer of `--version` or `-v`; "" if there is none."""
    found = _SHORT.search(text[:65536]) or _LONG.search(text[:65536])
    return found[1] if found else ""


def has_no_engine(text: str) -> bool:
    """Whether a command reports that no host engine answers."""
    lower = text[:65536].lower()
    return any(words in lower for words in _NO_ENGINE)


def is_engine_down(exit_code: int | None, text: str) -> bool:
    """Whether a command that ended with this exit code and text found no host engine."""
    return exit_code == _NO_CONNECTION or (exit_code != 0 and has_no_engine(text))


def has_no_watches(text: str) -> bool:
    """Whether `dcgmi health` reports that no watches are set."""
    return _NO_WATCHES in text[:65536].lower()
