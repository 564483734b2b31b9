"""
The mount table of a process.

Source: proc_pid_mountinfo(5); Linux fs/proc_namespace.c.
"""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# ext4 since Linux 6.15, of a file system that an error shut down.
_GAVE_UP = frozenset({"emergency_ro", "shutdown"})
# A node with many containers has thousands of mounts, each line up to a page long.
_MAX_BYTES = 32 * 1024 * 1024
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `number` is the device as `major:minor`."""

    point: str
    number: str
    type: str
    source: str
    options: frozenset[str]  # of this mount
    superblock: frozenset[str]  # of the file system, common to all its mounts

    @property
    def read_only(self) -> bool:
        """Mounted read-only on purpose."""
        return "ro" in self.options and "ro" in self.superblock

    @property
    def gave_up(self) -> bool:
        return ("rw" in self.options and "ro" in self.superblock) or not self.superblock.isdisjoint(
            _GAVE_UP
        )

    def contains_path(self, path: str) -> bool:
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


def read_mounts(procfs: Path, *processes: str) -> list[Mount]:
    """The mounts of the first of these processes whose table can be read, none if there is no such
    table; of several on one mount point, the last, which hides the others. Raises OSError.
    """
    lines: list[str] = []
    for process in processes:
        with suppress(FileNotFoundError, PermissionError):
            lines = _read_lines(procfs / process / "mountinfo")
            break
    return list(
        {mount.point: mount for line in lines if (mount := parse_mount(line)) is not None}.values()
    )


def _read_lines(path: Path) -> list[str]:
    """Raises OSError, also for a table that is too long: half a table proves nothing."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {_MAX_BYTES} bytes", str(path))
    return data.decode("utf-8", "replace").splitlines()


def parse_mount(line: str) -> Mount | None:
    """`36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`; None for
    anything else.
    """
    mount, _, superblock = line.partition(" - ")
    words, own = mount.split(), superblock.split(" ")
    if len(words) < 6 or len(own) < 3:
        return None
    return Mount(
        point=unescape_text(words[4]),
        number=words[2],
        type=own[0],
        source=unescape_text(own[1]),
        options=frozenset(words[5].split(",")),
        superblock=frozenset(own[2].split(",")),
    )


def unescape_text(text: str) -> str:
    """Without the escapes that fstab and mountinfo write for white space."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
