"""
One GPU as the worker polls it, and how a call's results become readings.

Runs in the worker process only, like all that imports pynvml: its cost is memory on every node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Union

import pynvml

from vitald.collectors.nvml.codes import (
    FAULTS,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    MIN_FAILURES,
    MISSING,
    NO_DATA,
    NO_VALUE,
    NOT_AVAILABLE,
    NOT_SUPPORTED,
    RESET_REQUIRED,
)

# In a list, NaN is the value of a link that cannot be read.
Reading = Union[float, str, "list[float]"]
# ask("nvmlDeviceGetName", handle): calls the C function of that name, marked as in flight.
Ask = Callable[..., Any]


Tier = Literal["fast", "slow", "inventory", "profiling"]


class Call(NamedTuple):
    """One call about a GPU, made at each poll of its `tier`.

    `read` gives readings by name in base units (celsius, watts, joules, hertz, seconds, bytes); a
    list has one value per link. It raises pynvml.NVMLError if it gives nothing. `readings`: all
    that it can give; what it does not give is not observable. Unless it `is_judged`, they are
    only shown, so its failures are no finding.
    """

    name: str
    tier: Tier
    readings: tuple[str, ...]
    read: Callable[[Ask, PolledGpu], dict[str, Reading]]
    is_judged: bool

    def __call__(self, ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
        return self.read(ask, gpu)


def declare_call(
    tier: Tier, *readings: str, is_judged: bool = True
) -> Callable[[Callable[[Ask, PolledGpu], dict[str, Reading]]], Call]:
    """Makes a `Call` of a function that is called `read_` and the call's name."""
    return lambda read: Call(read.__name__.removeprefix("read_"), tier, readings, read, is_judged)


class ProfilingSamples:
    """Two sample buffers of NVML, which the worker has to free. `taken_at`: when the former one was
    filled, on the monotonic clock; None if it was not. `activity`: what the last two came to.
    """

    def __init__(self, former: Any, following: Any) -> None:
        self.former = former
        self.following = following
        self.taken_at: float | None = None
        self.activity: dict[str, float] = {}


class PolledGpu:
    """State that the worker keeps for one GPU. `driver`: the driver's version as numbers."""

    def __init__(self, address: str, handle: Any, driver: tuple[int, ...]) -> None:
        self.address = address
        self.handle = handle
        self.driver = driver
        # The maximum number of NVLinks since the worker attached; None if not known.
        self.links: int | None = None
        self.nvlink5 = False
        self.wide_pcie_counters = False  # those of bytes have more than 32 bits
        # Of each NVLink, as it was read last; by reading and link.
        self.link_bytes: dict[str, float] = {}
        # Of the MIG instances; None if it is not known which there are.
        self.mig_handles: list[Any] | None = None
        # Ids of the GPU instances in MIG mode, None outside of it.
        self.gpu_instances: list[int] | None = None
        # Of profiling: by GPU instance, or WHOLE_GPU.
        self.samples: dict[int, ProfilingSamples] = {}
        # Readings that the call in progress cannot give, with NVML's code.
        self.refused: dict[str, int] = {}
        # Code of a part of the call in progress that failed, or 0; the other parts count.
        self.failed = 0
        # Calls that this GPU or driver does not have, until the next inventory: their code, and the
        # codes of their readings.
        self.skipped: dict[str, tuple[int, dict[str, int]]] = {}
        self.answered = False  # since the worker attached
        self.lacks_events = True  # no thread waits for its events
        # Calls that fail: their code, and how many times in succession.
        self.failures: dict[str, tuple[int, int]] = {}

    def list_faults(self) -> list[str]:
        found = (code for code, _ in self.failures.values() if code in FAULTS)
        return sorted({FAULTS[code] for code in found})

    def list_failing_calls(self) -> dict[str, int]:
        """Calls that fail for no known reason, with NVML's code."""
        return {
            name: code
            for name, (code, times) in self.failures.items()
            if code not in FAULTS and times >= MIN_FAILURES
        }

    def find_refusal(self, name: str) -> int:
        """The code with which the last call refused a reading, or 0; for readings by link that of
        the first link.
        """
        return self.refused.get(name) or self.refused.get(f"{name}/0", 0)


def read_fields(
    ask: Ask, gpu: PolledGpu, ids: dict[Any, str], scale: float = 1.0
) -> dict[str, Reading]:
    """Many values in one call, those that a GPU does not have left out. Raises NVMLError if the GPU
    is lost or requires a reset.
    """
    got: dict[str, Reading] = {}
    for (_, name), value in zip(
        ids.items(), ask("nvmlDeviceGetFieldValues", gpu.handle, list(ids))
    ):
        if value.nvmlReturn in (LOST, RESET_REQUIRED):
            raise pynvml.NVMLError(value.nvmlReturn)
        number = _decode_number(value) if value.nvmlReturn == 0 else 0.0
        if value.nvmlReturn or number in NOT_AVAILABLE:
            code = value.nvmlReturn or NO_VALUE
            # INVALID_ARGUMENT: the driver does not know this field id.
            gpu.refused[name] = NOT_SUPPORTED if code == INVALID_ARGUMENT else code
        else:
            got[name] = number * scale if scale != 1.0 else number
    return got


def read_each(gpu: PolledGpu, calls: Mapping[str, Callable[[], Reading]]) -> dict[str, Reading]:
    """Values of independent calls: the failure of one does not affect the others. Raises NVMLError
    if all fail, or if the GPU is lost or requires a reset.
    """
    got: dict[str, Reading] = {}
    for name, call in calls.items():
        try:
            got[name] = call()
        except pynvml.NVMLError as error:
            if error.value in (LOST, RESET_REQUIRED):
                raise
            gpu.refused[name] = error.value
            if (
                error.value not in (*MISSING, *NO_DATA, INVALID_ARGUMENT)
                and gpu.failed not in FAULTS
            ):
                gpu.failed = error.value
    if not got:
        raise pynvml.NVMLError(gpu.failed or next(iter(gpu.refused.values()), NOT_SUPPORTED))
    return got


def _decode_number(value: Any) -> float:
    """The union's member for the value's type; a signed value read as unsigned would be absurd."""
    union = value.value
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return float(getattr(union, members.get(value.valueType, "ullVal")))


def require_any(gpu: PolledGpu, got: dict[str, Reading]) -> dict[str, Reading]:
    """Raises NVMLError if there are no readings: with the code of all of them if it is one and the
    same, else with NOT_SUPPORTED.
    """
    if not got:
        codes = set(gpu.refused.values()) - {FUNCTION_NOT_FOUND}
        raise pynvml.NVMLError(codes.pop() if len(codes) == 1 else NOT_SUPPORTED)
    return got


def check_value(value: int) -> Reading:
    """Raises NVMLError for NVML's marker for "no value"."""
    if value in NOT_AVAILABLE:
        raise pynvml.NVMLError(NO_VALUE)
    return value


def group_by_link(
    got: Mapping[str, Reading], names: Iterable[str], links: int
) -> dict[str, Reading]:
    """Turns readings named `name/link` into lists by link, with NaN for a link that has none. A
    reading that no link has is left out.
    """
    by_link: dict[str, Reading] = {}
    for name in names:
        values = [got.get(f"{name}/{link}") for link in range(links)]
        if any(isinstance(value, float) for value in values):
            by_link[name] = [value if isinstance(value, float) else math.nan for value in values]
    return by_link
