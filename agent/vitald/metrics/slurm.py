"""Metrics of Slurm's scripts, from the files that they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import anyio
import structlog
from prometheus_client.core import CounterMetricFamily, Metric

from vitald.slurm.unknown_jobs import read_counts
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("slurm")

_EVERY_S = 5.0


class UnknownJobs:
    """The jobs that the prolog decided about without a verdict. `record`: `[slurm] record`."""

    def __init__(self, record: Callable[[], Path], worker_thread: WorkerThread) -> None:
        self._record = record
        self._worker_thread = worker_thread
        self._counts: Mapping[str, int] = {}  # by `[slurm] unknown`; empty while not known
        self._trouble = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.update_counts()
            await anyio.sleep(_EVERY_S)

    async def update_counts(self) -> None:
        """Read the files."""
        trouble = ""
        try:
            self._counts = await self._worker_thread.call(lambda: read_counts(self._record()))
        except (OSError, ThreadStuck) as error:
            self._counts, trouble = {}, str(error)
        if trouble and trouble != self._trouble:
            log.warning(
                "slurm_counts_not_read",
                error=trouble,
                next_step="the daemon must be able to reach the folder of [slurm] record",
            )
        self._trouble = trouble

    def collect_metrics(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "vitald_slurm_unknown_jobs",
            "Jobs that the prolog let through (allow) or refused while the state of the node was"
            " unknown.",
            labels=["choice"],
        )
        for choice, count in self._counts.items():
            family.add_metric([choice], count)
        yield family
