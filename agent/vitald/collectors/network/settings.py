"""Settings of the network collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, read_names, read_period, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """EFA, InfiniBand and RoCE adapters, and the links of network interfaces."""

    enabled: bool = setting(True, read_flag, "Poll RDMA devices and network interfaces on PCI.")
    every_s: float = setting(
        tomlfile.parse_duration("30s"),
        tomlfile.parse_duration,
        "How often to read states and counters of each adapter.",
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("20s"),
        tomlfile.parse_duration,
        "A read of one adapter that takes longer counts as hung. EFA's driver waits up to 30 s for"
        " its device.",
    )
    exclude: tuple[str, ...] = setting(
        (),
        read_names,
        "Adapters to leave alone: names of RDMA devices or interfaces, PCI addresses; * matches"
        ' anything ("mlx5_bond_*").',
    )
    port_down_replace_after_s: float = setting(
        tomlfile.parse_duration("24h"),
        read_period,
        "A port that was observed down for so long, while others of the node are up, requires a"
        " replacement. off: a person decides.",
    )
    verbs_every_s: float = setting(
        tomlfile.parse_duration("5m"),
        read_period,
        "How often to open a verbs context on each RDMA device, in a process of its own. The"
        " service needs access to /dev/infiniband. off: never.",
    )


SECTION = Section(name="network", settings=NetworkSettings, order=40)
