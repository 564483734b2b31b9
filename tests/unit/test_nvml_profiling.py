"""Profiling through GPM: two samples by the real binding, their buffers, what cannot be read."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import pynvml
import pytest

from tests.exported import read_exported
from tests.unit.test_link_metrics import read
from tests.unit.test_nvml_mig import ask_worker, node, set_instances
from tests.unit.test_nvml_readings import failing
from vitald.collectors.nvml import profiling_calls
from vitald.collectors.nvml.query import PolledGpu
from vitald.metrics.gpus import GpuMetrics
from vitald.simulator.simulated_node import SimulatedNode

__all__ = ["node"]
NO_DATA, LOST, INVALID = 21, 15, 2


def get_number(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


class Gpm:
    """A driver's profiling: buffers that have to be freed, samples, and metrics by their number."""

    def __init__(self, metrics: Mapping[int, float]) -> None:
        self.metrics = metrics
        self.allocated: set[int] = set()
        self.asked: Counter[str] = Counter()
        self.instances: list[int] = []
        self.taken: list[int] = []
        self.fail: dict[str, Callable[..., Any]] = {}
        self.calls: dict[str, Callable[..., Any]] = {
            "nvmlGpmQueryDeviceSupport": self._support,
            "nvmlGpmSampleAlloc": self.allocate,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmSampleGet": self._take,
            "nvmlGpmMigSampleGet": self._take_of_instance,
            "nvmlGpmMetricsGet": self._compare,
        }

    def ask(self, name: str, *args: Any, raw: bool = False) -> Any:
        self.asked[name] += 1
        return self.fail.get(name, self.calls[name])(*args)

    def _support(self, _: object) -> Any:
        return mock.Mock(isSupportedDevice=1)

    def allocate(self) -> Any:
        number = self.asked["nvmlGpmSampleAlloc"]
        self.allocated.add(number)
        return ctypes.cast(number, pynvml.c_nvmlGpmSample_t)

    def _free(self, sample: Any) -> None:
        self.allocated.remove(get_number(sample))

    def _take(self, _: object, sample: Any) -> None:
        assert get_number(sample) in self.allocated
        self.taken.append(get_number(sample))

    def _take_of_instance(self, gpu: object, instance: int, sample: Any) -> None:
        if instance not in self.instances:
            raise pynvml.NVMLError(INVALID)
        self._take(gpu, sample)

    def _compare(self, query: Any) -> None:
        assert query.version == 1
        former, latest = get_number(query.sample1), get_number(query.sample2)
        assert former != latest == self.taken[-1]
        assert former in self.taken and {former, latest} <= self.allocated
        for index in range(query.numMetrics):
            metric = query.metrics[index]
            if metric.metricId in self.metrics:
                metric.value = self.metrics[metric.metricId]
            else:
                metric.nvmlReturn = 3


@pytest.fixture
def clock() -> Iterator[Callable[[float], None]]:
    """A clock that a test sets forward."""
    now = [1000.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    with mock.patch.object(profiling_calls, "time", mock.Mock(monotonic=lambda: now[0])):
        yield advance


def make_gpu(instances: list[int] | None = None) -> PolledGpu:
    gpu = PolledGpu("0000:10:00.0", object(), (580, 95, 5))
    gpu.gpu_instances = instances
    return gpu


def refusal(gpm: Gpm, gpu: PolledGpu) -> int:
    """The code with which profiling gives nothing."""
    with pytest.raises(pynvml.NVMLError) as caught:
        profiling_calls.read_profiling(gpm.ask, gpu)
    return int(caught.value.value)


def test_activity_is_read_between_two_polls(clock: Callable[[float], None]) -> None:
    gpm, gpu = Gpm({1: 90.0, 2: 50.0, 5: 12.5, 20: 2.0, 61: 3.0}), make_gpu()
    assert refusal(gpm, gpu) == NO_DATA
    clock(10.0)
    got = profiling_calls.read_profiling(gpm.ask, gpu)
    activity = {name: value for name, value in got.items() if not name.startswith("mig_")}
    assert activity == {
        "graphics_active_ratio": 0.9,
        "sm_active_ratio": 0.5,
        "tensor_active_ratio": 0.125,
        "pcie_transmitted_bytes_per_second": 2.0 * 2**20,
        "nvlink_transmitted_bytes_per_second": 3.0 * 2**20,
    }
    assert gpu.refused["dram_active_ratio"] == 3
    for _ in range(20):
        clock(10.0)
        profiling_calls.read_profiling(gpm.ask, gpu)
    assert len(gpm.allocated) == 2
    assert gpm.asked["nvmlGpmSampleGet"] == 22


def test_samples_are_not_taken_in_quick_succession(clock: Callable[[float], None]) -> None:
    gpm, gpu = Gpm({2: 50.0}), make_gpu()
    assert refusal(gpm, gpu) == NO_DATA
    clock(0.5)
    assert refusal(gpm, gpu) == NO_DATA
    clock(1.0)
    first = profiling_calls.read_profiling(gpm.ask, gpu)
    gpm.metrics = {2: 70.0}
    clock(0.5)
    assert profiling_calls.read_profiling(gpm.ask, gpu) == first
    assert gpm.asked["nvmlGpmSampleGet"] == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 101.0])
