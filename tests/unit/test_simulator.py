"""The simulated node: the real binding on the simulated library, in a process of its own, while the
node changes.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.waiting import WAIT_S, until
from vitald.model.words import ComponentKind
from vitald.simulator import simulated_library
from vitald.simulator.profiles import list_profiles
from vitald.simulator.simulated_node import SimulatedCall, SimulatedNode
from vitald.simulator.state_file import list_exported_calls
from vitald.topology.pci_inventory import PciInventory

SUCCESS, STALE, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMED_OUT, LOST, VERSION = (
    0,
    2,
    3,
    4,
    6,
    10,
    15,
    25,
)
XID = 0x8

# Loads the library, then evaluates one line after the other and answers in JSON, with the time at
# which it had the answer; an NVML error is {"code": n}.
CHILD = """
import ctypes, json, resource, sys, time
import pynvml as p
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
p.nvmlLib = ctypes.CDLL(sys.argv[1])
known, sets, events = {}, {}, {}
def h(gpu):
    if gpu not in known: known[gpu] = p.nvmlDeviceGetHandleByIndex(gpu)
    return known[gpu]
def forget(): known.clear()
def fill(call, struct, version, *fields):
    made = struct()
    if version: made.version = version
    call(ctypes.byref(made))
    return [list(v) if isinstance(v := getattr(made, f), ctypes.Array) else v for f in fields]
def fields(gpu, ids):
    names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    asked = [tuple(i) if isinstance(i, list) else i for i in ids]
    found = p.nvmlDeviceGetFieldValues(h(gpu), asked)
    return [[v.nvmlReturn, v.valueType, getattr(v.value, names[v.valueType])] for v in found]
def listen(name, gpus, mask):
    made = p.nvmlEventSetCreate()
    for gpu in gpus: p.nvmlDeviceRegisterEvents(h(gpu), mask, made)
    sets[name] = made
def wait(name, ms):
    got = p.nvmlEventSetWait_v2(sets[name], ms)
    def address(handle): return ctypes.cast(handle, ctypes.c_void_p).value
    whose = [g for g, handle in known.items() if address(handle) == address(got.device)]
    return [whose, got.eventType, got.eventData, got.gpuInstanceId]
def gpm(gpu, *ids):
    get = p.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = p.NVML_GPM_METRICS_GET_VERSION, len(ids)
    get.sample1, get.sample2 = p.nvmlGpmSampleAlloc(), p.nvmlGpmSampleAlloc()
    try:
        for sample in (get.sample1, get.sample2): p.nvmlGpmSampleGet(h(gpu), sample)
    except p.NVMLError: pass
    for at, metric in enumerate(ids): get.metrics[at].metricId = metric
    p.nvmlGpmMetricsGet(get)
    return [[get.metrics[at].nvmlReturn, get.metrics[at].value] for at in range(len(ids))]
class Size(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 24), ("size", ctypes.c_uint32)]
def sizes():
    found = {}
    for row in (Size * 64).in_dll(p.nvmlLib, "vitald_simulated_sizes"):
        if not row.name: return found
        found[row.name.decode()] = row.size
for line in sys.stdin:
    try: result = eval(line, globals())
    except p.NVMLError as error: result = {"code": error.value}
    except Exception as error: result = {"failed": repr(error)}
    print(json.dumps([time.monotonic_ns(), result], default=repr), flush=True)
