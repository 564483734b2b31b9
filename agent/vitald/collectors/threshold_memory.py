"""
What is remembered of each component between polls and across restarts, so that each state and each
rise of a counter is reported once.

It is kept by identity, and stored as part of the source's position. A boot or a reset of the
device clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitald.collectors.counter_growth import CounterGrowth
from vitald.collectors.threshold_index import ThresholdIndex
from vitald.model import Sample

# Drives and functions may come and go without end: past this many, components of which nothing was
# reported are forgotten
_MAX_COMPONENTS = 16_384


@dataclass(slots=True)
class ComponentMemory:
    """What is remembered of one component."""

    # Codes of states that were reported as begun, and the reading that showed each
    open_states: dict[str, str] = field(default_factory=dict)
    # The same, from before a boot or a reset: to be reported again, or as over
    former_states: dict[str, str] = field(default_factory=dict)
    # code:reading -> the value that was reported last
    reported: dict[str, Sample] = field(default_factory=dict)
    # code -> since when a state is about to begin or to end (monotonic)
    pending_since: dict[str, float] = field(default_factory=dict)
    growth: CounterGrowth = field(default_factory=CounterGrowth)
    # code:reading of counters that were not read since a boot or a reset
    restarted: set[str] = field(default_factory=set)
    # First poll since a start or a reset (monotonic); None before it
    watched_since: float | None = None
    # Codes of states that did not hold in a poll since then
    well: set[str] = field(default_factory=set)
    # Codes of open states that were reported as settling
    settling: set[str] = field(default_factory=set)
    codes: frozenset[str] | None = None  # of the thresholds at the last poll

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported of the component."""
        return not (self.open_states or self.former_states or self.reported)

    def find_state(self, code: str) -> str | None:
        """The reading that showed a state when it was reported; None if it was not."""
        return self.open_states.get(code) or self.former_states.get(code)

    def replace_state(self, code: str, reading: str) -> None:
        """Another reading shows the state now."""
        states = self.open_states if code in self.open_states else self.former_states
        states[code] = reading

    def remove_state(self, code: str) -> None:
        """The state is over."""
        self.settling.discard(code)
        self.well.add(code)
        if not self.open_states.pop(code, ""):
            del self.former_states[code]

    def keep_codes(self, codes: frozenset[str]) -> list[str]:
        """Forget what was reported of codes that have no threshold any more, and return these."""
        self.codes = codes
        keys = [key for key in self.reported if key.rpartition(":")[0] not in codes]
        others = {key.rpartition(":")[0] for key in keys}
        others |= (self.open_states.keys() | self.former_states.keys()) - codes
        for key in keys:
            del self.reported[key]
        for code in others:
            self.open_states.pop(code, None)
            self.former_states.pop(code, None)
        return sorted(others)


class ThresholdMemory:
    """The memory of all components of one source, by identity."""

    def __init__(self, stored: Mapping[str, Any], index: ThresholdIndex) -> None:
        """`stored`: as `build_memory` returned it. Raises TypeError, ValueError or AttributeError
        for anything else.
        """
        self.components: dict[str, ComponentMemory] = {
            identity: _restore_component(component, index) for identity, component in stored.items()
        }

    def build_memory(self, index: ThresholdIndex) -> dict[str, Any]:
        """What is to be stored, for JSON."""
        kept = {}
        for identity, memory in self.components.items():
            growth = memory.growth.build_memory(index.windows)
            if growth or not memory.is_empty:
                # What settles is reported again after a restart.
                states = memory.open_states
                settling = {code: states[code] for code in states if code in memory.settling}
                settled = {code: states[code] for code in states if code not in settling}
                stored = {"on": settled, "said": memory.reported}
                former = {**memory.former_states, **settling}
                kept[identity] = {**stored, **({"stood": former} if former else {}), **growth}
        return kept

    def find_or_add(self, identity: str) -> ComponentMemory:
        memory = self.components.get(identity)
        if memory is None:
            memory = self.components[identity] = ComponentMemory()
        return memory

    def forget_component(
        self, identity: str, index: ThresholdIndex, *, counters: bool = False
    ) -> None:
        """Something ended the component's findings: states that still hold are reported again.
        `counters`: its counters begin at zero as well.
        """
        memory = self.components.get(identity)
        if memory is None:
            return
        gone = index.changing_states | index.counters if counters else index.changing_states
        reported = {key: value for key, value in memory.reported.items() if key not in gone}
        self.components[identity] = ComponentMemory(
            former_states={**memory.former_states, **memory.open_states},
            reported=reported,
            restarted=set(reported),
        )

    def restart_settling(self) -> None:
        """Forget what was observed so far, as after a start."""
        for memory in self.components.values():
            memory.watched_since = None
            memory.well.clear()

    def report_again(self, codes: Collection[str]) -> None:
        """Report the open states of these codes again."""
        for memory in self.components.values():
            for code in memory.open_states.keys() & codes:
                memory.former_states[code] = memory.open_states.pop(code)

    def rename_component(self, former: str, identity: str) -> None:
        """The component that was known as `former` goes by `identity` from now on."""
        memory = self.components.pop(former, None)
        if memory is not None and identity not in self.components:
            self.components[identity] = memory

    def limit_size(self, needed: Collection[str]) -> None:
        """Forget components of which nothing was reported, beyond those that are `needed`."""
        surplus = len(self.components) - _MAX_COMPONENTS
        if surplus <= 0:
            return
        idle = [
            identity
            for identity, memory in self.components.items()
            if identity not in needed and memory.is_empty
        ]
        for identity in idle[:surplus]:
            del self.components[identity]


def _restore_component(stored: Mapping[str, Any], index: ThresholdIndex) -> ComponentMemory:
    return ComponentMemory(
        open_states=dict(stored.get("on", {})),
        former_states=dict(stored.get("stood", {})),
        reported={
            key: tuple(value) if isinstance(value, list) else value
            for key, value in stored.get("said", {}).items()
        },
        growth=CounterGrowth(stored, index.windows),
    )
