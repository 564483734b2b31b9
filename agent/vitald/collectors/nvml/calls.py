"""
The calls that the worker makes for one GPU, by tier.

A call gives readings by name in base units: celsius, watts, joules, hertz, seconds, bytes. A list
has one value per link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vitald.collectors.nvml import (
    board_calls,
    link_calls,
    memory_calls,
    mig_calls,
    profiling_calls,
    tiers,
)
from vitald.collectors.nvml.query import Ask, PolledGpu, Reading


class Call(NamedTuple):
    """`name` is its key in `tiers`. `read` raises pynvml.NVMLError if it gives nothing."""

    name: str
    read: Callable[[Ask, PolledGpu], dict[str, Reading]]


def _find_calls(names: Iterable[str]) -> tuple[Call, ...]:
    modules = (board_calls, memory_calls, link_calls, mig_calls, profiling_calls)
    functions = {name: value for module in modules for name, value in vars(module).items()}
    return tuple(Call(name, functions[f"read_{name}"]) for name in names)


FAST, SLOW, INVENTORY, PROFILING = map(
    _find_calls, (tiers.FAST, tiers.SLOW, tiers.INVENTORY, tiers.PROFILING)
)
