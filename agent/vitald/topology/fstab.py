"""
Mount points of required local disks in /etc/fstab.

Required are disks' file systems that are mounted at every boot. Ignored are `noauto` (on demand),
`nofail` (the node may run without it), network and pseudo file systems, images, and what is read
only at boot (/boot, /efi). Removable media are recognised in filesystems.py.

Source: fstab(5), mount(8), systemd.mount(5).
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")
_MAX_BYTES = 65536  # the rest of a longer file is not read
_MAX_MOUNTS = 64  # a longer list is no list of disks
_TYPES = frozenset({"auto", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "xfs"})
_DISK = re.compile(r"(?:/dev/|(?:UUID|LABEL|PARTUUID|PARTLABEL|ID)=)")
_WITHOUT = frozenset({"noauto", "nofail", "_netdev", "loop", "bind", "rbind"})
_AT_START = ("/boot", "/efi")


class Fstab:
    """Its mount points. `read_table` may block on a disk; `points` never does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last, self._before = frozenset[str](), frozenset[str]()

    @property
    def points(self) -> frozenset[str]:
        """Of the last two reads: a file that is being rewritten may be incomplete once."""
        return self._last | self._before

    def read_table(self) -> None:
        """Reads the file again. If it cannot be read, nothing changes; if it does not exist, there
        are no mount points.
        """
        try:
            text = _read_text(self._path)
        except FileNotFoundError:
            text = ""
        except OSError:
            return
        self._before, self._last = self._last, parse_fstab(text)


def parse_fstab(text: str) -> frozenset[str]:
    """The mount points of required local disks."""
    found: set[str] = set()
    for line in text.splitlines():
        if (point := _parse_line(line)) is not None and len(found) < _MAX_MOUNTS:
            found.add(point)
    return frozenset(found)


def unescape_text(text: str) -> str:
    """Without the escapes that fstab and mountinfo write for white space."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _parse_line(line: str) -> str | None:
    """`UUID=5ad1 /data xfs defaults,noatime 0 2`; None for a line that does not count."""
    words = line.split()
    if len(words) < 3 or words[0].startswith("#"):
        return None
    source, point, type_ = unescape_text(words[0]), unescape_text(words[1]), words[2]
    options = (
        {option.partition("=")[0] for option in words[3].split(",")}
        if len(words) > 3
        else set[str]()
    )
    if not _DISK.match(source) or type_ not in _TYPES or options & _WITHOUT or "\0" in point:
        return None
    point = os.path.normpath(point)
    if not point.startswith("/") or any(
        point == folder or point.startswith(f"{folder}/") for folder in _AT_START
    ):
        return None
    return point


def _read_text(path: Path) -> str:
    """Raises OSError, also for anything but a regular file: a pipe would block."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is no regular file")
        data = os.read(fd, _MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > _MAX_BYTES:
        data = data[: data.rfind(b"\n", 0, _MAX_BYTES) + 1]  # without the line that was cut
    return data.decode("utf-8", "replace")
