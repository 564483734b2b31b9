"""`[ledger]` of the configuration: how long events are kept."""

from __future__ import annotations

from dataclasses import dataclass

from vitald import tomlfile
from vitald.config.section import Section, TakesEffect, duration, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """What is remembered, and for how long. Open findings are kept in any case."""

    keep_s: float = duration("90d", 'Events older than this are dropped ("90d").')
    max_size: int = setting(
        tomlfile.parse_size("512MiB"),
        tomlfile.parse_size,
        'Above this size the oldest events are dropped ("512MiB").',
    )


LEDGER = Section(
    name="ledger",
    settings=LedgerSettings,
    effect=TakesEffect.RELOAD,
    examples={"max_size": 'max_size = "512MiB"'},
)
