"""Settings of the host collector."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitald.checking import read_flag, read_match
from vitald.config.readers import read_names, read_path, read_poll_period
from vitald.config.section import Section, duration, setting

_UNIT = re.compile(
    r"[A-Za-z0-9:_.@\\-]{1,200}"
    r"\.(?:automount|device|mount|path|scope|service|slice|socket|swap|target|timer)"
)


def _read_units(value: object) -> tuple[str, ...]:
    """Names of units; one without a type is that of a service, as for systemctl."""
    units = tuple(name if "." in name else f"{name}.service" for name in read_names(value))
    for unit in units:
        read_match(unit, _UNIT, 'a list of systemd units such as "slurmd.service"')
    return units


def _read_mounts(value: object) -> tuple[str, ...]:
    return tuple(str(read_path(name)) for name in read_names(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Memory, processors, disks, file systems, clock and services of the node."""

    enabled: bool = setting(True, read_flag, "Poll the host.")
    every_s: float = duration("60s", "How often to poll.", read_poll_period)
    deadline_s: float = duration(
        "10s", "A read of one part that takes longer counts as hung.", read_poll_period
    )
    mounts: tuple[str, ...] = setting(
        ("/", "/var/log"),
        _read_mounts,
        "File systems to watch for space, inodes and being read-only, beside that of the state"
        " folder.",
    )
    units: tuple[str, ...] = setting(
        (),
        _read_units,
        'systemd units that must be running here, such as "kubelet.service", "slurmd.service",'
        ' "nvidia-fabricmanager.service".',
    )
    units_if_enabled: tuple[str, ...] = setting(
        ("nvidia-fabricmanager.service", "nvlsm.service", "nvidia-imex.service"),
        _read_units,
        "systemd units that must be running where they are enabled.",
    )


SECTION = Section(name="host", settings=HostSettings, order=60)
