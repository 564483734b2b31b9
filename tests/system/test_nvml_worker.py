"""Calls into the driver that hang, crash or take their time: said with call and GPU, and nothing
else stops for them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.conftest import require
from tests.harness import Node
from tests.system.nvml import Looking, Outcomes, beside, hasty, outcome, story
from tests.waiting import WAIT_S, until
from vitald.backoff import Backoff
from vitald.collectors.nvml import collector as nvml_collector
from vitald.collectors.nvml import gpu_state, worker_process
from vitald.model.component import NODE, Component
from vitald.model.event import Event
from vitald.model.source import SourceState
from vitald.model.words import ComponentKind
from vitald.simulator import simulated_library
from vitald.simulator.simulated_node import SimulatedNode

# The driver hangs or answers at once; but the worker must be given its turn within the deadline.
# A worker that a busy machine starts slowly is no call that hangs: several start at a time here.
DEADLINE_S, GIVE_UP_S = 3.0, 5.0
HUNG, UNAVAILABLE = "nvml/hung", "nvml/unavailable"

# Every C function that the worker calls, by what makes it do so: a model, and what is particular
# about its GPU.
OLDER = (
    "h100",
    dict.fromkeys(
        (
            "ret.nvmlDeviceGetCurrentClocksEventReasons",
            "ret.nvmlDeviceGetTemperature",
            "ret.nvmlDeviceGetMemoryInfo_v2",
        ),
        13,
    ),
)
H100, A100 = ("h100", {"mig_mode": "1 1", "mig.0": "1 0"}), ("a100", {})
WHOLE, UNSAMPLED = ("h100", {}), ("h100", {"ret.nvmlGpmSampleGet": 999})
OF_NO_GPU = [
    "InitWithFlags",
    "SystemGetDriverVersion",
    "DeviceGetCount_v2",
    "SystemGetNVMLVersion",
    "SystemGetCudaDriverVersion_v2",
]
OF_NO_GPU += ["GetExcludedDeviceCount"]
OF_A_GPU = """
    DeviceGetHandleByPciBusId_v2 DeviceGetSupportedEventTypes EventSetCreate DeviceRegisterEvents
    DeviceGetUUID DeviceGetName DeviceGetSerial DeviceGetBoardPartNumber DeviceGetVbiosVersion
    DeviceGetInforomImageVersion DeviceGetModuleId DeviceGetMinorNumber DeviceGetIndex DeviceGetBoardId
    DeviceGetFieldValues DeviceGetNvLinkRemoteDeviceType DeviceGetTemperatureThreshold
    DeviceGetEnforcedPowerLimit DeviceGetPersistenceMode DeviceGetEccMode DeviceGetMigMode
    DeviceGetMaxMigDeviceCount DeviceGetMigDeviceHandleByIndex DeviceGetTemperature
    DeviceGetMarginTemperature DeviceGetCurrentClocksEventReasons DeviceGetPowerUsage
    DeviceGetUtilizationRates DeviceGetPerformanceState DeviceGetClockInfo
    DeviceGetTotalEnergyConsumption DeviceGetMemoryInfo_v2 DeviceGetTotalEccErrors
    DeviceGetMemoryErrorCounter DeviceGetSramEccErrorStatus DeviceGetRemappedRows
    DeviceGetRowRemapperHistogram DeviceGetRetiredPages_v2 DeviceGetRetiredPagesPendingStatus
    DeviceGetRepairStatus DeviceGetUnrepairableMemoryFlag_v1 DeviceGetCurrPcieLinkGeneration
    DeviceGetCurrPcieLinkWidth DeviceGetMaxPcieLinkGeneration DeviceGetMaxPcieLinkWidth
    DeviceGetNvLinkState DeviceGetNvLinkVersion DeviceGetPlatformInfo DeviceGetGpuFabricInfoV
    DeviceGetComputeRunningProcesses_v3
    DeviceGetNvLinkErrorCounter
    DeviceGetCurrentClocksThrottleReasons DeviceGetTemperatureV DeviceGetMemoryInfo
    DeviceGetEncoderUtilization DeviceGetDecoderUtilization DeviceGetGpuInstanceId
    DeviceGetComputeInstanceId GpmQueryDeviceSupport GpmSampleAlloc GpmSampleGet GpmMigSampleGet
    GpmMetricsGet GpmSampleFree
