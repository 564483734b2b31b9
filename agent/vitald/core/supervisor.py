"""
The supervisor: reads the sources, and restarts those that fail or hang.

Owns     the restart of a source with back-off, and the findings about it.
Refuses  what a source reads: a source reports that itself.

Every wait of a source has a deadline of its own, so one that hands in nothing for several times its
deadline hangs because of a defect of ours. It is cancelled and started again; if cancelling fails,
watchdog notifications stop and systemd restarts the daemon.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import anyio
import structlog

from vitald.backoff import Backoff
from vitald.core.pipeline import Pipeline, make_source_component
from vitald.model.component import NODE
from vitald.model.source import Batch, Source, SourceFailed, SourceState

log: structlog.stdlib.BoundLogger = structlog.get_logger("supervisor")

_BACKOFF = Backoff(1.0, 60.0)
_DEADLINES = 3.0  # without a batch, until a source counts as hanging
_MIN_SILENT_S = 60.0
# For the past: a batch may take half a minute, and reading a cold disk as long again.
_PAST_S = 150.0
_CANCEL_S = 15.0  # for a source that was cancelled
_STEP_S = 10.0


@dataclass(slots=True)
class _SourceRun:
    """A source that is being read. `ours`: it waits for room in the pipeline's queue."""

    scope: anyio.CancelScope
    max_silent_s: float
    silent_s: float = 0.0
    ours: bool = False


class Supervisor:
    """Hands the batches of the sources to the pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._runs: dict[str, _SourceRun] = {}
        self._checked = time.monotonic()

    def cancel_hanging(self) -> str:
        """Cancel sources that hang; to be called every few seconds.

        Returns the name of a source that hangs and cannot be cancelled, where only a new process
        helps; empty if there is none. Time in which the daemon itself did not run, as after
        SIGSTOP, does not count.
        """
        now = time.monotonic()
        passed, self._checked = min(now - self._checked, _STEP_S), now
        stuck = ""
        for name, reading in self._runs.items():
            reading.silent_s += 0.0 if reading.ours else passed
            if reading.silent_s > reading.max_silent_s and not reading.scope.cancel_called:
                log.error(
                    "source_hangs",
                    source=name,
                    silent_s=round(reading.silent_s),
                    effect="it is started again",
                )
                reading.scope.cancel()
            elif reading.silent_s > reading.max_silent_s + _CANCEL_S:
                stuck = name
        return stuck

    async def read_past(self, name: str, past: AsyncIterator[Batch]) -> None:
        """Read a part of the past. A defect there must not keep the daemon from the present."""
        try:
            with self._watch_run(name, _PAST_S) as reading:
                async for batch in past:
                    await self._hand_in_batch(reading, batch)
        except Exception:
            log.exception("history_not_read")
            await self._pipeline.put_own_event(
                "vitald/not_watched",
                {"orderly": False},
                NODE,
                "what happened before the start could not be read: see the daemon's log",
            )

    async def read(self, source: Source) -> None:
        """Read a source, for ever: a failing one is reported with a finding, and restarted with
        back-off.
        """
        failures = 0  # in succession
        while True:
            try:
                with self._watch_run(
                    source.name, max(_MIN_SILENT_S, _DEADLINES * source.deadline_s)
                ) as reading:
                    async with aclosing(
                        source.read_batches(self._pipeline.position(source.name))
                    ) as batches:  # type: ignore[type-var]
                        async for batch in batches:
                            if failures:
                                failures = 0
                                log.info("source_recovered", level="notice", source=source.name)
                                await self._report_source(source, "is read again", recovered=True)
                            await self._hand_in_batch(reading, batch)
                raise SourceFailed("it ended")
            except SourceFailed as error:
                reason = str(error)
            except Exception as error:  # one broken source must not take the others with it
                log.exception("source_broke", source=source.name)
                reason = f"{type(error).__name__}: {error}"
            await self._pipeline.put(Batch(source.name, state=SourceState.FAILED, detail=reason))
            delay = _BACKOFF.delay_s(failures)
            if not failures:
                log.error("source_failed", source=source.name, error=reason, retry_s=delay)
                await self._report_source(source, f"cannot be read: {reason}", recovered=False)
            failures += 1
            await anyio.sleep(delay)

    @contextmanager
    def _watch_run(self, name: str, max_silent_s: float) -> Iterator[_SourceRun]:
        """Raises SourceFailed if the source was cancelled because it hangs."""
        with anyio.CancelScope() as scope:
            self._runs[name] = reading = _SourceRun(scope, max_silent_s)
            try:
                yield reading
            finally:
                del self._runs[name]
        if scope.cancelled_caught:
            raise SourceFailed(f"it gave no sign of life for {max_silent_s:g} s")

    async def _hand_in_batch(self, reading: _SourceRun, batch: Batch) -> None:
        reading.silent_s, reading.ours = 0.0, True
        await self._pipeline.put(batch)
        reading.ours = False

    async def _report_source(self, source: Source, what: str, *, recovered: bool) -> None:
        await self._pipeline.put_own_event(
            "vitald/source_failed",
            {"recovered": recovered},
            make_source_component(source.name),
            f"source {source.name} {what}",
        )
