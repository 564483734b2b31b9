"""Settings of the mounts collector. Which mount points to poll is `[expect] mounts`."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MountsSettings:
    """Polling of the mount points that [expect] mounts names."""

    enabled: bool = setting(True, read_flag, "Poll them.")
    every_s: float = setting(
        tomlfile.parse_duration("30s"), tomlfile.parse_duration, "How often to poll."
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("60s"),
        tomlfile.parse_duration,
        "A mount point that does not answer for longer makes the node unfit. File servers that fail"
        " over are silent for a while.",
    )


SECTION = Section(name="mounts", settings=MountsSettings, order=85)