""".split()  # noqa: SIM905  # a list would be fifty lines
WHERE = {
    "DeviceGetNvLinkErrorCounter": A100,
    "DeviceGetCurrentClocksThrottleReasons": OLDER,
    "DeviceGetTemperatureV": OLDER,
}
WHERE |= {"DeviceGetMemoryInfo": OLDER}
WHERE |= {"GpmSampleGet": WHOLE, "GpmSampleFree": UNSAMPLED}
WAITS = "nvmlEventSetWait_v2"  # in threads of its own, where it may take as long as it likes


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    try:
        simulated_library.build_library()
    except simulated_library.CannotBuild as error:
        require(None, str(error))


@contextmanager
def quickly() -> Iterator[None]:
    """What is tried again after seconds is so at once, and a GPU that was left out is asked again
    soon.
    """
    retry = mock.patch.object(nvml_collector, "_RETRY", Backoff(0.05, 0.1))
    with retry, mock.patch.object(gpu_state, "BACKOFF", Backoff(0.8, 0.8)):
        yield


@pytest.fixture
def soon() -> Iterator[None]:
    with quickly():
        yield


def made(
    folder: Path, where: tuple[str, dict[str, Any]] = H100, gpus: int = 1, *, trace: bool = False
) -> SimulatedNode:
    node = SimulatedNode(folder, where[0], gpus, trace=trace)
    node.set_values(None, where[1])
    return node


def hangs(looking: Looking) -> list[Event]:
    return [event for event in looking.of(HUNG) if not event.fields.get("recovered")]


def of(node: SimulatedNode, gpu: int | None) -> Component:
    return NODE if gpu is None else Component(ComponentKind.GPU, node.addresses[gpu])


def find_reading(looking: Looking, name: str) -> bool:
    """Whether the first GPU has the reading."""
    readings = looking.read(0)
    return readings is not None and name in readings.values


def named(function: str, call: object) -> bool:
    """The binding's name for a C function may lack its version."""
    return re.sub(r"_v\d+\Z", "", function) == re.sub(r"_v\d+\Z", "", str(call))


# --- each call


