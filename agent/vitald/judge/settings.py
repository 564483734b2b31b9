"""`[policy]` of the configuration: what this site does by itself."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.checking import read_flag
from vitald.config.section import Section, TakesEffect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """What this site does by itself."""

    device_reset: bool = setting(
        False,
        read_flag,
        "The site resets devices itself, so a reset alone does not raise rebootRequired.",
    )


POLICY = Section(name="policy", settings=PolicySettings, effect=TakesEffect.RELOAD)
