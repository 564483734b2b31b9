"""GPUs that are not polled because a call on them hung, and worker processes that do not end."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from vitald.backoff import Backoff
from vitald.collectors.nvml.client import StuckWorker

BACKOFF = Backoff(60.0, 1800.0)  # until a GPU on which a call hung is polled again
_MAX_STUCK = 2  # with so many worker processes that do not end, no other is started


@dataclass(frozen=True, slots=True)
class _Exclusion:
    """`until` is on the monotonic clock; `retries` have hung before, in succession."""

    until: float
    retries: int
    reason: str


class Exclusions:
    """Excludes a GPU with exponential back-off, and for as long as its worker is stuck."""

    def __init__(self) -> None:
        self._exclusions: dict[str, _Exclusion] = {}
        self._stuck: list[StuckWorker] = []

    @property
    def stuck_pids(self) -> tuple[int, ...]:
        return tuple(stuck.pid for stuck in self._stuck if not stuck.is_gone)

    @property
    def is_driver_stuck(self) -> bool:
        """True if another worker would most likely hang too."""
        return len(self.stuck_pids) >= _MAX_STUCK

    def exclude_gpu(self, gpu: str, reason: str) -> None:
        former = self._exclusions.get(gpu)
        retries = former.retries + 1 if former is not None else 0
        until = time.monotonic() + BACKOFF.delay_s(retries)
        self._exclusions[gpu] = _Exclusion(until, retries, reason)

    def add_stuck(self, stuck: StuckWorker) -> None:
        self._stuck = [former for former in self._stuck if not former.is_gone] + [stuck]

    def is_excluded(self, gpu: str) -> bool:
        exclusion = self._exclusions.get(gpu)
        if exclusion is None:
            return False
        return time.monotonic() < exclusion.until or any(
            stuck.where.gpu == gpu and not stuck.is_gone for stuck in self._stuck
        )

    def clear_gpus(self, answered: Collection[str]) -> None:
        """These GPUs gave readings."""
        for gpu in answered:
            self._exclusions.pop(gpu, None)

    def list_reasons(self) -> list[str]:
        """Why readings are incomplete. A GPU stays in the list until it has answered."""
        return [
            f"gpu/{gpu} is not being looked at: {exclusion.reason}"
            for gpu, exclusion in self._exclusions.items()
        ]

    def describe_stuck_driver(self) -> str:
        pids = ", ".join(map(str, self.stuck_pids))
        return (
            f"{self._stuck[-1].where} does not return, and processes {pids} cannot be ended: the"
            " driver is stuck, and only a reboot helps"
        )
