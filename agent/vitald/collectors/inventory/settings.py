"""Settings of the inventory: the expected devices and versions of this node."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vitald.catalog.versions import parse_version
from vitald.checking import Unexpected, read_choice, read_key
from vitald.settings import Section, read_count, read_names, read_table, setting

_INTERFACE = re.compile(r"[^\s/:\0]+")
# Software and firmware with a minimum version
SOFTWARE = ("gpu_driver", "container_toolkit", "runc", "connectx_firmware", "dcgm", "kernel")
PUBLISHED, OFF = "published", "off"


def read_link_rates(value: object) -> Mapping[str, float]:
    """Bits per second by patterns of names, from Gb/s."""
    rates = {}
    for pattern, rate in read_table(value).items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= 1e6:
            raise ValueError(f"{pattern}: expected a rate in Gb/s, such as 400, found {rate!r}")
        rates[pattern] = float(rate) * 1e9
    return rates


def read_interfaces(value: object) -> tuple[str, ...]:
    """Names that Linux allows (dev_valid_name)."""
    for name in read_names(value):
        if len(name) > 15 or name in (".", "..") or not _INTERFACE.fullmatch(name):
            raise Unexpected("names of network interfaces", name)
    return read_names(value)


def read_mount_points(value: object) -> tuple[str, ...]:
    """Absolute paths, each as the mount table writes it."""
    for point in read_names(value):
        if not point.startswith("/") or os.path.normpath(point) != point or "\0" in point:
            raise Unexpected("absolute paths without a / at the end", point)
    return read_names(value)


def read_minimums(value: object) -> Mapping[str, str]:
    """Minimum versions by the names of software."""
    table = read_table(value)
    return {
        read_choice(name, SOFTWARE): read_key(name, _read_minimum, text)
        for name, text in table.items()
    }


def _read_minimum(value: object) -> str:
    if not isinstance(value, str):
        raise Unexpected('a version such as "1.2.8", "published" or "off"', value)
    if value not in (PUBLISHED, OFF):
        parse_version(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectSettings:
    """What this node should have. 0 or empty: not configured; counts then follow the
    instance type, or what was seen at earlier boots.
    """

    neuron: int = setting(0, read_count, "Neuron devices.")
    efa: int = setting(0, read_count, "EFA adapters.")
    nics: int = setting(0, read_count, "InfiniBand and RoCE adapters.")
    nvme: int = setting(0, read_count, "NVMe drives.")
    link_rate: Mapping[str, float] = setting(
        dict,
        read_link_rates,
        "Gb/s at which ports in use must run, by names of RDMA devices, interfaces or PCI"
        " addresses; the first match counts.",
    )
    interfaces: tuple[str, ...] = setting(
        (),
        read_interfaces,
        "Network interfaces that work needs, bonds included: each must be present and have a link"
        ' ("ens5").',
    )
    mounts: tuple[str, ...] = setting(
        (),
        read_mount_points,
        "Mount points, not links to them, that work needs: each must be mounted and answer"
        ' ("/fsx").',
    )
    boots: int = setting(
        3,
        read_count,
        "What was the same at so many healthy boots is expected from then on. 0: nothing is"
        " learned.",
    )
    gpu_driver: tuple[str, ...] = setting(
        (), read_names, "Versions of the NVIDIA driver that this node may run."
    )
    vbios: tuple[str, ...] = setting((), read_names, "VBIOS versions that its GPUs may have.")
    neuron_driver: tuple[str, ...] = setting((), read_names, "Versions of the Neuron driver.")
    efa_driver: tuple[str, ...] = setting((), read_names, "Versions of the EFA driver.")
    kernel: tuple[str, ...] = setting((), read_names, "Kernel releases, as reported by uname -r.")
    versions: Mapping[str, str] = setting(
        dict,
        read_minimums,
        f'Minimum versions of {", ".join(SOFTWARE)}. "published" requires what security bulletins'
        ' name; without a key that is only noted; "off": not even that.',
    )


SECTION = Section(
    name="expect",
    settings=ExpectSettings,
    order=80,
    examples={
        "link_rate": '#link_rate = { "mlx5_bond_*" = 100, "mlx5_*" = 400 }',
        "versions": '#versions = { gpu_driver = "published", runc = "1.2.8" }',
    },
)
