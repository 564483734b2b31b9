"""Settings of the hwmon collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.checking import read_flag
from vitald.config.readers import read_poll_period
from vitald.config.section import Section, duration, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HwmonSettings:
    """Temperatures and fans that Linux hwmon shows."""

    enabled: bool = setting(True, read_flag, "Read temperatures and fans.")
    every_s: float = duration("60s", "How often to read them.", read_poll_period)
    deadline_s: float = duration(
        "10s", "A read of one chip that takes longer hangs.", read_poll_period
    )


SECTION = Section(name="hwmon", settings=HwmonSettings, order=70)
