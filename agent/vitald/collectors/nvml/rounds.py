"""When the worker reads which GPUs: fast readings of all in each round, slow ones of a few."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from zlib import crc32

from vitald.collectors.nvml.settings import NvmlSettings

Command = Mapping[str, Sequence[str]]  # addresses of the GPUs to read, by tier


class Rounds:
    """The rounds of one session. `due`: when the next one begins, on the monotonic clock."""

    def __init__(self, settings: NvmlSettings, boot_id: str, gpus: Sequence[str]) -> None:
        """Nodes that boot together start their rounds at different times."""
        self._fast_s = settings.fast_s
        self._gpus = gpus
        self._rounds_per_turn = {
            "slow": max(1, round(settings.slow_s / settings.fast_s)),
            "inventory": max(1, round(settings.inventory_s / settings.fast_s)),
        }
        self._round = 0
        self.due = time.monotonic() + settings.fast_s * (crc32(boot_id.encode()) % 1000 / 1000)

    @property
    def is_inventory_round(self) -> bool:
        return self._round % self._rounds_per_turn["inventory"] == 0

    def is_due(self) -> bool:
        return time.monotonic() >= self.due

    def list_first_commands(self) -> list[Command]:
        """All readings, of one GPU after the other: each command has a deadline of its own."""
        return [{tier: [gpu] for tier in ("fast", "slow", "inventory")} for gpu in self._gpus]

    def list_urgent_commands(self, urgent: Sequence[str]) -> list[Command]:
        """Between two rounds: GPUs that reported an event."""
        return [{"fast": urgent, "slow": urgent, "inventory": []}]

    def list_next_commands(self, urgent: Sequence[str]) -> list[Command]:
        """The round that is due now. A round that comes late does not hurry the next one."""
        self._round += 1
        turns = {
            tier: _select_turn(self._gpus, self._round, rounds)
            for tier, rounds in self._rounds_per_turn.items()
        }
        following, now = self.due + self._fast_s, time.monotonic()
        self.due = following if following > now else now + self._fast_s
        return [
            {
                "fast": self._gpus,
                "slow": sorted({*turns["slow"], *urgent}),
                "inventory": turns["inventory"],
            }
        ]


def _select_turn(gpus: Sequence[str], round_number: int, rounds: int) -> list[str]:
    """The GPUs whose turn it is in this round: spread as evenly as their number allows."""
    return [
        gpu
        for index, gpu in enumerate(gpus)
        if round_number % rounds == index * rounds // len(gpus)
    ]
