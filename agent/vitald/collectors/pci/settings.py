"""Settings of the PCI collector."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitald.checking import read_flag, read_match
from vitald.config.readers import read_names, read_poll_period
from vitald.config.section import Section, duration, setting

# With the domain and in small letters, as the kernel writes them
_ADDRESSES = re.compile(
    r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|(?=.*[*?[])[0-9a-f:.*?!\[\]-]+"
)


def _read_addresses(value: object) -> tuple[str, ...]:
    expected = 'a list of PCI addresses such as "0000:c4:00.0", "0000:c4:*"'
    return tuple(read_match(name, _ADDRESSES, expected) for name in read_names(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class PciSettings:
    """PCI functions: accelerators, switches, network adapters; what comes and goes is heard from
    the kernel at once.
    """

    enabled: bool = setting(
        True, read_flag, "Poll links, error counters and drivers of PCI functions."
    )
    every_s: float = duration(
        "60s", "How often to read links and error counters.", read_poll_period
    )
    deadline_s: float = duration(
        "10s", "A read of one function that takes longer counts as hung.", read_poll_period
    )
    exclude: tuple[str, ...] = setting(
        (), _read_addresses, 'PCI addresses to leave alone; * matches anything ("0000:c4:*").'
    )


SECTION = Section(name="pci", settings=PciSettings, order=50)
