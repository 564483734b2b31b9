"""The same checks on a real GPU, where there is one: `tests/run -m gpu`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vitald.catalog import load_catalog
from vitald.collectors.nvml.collector import Nvml
from vitald.collectors.nvml.settings import NvmlSettings as Settings
from vitald.collectors.nvml.worker_process import WorkerProcess, list_device_users
from vitald.model.source import Batch, Readings, SourceState
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver on this machine"
    ),
]


def inventory() -> PciInventory:
    found = PciInventory(Path("/sys"))
    found.scan_bus()
    return found


async def first(source: Nvml) -> Batch:
    """The first batch with readings."""
    batches = source.read_batches(None)
    try:
        async for batch in batches:
            if batch.readings:
                return batch
            assert batch.state is SourceState.OK, batch.detail
    finally:
        await batches.aclose()  # type: ignore[attr-defined]
    raise AssertionError("it ended")


def source(**settings: Any) -> Nvml:
    return Nvml(Settings(**settings), load_catalog(), inventory(), "boot", WorkerThread("test"))


def look() -> tuple[Batch, tuple[Readings, ...]]:
    batch = asyncio.run(asyncio.wait_for(first(source()), 60))
    return batch, batch.readings


def test_every_gpu_on_pci_says_who_it_is() -> None:
    batch, readings = look()
    assert batch.state is SourceState.OK, batch.detail
    assert {one.component.id for one in readings} == {
        device.address for device in inventory().list_watched() if device.kind.value == "gpu"
    }
    for one in readings:
        assert str(one.values["uuid"]).startswith("GPU-")
        assert not one.simulated
        assert "lost" in one.values and one.values["lost"] == 0


def test_a_sound_gpu_has_no_finding_and_sane_values() -> None:
    batch, readings = look()
    codes = {event.code for event in batch.events}
    assert codes <= {
        "device/identity",
        "nvml/persistence_off",
        "nvml/ecc_off",
        "nvml/mig_changed",
    }, [event.raw for event in batch.events]
    for one in readings:
        assert 0 < float(one.values["temperature_celsius"]) < 120  # type: ignore[arg-type]
        assert 0 < float(one.values["power_watts"]) < 3000  # type: ignore[arg-type]
        assert one.values["failing_calls"] == 0, one.missing
        print(one.component.id, sorted(one.values), dict(one.missing))


def test_nvidia_smi_says_the_same() -> None:
    _, readings = look()
    asked = [
        "nvidia-smi",
        "--query-gpu=uuid,serial,vbios_version,memory.total",
        "--format=csv,noheader,nounits",
    ]
    said = {
        line.split(", ")[0]: line.split(", ")
        for line in subprocess.run(
            asked, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    }
    for one in readings:
        _, serial, vbios, memory = said[str(one.values["uuid"])]
        assert (one.values.get("serial", "[N/A]"), one.values["vbios"]) == (serial, vbios)
        assert abs(float(one.values["memory_total_bytes"]) / 2**20 - float(memory)) < 2048  # type: ignore[arg-type]


def test_letting_go_leaves_nothing_open() -> None:
    async def story() -> None:
        nvml = source()
        batches = nvml.read_batches(None)
        states = []

        async def watch() -> None:
            async for batch in batches:
                states.append(batch.state)

        watching = asyncio.create_task(watch())
        while SourceState.OK not in states:
            await asyncio.sleep(0.05)
        report = await asyncio.wait_for(nvml.releases.begin_release(30, (), "test", "test"), 10)
        assert os.getpid() not in [pid for pid, _ in report.device_users] and report.stuck == ()
        found, _ = list_device_users([])
        assert not [
            pid
            for pid, name in found
            if "python" in name and Path(f"/proc/{pid}/cmdline").read_text().count("nvml.worker")
        ]
        nvml.releases.end_releases("test")
        again = len(states)
        while SourceState.OK not in states[again:]:
            await asyncio.sleep(0.05)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 120))


def test_what_a_look_costs() -> None:
    async def story() -> None:
        def unasked(_: Mapping[str, Any]) -> None: ...

        gpus = [
            device.address for device in inventory().list_watched() if device.kind.value == "gpu"
        ]
        worker = WorkerProcess("", unasked)
        began = time.perf_counter()
        attached = await worker.send_command({"do": "attach", "gpus": gpus})
        print("attach", round(time.perf_counter() - began, 3), attached)
        for name, command in (
            ("whole", {"fast": gpus, "slow": gpus, "inventory": gpus}),
            ("fast", {"fast": gpus, "slow": [], "inventory": []}),
            ("slow", {"fast": [], "slow": gpus, "inventory": []}),
        ):
            began = time.perf_counter()
            answer = await worker.send_command({"do": "look", **command})
            print(name, round((time.perf_counter() - began) * 1000, 2), "ms for", len(gpus), "GPUs")
            assert all("values" in one for one in answer["gpus"].values())
        assert await worker.end_process() is None

    asyncio.run(asyncio.wait_for(story(), 120))