"""


class Client:
    """A process that has the library loaded, as vitald's worker has."""

    def __init__(self, node: SimulatedNode, *, init: bool = True) -> None:
        command = [sys.executable, "-c", CHILD, str(node.library)]
        environment = {**os.environ, **node.environment}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._rest = b""
        if init:
            assert self.ask("p.nvmlInit()") is None

    def start(self, expression: str) -> None:
        assert self.process.stdin is not None and "\n" not in expression
        self.process.stdin.write(expression.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, after_ns: int = 0) -> object:
        """It was there no earlier than `after_ns`, of the monotonic clock. Raises TimeoutError where
        there is none, EOFError where the process is gone.
        """
        assert self.process.stdout is not None
        until = time.monotonic() + WAIT_S
        while b"\n" not in self._rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[
                0
            ]:
                raise TimeoutError
            got = os.read(self.process.stdout.fileno(), 65536)
            if not got:
                raise EOFError
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        at_ns, result = json.loads(line)
        assert at_ns >= after_ns, "it was there too early"
        return result

    def ask(self, expression: str) -> object:
        self.start(expression)
        return self.answer()

    def code(self, expression: str) -> int:
        """What an expression that fails in NVML fails with; 0 where it does not."""
        got = self.ask(expression)
        return int(got["code"]) if isinstance(got, dict) and "code" in got else 0

    def state(self) -> str:
        """The process's state in the kernel: R, S, D."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    require(
        any(shutil.which(name) for name in ("cc", "gcc", "clang")),
        "a C compiler (apt-get install gcc)",
    )


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path / "node", trace=True)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def client(node: SimulatedNode, **settings: bool) -> Client:
        made.append(Client(node, **settings))
        return made[-1]

    yield client
    for one in made:
        one.stop()


@pytest.fixture
def client(node: SimulatedNode, connect: Callable[..., Client]) -> Client:
    return connect(node)


TEMPERATURE = "p.nvmlDeviceGetTemperature(h(0), 0)"
FABRIC = (
    "p.nvmlDeviceGetGpuFabricInfoV(h(0), s), p.c_nvmlGpuFabricInfo_v3_t, p.nvmlGpuFabricInfo_v3"
)

# One expression per call, each with the models that support it.
ALL = frozenset(list_profiles())
AMPERE = ALL - {"t4", "v100"}
HOPPER = AMPERE - {"a100", "l40s"}
LINKED = ALL - {"t4", "l40s"}
EVERY = (
    "Name UUID Serial BoardPartNumber VbiosVersion InforomImageVersion Index MinorNumber ModuleId"
    " BoardId Architecture Brand PciInfo CudaComputeCapability PersistenceMode EccMode"
    " UtilizationRates MemoryInfo PowerUsage EnforcedPowerLimit PowerManagementLimit"
    " PowerManagementDefaultLimit PerformanceState TotalEnergyConsumption CurrPcieLinkGeneration"
    " MaxPcieLinkGeneration GpuMaxPcieLinkGeneration CurrPcieLinkWidth MaxPcieLinkWidth"
    " PcieReplayCounter CurrentClocksEventReasons CurrentClocksThrottleReasons SupportedEventTypes"
    " ComputeRunningProcesses EncoderUtilization DecoderUtilization"
)
CALLS: dict[str, frozenset[str]] = {
    **{f"p.nvmlDeviceGet{name}(h(0))": ALL for name in EVERY.split()},
    **{
        f"p.nvmlDeviceGet{name}Info(h(0), {at})": ALL
        for name in ("Clock", "MaxClock")
        for at in range(4)
    },
    "p.nvmlSystemGetDriverVersion()": ALL,
    "p.nvmlSystemGetNVMLVersion()": ALL,
    "p.nvmlSystemGetCudaDriverVersion()": ALL,
    "p.nvmlSystemGetCudaDriverVersion_v2()": ALL,
    "p.nvmlDeviceGetCount()": ALL,
    "p.nvmlGetExcludedDeviceCount()": ALL,
    "p.nvmlDeviceGetHandleByUUID('GPU-51a10000-0000-4000-8000-000000000001')": ALL,
    "p.nvmlDeviceGetHandleBySerial('SIM0000000001')": ALL,
    "p.nvmlDeviceGetHandleByPciBusId('0000:3B:00.0')": ALL,
    "p.nvmlDeviceGetMemoryInfo(h(0), p.nvmlMemory_v2)": ALL,
    TEMPERATURE: ALL,
    "p.nvmlDeviceGetTemperatureV(h(0), 0)": ALL,
    "p.nvmlDeviceGetTotalEccErrors(h(0), 1, 0)": ALL,
    "p.nvmlDeviceGetMemoryErrorCounter(h(0), 0, 1, 2)": ALL,
    "p.nvmlDeviceGetFieldValues(h(0), [74, 75, 94])": ALL,
    "listen('all', [0], 0xb)": ALL,
    "p.nvmlDeviceGetTemperatureThreshold(h(0), 0)": ALL - HOPPER - {"l40s"},
    "p.nvmlDeviceGetMarginTemperature(h(0))": HOPPER | {"l40s"},
    (
        "fill(lambda s: p.nvmlDeviceGetSramEccErrorStatus(h(0), s),"
        " p.c_nvmlEccSramErrorStatus_v1_t, p.nvmlEccSramErrorStatus_v1)"
    ): AMPERE,
    "p.nvmlDeviceGetRemappedRows(h(0))": AMPERE,
    "p.nvmlDeviceGetRowRemapperHistogram(h(0))": AMPERE,
    "p.nvmlDeviceGetRetiredPages(h(0), 0)": ALL - AMPERE,
    "p.nvmlDeviceGetRetiredPages_v2(h(0), 1)": ALL - AMPERE,
    "p.nvmlDeviceGetRetiredPagesPendingStatus(h(0))": ALL - AMPERE,
    "p.nvmlDeviceGetRepairStatus(h(0))": HOPPER,
    "p.nvmlDeviceGetUnrepairableMemoryFlag_v1(h(0))": HOPPER,
    "p.nvmlDeviceGetMigMode(h(0))": AMPERE - {"l40s"},
    "p.nvmlDeviceGetMaxMigDeviceCount(h(0))": AMPERE - {"l40s"},
    "p.nvmlDeviceGetNvLinkState(h(0), 5)": LINKED,
    "p.nvmlDeviceGetNvLinkVersion(h(0), 5)": LINKED,
    "p.nvmlDeviceGetNvLinkRemoteDeviceType(h(0), 5)": LINKED,
    "p.nvmlDeviceGetNvLinkErrorCounter(h(0), 5, 0)": LINKED - {"b200", "gb200"},
    f"fill(lambda s: {FABRIC})": ALL - {"v100"},
    (
        "fill(lambda s: p.nvmlDeviceGetPlatformInfo(h(0), s),"
        " p.c_nvmlPlatformInfo_v2_t, p.nvmlPlatformInfo_v2)"
    ): frozenset({"gb200"}),
    "listen('every', [0], 0xff0b)": AMPERE,
}
# Without a model's say.
OTHERS = {
    "p.nvmlDeviceGetMigDeviceHandleByIndex(h(0), 0)": {2, NOT_FOUND},
    "p.nvmlDeviceGetGpuInstanceId(h(0))": {NOT_SUPPORTED},  # of a MIG instance only
    "p.nvmlDeviceGetComputeInstanceId(h(0))": {NOT_SUPPORTED},
    "p.nvmlGpmQueryDeviceSupport(h(0))": {0},
    "p.nvmlGpmSampleGet(h(0), p.nvmlGpmSampleAlloc())": {0, NOT_SUPPORTED},
    "p.nvmlGpmSampleFree(p.nvmlGpmSampleAlloc())": {0},
    "p.nvmlGpmMigSampleGet(h(0), 1, p.nvmlGpmSampleAlloc())": {NOT_SUPPORTED},
    "gpm(0, 1)": {0, 2},  # there are no samples where it is not supported
    "p.nvmlGetExcludedDeviceInfoByIndex(0)": {2},
    "wait('all', 1)": {TIMED_OUT},
    "p.nvmlEventSetFree(sets['all'])": {0},
}


@pytest.mark.parametrize("profile", list_profiles())
def test_a_model_answers_every_call_that_it_has_and_no_other(
    profile: str, tmp_path: Path, connect: Callable[..., Client]
) -> None:
    node = SimulatedNode(tmp_path / "node", profile, trace=True)
    client = connect(node)
    codes = {call: client.code(call) for call in CALLS}
    assert codes == {
        call: SUCCESS if profile in models else NOT_SUPPORTED for call, models in CALLS.items()
    }
    for call, expected in OTHERS.items():
        assert client.code(call) in expected, call
    assert client.code("p.nvmlShutdown()") == SUCCESS
    found = client.ask(
        f"[name for name in {sorted(list_exported_calls())} if hasattr(p.nvmlLib, name)]"
    )
    assert isinstance(found, list) and len(found) > 60
    assert set(found) - {call.function for call in node.read_calls()} == {
        "nvmlErrorString",
        "nvmlInit_v2",
    }  # no calls; the same as the first


def test_the_structs_are_those_of_the_binding(node: SimulatedNode, client: Client) -> None:
    names = {
        "PciInfo": "nvmlPciInfo_t",
        "Memory": "c_nvmlMemory_t",
        "Memory_v2": "c_nvmlMemory_v2_t",
        "Utilization": "c_nvmlUtilization_t",
        "FieldValue": "c_nvmlFieldValue_t",
        "SramStatus": "c_nvmlEccSramErrorStatus_v1_t",
        "RowHistogram": "c_nvmlRowRemapperHistogramValues",
        "RepairStatus": "c_nvmlRepairStatus_t",
        "Margin": "c_nvmlMarginTemperature_v1_t",
        "Temperature_v1": "c_nvmlTemperature_v1_t",
        "Fabric_v3": "c_nvmlGpuFabricInfo_v3_t",
        "ProcessInfo": "c_nvmlProcessInfo_v3_t",
        "EventData": "c_nvmlEventData_t",
        "ExcludedDevice": "c_nvmlExcludedDeviceInfo_t",
        "Platform_v2": "c_nvmlPlatformInfo_v2_t",
        "GpmSupport": "c_nvmlGpmSupport_t",
        "GpmMetric": "c_nvmlGpmMetric_t",
    }

    table = client.ask("sizes()")
    assert isinstance(table, dict) and set(table) == set(names)
    assert {name: client.ask(f"ctypes.sizeof(p.{names[name]})") for name in table} == table
    assert client.ask("p.c_nvmlGpmMetricsGet_t.metrics.offset") == 24


def test_what_a_healthy_h100_says(node: SimulatedNode, client: Client) -> None:
    assert client.ask("p.nvmlSystemGetDriverVersion()") == "580.95.05"
    assert [client.ask(f"p.nvmlDeviceGetUUID(h({gpu}))") for gpu in range(8)] == node.uuids
    assert [client.ask(f"p.nvmlDeviceGetSerial(h({gpu}))") for gpu in range(8)] == node.serials
    assert client.ask("p.nvmlDeviceGetPciInfo(h(1)).busId") == "00000000:3B:00.0"
    assert client.ask("p.nvmlDeviceGetPciInfo(h(1)).pciDeviceId") == 0x233010DE
    assert client.ask("p.nvmlDeviceGetRemappedRows(h(0))") == [0, 0, 0, 0]
    assert client.ask("p.nvmlDeviceGetRowRemapperHistogram(h(0)).max") == 2560
    assert client.ask(
        f"fill(lambda s: {FABRIC}, 'state', 'status', 'healthMask', 'healthSummary', 'cliqueId')"
    ) == [3, 0, 0x1AA, 1, 1]
    assert client.ask("[p.nvmlDeviceGetNvLinkState(h(7), link) for link in range(18)]") == [1] * 18
    assert client.code("p.nvmlDeviceGetNvLinkState(h(7), 18)") == NOT_SUPPORTED
    assert client.code("p.nvmlDeviceGetHandleByIndex(8)") == 2
    assert client.ask("hasattr(p.nvmlLib, 'vitald_simulated_nvml')") is True


def test_what_must_come_first(node: SimulatedNode, connect: Callable[..., Client]) -> None:
    client = connect(node, init=False)
    assert client.code("p.nvmlDeviceGetCount()") == 1
    node.set_global_values({"ret.nvmlInitWithFlags": 9})
    assert client.code("p.nvmlInit()") == 9
    node.set_global_values({"ret.nvmlInitWithFlags": None})
    assert client.code("p.nvmlInit()") == SUCCESS
    assert client.ask("p.nvmlDeviceGetCount()") == 8


# --- one value after the other


def test_a_field_has_its_type_and_its_own_code(node: SimulatedNode, client: Client) -> None:
    values = {
        "1": "u32:7",
        "2": "u64:18446744073709551615",
        "3": "i32:-8",
        "4": "i64:-9000000000",
        "5": "f64:0.25",
        "6": "12",
        "7": "ret:15",
    }
    node.set_values(0, {f"fi.{at}.0": value for at, value in values.items()} | {"fi.161.17": 5})
    assert client.ask("fields(0, [1, 2, 3, 4, 5, 6])") == [
        [0, 1, 7],
        [0, 3, 2**64 - 1],
        [0, 5, -8],
        [0, 4, -9000000000],
        [0, 0, 0.25],
        [0, 3, 12],
    ]
    answers = client.ask("fields(0, [7, 8, [161, 17], [161, 18], 230])")
    assert isinstance(answers, list)
    assert [row[0] for row in answers] == [LOST, NOT_SUPPORTED, SUCCESS, NOT_SUPPORTED, SUCCESS]
    assert answers[2][2] == 5
    assert client.ask("fields(1, [7])[0][0]") == NOT_SUPPORTED  # another GPU's


def test_values_of_several_numbers(node: SimulatedNode, client: Client) -> None:
    node.set_values(
        2,
        {
            "remap": "3 4 1 0",
            "histogram": "600 30 8 1 1",
            "mig_mode": "0 1",
            "pages.dbe": "0x1a000 0x2b000",
        },
    )
    node.set_values(
        2,
        {
            "procs": "4711:1048576 4712:2097152",
            "sram": "0 1 2 3 4 5 6 7 8 9 10 1",
            "utilization": "97 40",
            "memory": "1000 400",
        },
    )
    assert client.ask("p.nvmlDeviceGetRemappedRows(h(2))") == [3, 4, 1, 0]
    assert client.ask(
        "(lambda s: [s.max, s.high, s.partial, s.low,"
        " s.none])(p.nvmlDeviceGetRowRemapperHistogram(h(2)))"
    ) == [
        600,
        30,
        8,
        1,
        1,
    ]
    assert client.ask("p.nvmlDeviceGetMigMode(h(2))") == [0, 1]
    assert client.ask("[page['address'] for page in p.nvmlDeviceGetRetiredPages_v2(h(2), 1)]") == [
        0x1A000,
        0x2B000,
    ]
    assert client.ask("p.nvmlDeviceGetRetiredPages(h(2), 1)") == [0x1A000, 0x2B000]
    assert client.ask(
        "[[q.pid, q.usedGpuMemory] for q in p.nvmlDeviceGetComputeRunningProcesses(h(2))]"
    ) == [
        [4711, 1048576],
        [4712, 2097152],
    ]
    assert client.ask("p.nvmlDeviceGetComputeRunningProcesses(h(3))") == []
    assert client.ask("(lambda u: [u.gpu, u.memory])(p.nvmlDeviceGetUtilizationRates(h(2)))") == [
        97,
        40,
    ]
    assert client.ask("(lambda m: [m.total, m.free, m.used])(p.nvmlDeviceGetMemoryInfo(h(2)))") == [
        1000,
        600,
        400,
    ]
    sram = (
        "fill(lambda s: p.nvmlDeviceGetSramEccErrorStatus(h(2), s),"
        " p.c_nvmlEccSramErrorStatus_v1_t, p.nvmlEccSramErrorStatus_v1, *{})"
    )
    names = [
        "aggregateUncParity",
        "aggregateUncSecDed",
        "volatileUncParity",
        "volatileCor",
        "aggregateUncBucketL2",
        "bThresholdExceeded",
    ]
    assert client.ask(sram.format(names)) == [0, 1, 3, 5, 6, 1]
    node.set_values(2, {"privileged": 0})
    assert client.code(sram.format(names)) == NO_PERMISSION


def test_a_struct_of_an_unknown_version_is_refused(node: SimulatedNode, client: Client) -> None:
    node.set_global_values({"abi.fabric_max": 2})
    assert client.code(f"fill(lambda s: {FABRIC})") == VERSION
    older = FABRIC.replace("_v3", "_v2")
    assert client.ask(f"fill(lambda s: {older}, 'state', 'healthMask')") == [3, 0x1AA]
    node.set_global_values({"abi.fabric_max": None})
    assert (
        client.code(f"fill(lambda s: {older.replace('p.nvmlGpuFabricInfo_v2', '0x09000024')})")
        == VERSION
    )
    node.set_values(0, {"platform": "RACK 5 3 0"})
    place = (
        "fill(lambda s: p.nvmlDeviceGetPlatformInfo(h(0), s), p.c_nvmlPlatformInfo_v{0}_t,"
        " p.nvmlPlatformInfo_v{0}, '{1}')"
    )
    assert client.ask(place.format(2, "chassisSerialNumber")) == client.ask(
        place.format(1, "rackGuid")
    )
    node.set_global_values({"abi.platform_max": 1})
    assert client.code(place.format(2, "chassisSerialNumber")) == VERSION
    assert client.code(place.format(1, "rackGuid")) == 0


def test_reserved_memory(node: SimulatedNode, client: Client) -> None:
    """The former struct has no place for it: it is in use there."""
    node.set_values(0, {"memory": "1000 400 50"})
    assert client.ask("(lambda m: [m.total, m.free, m.used])(p.nvmlDeviceGetMemoryInfo(h(0)))") == [
        1000,
        550,
        450,
    ]
    assert client.ask(
        "(lambda m: [m.free, m.reserved, m.used])(p.nvmlDeviceGetMemoryInfo(h(0), p.nvmlMemory_v2))"
    ) == [550, 50, 400]


def test_the_unrepairable_flag_of_older_and_newer_drivers(
    node: SimulatedNode, client: Client
) -> None:
    node.set_values(0, {"unrepairable": 1})
    assert client.ask("p.nvmlDeviceGetUnrepairableMemoryFlag_v1(h(0))") == 1
    node.set_global_values({"abi.unrepairable": 4})
    assert (
        client.ask("p.nvmlDeviceGetUnrepairableMemoryFlag_v1(h(0))") == 0
    )  # the binding's mistake
    words = (
        "(lambda b: (p.nvmlLib.nvmlDeviceGetUnrepairableMemoryFlag_v1(h(0), b),"
        " list(b)))((ctypes.c_uint32 * 2)(0x1000008, 0))"
    )
    assert client.ask(words) == [0, [1, 0]]


# --- what goes wrong


def test_an_injected_code_is_of_its_gpu_and_its_call(node: SimulatedNode, client: Client) -> None:
    client.ask("[h(0), h(1)]")
    node.set_values(0, {"ret.nvmlDeviceGetTemperature": 999})
    assert [
        client.code(TEMPERATURE),
        client.code("p.nvmlDeviceGetTemperature(h(1), 0)"),
        client.code("p.nvmlDeviceGetPowerUsage(h(0))"),
    ] == [999, 0, 0]
    node.set_values(0, {"ret.*": 16})
    assert [
        client.code(TEMPERATURE),
        client.code("p.nvmlDeviceGetPowerUsage(h(0))"),
        client.code("p.nvmlDeviceGetCount()"),
    ] == [999, 16, 0]
    node.set_values(0, {"ret.*": None, "ret.nvmlDeviceGetTemperature": None})
    node.set_global_values({"ret.nvmlDeviceGetPowerUsage": 10})
    assert [client.code(f"p.nvmlDeviceGetPowerUsage(h({gpu}))") for gpu in (0, 1)] == [10, 10]
    assert client.code(TEMPERATURE) == SUCCESS


def test_a_code_after_some_calls(node: SimulatedNode, client: Client) -> None:
    node.set_values(0, {"after.nvmlDeviceGetTemperature": "3:15"})
    assert [client.code(TEMPERATURE) for _ in range(5)] == [0, 0, 0, LOST, LOST]
    assert client.code("p.nvmlDeviceGetTemperature(h(1), 0)") == SUCCESS


def test_a_call_that_takes_longer(node: SimulatedNode, client: Client) -> None:
    node.set_values(None, {"delay_us.nvmlDeviceGetPowerUsage": 150_000})
    begun = time.monotonic()
    assert client.code("p.nvmlDeviceGetPowerUsage(h(5))") == SUCCESS
    assert time.monotonic() - begun >= 0.15
    slow = node.read_calls()[-1]
    assert (slow.function, slow.gpu, slow.ret) == (
        "nvmlDeviceGetPowerUsage",
        5,
        0,
    ) and slow.duration_us >= 150_000


@pytest.mark.parametrize(("kind", "state"), [("sleep", "S"), ("fork", "D"), ("spin", "R")])
def test_a_hung_call_returns_when_it_is_released(
    kind: str, state: str, node: SimulatedNode, client: Client
) -> None:
    client.ask("h(3)")
    node.hang_call(3, "nvmlDeviceGetFieldValues", kind)
    client.start("fields(3, [230])")
    until(lambda: client.state() == state)
    node.set_values(1, {"temp_c": 50})  # another change does not release it
    time.sleep(0.1)  # in which a call that does not hang would return
    released_ns = time.monotonic_ns()
    node.release_call(3, "nvmlDeviceGetFieldValues")
    assert client.answer(released_ns) == [[0, 1, 0]]
    assert client.code(TEMPERATURE) == SUCCESS


def test_a_hung_process_dies_by_sigkill(node: SimulatedNode, client: Client) -> None:
    client.ask("h(3)")
    node.hang_call(3, "nvmlDeviceGetTemperature", "fork")
    client.start("p.nvmlDeviceGetTemperature(h(3), 0)")
    until(lambda: client.state() == "D" and len(children_of(client.process.pid)) == 1)
    (child,) = children_of(client.process.pid)
    client.process.kill()
    assert client.process.wait(WAIT_S) == -signal.SIGKILL
    until(lambda: parent(child) is None)


def children_of(pid: int) -> list[int]:
    return [
        child for path in Path("/proc").glob("[0-9]*") if parent(child := int(path.name)) == pid
    ]


def parent(pid: int) -> int | None:
    """None for a process that is gone, or only waits to be buried."""
    try:
        state, above = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return int(above) if state != "Z" else None


def test_a_hang_on_one_gpu_leaves_the_others(
    node: SimulatedNode, connect: Callable[..., Client]
) -> None:
    stuck, free = connect(node), connect(node)
    stuck.ask("h(3)"), free.ask("h(4)")
    node.hang_call(3, "*")
    stuck.start("p.nvmlDeviceGetTemperature(h(3), 0)")
    assert free.code("p.nvmlDeviceGetTemperature(h(4), 0)") == SUCCESS
    time.sleep(0.1)  # in which a call that does not hang would return
    released_ns = time.monotonic_ns()
    node.release_call(None, "*")
    assert stuck.answer(released_ns) == 35


def test_init_may_hang(node: SimulatedNode, connect: Callable[..., Client]) -> None:
    client = connect(node, init=False)
    node.hang_call(None, "nvmlInitWithFlags")
    client.start("p.nvmlInit()")
    time.sleep(0.1)  # in which a call that does not hang would return
    released_ns = time.monotonic_ns()
    node.release_call(None, "nvmlInitWithFlags")
    assert client.answer(released_ns) is None


@pytest.mark.parametrize(("how", "number"), [("segv", signal.SIGSEGV), ("abort", signal.SIGABRT)])
def test_a_call_may_kill_its_process(
    how: str, number: int, node: SimulatedNode, client: Client
) -> None:
    client.ask("h(0)")
    node.set_values(0, {"crash.nvmlDeviceGetTemperature": how})
    with pytest.raises(EOFError):
        client.ask(TEMPERATURE)
    assert client.process.wait(WAIT_S) == -number


def test_a_gpu_that_is_lost(node: SimulatedNode, client: Client) -> None:
    client.ask("[h(gpu) for gpu in range(8)]")
    node.lose(2)
    assert client.code("p.nvmlDeviceGetTemperature(h(2), 0)") == LOST
    assert client.code("p.nvmlDeviceGetFieldValues(h(2), [230])") == LOST
    assert client.code("p.nvmlDeviceGetTemperature(h(3), 0)") == SUCCESS
    assert client.ask("p.nvmlDeviceGetCount()") == 8
    assert client.code("p.nvmlDeviceGetHandleByIndex(2)") == LOST
    assert client.code("p.nvmlDeviceGetHandleByIndex(3)") == SUCCESS
    assert (
        client.code(f"p.nvmlDeviceGetHandleByPciBusId('{node.addresses[3]}')") == SUCCESS
    )  # touches that one alone
    assert client.code(f"p.nvmlDeviceGetHandleByUUID('{node.uuids[3]}')") == LOST  # touches all
    assert client.code(f"p.nvmlDeviceGetHandleBySerial('{node.serials[3]}')") == LOST
    assert (node.sysfs / "bus/pci/devices" / node.addresses[2]).exists()
    node.restore(2)
    assert client.code("p.nvmlDeviceGetTemperature(h(2), 0)") == SUCCESS


def test_a_gpu_that_is_not_there(node: SimulatedNode, client: Client) -> None:
    node.remove(2)
    assert client.ask("p.nvmlDeviceGetCount()") == 7
    assert client.ask("[p.nvmlDeviceGetUUID(h(gpu)) for gpu in range(7)]") == [
        *node.uuids[:2],
        *node.uuids[3:],
    ]
    assert client.ask("[p.nvmlDeviceGetIndex(h(gpu)) for gpu in range(7)]") == list(range(7))
    assert client.code(f"p.nvmlDeviceGetHandleByPciBusId('{node.addresses[2]}')") == NOT_FOUND
    assert client.code("p.nvmlDeviceGetHandleByIndex(7)") == STALE
    node.put_back(2)
    client.ask("forget()")
    assert client.ask("[p.nvmlDeviceGetUUID(h(gpu)) for gpu in range(8)]") == node.uuids


def test_a_look_up_that_fails(node: SimulatedNode, client: Client) -> None:
    node.set_values(4, {"lookup_ret": 999})
    node.set_values(5, {"lookup_ret": 8})
    assert [client.code(f"p.nvmlDeviceGetHandleByIndex({gpu})") for gpu in (3, 4, 5)] == [0, 999, 8]
    assert client.code(f"p.nvmlDeviceGetHandleByPciBusId('{node.addresses[4]}')") == 999
    assert client.ask("p.nvmlDeviceGetCount()") == 8


def test_a_reset_makes_the_handles_of_its_gpu_stale(node: SimulatedNode, client: Client) -> None:
    client.ask("[h(gpu) for gpu in range(8)]")
    node.reset(1)
    assert [client.code(f"p.nvmlDeviceGetTemperature(h({gpu}), 0)") for gpu in range(3)] == [
        0,
        STALE,
        0,
    ]
    client.ask("forget()")
    assert [client.code(f"p.nvmlDeviceGetTemperature(h({gpu}), 0)") for gpu in range(3)] == [
        0,
        0,
        0,
    ]
    node.reload_driver()
    assert {
        client.code(f"p.nvmlDeviceGetTemperature(h({gpu}), 0)") for gpu in range(8) if gpu < 3
    } == {STALE}
    client.ask("forget()")
    assert {client.code(f"p.nvmlDeviceGetTemperature(h({gpu}), 0)") for gpu in range(8)} == {
        SUCCESS
    }


# --- events


def test_an_event_reaches_who_listens(node: SimulatedNode, client: Client) -> None:
    node.emit_event(1, XID, 43)  # before anybody listened: lost
    assert client.ask("listen('a', [0, 1], 0x8)") is None
    assert client.code("wait('a', 20)") == TIMED_OUT
    node.emit_event(1, XID, 79)
    node.emit_event(2, XID, 13)  # another GPU
    node.emit_event(0, 0x1)  # another kind
    node.emit_event(0, XID, 31)
    assert [client.ask("wait('a', 1000)") for _ in range(2)] == [
        [[1], XID, 79, 0xFFFFFFFF],
        [[0], XID, 31, 0xFFFFFFFF],
    ]
    assert client.code("wait('a', 20)") == TIMED_OUT
    client.start("wait('a', 1000_000)")
    time.sleep(0.1)
    node.emit_event(0, XID, 94)
    assert client.answer() == [[0], XID, 94, 0xFFFFFFFF]


def test_half_an_event_waits_for_the_rest(node: SimulatedNode, client: Client) -> None:
    client.ask("listen('a', [0], 0x8)")
    with node.events.open("a") as events:
        events.write("0 8 7")
        events.flush()
        assert client.code("wait('a', 50)") == TIMED_OUT
        events.write("9\n")
    assert client.ask("wait('a', 1000)") == [[0], XID, 79, 0xFFFFFFFF]


def test_listening_for_what_is_not_supported(node: SimulatedNode, client: Client) -> None:
    assert client.code("listen('a', [0], 0x8 | 0x10)") == NOT_SUPPORTED
    node.set_values(0, {"events_mask": "0x8"})
    assert client.ask("p.nvmlDeviceGetSupportedEventTypes(h(0))") == 8
    assert client.code("listen('a', [0], 0x8000)") == NOT_SUPPORTED


def test_waiting_on_a_lost_gpu_returns_at_once_every_time(
    node: SimulatedNode, client: Client
) -> None:
    client.ask("listen('one', [3], 0x8), listen('other', [4], 0x8)")
    client.start("wait('one', 1000_000)")
    time.sleep(0.1)
    node.lose(3)
    assert client.answer() == {"code": LOST}
    assert {client.code("wait('one', 1000_000)") for _ in range(20)} == {LOST}
    node.emit_event(4, XID, 45)
    assert client.ask("wait('other', 1000)") == [[4], XID, 45, 0xFFFFFFFF]


# --- the state file


def test_whoever_reads_while_it_is_rewritten_sees_one_state_or_the_other(
    node: SimulatedNode, client: Client
) -> None:
    whole = [" ".join([str(number)] * 12) for number in (7, 10**15)]
    node.set_values(None, {"sram": whole[0]})
    client.ask("h(0)")
    done = threading.Event()

    def rewrite() -> None:
        at = 0
        while not done.is_set():
            at += 1
            node.set_values(None, {"sram": whole[at % 2], "temp_c": 30 + at % 60})

    writer = threading.Thread(target=rewrite)
    writer.start()
    names = ["aggregateUncParity", "aggregateUncBucketL2", "aggregateUncBucketOther"]
    status = (
        "fill(lambda s: p.nvmlDeviceGetSramEccErrorStatus(h(0), s),"
        f" p.c_nvmlEccSramErrorStatus_v1_t, p.nvmlEccSramErrorStatus_v1, *{names})"
    )
    seen = client.ask(f"[tuple({status}) for _ in range(3000)]")
    done.set()
    writer.join()
    assert isinstance(seen, list)
    assert {tuple(row) for row in seen} == {(7, 7, 7), (10**15,) * 3}


def test_two_changes_of_the_same_length_at_once_are_two(
    node: SimulatedNode, client: Client
) -> None:
    for at in range(200):  # an inode and a kernel tick may be the same; the file's time never is
        node.set_values(0, {"temp_c": 30 + at % 60})
        if at % 3:
            assert client.ask(TEMPERATURE) == 30 + at % 60


def test_a_rate_never_falls_whatever_else_changes(node: SimulatedNode, client: Client) -> None:
    counter, last = "p.nvmlDeviceGetMemoryErrorCounter(h(0), 0, 0, 2)", 0
    before = time.monotonic()
    node.set_values(0, {"rate.ecc.cor.vol.dram": 40.5})
    begun = asked = time.monotonic()
    while asked - begun < 0.6:
        node.set_values(1, {"temp_c": 40})
        asked = time.monotonic()
        now = client.ask(counter)
        assert isinstance(now, int) and now >= last
        last = now
    assert (asked - begun) * 40.5 - 1 <= last <= (time.monotonic() - before) * 40.5 + 1
    assert client.ask("p.nvmlDeviceGetMemoryErrorCounter(h(1), 0, 0, 2)") == 0
    node.set_values(0, {"rate.ecc.cor.vol.dram": None, "ecc.cor.vol.dram": 3})
    assert client.ask(counter) == 3


def test_a_change_is_of_one_gpu_or_of_every(node: SimulatedNode, client: Client) -> None:
    temperatures = "[p.nvmlDeviceGetTemperature(h(gpu), 0) for gpu in range(3)]"
    node.set_values(1, {"temp_c": 80})
    assert client.ask(temperatures) == [35, 80, 35]
    assert (
        node.get_value(0, "temp_c"),
        node.get_value(1, "temp_c"),
        node.get_value(None, "count"),
    ) == (
        "35",
        "80",
        "8",
    )
    node.set_values(None, {"temp_c": 50})
    assert client.ask(temperatures) == [50, 50, 50]
    node.set_values(1, {"remap": None})
    assert [client.code(f"p.nvmlDeviceGetRemappedRows(h({gpu}))") for gpu in (0, 1, 2)] == [
        0,
        NOT_SUPPORTED,
        0,
    ]
    assert node.get_value(1, "remap") is None
    node.set_values(None, {"remap": None})
    assert {client.code(f"p.nvmlDeviceGetRemappedRows(h({gpu}))") for gpu in range(8)} == {
        NOT_SUPPORTED
    }


def test_a_reset_takes_back_what_a_reset_takes_back(node: SimulatedNode) -> None:
    node.set_values(
        3,
        {
            "ecc.unc.vol.dram": 2,
            "ecc.unc.agg.dram": 9,
            "sram": "1 2 3 4 5 6 7 8 9 10 11 1",
            "remap": "0 2 1 0",
            "repair": "1 1",
        },
    )
    node.set_values(
        3,
        {
            "fi.230.0": "u32:1",
            "fi.270.0": 5_000_000_000,
            "fi.82.0": "u32:70",
            "fi.180.0": "ret:3",
            "nvlink.4.err.1": 7,
            "mig_mode": "0 1",
        },
    )
    node.reset(3)
    assert [
        node.get_value(3, key)
        for key in ("ecc.unc.vol.dram", "ecc.unc.agg.dram", "remap", "repair")
    ] == ["0", "9", "0 2 0 0", "0 0"]
    assert node.get_value(3, "sram") == "1 2 3 0 0 0 7 8 9 10 11 1"
    assert [node.get_value(3, f"fi.{at}.0") for at in (230, 270, 82, 180)] == [
        "u32:0",
        "0",
        "u32:70",
        "ret:3",
    ]
    assert [
        node.get_value(3, key) for key in ("nvlink.4.err.1", "mig_mode", "energy_mj", "epoch")
    ] == [
        "0",
        "1 1",
        "1000",
        "1",
    ]
    assert node.get_value(2, "epoch") is None and node.get_value(2, "energy_mj") != "1000"


def test_a_mistake_is_said_and_changes_nothing(node: SimulatedNode) -> None:
    before = node.state.read_bytes()
    mistakes: dict[str, dict[str, object]] = {
        "not a key of a GPU": {"temperature": 3},
        "did you mean nvmlDeviceGetHandleByIndex_v2": {"ret.nvmlDeviceGetHandleByIndex": 15},
        "one line": {"name": "two\nlines"},
        "number per second": {"rate.fi.94.0": "-1"},
    }
    for says, values in mistakes.items():
        with pytest.raises(ValueError, match=says):
            node.set_values(0, {"temp_c": 77, **values})
    with pytest.raises(ValueError, match="there is no GPU 8"):
        node.set_values(8, {"temp_c": 77})
    with pytest.raises(ValueError, match="not a key without a GPU"):
        node.set_global_values({"temp_c": 77})
    with pytest.raises(ValueError, match="no way to hang"):
        node.hang_call(0, "*", "fry")
    assert node.state.read_bytes() == before


def test_nodes_of_other_sizes(tmp_path: Path, connect: Callable[..., Client]) -> None:
    with pytest.raises(ValueError, match="did you mean h100"):
        SimulatedNode(tmp_path / "none", "h1000")
    with pytest.raises(ValueError, match="0 to 64"):
        SimulatedNode(tmp_path / "none", gpus=65)
    assert connect(SimulatedNode(tmp_path / "empty", gpus=0)).ask("p.nvmlDeviceGetCount()") == 0
    full = SimulatedNode(tmp_path / "full", gpus=64)
    assert len({*full.addresses}) == 64
    assert connect(full).ask("p.nvmlDeviceGetPciInfo(h(63)).busId") == "00000007:CB:00.0"
    assert SimulatedNode(tmp_path / "gb200", "gb200").gpus == 4


# --- PCI and the trace


def test_the_bus_is_as_vitald_reads_it(node: SimulatedNode) -> None:
    inventory = PciInventory(node.sysfs)
    inventory.scan_bus()
    found = {
        address: device
        for address, device in inventory.devices.items()
        if device.kind is not ComponentKind.PCI
    }
    assert [
        address for address, device in found.items() if device.kind is ComponentKind.GPU
    ] == node.addresses
    assert [
        address for address, device in found.items() if device.kind is ComponentKind.NVSWITCH
    ] == node.switches
    assert len(node.switches) == 4
    assert {device.vendor for device in found.values()} == {0x10DE}
    assert (
        found["0000:19:00.0"].device,
        found["0000:19:00.0"].driver,
        found["0000:19:00.0"].port,
    ) == (0x2330, "nvidia", "0000:18:01.0")
    assert (node.sysfs / "bus/pci/slots/1/address").read_text() == "0000:19:00\n"
    link = node.sysfs / "bus/pci/devices/0000:19:00.0"
    assert str(link.readlink()) == "../../../devices/pci0000:18/0000:18:01.0/0000:19:00.0"


def test_a_removed_gpu_leaves_the_bus_and_comes_back(node: SimulatedNode) -> None:
    inventory = PciInventory(node.sysfs)
    node.remove(1)
    inventory.scan_bus()
    assert (
        not inventory.is_present("0000:3b:00.0")
        and inventory.devices["0000:3a:01.0"].pci_class == 0x060400
    )
    node.put_back(1)
    inventory.scan_bus()
    assert (
        inventory.is_present("0000:3b:00.0")
        and inventory.devices["0000:3b:00.0"].kind is ComponentKind.GPU
    )
    node.put_back(1)  # it is there


def test_the_trace_names_every_call(node: SimulatedNode, client: Client) -> None:
    client.ask(TEMPERATURE)
    client.code("p.nvmlDeviceGetNvLinkState(h(6), 40)")
    calls = node.read_calls()
    assert [(call.function, call.gpu, call.ret) for call in calls] == [
        ("nvmlInitWithFlags", None, 0),
        ("nvmlDeviceGetHandleByIndex_v2", 0, 0),
        ("nvmlDeviceGetTemperature", 0, 0),
        ("nvmlDeviceGetHandleByIndex_v2", 6, 0),
        ("nvmlDeviceGetNvLinkState", 6, NOT_SUPPORTED),
    ]
    assert {(call.pid, call.tid) for call in calls} == {(client.process.pid, client.process.pid)}
    assert [call.at_ns for call in calls] == sorted(call.at_ns for call in calls)
    with node.trace.open("a") as trace:
        trace.write("1 2 3 half")
    assert node.read_calls() == calls
    assert isinstance(calls[0], SimulatedCall)


def test_a_node_without_a_trace_has_no_calls(
    tmp_path: Path, connect: Callable[..., Client]
) -> None:
    node = SimulatedNode(tmp_path / "node")
    assert connect(node).code(TEMPERATURE) == SUCCESS
    assert node.read_calls() == []


# --- the build


def test_the_library_is_built_once(tmp_path: Path) -> None:
    made = simulated_library.build_library(tmp_path)
    assert (
        made.name == "libnvidia-ml.so.1"
        and made.parent.parent == tmp_path
        and made.parent.name.startswith("nvml-")
    )
    before = made.stat()
    assert simulated_library.build_library(tmp_path) == made
    assert (made.stat().st_ino, made.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_builds_at_the_same_time_give_one_library(tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(simulated_library.build_library(tmp_path)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and len(set(found)) == 1
    assert [path.name for path in found[0].parent.iterdir()] == ["libnvidia-ml.so.1"]


def test_the_source_compiles_without_a_warning(tmp_path: Path) -> None:
    compiler = next(found for name in ("cc", "gcc", "clang") if (found := shutil.which(name)))
    made = tmp_path / "strict.so"
    done = subprocess.run(
        [
            compiler,
            "-Werror",
            *simulated_library.FLAGS,
            "-o",
            str(made),
            str(simulated_library.SOURCE),
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_source_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvml.c").write_text("int nothing(void) { return 0; }\n")
    monkeypatch.setattr(simulated_library, "SOURCE", tmp_path / "nvml.c")
    first = simulated_library.build_library(tmp_path)
    (tmp_path / "nvml.c").write_text("int nothing(void) { return 1; }\n")
    assert simulated_library.build_library(tmp_path) != first and first.is_file()


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        simulated_library.CannotBuild, match=r"no C compiler.*apt-get install gcc.*dnf install gcc"
    ):
        simulated_library.build_library(tmp_path)


def test_what_the_compiler_says_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvml.c").write_text("int broken(void) { return nowhere; }\n")
    monkeypatch.setattr(simulated_library, "SOURCE", tmp_path / "nvml.c")
    with pytest.raises(
        simulated_library.CannotBuild, match=r"could not compile .*nvml\.c:\n.*error.*nowhere"
    ):
        simulated_library.build_library(tmp_path / "cache")
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


def test_where_the_cache_cannot_be_written_a_private_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(simulated_library.CannotBuild, match="cannot be written"):
        simulated_library.build_library(tmp_path / "file")
    made = simulated_library.build_library()
    private = tmp_path / f"vitald-{os.geteuid()}"
    assert made.parent.parent == private and private.stat().st_mode & 0o777 == 0o700
    private.chmod(0o777)  # anybody could have put that library there
    with pytest.raises(simulated_library.CannotBuild, match="only this user"):
        simulated_library.build_library()
    shutil.rmtree(private)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    private.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(simulated_library.CannotBuild, match="only this user"):
        simulated_library.build_library()