def test_an_impossible_value_is_none(clock: Callable[[float], None], value: float) -> None:
    gpm, gpu = Gpm({2: value, 3: 10.0}), make_gpu()
    assert refusal(gpm, gpu) == NO_DATA
    clock(10.0)
    got = profiling_calls.read_profiling(gpm.ask, gpu)
    assert ("sm_active_ratio" in got, got["sm_occupancy_ratio"]) == (False, 0.1)


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_failure_frees_the_samples(clock: Callable[[float], None], call: str) -> None:
    gpm, gpu = Gpm({2: 50.0}), make_gpu()
    assert refusal(gpm, gpu) == NO_DATA
    clock(10.0)
    gpm.fail = {call: failing(LOST)}
    assert refusal(gpm, gpu) == LOST
    assert not gpm.allocated and not gpu.samples
    gpm.fail = {}
    assert refusal(gpm, gpu) == NO_DATA  # begins anew
    clock(10.0)
    assert profiling_calls.read_profiling(gpm.ask, gpu)["sm_active_ratio"] == 0.5


def test_a_buffer_that_cannot_be_had_leaves_none(clock: Callable[[float], None]) -> None:
    gpm, gpu = Gpm({}), make_gpu()

    def give_one() -> Any:
        if gpm.allocated:
            raise pynvml.NVMLError(20)
        return gpm.allocate()

    gpm.fail = {"nvmlGpmSampleAlloc": give_one}
    assert refusal(gpm, gpu) == 20
    assert not gpm.allocated


def test_gpu_instances_are_read_each(clock: Callable[[float], None]) -> None:
    gpm, gpu = Gpm({2: 50.0}), make_gpu([1, 4])
    gpm.instances = [1, 4]
    assert refusal(gpm, gpu) == NO_DATA
    clock(10.0)
    got = profiling_calls.read_profiling(gpm.ask, gpu)
    assert (got["mig_profiled_gpu_instances"], got["mig_sm_active_ratio"]) == (
        [1.0, 4.0],
        [0.5, 0.5],
    )
    assert "sm_active_ratio" not in got
    gpm.instances = [4]  # deleted: its samples are freed, the other goes on
    clock(10.0)
    assert profiling_calls.read_profiling(gpm.ask, gpu)["mig_profiled_gpu_instances"] == [4.0]
    assert len(gpm.allocated) == 2
    gpu.gpu_instances = None
    assert refusal(gpm, gpu) == NO_DATA
    assert len(gpm.allocated) == 2


# --- through the worker, the real binding and the simulated library


def poll_gpu(node: SimulatedNode, *, profiling: bool = True) -> dict[str, Any]:
    """The answer of a worker that is asked until it could compare two samples."""

    def is_compared(answer: dict[str, Any]) -> bool:
        return bool(answer["missing"].get("dram_active_ratio") != "no data yet")

    return ask_worker(node, profiling=profiling, until=is_compared)


def test_profiling_through_the_binding(node: SimulatedNode) -> None:
    node.set_values(0, {"gpm.2": 62.5, "gpm.21": 1024})
    values = poll_gpu(node)["values"]
    assert values["sm_active_ratio"] == 0.625
    assert values["pcie_received_bytes_per_second"] == 2.0**30
    assert profiling_calls.read_profiling.readings[0] in values


def test_profiling_is_off_by_default(node: SimulatedNode) -> None:
    answer = poll_gpu(node, profiling=False)
    profiled = {*profiling_calls.read_profiling.readings}
    assert not profiled & {*answer["values"], *answer["missing"]}


def test_profiling_of_gpu_instances_through_the_binding(node: SimulatedNode) -> None:
    set_instances(node)
    node.set_values(0, {"gpm.2.3": 25, "gpm.2.5": 75})
    answer = poll_gpu(node)
    assert answer["values"]["mig_profiled_gpu_instances"] == [3, 5]
    assert answer["values"]["mig_sm_active_ratio"] == [0.25, 0.75]
    assert answer["missing"]["sm_active_ratio"] == "not supported"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"gpm.supported": 0}, "not supported"),
        ({"ret.nvmlGpmQueryDeviceSupport": 13}, "driver too old"),
        ({"ret.nvmlGpmSampleGet": 4}, "no permission"),
        ({"ret.nvmlGpmSampleGet": 999}, "fails with NVML error 999"),
        ({"ret.nvmlGpmMetricsGet": 3}, "not supported"),
    ],
)
def test_without_profiling_it_is_not_observable(
    node: SimulatedNode, values: dict[str, object], reason: str
) -> None:
    node.set_values(0, values)
    answer = poll_gpu(node)
    assert answer["missing"]["sm_active_ratio"] == reason
    assert (answer["failing"], answer["faults"]) == ({}, [])
    assert answer["values"]["temperature_celsius"] == 35


def test_the_metrics_of_profiling() -> None:
    readings = read(
        sm_active_ratio=0.5,
        fp64_active_ratio=0.25,
        nvlink_received_bytes_per_second=7.0,
        mig_profiled_gpu_instances=(3.0, 5.0),
        mig_sm_active_ratio=(0.1, math.nan),
    )
    samples = {
        (sample.name, sample.labels.get("pipe") or sample.labels.get("direction"))
        if "gpu_instance" not in sample.labels
        else (sample.name, sample.labels["gpu_instance"]): sample.value
        for metric in read_exported(GpuMetrics().collect_metrics([readings]))
        for sample in metric.samples
        if sample.name != "vitald_gpu_info"
    }
    assert samples == {
        ("vitald_gpu_sm_active_ratio", None): 0.5,
        ("vitald_gpu_pipe_active_ratio", "fp64"): 0.25,
        ("vitald_gpu_nvlink_throughput_bytes_per_second", "receive"): 7.0,
        ("vitald_gpu_mig_sm_active_ratio", "3"): 0.1,
    }
