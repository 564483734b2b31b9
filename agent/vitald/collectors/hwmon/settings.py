"""Settings of the hwmon collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.config.readers import read_poll_period
from vitald.config.section import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HwmonSettings:
    """Temperatures and fans that Linux hwmon shows."""

    enabled: bool = setting(True, read_flag, "Read temperatures and fans.")
    every_s: float = setting(
        tomlfile.parse_duration("60s"), read_poll_period, "How often to read them."
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10s"),
        read_poll_period,
        "A read of one chip that takes longer hangs.",
    )


SECTION = Section(name="hwmon", settings=HwmonSettings, order=70)
