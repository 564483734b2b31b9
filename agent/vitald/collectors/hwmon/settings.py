"""Settings of the hwmon collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HwmonSettings:
    """Temperatures, fans and power supplies that Linux hwmon shows."""

    enabled: bool = setting(True, read_flag, "Read temperatures, fans and power supplies.")
    every_s: float = setting(
        tomlfile.parse_duration("60s"), tomlfile.parse_duration, "How often to read them."
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10s"),
        tomlfile.parse_duration,
        "A read of one chip that takes longer hangs.",
    )


SECTION = Section(name="hwmon", settings=HwmonSettings, order=70)
