"""Settings of the host collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, read_names, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Memory, processors, disks, file systems, clock and services of the node."""

    enabled: bool = setting(True, read_flag, "Poll the host.")
    every_s: float = setting(
        tomlfile.parse_duration("60s"), tomlfile.parse_duration, "How often to poll."
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10s"),
        tomlfile.parse_duration,
        "A read of one part that takes longer counts as hung.",
    )
    mounts: tuple[str, ...] = setting(
        ("/", "/var/log"),
        read_names,
        "File systems to watch for space, inodes and being read-only, beside that of the state"
        " folder.",
    )
    units: tuple[str, ...] = setting(
        (),
        read_names,
        'systemd units that must be running here, such as "kubelet.service", "slurmd.service",'
        ' "nvidia-fabricmanager.service".',
    )
    units_if_enabled: tuple[str, ...] = setting(
        ("nvidia-fabricmanager.service", "nvlsm.service", "nvidia-imex.service"),
        read_names,
        "systemd units that must be running where they are enabled.",
    )


SECTION = Section(name="host", settings=HostSettings, order=60)
