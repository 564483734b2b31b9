"""Settings of the tuning collector."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.settings import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """How the node is set up: CPU governor and power limits, IOMMU, ACS, memory modules, the path
    between GPUs and adapters, kernels and reboots that wait.
    """

    enabled: bool = setting(True, read_flag, "Read how the node is set up.")
    every_s: float = setting(
        tomlfile.parse_duration("10m"), tomlfile.parse_duration, "How often to read it."
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10s"),
        tomlfile.parse_duration,
        "A read that takes longer counts as hung.",
    )


SECTION = Section(name="tuning", settings=TuningSettings, order=75)
