"""
The short answers of dcgmi, none of which is JSON: `discovery -l`, `--version`, `-v`, and the lines
that are printed instead of an answer.
"""

from __future__ import annotations

import re

_GPUS = re.compile(r"^\s*(\d{1,4}) GPUs? found", re.MULTILINE)
_SHORT = re.compile(r"^\s*dcgmi\s+version:\s*([0-9][0-9A-Za-z.+~-]{0,40})\s*$", re.MULTILINE)
_LONG = re.compile(r"^\s*Version\s*:\s*([0-9][0-9A-Za-z.+~-]{0,40})\s*$", re.MULTILINE)
_NO_ENGINE = (
    "unable to establish a connection to the specified host",
    "unable to connect to host engine",
)
_NO_WATCHES = "health watches not enabled"
NO_CONNECTION = 235


def find_gpu_count(text: str) -> int | None:
    """The number of GPUs that `discovery -l` lists; None if the text is not its answer."""
    found = _GPUS.search(text[:65536])
    return int(found[1]) if found else None


def find_version(text: str) -> str:
    """The version of dcgmi in the answer of `--version` or `-v`; "" if there is none."""
    found = _SHORT.search(text[:65536]) or _LONG.search(text[:65536])
    return found[1] if found else ""


def has_no_engine(text: str) -> bool:
    """Whether a command reports that no host engine answers."""
    lower = text[:65536].lower()
    return any(words in lower for words in _NO_ENGINE)


def has_no_watches(text: str) -> bool:
    """Whether `dcgmi health` reports that no watches are set."""
    return _NO_WATCHES in text[:65536].lower()
