"""MIG instances: what the worker reads of each, through the real binding, and their metrics."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.conftest import require
from tests.exported import read_exported
from tests.unit.test_link_metrics import read
from tests.waiting import WAIT_S
from vitald.collectors.nvml.mig_calls import read_mig_details
from vitald.collectors.nvml.worker_process import WorkerProcess
from vitald.metrics.gpus import GpuMetrics
from vitald.simulator.simulated_library import CannotBuild
from vitald.simulator.simulated_node import SimulatedNode

GIB = 2**30
Json = dict[str, Any]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    try:
        node = SimulatedNode(tmp_path / "node", "h100")
        library = node.library
    except CannotBuild as error:
        require(None, str(error))
        raise
    assert library
    with mock.patch.dict(os.environ, node.environment):
        yield node


def ask_worker(
    node: SimulatedNode,
    *,
    profiling: bool = False,
    until: Callable[[Json], bool] = lambda _: True,
) -> Json:
    """What a worker answers about the first GPU, polled until then."""

    async def ask() -> Json:
        worker = WorkerProcess(str(node.library), lambda _: None)
        gpu = node.addresses[0]
        try:
            await worker.send_command({"do": "attach", "gpus": [gpu], "profiling": profiling})
            while True:
                command = {"do": "look", "fast": [gpu], "slow": [gpu], "inventory": []}
                answer: Json = (await worker.send_command(command))["gpus"][gpu]
                if until(answer):
                    return answer
                await asyncio.sleep(0.05)
        finally:
            await worker.end_process()

    return asyncio.run(asyncio.wait_for(ask(), WAIT_S))


def set_instances(node: SimulatedNode) -> None:
    node.set_values(
        0,
        {
            "mig_mode": "1 1",
            "mig.0": f"3 0 1g.10gb {10 * GIB} {2 * GIB} MIG-a",
            "mig.4": f"5 1 1c.3g.40gb+me {40 * GIB} 0 MIG-b",
        },
    )


def test_each_instance_is_read(node: SimulatedNode) -> None:
    set_instances(node)
    answer = ask_worker(node)
    values = {name: value for name, value in answer["values"].items() if name.startswith("mig")}
    assert values == {
        "mig_mode": 1,
        "mig_mode_pending": 1,
        "mig_mode_change_pending": 0.0,
        "mig_instances": 2,
        "mig_gpu_instances": [3, 5],
        "mig_compute_instances": [0, 1],
        "mig_uuids": "MIG-a MIG-b",
        "mig_profiles": "1g.10gb 1c.3g.40gb+me",
        "mig_memory_used_bytes": [2 * GIB, 0],
        "mig_memory_total_bytes": [10 * GIB, 40 * GIB],
    }


def test_utilisation_of_a_gpu_in_mig_mode_is_not_observable(node: SimulatedNode) -> None:
    set_instances(node)
    answer = ask_worker(node)
    unread = ("utilization_ratio", "encoder_utilization_ratio", "decoder_utilization_ratio")
    assert {answer["missing"].get(name) for name in unread} == {"not supported"}
    assert not answer["failing"]
    assert answer["values"]["temperature_celsius"] == 35


@pytest.mark.parametrize("values", [{}, {"mig_mode": None}])
def test_without_mig_there_is_no_instance(node: SimulatedNode, values: dict[str, object]) -> None:
    """Which is known, also of a GPU that has no MIG mode."""
    node.set_values(0, values)
    answer = ask_worker(node)
    assert answer["values"]["mig_gpu_instances"] == []
    assert not {*read_mig_details.readings} & {*answer["missing"]}
    assert answer["values"]["utilization_ratio"] == 0.0


@pytest.mark.parametrize(
    ("call", "code", "reading"),
    [
        ("nvmlDeviceGetMemoryInfo", 4, "mig_memory_used_bytes"),
        ("nvmlDeviceGetUUID", 999, "mig_uuids"),
        ("nvmlDeviceGetGpuInstanceId", 4, "mig_gpu_instances"),
    ],
)
def test_what_cannot_be_read_of_an_instance_leaves_the_mode(
    node: SimulatedNode, call: str, code: int, reading: str
) -> None:
    set_instances(node)
    node.set_values(0, {f"ret.{call}": code})
    answer = ask_worker(node)
    assert (answer["values"]["mig_mode"], answer["values"]["mig_instances"]) == (1, 2)
    expected = "no permission" if code == 4 else "fails with NVML error 999"
    assert answer["missing"][reading] == expected
    assert not answer["failing"]


@pytest.mark.parametrize(
    "values", [{"ret.nvmlDeviceGetMigMode": 4}, {"ret.nvmlDeviceGetMaxMigDeviceCount": 999}]
)
def test_where_the_mode_is_unknown_so_are_the_instances(
    node: SimulatedNode, values: dict[str, object]
) -> None:
    set_instances(node)
    node.set_values(0, values)
    answer = ask_worker(node)
    assert {*read_mig_details.readings} <= {*answer["missing"]}
    assert "mig_gpu_instances" not in answer["values"]


def test_a_lost_gpu_is_lost_for_its_instances(node: SimulatedNode) -> None:
    set_instances(node)
    node.set_values(0, {"ret.nvmlDeviceGetComputeInstanceId": 15})
    answer = ask_worker(node)
    assert answer["faults"] == ["lost"]


def test_the_metrics_of_instances() -> None:
    readings = read(
        uuid="GPU-1",
        mig_gpu_instances=(3.0, 5.0),
        mig_compute_instances=(0.0, 1.0),
        mig_uuids="MIG-a MIG-b",
        mig_profiles="1g.10gb 3g.40gb",
        mig_memory_used_bytes=(2.0, math.nan),
        mig_memory_total_bytes=(10.0, math.nan),
    )
    samples = {
        (sample.name, sample.labels["gpu_instance"], sample.labels["compute_instance"]): sample
        for metric in read_exported(GpuMetrics().collect_metrics([readings]))
        for sample in metric.samples
        if "_mig_" in sample.name and "gpu_instance" in sample.labels
    }
    info, used = "vitald_gpu_mig_instance_info", "vitald_gpu_mig_memory_used_bytes"
    assert set(samples) == {
        *((info, "3", "0"), (info, "5", "1"), (used, "3", "0")),
        ("vitald_gpu_mig_memory_total_bytes", "3", "0"),
    }
    labels = samples[info, "5", "1"].labels
    assert (labels["mig_profile"], labels["mig_uuid"], labels["uuid"]) == (
        "3g.40gb",
        "MIG-b",
        "GPU-1",
    )
    assert samples[used, "3", "0"].value == 2.0


def test_a_gpu_without_instances_has_no_sample() -> None:
    for readings in (read(), read(mig_gpu_instances=(), mig_uuids="")):
        names = {
            sample.name
            for metric in read_exported(GpuMetrics().collect_metrics([readings]))
            for sample in metric.samples
        }
        assert not [name for name in names if "_mig_" in name]
