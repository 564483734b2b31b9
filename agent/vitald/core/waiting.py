"""
Whether the GPUs that work only wait: all at full utilisation, at low and even power, and nothing
moves over NVLink, PCIe and the network. So does a collective operation in which a rank is missing.

Owns     the rule, as a fold over looks at all GPUs of the node.
Refuses  clocks, readings and notices, which are `waiting_monitor`'s.

Terms: a GPU *takes part* if it has a compute process and is neither in MIG mode nor excluded. It is
*busy* at full utilisation, *odd* if it is idle meanwhile, and *computes* otherwise. One that cannot
be read is named beside the odd ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

BUSY_RATIO = 0.98  # utilisation
ODD_RATIO = 0.02
LOW_RATIO = 0.35  # of the way from idle power to the power limit
FLAT_RATIO = 0.04  # standard deviation of the power, of its mean
STILL_BYTES_PER_SECOND = 1e6  # over NVLink, PCIe, or all network adapters
# Of the power limit, where the GPU was never seen idle
_IDLE_RATIO = 0.11
_MAX_GAP_S = 120.0  # between two looks; after a longer one, it begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """One GPU at one time. None: not known.

    `moved`: bytes per second over the busier of NVLink and PCIe, only in the look that read the
    counters. `counts`: whether it has counters for all its links that such a rate can follow from.
    """

    name: str
    processes: bool
    utilization: float | None
    watts: float | None
    limit_watts: float | None
    moved: float | None = None
    counts: bool = False
    excluded: bool = False  # in MIG mode, or by the configuration

    @property
    def takes_part(self) -> bool:
        return self.processes and not self.excluded

    @property
    def is_readable(self) -> bool:
        return None not in (self.utilization, self.watts, self.limit_watts)

    @property
    def is_busy(self) -> bool:
        return (self.utilization or 0.0) >= BUSY_RATIO

    @property
    def is_odd(self) -> bool:
        return (self.utilization or 0.0) <= ODD_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """All GPUs at one time, in seconds on the monotonic clock. `moved`: bytes per second over all
    network adapters whose counters were read in this look.
    """

    time: float
    gpus: tuple[GpuLook, ...]
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class PowerRange:
    """Mean and sum of squared deviations of some values (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add_value(self, value: float) -> PowerRange:
        count, off = self.count + 1, value - self.mean
        mean = self.mean + off / count
        return PowerRange(count, mean, self.squares + off * (value - mean))

    @property
    def is_flat(self) -> bool:
        return self.squares <= self.count * (FLAT_RATIO * self.mean) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What the last look showed, and what is remembered of those before.

    `since`: since when all busy GPUs wait; None if they do not. `quiet`: those whose counters were
    read since and stood still. `idle_watts`: the least power of each GPU while it was idle.
    """

    time: float | None = None
    since: float | None = None
    powers: Mapping[str, PowerRange] = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()
    counting: frozenset[str] = frozenset()
    odd: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    idle_watts: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """For how long the GPUs have waited, as far as all their counters were read since; 0 if
        they do not.
        """
        if self.since is None or self.time is None or not self.counting <= self.quiet:
            return 0.0
        return self.time - self.since

    def get_seconds(self, now: float) -> float | None:
        """The same at `now` on the monotonic clock; None if the last look is too old."""
        if self.time is None or now - self.time > _MAX_GAP_S:
            return None
        return self.seconds

    @property
    def is_certain(self) -> bool:
        """Whether the traffic of each GPU that waits could be read."""
        return bool(self.powers) and self.counting == self.powers.keys()

    @property
    def gpus(self) -> tuple[str, ...]:
        """Those that wait."""
        return tuple(self.powers)

    @property
    def mean_watts(self) -> float:
        """Of each GPU that waits, since they do."""
        means = [power.mean for power in self.powers.values()]
        return sum(means) / len(means) if means else 0.0


def advance_waiting(known: Waiting, look: NodeLook) -> Waiting:
    """`known` after one more look. A look without any readable GPU changes nothing. A GPU that
    cannot be read does not hide that the others wait: they may wait for it.
    """
    readable = [gpu for gpu in look.gpus if gpu.is_readable]
    if not readable:
        return known
    working = [gpu for gpu in readable if gpu.takes_part]
    known = replace(known, idle_watts=_note_idle(known.idle_watts, readable))
    busy = [gpu for gpu in working if gpu.is_busy]
    if not _only_wait(working, known.idle_watts):
        return Waiting(time=look.time, idle_watts=known.idle_watts)
    if _is_broken(known, look, busy):
        known = Waiting(since=look.time, idle_watts=known.idle_watts)
    powers = {
        gpu.name: known.powers.get(gpu.name, PowerRange()).add_value(gpu.watts or 0.0)
        for gpu in busy
    }
    still = {gpu.name for gpu in busy if gpu.moved is not None and not _moves(gpu.moved)}
    quiet = known.quiet | still
    if not all(power.is_flat for power in powers.values()):
        powers = {gpu.name: PowerRange().add_value(gpu.watts or 0.0) for gpu in busy}
        known, quiet = replace(known, since=look.time), frozenset()
    return replace(
        known,
        time=look.time,
        powers=powers,
        quiet=quiet,
        counting=frozenset(gpu.name for gpu in busy if gpu.counts),
        odd=tuple(gpu.name for gpu in working if gpu.is_odd),
        unread=tuple(gpu.name for gpu in look.gpus if not (gpu.is_readable or gpu.excluded)),
    )


def _only_wait(working: Iterable[GpuLook], idle_watts: Mapping[str, float]) -> bool:
    """Whether some GPUs are busy, all of these at low power, and no other computes."""
    working = list(working)
    waits = [gpu for gpu in working if gpu.is_busy and _is_low(gpu, idle_watts)]
    odd = [gpu for gpu in working if gpu.is_odd and _is_low(gpu, idle_watts)]
    return bool(waits) and len(waits) + len(odd) == len(working)


def _is_broken(known: Waiting, look: NodeLook, busy: Iterable[GpuLook]) -> bool:
    """Whether the wait begins anew: something moved, or too long was not looked."""
    if known.since is None or known.time is None or look.time - known.time > _MAX_GAP_S:
        return True
    return any(_moves(rate) for rate in (look.moved, *(gpu.moved for gpu in busy)))


def _moves(rate: float | None) -> bool:
    return rate is not None and rate >= STILL_BYTES_PER_SECOND


def _is_low(gpu: GpuLook, idle_watts: Mapping[str, float]) -> bool:
    limit, watts = gpu.limit_watts or 0.0, gpu.watts or 0.0
    idle = min(idle_watts.get(gpu.name, _IDLE_RATIO * limit), limit)
    return watts - idle <= LOW_RATIO * (limit - idle)


def _note_idle(known: Mapping[str, float], readable: Iterable[GpuLook]) -> Mapping[str, float]:
    """The least power of each GPU without work."""
    seen = {
        gpu.name: gpu.watts
        for gpu in readable
        if gpu.is_odd and not gpu.processes and gpu.watts is not None
    }
    lower = {name: watts for name, watts in seen.items() if watts < known.get(name, math.inf)}
    return {**known, **lower} if lower else known


def describe_waiting(waiting: Waiting) -> str:
    """One paragraph for operators. It says that they wait, which is what is observed, not why."""
    count, watts = len(waiting.gpus), waiting.mean_watts
    gpus, each = ("1 GPU has", "") if count == 1 else (f"{count} GPUs have", " each")
    moves = "nothing moves" if waiting.is_certain else "what moves cannot be read"
    does = "does" if len(waiting.odd) == 1 else "do"
    parts = [
        f"{gpus} only waited for {_format_minutes(waiting.seconds)}: 100 % busy,"
        f" {watts:.0f} W{each}, {moves}.",
        "The cause may be on another node.",
    ]
    parts += [f"{_list_names(waiting.odd)} {does} not take part."] if waiting.odd else []
    parts += [f"{_list_names(waiting.unread)} cannot be read."] if waiting.unread else []
    return " ".join(parts)


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _format_minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
