"""
The limits of what a check measures: as configured, else as published for the machine's type, else
as learned from this node's own passes.

Owns     references.toml, and which limit applies to a measure of a device.
Refuses  judging a measure: each check compares, and says where the limit comes from.

A learned limit is the best median of the measure in passes of the check on this node, less or more
a deviation. It finds what changes, not what was wrong from the beginning. The best one so far is
kept in the measures of each pass: the limit does not follow a device that becomes slower with each
run. It begins anew with another device, and with the day that the configuration names.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from vitald import tomlfile
from vitald.checking import read_number, read_text, read_texts
from vitald.collectors.pci.inventory import read_machine_type
from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.model.diagnostic import Measure, Run
from vitald.settings import read_table
from vitald.timestamps import parse_day

FILE = Path(__file__).with_name("references.toml")
_BOUNDS = ("least", "most")
Passes = Callable[[], Sequence[Run]]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a measure, in its unit. `origin`: where it comes from, as the end of a sentence:
    `below the 460 GB/s that are expected`. `baseline`: from which a learned one follows.
    """

    value: float
    origin: str
    learned: bool = False
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What is published for a type of machine. `limits`: by check, measure and bound."""

    source: str
    limits: Mapping[tuple[str, str, str], float]


@dataclass(frozen=True, slots=True)
class References:
    """All of references.toml. `learned`: check, measure and bound that may be learned."""

    machines: Mapping[str, Machine]
    learned: frozenset[tuple[str, str, str]]


@cache
def load_references() -> References:
    """Reads references.toml once. Raises ValueError that names the place of a mistake."""
    _, tables = tomlfile.read_toml(FILE)
    learned = {
        (check, str(measure), bound)
        for check, bounds in read_table(tables["learned"]).items()
        for bound, measures in read_table(bounds).items()
        for measure in read_texts(measures)
    }
    machines = {
        name: _read_machine(name, read_table(table))
        for name, table in read_table(tables["machine"]).items()
    }
    return References(machines, frozenset(learned))


def _read_machine(name: str, table: Mapping[str, object]) -> Machine:
    limits: dict[tuple[str, str, str], float] = {}
    for check, measures in table.items():
        if check == "source":
            continue
        for measure, bounds in read_table(measures).items():
            for bound, value in read_table(bounds).items():
                if bound not in _BOUNDS:
                    raise ValueError(f"{name}: {check}.{measure}: {bound!r} is no bound")
                limits[check, measure, bound] = read_number(value, 1e-9, 1e15)
    return Machine(read_text(table.get("source"), 1), limits)


def make_measure(
    name: str,
    value: float,
    device: str = "",
    *,
    least: Limit | None = None,
    most: Limit | None = None,
) -> Measure:
    """A measure with its limits."""
    return Measure(
        name=name,
        value=value,
        device=device,
        least=least.value if least is not None else None,
        most=most.value if most is not None else None,
        learned=any(limit is not None and limit.learned for limit in (least, most)),
        baseline=next((limit.baseline for limit in (least, most) if limit is not None), None),
    )


def _ignore_device(device: str) -> str:
    del device
    return ""


class Limits:
    """The limits of one check on this node."""

    def __init__(self, check: str, config: Config) -> None:
        self._check = check
        self._settings = config.diagnostics
        self._machine = config.diagnostics.machine or read_machine_type(config.paths.sysfs)
        self._list_passes: Passes = tuple
        self._identify: Callable[[str], str] = _ignore_device

    def use_passes(
        self, list_passes: Passes, identify: Callable[[str], str] = _ignore_device
    ) -> None:
        """`list_passes`: the last passes of the check on all devices. `identify`: what stays with
        a measure's device, empty if unknown.
        """
        self._list_passes = list_passes
        self._identify = identify

    def find_least(self, measure: str, configured: float, device: str = "") -> Limit | None:
        """The lower limit; None if there is none. `configured`: in the measure's unit, 0 if the
        configuration has none.
        """
        return self._find(measure, "least", configured, device)

    def find_most(self, measure: str, configured: float, device: str = "") -> Limit | None:
        """The upper limit, as find_least."""
        return self._find(measure, "most", configured, device)

    def _find(self, measure: str, bound: str, configured: float, device: str) -> Limit | None:
        if configured:
            return Limit(configured, "that are expected")
        references, key = load_references(), (self._check, measure, bound)
        machine = references.machines.get(self._machine)
        if machine is not None and key in machine.limits:
            name = presentable(self._machine)
            return Limit(machine.limits[key], f"that {machine.source} has for {name}")
        return self._learn(measure, bound, device) if key in references.learned else None

    def _learn(self, measure: str, bound: str, device: str) -> Limit | None:
        needed, deviation = self._settings.learn_after, self._settings.learn_percent / 100.0
        known = self._list_known(measure, device)
        if not needed or len(known) < needed:
            return None
        median = statistics.median(former.value for former in known)
        baselines = [former.baseline for former in known if former.baseline is not None]
        best = max if bound == "least" else min
        baseline = best([median, *baselines])
        factor = 1.0 - deviation if bound == "least" else 1.0 + deviation
        origin = f"that follow from {len(known)} passes of this node"
        if baseline != median:
            origin = "that follow from earlier passes of this node"
        return Limit(baseline * factor, origin, learned=True, baseline=baseline)

    def _list_known(self, measure: str, device: str) -> Sequence[Measure]:
        """The measure in the last passes, as far as it is of the device that is there now."""
        since, identity = self._settings.learn_since, self._identify(device)
        start = parse_day(since) if since is not None else 0.0
        return [
            known
            for run in self._list_passes()
            for known in run.report.measures
            if (known.name, known.device) == (measure, device)
            and run.began >= start
            and (not identity or known.identity in ("", identity))
        ]


@runtime_checkable
class LearningCheck(Protocol):
    """A check whose limits may be learned."""

    limits: Limits
