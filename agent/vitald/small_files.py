"""
Reads the kernel's small files in sysfs and procfs; nothing is written.

A file that does not exist, that answers with an error or that holds no number is not observable,
which is neither healthy nor unhealthy. A read blocks for as long as the device behind it does.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h, in the flags of /proc/PID/stat
_PAGE = 4096  # an attribute of sysfs is no longer, and comes whole
_MAX_BYTES = 65536  # bytes; some files of procfs are longer
_WHOLE = re.compile(r"[0-9]+|0x[0-9a-f]+")
_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.EINVAL: "the driver answers EINVAL: left alone from now on",
}


def read_text(path: Path | str) -> str:
    """The text of a file of procfs, without surrounding white space. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _MAX_BYTES):
            parts.append(part)
            if sum(map(len, parts)) >= _MAX_BYTES:
                break
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace").strip()


def read_attribute(path: Path | str) -> str:
    """The same for an attribute of sysfs, which one call of read returns. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)


def list_names(folder: Path | str) -> list[str]:
    """The entries of a folder, sorted; empty if it does not exist. Raises OSError if it cannot be
    read.
    """
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def describe_error(error: OSError) -> str:
    """Why a file cannot be read, for operators."""
    return (
        _REASONS.get(error.errno or 0)
        or f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
    )


def parse_whole_number(text: str) -> float:
    """`12` or `0x1f`. Raises ValueError for anything else, as counters and numbers of the kernel
    are never negative, and OverflowError above 1e308.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return float(int(text, 0 if text.startswith("0x") else 10))


def parse_counters(text: str) -> Mapping[str, float]:
    """Lines of `name number`, as AER counters have. Raises ValueError for anything else."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, number = line.split()
        found[name] = parse_whole_number(number)
    return found
