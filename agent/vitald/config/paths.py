"""
The `paths` section: where the kernel's trees and the daemon's own folders are; and the folders that
are searched for programs, whose place differs from site to site.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitald.config.readers import read_path
from vitald.config.section import Section, setting

_SITE, _SYSTEM = ("/usr/local/sbin", "/usr/local/bin"), ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SLURM = "/opt/slurm/bin"  # on AWS ParallelCluster and HyperPod
FOLDERS = (*_SITE, *_SYSTEM)  # what a site has put into /usr/local comes first
PATH = ":".join((*FOLDERS, _SLURM))
# For programs that reboot a node: the system's directories precede /usr/local.
RECOVERY_PATH = ":".join((*_SYSTEM, *_SITE, _SLURM))


def is_root() -> bool:
    return os.geteuid() == 0


def find_service_folder(name: str) -> Path | None:
    """The first folder that systemd made for the service, by the variable that names it."""
    first = os.environ.get(name, "").partition(":")[0]
    return Path(first) if first.startswith("/") else None


def default_runtime() -> Path:
    """What systemd gives (`RuntimeDirectory=`), else `/run/vitald`; for a user, a folder in
    `$XDG_RUNTIME_DIR`.
    """
    if (given := find_service_folder("RUNTIME_DIRECTORY")) is not None:
        return given
    if is_root():
        return Path("/run/vitald")
    base = os.environ.get("XDG_RUNTIME_DIR")
    # Below /tmp it is created 0700, and the socket checks its owner.
    return Path(base) / "vitald" if base else Path(f"/tmp/vitald-{os.geteuid()}")  # noqa: S108


def default_state() -> Path:
    """What systemd gives (`StateDirectory=`), else `/var/lib/vitald`; for a user, a folder in
    `$XDG_STATE_HOME`.
    """
    if (given := find_service_folder("STATE_DIRECTORY")) is not None:
        return given
    if is_root():
        return Path("/var/lib/vitald")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "vitald"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where things are. Other roots are for containers and tests."""

    sysfs: Path = setting(Path("/sys"), read_path, "Root of sysfs.")
    procfs: Path = setting(Path("/proc"), read_path, "Root of procfs.")
    fstab: Path = setting(
        Path("/etc/fstab"), read_path, "The node's fstab: the node needs the local disks in it."
    )
    state: Path = setting(default_state, read_path, "Folder of the ledger. Must survive a reboot.")
    runtime: Path = setting(
        default_runtime, read_path, "Folder of the socket. Need not survive a reboot."
    )


PATHS = Section(
    name="paths",
    settings=Paths,
    examples={"state": 'state = "/var/lib/vitald"', "runtime": 'runtime = "/run/vitald"'},
)