@pytest.mark.core
@story
async def test_the_list_of_calls_is_whole(tmp_path: Path) -> None:
    asked: dict[str, int | None] = {}
    for number, where in enumerate((H100, A100, OLDER, WHOLE, UNSAMPLED)):
        node = made(tmp_path / str(number), where, trace=True)
        async with Looking(node, hasty(), profiling=True) as looking:
            await looking.looks(3)
            if where is WHOLE:  # profiling needs samples that are a second apart
                await looking.until(lambda: find_reading(looking, "sm_active_ratio"))
        asked |= {call.function: call.gpu for call in node.read_calls()}
    assert {name for name in asked if name != WAITS} == {
        f"nvml{name}" for name in (*OF_NO_GPU, *OF_A_GPU)
    }
    assert {name for name, gpu in asked.items() if gpu is None} == {
        f"nvml{name}" for name in OF_NO_GPU
    } | {"nvmlEventSetCreate", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of a hang, by the call."""
    folder = tmp_path_factory.mktemp("hangs")
    return beside((*OF_NO_GPU, *OF_A_GPU), lambda name: hang(name, folder / name), most=8)


async def hang(name: str, folder: Path) -> None:
    """From the start on the call hangs; then it does not. What is said of it meanwhile."""
    gpu = None if name in OF_NO_GPU else 0
    node = made(folder, WHERE.get(name, H100))
    node.hang_call(None, f"nvml{name}")
    settings = {"deadline_s": DEADLINE_S, "give_up_s": WAIT_S, "profiling": True}
    async with Looking(node, hasty(), **settings) as looking:
        await looking.until(lambda: looking.of(HUNG))
        (event,) = looking.of(HUNG)
        assert event.component == of(node, gpu)
        assert named(f"nvml{name}", event.fields["call"])
        assert event.fields["seconds"] >= DEADLINE_S * 0.9
        assert event.fields["state"]
        assert looking.asks(gpu, HUNG, "inspect")
        assert looking.state is SourceState.FAILED
        assert (
            f"{event.fields['call']}{f' on gpu/{node.addresses[0]}' if gpu == 0 else ''} has not"
            " answered for" in looking.last.detail
        )
        node.release_call(None, f"nvml{name}")
        await looking.until(lambda: looking.state is SourceState.OK)
        await looking.looks(1)
        assert looking.found() == set()
        assert len(looking.of(HUNG)) == 2


@pytest.mark.parametrize("name", [*OF_NO_GPU, *OF_A_GPU])
def test_a_hang_is_said_with_its_call_and_ends(name: str, outcomes: Outcomes) -> None:
    outcome(outcomes, name)


@story
async def test_a_wait_for_events_that_hangs_is_nobodys_business(tmp_path: Path) -> None:
    node = made(tmp_path, gpus=2)
    node.hang_call(None, WAITS)
    async with Looking(node, hasty(), deadline_s=DEADLINE_S) as looking:
        await looking.looks(40)  # at least 4 s: longer than the deadline
        assert (looking.found(), looking.state) == (set(), SourceState.OK)


# --- given up


GIVEN_UP = {
    f"{function}: {kind}": (kind, f"nvml{function}", gpu)
    for kind, function, gpu in (
        ("fork", "DeviceGetTemperature", 1),
        ("spin", "DeviceGetMemoryInfo_v2", 1),
        ("sleep", "DeviceGetHandleByPciBusId_v2", 1),
        ("sleep", "DeviceRegisterEvents", 1),
        ("sleep", "InitWithFlags", None),
    )
}


@pytest.fixture(scope="module")
def given_up(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("given_up")
    with quickly():
        return beside(
            GIVEN_UP,
            lambda name: replaced(*GIVEN_UP[name], folder / name.partition(":")[0]),
            most=5,
        )


@pytest.mark.parametrize("name", GIVEN_UP)
def test_a_worker_that_hangs_is_replaced_and_the_gpu_left_out(
    name: str, given_up: Outcomes
) -> None:
    outcome(given_up, name)


async def replaced(kind: str, function: str, gpu: int | None, folder: Path) -> None:
    node = made(folder, gpus=3)
    node.hang_call(gpu, function, kind)
    async with Looking(node, hasty(), deadline_s=DEADLINE_S, give_up_s=GIVE_UP_S) as looking:
        await looking.until(lambda: looking.workers)
        hung = looking.workers[0]
        await looking.until(lambda: len(hangs(looking)) == 2)
        first, second = hangs(looking)
        assert {event.component for event in (first, second)} == {of(node, gpu)}
        assert all(named(function, event.fields["call"]) for event in (first, second))
        assert second.fields["seconds"] >= GIVE_UP_S * 0.9
        assert second.fields["state"] == "it could be ended"
        assert worker_process.read_start_time(hung) == "", "the worker that hung is still there"
        if gpu is not None:
            await looking.until(lambda: len(looking.last.readings) >= 2)
            seen = {one.component: one.time for one in looking.last.readings}
            assert set(seen) >= {of(node, 0), of(node, 2)}
            assert looking.state is SourceState.FAILED
            assert (
                f"gpu/{node.addresses[1]} is not polled: {first.fields['call']} did not"
                " return" in looking.last.detail
            )
            assert looking.found() == {(f"gpu/{node.addresses[1]}", HUNG, "inspect")}
            await looking.until(
                lambda: (
                    {one.component: one.time for one in looking.last.readings}[of(node, 0)]
                    > seen[of(node, 0)]
                )
            )
        node.release_call(gpu, function)
        await looking.until(lambda: looking.state is SourceState.OK and not looking.found())
        assert {one.component for one in looking.last.readings} == {of(node, at) for at in range(3)}


@story
async def test_no_third_worker_where_two_cannot_be_ended(soon: None, tmp_path: Path) -> None:
    """Each would hang as well, and hold on to the driver."""
    node = made(tmp_path, gpus=3)
    node.hang_call(0, "nvmlDeviceGetPowerUsage")
    node.hang_call(1, "nvmlDeviceGetPowerUsage")
    here = worker_process.read_start_time(os.getpid())

    async def stays(worker: worker_process.WorkerProcess) -> worker_process.StuckWorker:
        """It is in the kernel: no signal reaches it."""
        worker.ended, where = True, worker.in_flight
        assert where is not None
        return worker_process.StuckWorker(
            pid=os.getpid(), started=here, where=where, state="D in nv_lock"
        )

    with mock.patch.object(worker_process.WorkerProcess, "end_process", stays):
        async with Looking(
            node, hasty(), deadline_s=DEADLINE_S, give_up_s=1.5 * DEADLINE_S
        ) as looking:
            await looking.until(
                lambda: "only a reboot helps" in (looking.last.detail if looking.batches else "")
            )
            assert looking.state is SourceState.FAILED
            assert len(looking.workers) == 2
            await looking.looks(2)
            assert len(looking.workers) == 2
            lost = {(f"gpu/{node.addresses[gpu]}", HUNG, "reboot_node/after_job") for gpu in (0, 1)}
            assert looking.found() == lost
            assert all(
                event.fields.get("state") == "D in nv_lock"
                for event in hangs(looking)
                if event.fields.get("unkillable")
            )


# --- crashed


@pytest.mark.parametrize("kind", ["segv", "abort"])
@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlDeviceRegisterEvents"])
@story
async def test_a_crash_names_the_call_and_the_gpu_is_left_out(
    kind: str, function: str, soon: None, tmp_path: Path
) -> None:
    node = made(tmp_path, gpus=2)
    node.set_values(1, {f"crash.{function}": kind})
    async with Looking(node, hasty(), deadline_s=DEADLINE_S, give_up_s=GIVE_UP_S) as looking:
        await looking.until(lambda: looking.of(UNAVAILABLE))
        event = looking.of(UNAVAILABLE)[0]
        assert event.fields["unavailable"] == -1
        number = signal.SIGSEGV if kind == "segv" else signal.SIGABRT
        assert f"signal {int(number)}) in {function} on gpu/{node.addresses[1]}" in event.raw
        assert looking.state is SourceState.FAILED
        await looking.until(lambda: looking.last.readings)
        assert looking.found() == set(), "it works again"
        assert {one.component for one in looking.last.readings} == {of(node, 0)}
        assert (
            f"gpu/{node.addresses[1]} is not polled: {function} ended the worker process"
            in looking.last.detail
        )
        node.set_values(1, {f"crash.{function}": None})
        await looking.until(lambda: looking.state is SourceState.OK)
        assert len(looking.last.readings) == 2
        assert [one.fields["unavailable"] for one in looking.of(UNAVAILABLE)] == [-1, 0]


@story
@pytest.mark.core
async def test_a_worker_that_is_killed_between_looks_is_replaced(
    soon: None, tmp_path: Path
) -> None:
    """By the kernel, for memory: the GPUs are not to blame."""
    node = made(tmp_path, gpus=2)
    async with Looking(node, hasty()) as looking:
        await looking.until(lambda: looking.batches)
        os.kill(looking.workers[0], signal.SIGKILL)
        await looking.until(lambda: len(looking.of(UNAVAILABLE)) == 2)
        assert "signal 9" in looking.of(UNAVAILABLE)[0].raw
        assert (looking.state, looking.found(), len(looking.last.readings)) == (
            SourceState.OK,
            set(),
            2,
        )


# --- slow, and not the driver's fault


@story
async def test_twenty_milliseconds_a_call_are_no_hang(tmp_path: Path) -> None:
    node = made(tmp_path, ("h100", {}))
    node.set_global_values({"delay_us.*": 20_000})
    async with Looking(node, hasty()) as looking:
        await looking.until(lambda: looking.batches)
        node.set_global_values({"delay_us.*": None})
        await looking.looks(1)
        assert (looking.found(), looking.of(HUNG), looking.state) == (set(), [], SourceState.OK)


@story
async def test_a_whole_node_that_is_slow_is_no_hang(tmp_path: Path) -> None:
    """Eight GPUs in the first look take many times as long as one: with a tenth of both times, in a
    tenth of the time.
    """
    node = made(tmp_path, ("h100", {}), gpus=8)
    node.set_global_values({"delay_us.*": 2_000})
    async with Looking(node, hasty(), deadline_s=1.0, give_up_s=6) as looking:
        await looking.until(lambda: looking.batches and looking.last.readings)
        assert looking.of(HUNG) == []


@story
async def test_a_daemon_that_was_stopped_for_a_while_sees_no_hang(tmp_path: Path) -> None:
    """A machine that sleeps, or is busy with something else: the answer was there all the time."""
    node = made(tmp_path, ("t4", {}))
    node.set_global_values({"delay_us.nvmlDeviceGetName": 100_000})
    async with Looking(node, hasty(), deadline_s=DEADLINE_S, give_up_s=GIVE_UP_S) as looking:
        await looking.until(lambda: looking.batches)
        for _ in range(2):
            await asyncio.sleep(0.07)
            time.sleep(DEADLINE_S * 2)  # noqa: ASYNC251  # on purpose
        await looking.looks(2)
        assert looking.of(HUNG) == []


@story
async def test_a_worker_that_does_not_even_begin_is_said(soon: None, tmp_path: Path) -> None:
    """Its code lies on a disk that does not answer: it is in no call at all."""
    node = made(tmp_path)
    with mock.patch.object(worker_process, "_START", "import time; time.sleep(60)"):
        async with Looking(node, hasty(), deadline_s=DEADLINE_S, give_up_s=GIVE_UP_S) as looking:
            await looking.until(lambda: looking.of(HUNG))
            assert looking.of(HUNG)[0].component == NODE
            assert looking.state is SourceState.FAILED


# --- the whole daemon


class GpuHost(Node):
    """The real daemon on a simulated GPU node."""

    def __init__(self, folder: Path, gpus: SimulatedNode) -> None:
        periods = (
            f'library = "{gpus.library}"\nfast = "1s"\nslow = "1s"\ninventory = "5s"\ndeadline ='
            ' "1s"\ngive_up = "30s"'
        )
        super().__init__(folder, extra=f"[nvml]\n{periods}\n")
        self.gpus = gpus
        self.environment = gpus.environment
        self.configure("[kernel_log]", f'sysfs = "{gpus.sysfs}"\n[kernel_log]')

    def codes(self) -> set[str]:
        return {str(finding["code"]) for finding in self.findings()}

    @property
    def children(self) -> list[int]:
        assert self.process is not None
        names = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in map(int, names) if _parent(pid) == self.process.pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _gone(pids: list[int]) -> bool:
    return not any(worker_process.read_start_time(pid) for pid in pids)


@contextmanager
def host(folder: Path, kind: str) -> Iterator[GpuHost]:
    """With two GPUs; a call on the second hangs."""
    gpus = made(folder / "gpus", ("h100", {}), gpus=2)
    with GpuHost(folder / "host", gpus) as running:
        running.wait(lambda status: status["status"] == "healthy")
        gpus.hang_call(1, "nvmlDeviceGetMemoryInfo_v2", kind)
        until(lambda: HUNG in running.codes(), "the finding")
        yield running


@pytest.mark.core
def test_nothing_else_stops_for_a_hang(tmp_path: Path) -> None:
    """The call hangs to the end of the test: who waited for it would not come back."""
    with host(tmp_path, "fork") as running:  # in state D, as in the field
        assert running.status()["status"] == "unknown"  # a source that does not look at all GPUs
        (finding,) = [one for one in running.findings() if one["code"] == HUNG]
        assert "nvmlDeviceGetMemoryInfo" in str(finding)
        assert running.gpus.addresses[1] in str(finding)

        running.write(
            f"NVRM: Xid (PCI:{running.gpus.addresses[0][:-2]}): 79, pid=1, name=x, GPU has fallen"
            " off the bus."
        )
        until(lambda: "xid/79" in running.codes(), "the kernel's line")
        workers = running.children
        assert len(workers) == 1
        running.stop()
        until(lambda: _gone(workers), "the worker's end")


@pytest.mark.core
def test_a_worker_does_not_outlive_a_killed_daemon(tmp_path: Path) -> None:
    with host(tmp_path, "spin") as running:
        workers = running.children
        assert len(workers) == 1
        running.kill()
        until(lambda: _gone(workers), "the worker's end")


@story
async def test_who_is_at_work_is_told_when_asked_and_not_a_slow_look_later(tmp_path: Path) -> None:
    """The slow look would come in an hour. A driver that hangs is waited for no longer than the
    asker said.
    """
    node = made(tmp_path, gpus=2)
    async with Looking(
        node, hasty(), fast_s=3600.0, slow_s=3600.0, inventory_s=3600.0, deadline_s=60.0
    ) as looking:
        await looking.until(lambda: looking.state is SourceState.OK)
        first, second = (f"gpu/{address}" for address in node.addresses)
        assert await looking.source.list_processes(WAIT_S) == {first: [], second: []}
        node.set_values(1, {"procs": "4711:1000"})
        assert await looking.source.list_processes(WAIT_S) == {first: [], second: [4711.0]}
        node.set_values(0, {"procs": None})
        assert await looking.source.list_processes(WAIT_S) == {second: [4711.0]}
        node.hang_call(1, "nvmlDeviceGetComputeRunningProcesses_v3")
        with pytest.raises(asyncio.TimeoutError):
            await looking.source.list_processes(0.2)


def test_of_a_driver_that_is_not_asked_nobody_waits_for_an_answer(tmp_path: Path) -> None:
    source = Looking(made(tmp_path), hasty()).source
    assert asyncio.run(source.list_processes(1.0)) is None
