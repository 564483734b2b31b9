"""Settings of the board collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSettings:
    """Sensors and event log of the BMC, and transceivers, as `vitald-sensors.timer` reads them."""

    enabled: bool = setting(True, read_flag, "Use what root's sensor reader wrote, if it did.")
    every_s: float = setting(
        tomlfile.parse_duration("60s"), tomlfile.parse_duration, "How often to read its file."
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10s"),
        tomlfile.parse_duration,
        "A read that takes longer counts as hung.",
    )
    max_age_s: float = setting(
        tomlfile.parse_duration("30m"),
        tomlfile.parse_duration,
        "With a file older than this, the node is unknown.",
    )


SECTION = Section(name="board", settings=BoardSettings, order=72)
