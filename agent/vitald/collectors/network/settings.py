"""Settings of the network collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.checking import read_flag
from vitald.config.readers import read_names, read_poll_period
from vitald.config.section import Section, duration, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """EFA, InfiniBand and RoCE adapters, and the links of network interfaces."""

    enabled: bool = setting(True, read_flag, "Poll RDMA devices and network interfaces on PCI.")
    every_s: float = duration(
        "30s", "How often to read states and counters of each adapter.", read_poll_period
    )
    deadline_s: float = duration(
        "20s",
        "A read of one adapter that takes longer counts as hung. EFA's driver waits up to 30 s for"
        " its device.",
        read_poll_period,
    )
    exclude: tuple[str, ...] = setting(
        (),
        read_names,
        "Adapters to leave alone: names of RDMA devices or interfaces, PCI addresses; * matches"
        ' anything ("mlx5_bond_*").',
    )


SECTION = Section(name="network", settings=NetworkSettings, order=40)
