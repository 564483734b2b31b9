"""
nvml: what a look at 8 simulated H100s costs, and what the daemon with its worker weighs and uses at
the default cadence.

A look through the worker process (as the source asks it), beside the same calls made bare in one
process with the real binding: what the process, the pipe and the marker of the call in flight cost.
The simulated library answers from a file and takes microseconds a call; a real driver takes longer,
so these are our own shares, not a driver's.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.measure import (
    SETTLE_S,
    Json,
    Skipped,
    Usage,
    load,
    memory_mib,
    node,
    pid_of,
    scratch,
    spread,
)
from vitald.collectors.nvml.worker_process import WorkerProcess
from vitald.simulator.simulated_library import CannotBuild
from vitald.simulator.simulated_node import SimulatedNode

LOOKS = 200
SECONDS = 60.0
_NVML = """
[nvml]
library = "{library}"
"""
# In a process of its own: the simulated library must not be loaded into the benchmark.
_BARE = """
import ctypes, json, sys, time
sys.path[:] = json.loads(sys.argv[1])
import pynvml
from vitald.collectors.nvml import query
from vitald.collectors.nvml.worker import CALLS
pynvml.nvmlLib = ctypes.CDLL(sys.argv[2])
pynvml.nvmlInitWithFlags(1)
made = 0
def bare(name, *args, raw=False):
    global made
    made += 1
    if raw:
        raise pynvml.NVMLError(3)
    return getattr(pynvml, name)(*args)
driver = (580, 95, 5)
gpus = [
    query.PolledGpu(address, pynvml.nvmlDeviceGetHandleByPciBusId(address.encode()), driver)
    for address in json.loads(sys.argv[3])
]
def look(*tiers):
    for gpu in gpus:
        for call in CALLS:
            if call.tier in tiers and call.name not in gpu.skipped:
                try:
                    call.read(bare, gpu)
                except pynvml.NVMLError as error:
                    gpu.skipped[call.name] = error.value
look("inventory", "fast", "slow")
said = {}
for name, tiers in (("fast", ["fast"]), ("fast_and_slow", ["fast", "slow"])):
    times = []
    made = 0
    for _ in range(int(sys.argv[4])):
        began = time.perf_counter()
        look(*tiers)
        times.append(time.perf_counter() - began)
    said[name] = [times, made / len(times)]
print(json.dumps(said))
"""


def run() -> Json:
    with scratch() as folder:
        simulated = SimulatedNode(folder / "simulated")
        try:
            library = simulated.library
        except CannotBuild as error:
            raise Skipped(str(error)) from None
        os.environ |= simulated.environment
        bare = _bare(simulated, library)
        through, started_s = asyncio.run(_through(simulated, library))
        whole = _whole(folder, simulated, library)
    looks: Json = {}
    for name, (times, made) in bare.items():
        figures, floor = spread(through[name]), spread(times)
        looks[name] = {"worker": figures, "bare_calls": floor, "calls": made}
        more = (sorted(through[name])[LOOKS // 2] - sorted(times)[LOOKS // 2]) / made
        looks[name]["us_more_a_call"] = round(more * 1e6, 3)
    return {
        "unit": "ms",
        "gpus": 8,
        "looks": looks,
        "worker_started_and_attached_s": round(started_s, 3),
        "daemon": whole,
        "load": load(),
    }


def _bare(simulated: SimulatedNode, library: Path) -> dict[str, tuple[list[float], float]]:
    arguments = [
        json.dumps(sys.path),
        str(library),
        json.dumps(list(simulated.addresses)),
        str(LOOKS),
    ]
    done = subprocess.run(
        [sys.executable, "-c", _BARE, *arguments], capture_output=True, text=True, check=True
    )
    return {name: (times, made) for name, (times, made) in json.loads(done.stdout).items()}


async def _through(simulated: SimulatedNode, library: Path) -> tuple[dict[str, list[float]], float]:
    def unasked(_: Mapping[str, Any]) -> None: ...

    gpus = list(simulated.addresses)
    began = time.perf_counter()
    worker = WorkerProcess(str(library), unasked)
    await worker.send_command({"do": "attach", "gpus": gpus})
    started_s = time.perf_counter() - began
    times: dict[str, list[float]] = {}
    try:
        await worker.send_command({"do": "look", "fast": gpus, "slow": gpus, "inventory": gpus})
        for name, slow in (("fast", []), ("fast_and_slow", gpus)):
            for _ in range(LOOKS):
                began = time.perf_counter()
                await worker.send_command(
                    {"do": "look", "fast": gpus, "slow": slow, "inventory": []}
                )
                times.setdefault(name, []).append(time.perf_counter() - began)
    finally:
        await worker.end_process()
    return times, started_s


def _whole(folder: Path, simulated: SimulatedNode, library: Path) -> Json:
    """The daemon at the default cadence with its worker, beside one that asks no NVML."""
    kernel_log = (
        "kmsg" if os.access("/dev/kmsg", os.R_OK) else "file"
    )  # a file must be polled, which costs more than NVML
    without = node(folder, kernel_log=kernel_log, extra="[nvml]\nenabled = false\n", name="without")
    beside = node(folder, kernel_log=kernel_log, extra=_NVML.format(library=library), name="with")
    beside.config.write_text(
        beside.settings.replace("[paths]", f'[paths]\nsysfs = "{simulated.sysfs}"')
    )
    beside.environment = {**(beside.environment or {}), **simulated.environment}
    with without, beside:
        time.sleep(5 * SETTLE_S)
        pids = {
            "daemon": pid_of(beside),
            "worker": _child(pid_of(beside)),
            "daemon_without_nvml": pid_of(without),
        }
        before = {name: Usage.of(pid) for name, pid in pids.items()}
        time.sleep(SECONDS)
        used = {name: Usage.of(pid).since(before[name]) for name, pid in pids.items()}
        return {
            name: {
                "cpu_percent": round(100 * used[name].cpu_s / SECONDS, 4),
                "wakeups_per_s": round(used[name].voluntary / SECONDS, 2),
                "memory_mib": memory_mib(pid),
            }
            for name, pid in pids.items()
        }


def _child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])
