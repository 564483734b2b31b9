"""
The checkpoints of a job: the reports of its ranks, put together into one line a checkpoint.

Pure: the caller gives the time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from vitald.jobsocket.packets import CheckpointReport
from vitald.model.job_page import CheckpointState, CheckpointTier

_MAX_OPEN = 4  # checkpoints of one job at a time
_SETTLED_S = 2.0  # ranks begin and end within this of each other
_MAX_OPEN_S = 7200.0  # of one whose end is never reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, as the ranks of this node wrote it. `seconds`: of the slowest."""

    step: int
    tier: CheckpointTier
    ranks: int
    failed: int  # of these ranks
    bytes: int
    seconds: float


@dataclass(slots=True)
class _Round:
    """A checkpoint whose reports come in."""

    changed_at: float
    writing: set[Hashable] = field(default_factory=set)
    done: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Checkpoints:
    """The checkpoints that are being written."""

    __slots__ = ("_rounds",)

    def __init__(self) -> None:
        self._rounds: dict[tuple[int, CheckpointTier], _Round] = {}

    def take_report(self, rank: Hashable, report: CheckpointReport, now: float) -> None:
        key = (report.step, report.tier)
        if key not in self._rounds and len(self._rounds) >= _MAX_OPEN:
            del self._rounds[next(iter(self._rounds))]
        found = self._rounds.setdefault(key, _Round(now))
        found.changed_at = now
        if report.state is CheckpointState.BEGIN:
            found.writing.add(rank)
            return
        found.writing.discard(rank)
        found.done += 1
        found.failed += report.state is CheckpointState.FAILED
        found.bytes += report.bytes if report.state is CheckpointState.END else 0
        found.seconds = max(found.seconds, report.seconds)

    def forget_rank(self, rank: Hashable) -> None:
        for found in self._rounds.values():
            found.writing.discard(rank)

    def take_finished(self, now: float) -> list[Checkpoint]:
        """Those that all ranks have finished, each once."""
        finished: list[Checkpoint] = []
        for key, found in list(self._rounds.items()):
            quiet_s = now - found.changed_at
            if quiet_s < (_MAX_OPEN_S if found.writing else _SETTLED_S):
                continue
            del self._rounds[key]
            if found.done:
                finished.append(
                    Checkpoint(
                        step=key[0],
                        tier=key[1],
                        ranks=found.done,
                        failed=found.failed,
                        bytes=found.bytes,
                        seconds=found.seconds,
                    )
                )
        return finished
