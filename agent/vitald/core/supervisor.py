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
from vitald.model import NODE, Batch, Source, SourceFailed, SourceState

log: structlog.stdlib.BoundLogger = structlog.get_logger("supervisor")

_BACKOFF = Backoff(1.0, 60.0)
_DEADLINES = 3.0  # of silence, until a source counts as hanging
_LEAST_S = 60.0
# What happened before the start: a batch may take half a minute, and a look at a cold disk as long
# again
_PAST_S = 150.0
_CANCEL_S = 15.0  # for a source that was cancelled
_STEP_S = 10.0


@dataclass(slots=True)
class _SourceRun:
    """A source that is being read. `ours`: what it handed in waits to be judged, and it for
    that.
    """

    scope: anyio.CancelScope
    most_s: float
    silent_s: float = 0.0
    ours: bool = False


class Supervisor:
    """Hands in what the sources see."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._runs: dict[str, _SourceRun] = {}
        self._checked = time.monotonic()

    def cancel_hanging(self) -> str:
        """Cancel what hangs; to be called every few seconds. The name of a source that does so and
        cannot be cancelled, or nothing: only a new process helps there. Time in which we did not
        run ourselves, as after SIGSTOP, is no silence of theirs.
        """
        now = time.monotonic()
        passed, self._checked = min(now - self._checked, _STEP_S), now
        stuck = ""
        for name, reading in self._runs.items():
            reading.silent_s += 0.0 if reading.ours else passed
            if reading.silent_s > reading.most_s and not reading.scope.cancel_called:
                log.error(
                    "source_hangs",
                    source=name,
                    silent_s=round(reading.silent_s),
                    effect="it is started again",
                )
                reading.scope.cancel()
            elif reading.silent_s > reading.most_s + _CANCEL_S:
                stuck = name
        return stuck

    async def read_past(self, name: str, past: AsyncIterator[Batch]) -> None:
        """A part of the past. A fault of ours in reading it must not keep us from the present."""
        try:
            with self._watch_run(name, _PAST_S) as reading:
                async for batch in past:
                    await self._hand_in_batch(reading, batch)
        except Exception:
            log.exception("history_not_read")
            await self._pipeline.own(
                "vitald/not_watched",
                {"orderly": False},
                NODE,
                "what happened before the start could not be read: see the daemon's log",
            )

    async def read(self, source: Source) -> None:
        """A source, for ever: what fails is shown, said as a finding, and started again with
        back-off.
        """
        failures = 0  # in succession
        while True:
            try:
                with self._watch_run(
                    source.name, max(_LEAST_S, _DEADLINES * source.deadline_s)
                ) as reading:
                    async with aclosing(
                        source.read_batches(self._pipeline.position(source.name))
                    ) as batches:  # type: ignore[type-var]
                        async for batch in batches:
                            if failures:
                                failures = 0
                                log.info("source_recovered", source=source.name)
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
    def _watch_run(self, name: str, most_s: float) -> Iterator[_SourceRun]:
        """Raises SourceFailed where it was cancelled because it hangs."""
        with anyio.CancelScope() as scope:
            self._runs[name] = reading = _SourceRun(scope, most_s)
            try:
                yield reading
            finally:
                del self._runs[name]
        if scope.cancelled_caught:
            raise SourceFailed(f"it gave no sign of life for {most_s:g} s")

    async def _hand_in_batch(self, reading: _SourceRun, batch: Batch) -> None:
        reading.silent_s, reading.ours = 0.0, True
        await self._pipeline.put(batch)
        reading.ours = False

    async def _report_source(self, source: Source, what: str, *, recovered: bool) -> None:
        await self._pipeline.own(
            "vitald/source_failed",
            {"recovered": recovered},
            make_source_component(source.name),
            f"source {source.name} {what}",
        )
