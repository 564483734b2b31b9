"""Settings of the network collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.config.readers import read_names, read_poll_period
from vitald.config.section import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """EFA, InfiniBand and RoCE adapters, and the links of network interfaces."""

    enabled: bool = setting(True, read_flag, "Poll RDMA devices and network interfaces on PCI.")
    every_s: float = setting(
        tomlfile.parse_duration("30s"),
        read_poll_period,
        "How often to read states and counters of each adapter.",
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("20s"),
        read_poll_period,
        "A read of one adapter that takes longer counts as hung. EFA's driver waits up to 30 s for"
        " its device.",
    )
    exclude: tuple[str, ...] = setting(
        (),
        read_names,
        "Adapters to leave alone: names of RDMA devices or interfaces, PCI addresses; * matches"
        ' anything ("mlx5_bond_*").',
    )


SECTION = Section(name="network", settings=NetworkSettings, order=40)
