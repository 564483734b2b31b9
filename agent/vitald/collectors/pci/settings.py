"""Settings of the PCI collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, read_names, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PciSettings:
    """PCI functions: accelerators, switches, network adapters; what comes and goes is heard from
    the kernel at once.
    """

    enabled: bool = setting(
        True, read_flag, "Poll links, error counters and drivers of PCI functions."
    )
    every_s: float = setting(
        tomlfile.parse_duration("60s"),
        tomlfile.parse_duration,
        "How often to read links and error counters.",
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10s"),
        tomlfile.parse_duration,
        "A read of one function that takes longer counts as hung.",
    )
    exclude: tuple[str, ...] = setting(
        (), read_names, 'PCI addresses to leave alone; * matches anything ("0000:c4:*").'
    )


SECTION = Section(name="pci", settings=PciSettings, order=50)
