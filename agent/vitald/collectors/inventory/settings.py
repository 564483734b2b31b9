"""Settings of the inventory: the expected devices and versions of this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vitald.config.readers import read_count, read_names, read_table
from vitald.config.section import Section, duration, setting


def read_link_rates(value: object) -> Mapping[str, float]:
    """Bits per second by patterns of names, from Gb/s."""
    rates = {}
    for pattern, rate in read_table(value).items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= 1e6:
            raise ValueError(f"{pattern}: expected a rate in Gb/s, such as 400, found {rate!r}")
        rates[pattern] = float(rate) * 1e9
    return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectSettings:
    """What this node should have. 0 or empty: not configured; counts then follow the
    instance type, or what was seen at earlier boots.
    """

    neuron: int = setting(0, read_count, "Neuron devices.", reload=True)
    efa: int = setting(0, read_count, "EFA adapters.", reload=True)
    nics: int = setting(0, read_count, "InfiniBand and RoCE adapters.", reload=True)
    nvme: int = setting(0, read_count, "NVMe drives.", reload=True)
    nvlinks: int = setting(
        0,
        read_count,
        "NVLinks of each NVIDIA GPU that are active on a sound node. 0: as many as were ever"
        " active, or as most GPUs of its model here have.",
        reload=True,
    )
    link_rate: Mapping[str, float] = setting(
        dict,
        read_link_rates,
        "Gb/s at which ports in use must run, by names of RDMA devices, interfaces or PCI"
        " addresses; the first match counts.",
        reload=True,
    )
    boots: int = setting(
        3,
        read_count,
        "What was the same at so many healthy boots is expected from then on. 0: nothing is"
        " learned.",
    )
    settle_s: float = duration(
        "5m",
        "For so long after a start or a driver load, a state that was not observed otherwise"
        " requires no reset, reboot or replacement: drivers bring devices up one after another.",
    )
    gpu_driver: tuple[str, ...] = setting(
        (), read_names, "Versions of the NVIDIA driver that this node may run.", reload=True
    )
    vbios: tuple[str, ...] = setting(
        (), read_names, "VBIOS versions that its GPUs may have.", reload=True
    )
    neuron_driver: tuple[str, ...] = setting(
        (), read_names, "Versions of the Neuron driver.", reload=True
    )
    efa_driver: tuple[str, ...] = setting(
        (), read_names, "Versions of the EFA driver.", reload=True
    )
    kernel: tuple[str, ...] = setting(
        (), read_names, "Kernel releases, as reported by uname -r.", reload=True
    )


SECTION = Section(
    name="expect",
    settings=ExpectSettings,
    order=80,
    examples={"link_rate": '#link_rate = { "mlx5_bond_*" = 100, "mlx5_*" = 400 }'},
)
