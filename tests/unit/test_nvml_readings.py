"""What is known of a GPU now: readings of this look, what could not be read and why, and what is
worked out beside its siblings.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest import mock

import pynvml
import pytest
from prometheus_client.core import Metric

from tests.exported import read_exported
from tests.looking import CATALOG
from vitald.collectors.nvml import codes as nvml_codes
from vitald.collectors.nvml.gpu_node import GpuNode
from vitald.collectors.nvml.memory_calls import read_memory
from vitald.collectors.nvml.query import PolledGpu
from vitald.collectors.nvml.readings import READINGS
from vitald.collectors.nvml.worker import CALLS, NvmlWorker, list_readings
from vitald.metrics import gpus
from vitald.model.event import Event
from vitald.model.source import Readings
from vitald.server import serialize

GPUS = [f"0000:{0x10 + number:02x}:00.0" for number in range(8)]
OVERDUE = {"fast": 35.0, "slow": 135.0, "inventory": 1215.0}

Answer = dict[str, Any]


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return fail


class Library:
    """Answers by the name of the call: a value, an exception's code (`Code`), or a function of what
    follows the handle.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def ask(self, name: str, *args: Any, raw: bool = False) -> Any:
        answer = self.answers.get(name, failing(nvml_codes.NOT_SUPPORTED))
        return answer(*args[1:]) if callable(answer) else answer


class Field:
    """One entry of what nvmlDeviceGetFieldValues answers."""

    def __init__(self, value: float | None, code: int = 0) -> None:
        self.nvmlReturn = code if value is not None else nvml_codes.NOT_SUPPORTED
        self.valueType = 0
        self.value = mock.Mock(dVal=value)


def fields(known: Mapping[Any, float]) -> Callable[..., list[Field]]:
    return lambda ids: [Field(known.get(one)) for one in ids]


class Look:
    """One worker with one GPU."""

    def __init__(self, **answers: Any) -> None:
        self.library = Library(**answers)
        self.worker = NvmlWorker("", mmap.mmap(-1, 4096))
        self.gpu = PolledGpu(GPUS[0], object(), (580, 95, 5))
        self.gpu.lacks_events = False
        self.worker._gpus[GPUS[0]] = self.gpu
        self.worker.ask_driver = self.library.ask  # type: ignore[method-assign]

    def read(self, *names: str, inventory: bool = False) -> Answer:
        by_name = {call.name: call for call in CALLS}
        wanted = [by_name[name] for name in names]
        return self.worker._read_gpu(GPUS[0], wanted, GPUS[:1] if inventory else [])


# --- the worker: readings, and why there are none


def test_a_reading_belongs_to_one_call() -> None:
    every = [name for call in CALLS for name in call.readings]
    assert len(every) == len(set(every))
    assert {call.tier for call in CALLS} == {"fast", "slow", "inventory", "profiling"}


def test_a_call_that_fails_leaves_none_of_its_readings() -> None:
    reasons = {
        3: "not supported",
        4: "no permission",
        13: "driver too old",
        21: "no data yet",
        27: "not ready",
        16: "reset required",
        999: "fails with NVML error 999",
    }
    for code, reason in reasons.items():
        look = Look(nvmlDeviceGetMemoryInfo=failing(code), nvmlDeviceGetPowerUsage=95000)
        for _ in range(2):
            answer = look.read("memory", "power")
            assert answer["values"] == {"power_watts": 95.0}
            assert answer["missing"] == dict.fromkeys(read_memory.readings, reason), code


def test_a_field_that_the_gpu_does_not_have_is_said_by_its_name() -> None:
    look = Look(nvmlDeviceGetFieldValues=fields({94: 3.0, 180: 0.0}))
    answer = look.read("pcie_errors")
    assert answer["values"] == {"pcie_replays": 3.0, "pcie_fatal_errors": 0.0}
    assert set(answer["missing"]) == {
        "pcie_correctable_errors",
        "pcie_nonfatal_errors",
        "pcie_recoveries",
    }


def test_what_is_not_asked_of_a_lost_gpu_is_missing_too() -> None:
    look = Look(nvmlDeviceGetTemperature=failing(15), nvmlDeviceGetPowerUsage=95000)
    answer = look.read("temperature", "power")
    assert (answer["values"], answer["missing"]) == (
        {},
        {"temperature_celsius": "lost", "power_watts": "lost"},
    )


def test_a_limit_of_0_is_no_limit() -> None:
    look = Look(nvmlDeviceGetTemperatureThreshold=lambda number: {0: 92, 1: 0, 2: 0, 3: 85}[number])
    answer = look.read("limits")
    assert answer["values"] == {"shutdown_celsius": 92, "gpu_max_celsius": 85}
    assert answer["missing"] == dict.fromkeys(
        ("slowdown_celsius", "memory_max_celsius"), "the driver gives no limit"
    )


def links(states: Iterable[Any], **more: Any) -> Look:
    known = list(states)

    def state(link: int) -> int:
        if known[link] is None:
            raise pynvml.NVMLError(999)
        return int(known[link])

    return Look(
        nvmlDeviceGetFieldValues=fields({91: float(len(known))}),
        nvmlDeviceGetNvLinkState=state,
        **more,
    )


def test_one_link_that_errs_does_not_drop_the_others() -> None:
    look = links([1, None, 0, 1])
    for times in range(1, 4):
        answer = look.read("nvlinks")
        one = answer["values"]["nvlink_active"]
        assert (one[0], one[2], one[3], math.isnan(one[1])) == (1.0, 0.0, 1.0, True)
        assert answer["values"]["nvlinks_active"] == 2.0
        assert answer["missing"] == {"nvlink_active": "fails with NVML error 999"}
        assert answer["failing"] == ({"nvlinks": 999} if times == nvml_codes.MIN_FAILURES else {})


def test_links_that_the_driver_does_not_list_any_more_are_not_active() -> None:
    look = links([1] * 18)
    assert look.read("nvlinks")["values"]["nvlinks_active"] == 18.0
    look.library.answers |= {
        "nvmlDeviceGetFieldValues": fields({91: 0.0}),
        "nvmlDeviceGetNvLinkState": failing(nvml_codes.INVALID_ARGUMENT),
    }
    values = look.read("nvlinks")["values"]
    assert (values["nvlinks"], values["nvlinks_active"], values["nvlink_active"]) == (
        0.0,
        0.0,
        [0.0] * 18,
    )


def test_no_more_links_are_active_than_the_driver_lists() -> None:
    """Also where it goes on saying of each that it is."""
    expected = {(17.0, None): 17, (17.0, 5): 17, (0.0, None): 0, (18.0, 5): 17}
    found = {}
    for count, inactive in expected:
        look = links([1] * 18)
        look.read("nvlinks")
        look.library.answers["nvmlDeviceGetNvLinkState"] = lambda link, off=inactive: int(
            link != off
        )
        look.library.answers["nvmlDeviceGetFieldValues"] = fields({91: count})
        values = look.read("nvlinks")["values"]
        found[count, inactive] = values["nvlinks_active"]
        assert (values["nvlinks"], len(values["nvlink_active"])) == (count, 18)
        assert inactive is None or values["nvlink_active"][inactive] == 0.0
    assert found == expected


@pytest.mark.parametrize(
    ("code", "version", "counter"),
    [
        (4, 3.0, "nvlink_crc_errors"),
        (6, 4.0, "nvlink_crc_errors"),
        (7, 5.0, "nvlink_symbol_errors"),
    ],
)
def test_the_generation_of_the_links_is_asked(code: int, version: float, counter: str) -> None:
    """Also where a driver, or a mock of one, answers the counters of every generation."""
    every = {
        (number, link): 0.0
        for number in (161, 162, 163, 206, 207, 213, 214, 219, 221)
        for link in range(2)
    }
    look = links([1, 1], nvmlDeviceGetNvLinkVersion=lambda link: code if link else 0)
    look.library.answers["nvmlDeviceGetFieldValues"] = fields({91: 2.0, **every})
    assert look.read("nvlink_layout", inventory=True)["values"] == {
        "nvlink_version": version,
        "nvlink_switched": 0.0,
    }
    answer = look.read("nvlink_errors")
    assert counter in answer["values"]
    other = "nvlink_symbol_errors" if counter == "nvlink_crc_errors" else "nvlink_crc_errors"
    assert answer["missing"][other] == "not supported"


def test_the_temperature_by_the_newer_call_where_the_former_is_gone() -> None:
    def read(former: Any, newer: Any) -> Any:
        look = Look(nvmlDeviceGetTemperature=former, nvmlDeviceGetTemperatureV=newer)
        answer = look.read("temperature")
        return answer["values"] or answer["missing"]

    name = "temperature_celsius"
    assert read(34, failing(3)) == {name: 34}
    assert read(failing(13), 36) == {name: 36}
    assert read(failing(26), 36) == {name: 36}
    assert read(failing(3), failing(13)) == {name: "not supported"}
    assert read(failing(999), 36) == {name: "fails with NVML error 999"}


def test_links_to_the_processor() -> None:
    look = Look(
        nvmlDeviceGetFieldValues=fields({170: 2.0, (171, 0): 1.0, (171, 1): 0.0, (232, 1): 7.0})
    )
    answer = look.read("c2c_links")
    assert answer["values"]["c2c_active"] == [1.0, 0.0]
    assert math.isnan(answer["values"]["c2c_replays"][0])
    assert set(answer["missing"]) == {"c2c_error_interrupts", "c2c_replays_back_to_back"}
    assert Look(nvmlDeviceGetFieldValues=fields({170: 0.0})).read("c2c_links")["values"] == {
        "c2c_links": 0.0
    }


def test_fewer_links_to_the_processor_than_the_others_have() -> None:
    found = {}
    for count in (2.0, 1.0, 0.0):
        node = Node(2)
        node.set(0, c2c_links=2.0)
        node.set(1, c2c_links=count)
        found[count] = codes([event for _ in range(40) for event in node.look()])
    down = [(GPUS[1], "nvml/c2c_link_down")]
    assert found == {2.0: [], 1.0: down, 0.0: down}


def test_every_kind_of_event_may_be_supported() -> None:
    worker = NvmlWorker("", mmap.mmap(-1, 4096))
    with mock.patch.object(pynvml, "nvmlDeviceGetSupportedEventTypes", lambda _: 2**64 - 1):
        assert worker.ask_driver("nvmlDeviceGetSupportedEventTypes", object()) == 2**64 - 1


@pytest.mark.parametrize("celsius", [255, 2**32 - 6])
def test_a_temperature_that_no_board_has_is_no_value(celsius: int) -> None:
    look = Look(
        nvmlDeviceGetTemperature=celsius, nvmlDeviceGetFieldValues=fields({82: float(celsius)})
    )
    answer = look.read("temperature", "memory_temperature")
    assert (answer["values"], set(answer["missing"].values())) == (
        {},
        {"the driver gives no value"},
    )


def test_where_in_a_rack_a_gpu_is() -> None:
    """In what identifies it, also once it is lost, in the words of its events, and as a metric."""

    def answer(info: Any) -> None:
        info._obj.chassisSerialNumber = b"1820324000001"
        info._obj.slotNumber, info._obj.trayIndex, info._obj.hostId = (
            bytes([200]),
            bytes([3]),
            bytes([0]),
        )

    values = Look(nvmlDeviceGetPlatformInfo=answer).read("platform")["values"]
    assert values == {
        "chassis_serial": "1820324000001",
        "chassis_slot": 200.0,
        "tray_index": 3.0,
        "host_id": 0.0,
    }
    node = Node(1)
    node.look(**values)
    (lost,) = [
        event for event in node.answer({GPUS[0]: {"lookup": 15}}) if event.code == "nvml/gpu_lost"
    ]
    assert "chassis 1820324000001 chassis slot 200 tray 3" in lost.raw
    assert values.items() <= node.read(0).values.items()
    (sample,) = [
        one
        for metric in read_exported(gpus.GpuMetrics().collect_metrics([node.read(0)]))
        for one in metric.samples
        if one.name == "vitald_gpu_place_info"
    ]
    assert (sample.labels["chassis_serial"], sample.labels["tray_index"]) == ("1820324000001", "3")


@pytest.mark.parametrize("code", [25, 2])
def test_where_in_a_rack_a_gpu_is_by_a_former_driver(code: int) -> None:
    """It knows the first struct alone, and calls the same places rack GUID, slots and node."""

    def answer(info: Any) -> None:
        if info._obj.version != pynvml.nvmlPlatformInfo_v1:
            raise pynvml.NVMLError(code)
        info._obj.rackGuid = b"\x18\x20\x32\xff"
        info._obj.chassisPhysicalSlotNumber, info._obj.computeSlotIndex, info._obj.nodeIndex = (
            bytes([9]),
            bytes([4]),
            bytes([1]),
        )

    values = Look(nvmlDeviceGetPlatformInfo=answer).read("platform")["values"]
    assert values == {
        "chassis_serial": "182032ff",
        "chassis_slot": 9.0,
        "tray_index": 4.0,
        "host_id": 1.0,
    }


def nvlink5(driver: tuple[int, ...], known: Mapping[Any, float]) -> Look:
    look = Look(nvmlDeviceGetFieldValues=fields(known))
    look.gpu.links, look.gpu.nvlink5, look.gpu.driver = 2, True, driver
    return look


def test_recoveries_are_counted_whatever_came_of_them() -> None:
    look = nvlink5((580, 95, 5), {(213, 0): 3.0, (214, 0): 1.0, (215, 0): 4.0})
    values = look.read("nvlink_errors")["values"]
    said = {
        name: values[f"nvlink_{name}"][0]
        for name in ("recoveries", "recovery_failures", "recovery_attempts")
    }
    assert said == {"recoveries": 3.0, "recovery_failures": 1.0, "recovery_attempts": 4.0}


def test_a_bit_error_rate_is_unpacked() -> None:
    rates = {
        4095: 15e-255,
        1 << 8 | 12: 1e-12,
        0xF << 8: 15.0,
        0: 0.0,
        7 << 12 | 2 << 8 | 9: 2e-9,
    }
    for packed, rate in rates.items():
        look = nvlink5(
            (580, 95, 5), {(220, 1): float(packed), (222, 0): 4095.0, (222, 1): float(packed)}
        )
        values = look.read("nvlink_quality")["values"]
        assert math.isnan(values["nvlink_effective_ber"][0])
        assert values["nvlink_effective_ber"][1] == rate, packed
        assert values["nvlink_symbol_ber"] == [15e-255, rate]


@pytest.mark.parametrize(("driver", "asked"), [((580, 95, 5), False), ((595, 44, 2), True)])
def test_what_is_below_the_correction_only_of_a_driver_that_has_it(
    driver: tuple[int, ...], asked: bool
) -> None:
    """The numbers may have meant something else before."""
    known = {(number, link): 7.0 for number in (289, 290, 294, 295) for link in range(2)}
    answer = nvlink5(driver, {**known, (220, 0): 4095.0}).read("nvlink_quality")
    names = {
        "nvlink_raw_errors_lane0",
        "nvlink_raw_errors_lane1",
        "nvlink_blocks",
        "nvlink_retried_blocks",
    }
    assert (names <= answer["values"].keys()) is asked
    assert {answer["missing"].get(name) for name in names} == {None if asked else "driver too old"}


def test_the_history_of_corrections() -> None:
    """By bin over all links, by link the highest bin; a link of which a part is not known counts
    for nothing.
    """
    known = {(235 + at, link): 0.0 for at in range(16) for link in range(2)}
    look = nvlink5((580, 95, 5), {**known, (235, 0): 1000.0, (235, 1): 500.0, (238, 1): 2.0})
    values = look.read("nvlink_corrections")["values"]
    assert values["nvlink_fec_history"] == [1500.0, 0.0, 0.0, 2.0, *[0.0] * 12]
    assert values["nvlink_fec_highest_bin"] == [0.0, 3.0]
    del known[240, 1]
    values = nvlink5((580, 95, 5), {**known, (235, 0): 9.0}).read("nvlink_corrections")["values"]
    assert values["nvlink_fec_history"][0] == 9.0
    assert (
        values["nvlink_fec_highest_bin"][0],
        math.isnan(values["nvlink_fec_highest_bin"][1]),
    ) == (0.0, True)
    former = nvlink5((580, 95, 5), known)
    former.gpu.nvlink5 = False
    assert former.read("nvlink_quality", "nvlink_corrections")["values"] == {}


def test_why_no_link_says_a_counter() -> None:
    """Not "not supported" where each of them fails."""
    look = nvlink5((580, 95, 5), {})
    look.library.answers["nvmlDeviceGetFieldValues"] = lambda ids: [
        Field(1.0 if one[0] == 206 else 0.0, 0 if one[0] == 206 else 999) for one in ids
    ]
    answer = look.read("nvlink_errors")
    assert answer["values"] == {"nvlink_malformed_packets": [1.0, 1.0]}
    assert answer["missing"]["nvlink_recoveries"] == "fails with NVML error 999"


def test_the_reasons_that_clocks_are_held_down_for() -> None:
    expected = {
        0x0: set(),
        0x102: {"application_clocks", "display_clocks"},
        0x200: {"board_limit"},
        0x400: {"reliability"},
        0x8000: set(),
    }
    found = {}
    for mask in expected:
        values = Look(nvmlDeviceGetCurrentClocksEventReasons=mask).read("clock_events")["values"]
        assert values.pop("clock_event_reasons") == mask
        found[mask] = {name for name, value in values.items() if value}
    assert found == expected


def test_the_margin_of_the_memory_may_be_below_0() -> None:
    answer = Look(nvmlDeviceGetFieldValues=fields({193: -8.0, 195: -4.0})).read("t_limits")
    assert answer["values"] == {"shutdown_margin_celsius": -8.0, "memory_max_margin_celsius": -4.0}


@pytest.mark.parametrize(
    ("code", "used", "reserved"), [(0, 5.0, 2.0), (13, 7.0, None), (25, 7.0, None)]
)
def test_what_the_driver_keeps_for_itself_is_not_used(
    code: int, used: float, reserved: float | None
) -> None:
    def info(version: int | None = None) -> Any:
        if version is None:
            return mock.Mock(used=7.0, free=93.0, total=100.0)
        if code:
            raise pynvml.NVMLError(code)
        return mock.Mock(used=5.0, reserved=2.0, free=93.0, total=100.0)

    answer = Look(nvmlDeviceGetMemoryInfo=info).read("memory")
    assert (
        answer["values"]["memory_used_bytes"],
        answer["values"].get("memory_reserved_bytes"),
    ) == (used, reserved)
    assert answer["missing"] == ({"memory_reserved_bytes": "driver too old"} if code else {})


def test_every_reading_of_a_call_is_declared() -> None:
    declared = {reading.name for table in READINGS for reading in table.readings}
    assert sorted({*EVERY_READING} - declared) == []


def test_the_flags_of_old_stand_for_no_advice_that_cannot_be_read() -> None:
    """By the codes of fields 230, 226 and 227."""
    expected: dict[tuple[int, ...], float | str] = {
        (3, 0, 0): 0.0,  # before R565
        (2, 1, 0): 1.0,
        (999, 0, 0): "fails with NVML error 999",
        (27, 0, 0): "not ready",
        (3, 3, 3): "not supported",
    }
    found = {}
    for known in expected:
        by_id = dict(zip((230, 226, 227), known))

        def answer(ids: list[int], by_id: dict[int, int] = by_id) -> list[Field]:
            return [
                Field(by_id[one], by_id[one] if one == 230 or by_id[one] > 1 else 0) for one in ids
            ]

        got = Look(nvmlDeviceGetFieldValues=answer).read("recovery_action")
        found[known] = got["values"].get("recovery", got["missing"].get("recovery"))
        assert not got["values"].keys() & got["missing"].keys()
    assert found == expected


def test_one_counter_that_cannot_be_read_does_not_take_the_others_away() -> None:
    def count(kind: int, since: int) -> int:
        if since:
            raise pynvml.NVMLError(3)
        return 3 if kind else 0

    answer = Look(nvmlDeviceGetTotalEccErrors=count).read("ecc")
    assert answer["values"] == {"ecc_corrected": 0, "ecc_uncorrected": 3}
    assert answer["missing"] == dict.fromkeys(
        ("ecc_corrected_lifetime", "ecc_uncorrected_lifetime"), "not supported"
    )


@pytest.mark.parametrize(
    ("code", "faults", "failing_"),
    [(999, [], {"identity": 999}), (14, ["corrupted_inforom"], {}), (3, [], {})],
)
def test_who_a_gpu_is_though_it_does_not_say_all_of_it(
    code: int, faults: list[str], failing_: dict[str, int]
) -> None:
    look = Look(
        nvmlDeviceGetUUID="GPU-0",
        nvmlDeviceGetName="NVIDIA H100",
        nvmlDeviceGetInforomImageVersion=failing(code),
    )
    for _ in range(nvml_codes.MIN_FAILURES):
        answer = look.read("identity", inventory=True)
        assert (answer["values"], answer["faults"]) == (
            {"uuid": "GPU-0", "name": "NVIDIA H100"},
            faults,
        )
    assert answer["failing"] == failing_


@pytest.mark.parametrize(
    ("codes_", "reason"),
    [({999}, "fails with NVML error 999"), ({2}, "not supported"), ({3, 999}, "not supported")],
)
def test_why_none_of_several_fields_is_there(codes_: set[int], reason: str) -> None:
    known = [*codes_, *codes_]
    look = Look(
        nvmlDeviceGetFieldValues=lambda ids: [Field(0.0, known[at % 2]) for at, _ in enumerate(ids)]
    )
    answers = [look.read("pcie_errors") for _ in range(nvml_codes.MIN_FAILURES)]
    assert {answer["missing"]["pcie_replays"] for answer in answers} == {reason}
    assert answers[-1]["failing"] == ({"pcie_errors": 999} if codes_ == {999} else {})


def test_what_is_not_judged_is_no_reason_for_a_finding() -> None:
    look = Look(nvmlDeviceGetFieldValues=lambda ids: [Field(0.0, 999) for _ in ids])
    look.gpu.links, look.gpu.nvlink5 = 2, True
    for _ in range(nvml_codes.MIN_FAILURES):
        answer = look.read("limit_times", "nvlink_quality", "nvlink_corrections")
    assert (answer["failing"], answer["missing"]["board_limit_seconds"]) == (
        {},
        "fails with NVML error 999",
    )


def test_all_ones_stand_for_no_value() -> None:
    worker = NvmlWorker("", mmap.mmap(-1, 4096))
    for call, values in {
        "nvmlDeviceGetTemperature": 2**32 - 1,
        "nvmlDeviceGetTotalEnergyConsumption": 2**64 - 1,
        "nvmlDeviceGetRemappedRows": (0, 2**32 - 1, 0, 0),
    }.items():
        with (
            mock.patch.object(pynvml, call, lambda *_, found=values: found),
            pytest.raises(pynvml.NVMLError) as refused,
        ):
            worker.ask_driver(call, object())
        assert refused.value.value == nvml_codes.NO_VALUE, call
    assert nvml_codes.REASONS[nvml_codes.NO_VALUE] == "the driver gives no value"
    field = Look(nvmlDeviceGetFieldValues=fields({82: 2.0**32 - 1})).read("memory_temperature")
    assert field["values"] == {}
    assert field["missing"] == {"memory_temperature_celsius": "the driver gives no value"}


def test_all_ones_in_a_struct_are_no_verdict_on_a_board() -> None:
    """A threshold that is exceeded, or memory that cannot be repaired, is a replacement."""

    def sram(info: Any) -> None:
        info._obj.bThresholdExceeded, info._obj.volatileUncParity, info._obj.aggregateUncParity = (
            2**32 - 1,
            2**64 - 1,
            3,
        )

    look = Look(nvmlDeviceGetSramEccErrorStatus=sram)
    answer = look.read("sram_status")
    none = {"sram_threshold_exceeded", "sram_uncorrected_parity"}
    assert answer["missing"] == dict.fromkeys(none, "the driver gives no value")
    assert answer["values"]["sram_uncorrected_parity_lifetime"] == 3

    def flag(words: Any) -> None:
        words[0] = 2**32 - 1

    look.library.answers["nvmlDeviceGetUnrepairableMemoryFlag_v1"] = flag
    assert look.read("unrepairable")["missing"] == {
        "memory_unrepairable": "the driver gives no value"
    }
    counter = Look(nvmlDeviceGetFieldValues=fields({179: float(2**64 - 1), 180: 0.0})).read(
        "pcie_errors"
    )
    assert counter["missing"]["pcie_nonfatal_errors"] == "the driver gives no value"
    assert counter["values"] == {"pcie_fatal_errors": 0.0}


def test_the_reason_of_each_reading_stays_while_its_call_is_not_asked_again() -> None:
    """A call that this GPU does not have is left out until the next inventory."""
    asked: list[int] = []

    def answer(ids: list[int]) -> list[Field]:
        asked.append(len(ids))
        return [Field(0.0, 13 if one == 180 else 3) for one in ids]

    look = Look(nvmlDeviceGetFieldValues=answer)
    first, second = look.read("pcie_errors"), look.read("pcie_errors")
    assert first["missing"] == second["missing"]
    assert (second["missing"]["pcie_fatal_errors"], len(asked)) == ("driver too old", 1)


def test_no_lanes_are_no_value() -> None:
    answer = Look(nvmlDeviceGetCurrPcieLinkWidth=0, nvmlDeviceGetMaxPcieLinkWidth=16).read(
        "pcie_link"
    )
    assert answer["values"] == {"pcie_width_max": 16}
    assert answer["missing"]["pcie_width"] == "the driver gives no value"


def test_a_flag_is_0_or_1() -> None:
    assert (
        Look(nvmlDeviceGetRemappedRows=(0, 0, 2, 3)).read("remapped_rows")["values"][
            "row_remap_pending"
        ]
        == 1.0
    )


def test_an_event_is_about_the_gpu_that_it_names() -> None:
    """Whichever set it came through: NVIDIA's mock gives any event to any set."""
    worker, told = NvmlWorker("", mmap.mmap(-1, 4096)), []
    handles = [pynvml.c_nvmlDevice_t(pynvml.struct_c_nvmlDevice_t()) for _ in GPUS]
    for address, handle in zip(GPUS, handles):
        with mock.patch.object(worker, "ask_driver", return_value=handle):
            worker._add_gpu(address)
    events = [
        mock.Mock(device=handles[5], eventType=8, eventData=79),
        mock.Mock(device=None, eventType=8, eventData=48),
    ]
    with (
        mock.patch.object(worker, "_send_message", told.append),
        mock.patch(
            "vitald.collectors.nvml.worker.pynvml.nvmlEventSetWait_v2",
            side_effect=[*events, pynvml.NVMLError(15)],
        ),
        mock.patch("vitald.collectors.nvml.worker.pynvml.nvmlEventSetFree"),
    ):
        worker._forward_events(worker._gpus[GPUS[2]], object())
    assert [one["event"]["gpu"] for one in told if "event" in one] == [GPUS[5], GPUS[2]]


# --- the node: what is current

BY_TIER = list_readings()
EVERY_READING = [name for names in BY_TIER.values() for name in names]


def attached(driver: str) -> Answer:
    return {"driver": driver, "nvml": "13.580", "readings": BY_TIER}


class Node:
    """GPUs of one model, with a clock that is set by hand."""

    def __init__(self, count: int = 8, boot: str = "boot-1", memory: str = "") -> None:
        self.node = GpuNode(CATALOG, boot, of_type=0, configured=0, overdue_s=OVERDUE)
        if memory:
            self.node.restore_memory(memory, "boot-1")
        self.node.note_attached(attached("580.95.05"), set(GPUS[:count]))
        self.gpus = GPUS[:count]
        self.now = 0.0
        self.state: dict[str, Answer] = {
            gpu: {"values": {"uuid": f"GPU-{number}", "name": "NVIDIA H100"}, "missing": {}}
            for number, gpu in enumerate(self.gpus)
        }

    def look(self, seconds: float = 10.0, **values: Any) -> list[Event]:
        """All GPUs answer what they have, and these values."""
        return self.answer(
            {
                gpu: {**one, "values": {**one["values"], **values}}
                for gpu, one in self.state.items()
            },
            seconds,
        )

    def answer(self, answers: Mapping[str, Answer], seconds: float = 10.0) -> list[Event]:
        self.now += seconds
        with mock.patch("time.monotonic", lambda: self.now):
            return self.node.process_answers(answers, set(self.gpus))

    def set(self, gpu: int, **values: Any) -> None:
        self.state[self.gpus[gpu]]["values"] |= values

    def read(self, gpu: int) -> Readings:
        return self.node.current.by_gpu[self.gpus[gpu]]


def test_the_texts_of_a_board_are_printable() -> None:
    """They appear in reasons, which go to terminals, Slurm and systemd."""
    node = Node(1)
    node.set(0, serial="165\n\x1b[2J", name="NVIDIA\tH100")
    node.look()
    (names,) = node.node.list_devices()
    assert (names.serial, node.read(0).values["name"]) == ("165??[2J", "NVIDIA?H100")


def test_a_number_of_nvidia_smi_belongs_to_the_gpu_that_gave_it_last() -> None:
    """A lost one keeps its own until the driver gives it to another, and none over a boot."""

    def numbers(node: Node) -> dict[str, str]:
        return {names.uuid: names.index for names in node.node.list_devices()}

    node = Node(3)
    for number in range(3):
        node.set(number, index=number, minor=number)
    node.look()
    assert numbers(node) == {"GPU-0": "0", "GPU-1": "1", "GPU-2": "2"}
    del node.state[GPUS[1]]
    node.look()
    assert numbers(node) == {"GPU-0": "0", "GPU-1": "1", "GPU-2": "2"}
    assert numbers(Node(3, memory=node.node.memory)) == numbers(node)
    assert set(numbers(Node(3, "boot-2", node.node.memory)).values()) == {""}
    node.set(2, index=1)
    node.look()
    assert numbers(node) == {"GPU-0": "0", "GPU-1": "", "GPU-2": "1"}
    node.answer({GPUS[1]: {"lookup": 15, "faults": ["lost"]}})
    assert "index" not in node.read(1).values


def codes(events: Iterable[Event]) -> list[tuple[str, str]]:
    return sorted(
        (event.component.id, event.code) for event in events if event.code.startswith("nvml/")
    )


def samples(metrics: Iterable[Metric]) -> set[str]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}"
        for metric in metrics
        for sample in metric.samples
    }


def test_a_call_that_fails_takes_its_value_away_at_once() -> None:
    node = Node(1)
    node.look(temperature_celsius=34.0, power_watts=95.0)
    node.answer(
        {
            GPUS[0]: {
                "values": {"power_watts": 95.0},
                "missing": {"temperature_celsius": "fails with NVML error 999"},
            }
        }
    )
    one = node.read(0)
    assert "temperature_celsius" not in one.values
    assert one.missing == {"temperature_celsius": "fails with NVML error 999"}
    shown = samples(read_exported(gpus.GpuMetrics().collect_metrics([one])))
    assert not any("temperature" in sample for sample in shown)
    assert any("power_watts" in sample for sample in shown)
    node.look(temperature_celsius=77.0)
    assert (node.read(0).values["temperature_celsius"], node.read(0).missing) == (77.0, {})


def test_a_slow_reading_is_current_until_its_turn_is_overdue() -> None:
    node = Node(1)
    node.look(ecc_uncorrected=0.0, temperature_celsius=34.0)
    for _ in range(12):
        node.answer({GPUS[0]: {"values": {"temperature_celsius": 34.0}}})
    assert node.read(0).values["ecc_uncorrected"] == 0.0
    node.answer({GPUS[0]: {"values": {"temperature_celsius": 34.0}}}, 20.0)
    assert "ecc_uncorrected" not in node.read(0).values
    assert "not read for" in node.read(0).missing["ecc_uncorrected"]
    assert node.read(0).values["uuid"] == "GPU-0"


def test_what_is_not_observable_does_not_come_and_go_with_the_inventory() -> None:
    """The worker asks anew after each inventory; until the turn of the slow calls nothing else is
    known of them.
    """
    node = Node(1)
    node.answer(
        {
            GPUS[0]: {
                "values": {"power_watts": 1.0},
                "missing": {"row_remap_pending": "not supported"},
            }
        }
    )
    node.answer(
        {GPUS[0]: {"values": {"power_watts": 1.0}, "missing": {"recovery": "not supported"}}}
    )
    assert set(node.read(0).missing) == {"row_remap_pending", "recovery"}


@pytest.mark.parametrize(
    "answer",
    [
        {"lookup": 23},
        {"values": {}, "missing": dict.fromkeys(EVERY_READING, "fails")},
    ],
)
def test_of_a_gpu_that_answers_nothing_only_what_stays_true_is_known(answer: Answer) -> None:
    node = Node(2)
    node.look(
        temperature_celsius=34.0,
        nvlinks=2.0,
        nvlink_active=[1.0, 1.0],
        ecc_uncorrected=0.0,
        serial="s",
    )
    node.answer({GPUS[0]: answer})
    one = node.read(0)
    assert {"uuid", "name", "serial"} <= set(one.values)
    assert not {
        "temperature_celsius",
        "nvlinks",
        "nvlink_active",
        "nvlink_down",
        "ecc_uncorrected",
    } & set(one.values)
    assert one.values.keys() & one.missing.keys() == set()
    assert one.unknown_reason
    node.look(temperature_celsius=34.0)
    assert not node.read(0).unknown_reason


@pytest.mark.parametrize("reason", ["not ready", "not supported"])
def test_a_gpu_that_answers_nothing_and_has_no_finding_makes_the_look_incomplete(
    reason: str,
) -> None:
    """Silence is not health, whatever the reason is."""
    node = Node(2)
    node.look(temperature_celsius=34.0)
    assert node.node.current.list_unreadable(GPUS[:2]) == []
    silent = {
        "values": {"uuid": "GPU-0", "name": "NVIDIA H100"},
        "missing": dict.fromkeys(EVERY_READING, reason),
    }
    assert not codes(node.answer({GPUS[0]: silent, GPUS[1]: node.state[GPUS[1]]}))
    assert node.node.current.list_unreadable(GPUS[:1]) == [
        f"gpu/{GPUS[0]}: NVML answers nothing about it: temperature_celsius: {reason}"
    ]
    node.look(temperature_celsius=34.0)
    assert node.node.current.list_unreadable(GPUS[:2]) == []


def test_a_fast_look_that_fails_says_nothing_of_slow_readings_that_are_current() -> None:
    node = Node(1)
    node.look(temperature_celsius=34.0, ecc_uncorrected=0.0)
    node.answer(
        {
            GPUS[0]: {
                "values": {},
                "missing": dict.fromkeys(BY_TIER["fast"], "not ready"),
            }
        }
    )
    assert not node.read(0).unknown_reason


def test_a_part_that_could_not_be_read_has_no_sample_and_is_null() -> None:
    node = Node(1)
    node.look(
        nvlinks=3.0, nvlink_active=[1.0, math.nan, 0.0], nvlink_crc_errors=[0.0, math.nan, 4.0]
    )
    shown = samples(read_exported(gpus.GpuMetrics(each_link=True).collect_metrics([node.read(0)])))
    assert [
        sum(f"{name}[" in sample for sample in shown)
        for name in ("nvlink_up", "nvlink_crc_errors_total")
    ] == [2, 2]
    assert serialize.plain(node.read(0).values["nvlink_active"]) == [1, None, 0]


def test_a_serial_number_that_is_not_said_once_is_no_other_board() -> None:
    node = Node(1)
    node.look(serial="S1", module_id=3.0, chassis_serial="C")
    events = node.answer(
        {
            GPUS[0]: {
                "values": {"uuid": "GPU-0", "power_watts": 1.0},
                "missing": {"serial": "fails with NVML error 999"},
            }
        }
    )
    assert not [event for event in events if event.code == "device/identity"]
    (lost,) = [
        event for event in node.answer({GPUS[0]: {"lookup": 15}}) if event.code == "nvml/gpu_lost"
    ]
    assert all(words in lost.raw for words in ("NVIDIA H100", "serial S1", "module 3", "chassis C"))


# --- NVLinks beside their own past and their siblings


def eight(**other: Any) -> Node:
    node = Node(8)
    for gpu in range(8):
        node.set(gpu, nvlinks=18.0, nvlink_active=[1.0] * 18, nvlink_switched=1.0)
    node.set(2, **other)
    return node


@pytest.mark.parametrize(
    ("other", "down"),
    [
        ({"nvlinks": 17.0, "nvlink_active": [1.0] * 17}, [17]),
        ({"nvlink_active": [1.0] * 5 + [0.0] + [1.0] * 12}, [5]),
        ({"nvlinks": 0.0, "nvlink_active": ""}, list(range(18))),
        ({"nvlink_active": [1.0] * 5 + [math.nan] + [1.0] * 12}, []),
    ],
    ids=["one less", "one down", "none", "one not known"],
)
def test_fewer_links_than_the_siblings_from_the_start(
    other: dict[str, Any], down: list[int]
) -> None:
    node = eight(**other)
    if other.get("nvlink_active") == "":
        del node.state[GPUS[2]]["values"]["nvlink_active"]
    events = node.look() + node.look()
    found = [event for event in events if event.code == "nvml/nvlink_down"]
    assert [event.component.id for event in found] == ([GPUS[2]] if down else [])
    assert [event.fields["links"] for event in found] == ([down] if down else [])
    assert [
        CATALOG.find_rule(event.code).apply_to(event.fields).action.value for event in found
    ] == (["reset_device"] if down else [])
    assert node.read(2).values["nvlinks_expected"] == 18.0


@pytest.mark.parametrize("restarted", [False, True])
def test_fewer_links_than_it_had(restarted: bool) -> None:
    """Alone on its node, across a restart of the daemon too."""
    node = Node(1)
    assert not codes(node.look(nvlinks=18.0, nvlink_active=[1.0] * 18))
    if restarted:
        node = Node(1, memory=node.node.memory)
    assert codes(node.look(nvlinks=17.0, nvlink_active=[1.0] * 17)) == [
        (GPUS[0], "nvml/nvlink_down")
    ]
    assert codes(node.look(nvlinks=18.0, nvlink_active=[1.0] * 18)) == [
        (GPUS[0], "nvml/nvlink_down")
    ]


def test_no_links_where_the_others_have_them_is_said_between_slow_looks_too() -> None:
    node = eight(nvlinks=0.0)
    del node.state[GPUS[2]]["values"]["nvlink_active"]
    node.state[GPUS[2]]["missing"] = dict.fromkeys(
        ("nvlink_active", "nvlinks_active"), "not supported"
    )
    node.look()
    node.look()
    fast = {"values": {"power_watts": 1.0}, "missing": {}}
    node.answer({GPUS[2]: fast})
    one = node.read(2)
    assert (
        one.values["nvlinks_active"],
        one.values["nvlinks_expected"],
        "nvlinks_active" in one.missing,
    ) == (0.0, 18.0, False)


def test_links_that_cannot_be_read_are_neither_up_nor_down() -> None:
    node = eight()
    node.look()
    answers = {
        GPUS[2]: {
            "values": {"power_watts": 1.0},
            "missing": dict.fromkeys(("nvlinks", "nvlink_active"), "no permission"),
        }
    }
    assert not codes(node.answer(answers))
    assert not {"nvlink_down", "nvlink_active", "nvlinks_expected"} & set(node.read(2).values)
    assert node.read(2).missing["nvlink_down"] == "no permission"


def test_a_bridge_between_two_of_four_is_no_fault_of_the_others() -> None:
    node = Node(4)
    for gpu in range(4):
        node.set(gpu, nvlinks=6.0, nvlink_active=[float(gpu > 1)] * 6)
    assert not codes(node.look() + node.look())


@pytest.mark.parametrize(("switched", "active"), [(True, 0.0), (False, 0.0), (True, 1.0)])
def test_no_link_at_all_on_a_board_with_switches(switched: bool, active: float) -> None:
    """No GPU of this node ever had a link, as after a boot in which fabric manager failed on a new
    board.
    """
    node = Node(4)
    node.node.current.switched = switched
    for gpu in range(4):
        node.set(gpu, nvlinks=18.0, nvlink_active=[active] * 18)
    node.set(3, nvlinks=0.0, nvlink_active=[active] * 18)
    found = {code for _ in range(40) for code in codes(node.look())}
    assert found == (
        {(gpu, "nvml/nvlinks_absent") for gpu in GPUS[:4]} if switched and not active else set()
    )


def test_a_gpu_in_mig_mode_is_not_compared() -> None:
    """Fabric Manager's user guide: with MIG the GPU's NVLinks are disabled or not used."""
    node = eight(nvlinks=0.0, nvlink_active=[0.0] * 18, mig_mode=1.0)
    found = node.look() + node.look()
    assert (GPUS[2], "nvml/nvlink_down") not in codes(found)
    assert "nvlinks_expected" not in node.read(2).values


def test_what_was_said_of_links_ends_when_mig_is_turned_on() -> None:
    node = eight(nvlinks=17.0, nvlink_active=[1.0] * 17, mig_mode=0.0)
    assert codes(node.look() + node.look()) == [(GPUS[2], "nvml/nvlink_down")]
    node.set(2, mig_mode=1.0)
    (event,) = [event for event in node.look() if event.code == "nvml/nvlink_down"]
    assert event.fields["recovered"] is True


def test_links_are_not_compared_where_nobody_knows_whether_mig_is_on() -> None:
    node = eight(mig_mode=0.0)
    node.look()
    values = {"nvlinks": 18.0, "nvlink_active": [0.0] * 18, "power_watts": 1.0}
    assert not codes(
        node.answer(
            {GPUS[2]: {"values": values, "missing": {"mig_mode": "fails with NVML error 999"}}}
        )
    )
    assert codes(
        node.answer({GPUS[2]: {"values": values, "missing": {"mig_mode": "not supported"}}})
    ) == [(GPUS[2], "nvml/nvlink_down")]


@pytest.mark.parametrize(("switched", "found"), [(1.0, [0, 1]), (0.0, [])])
def test_half_of_the_gpus_with_a_link_less(switched: float, found: list[int]) -> None:
    """On a board with switches all are wired alike; bridges may join some of the GPUs."""
    node = Node(4)
    for gpu in range(4):
        count = 17 if gpu < 2 else 18
        node.set(gpu, nvlinks=float(count), nvlink_active=[1.0] * count, nvlink_switched=switched)
    assert codes(node.look() + node.look()) == [(GPUS[gpu], "nvml/nvlink_down") for gpu in found]


# --- the NVLink domain, pending modes, lifetime counters


def test_the_nvlink_domain_of_a_node_is_one() -> None:
    expected: dict[str, list[int]] = {
        "aa aa aa aa": [],
        "00 00 00 00": [],  # as on HGX nodes
        "aa aa aa 00": [3],
        "aa aa bb bb": [0, 1, 2, 3],
    }
    found = {}
    for domains in expected:
        node = Node(4)
        for gpu, domain in enumerate(domains.split()):
            node.set(gpu, fabric_state=3.0, fabric_status=0.0)
            node.set(gpu, fabric_cluster=domain, fabric_clique=0.0)
        found[domains] = codes([event for _ in range(30) for event in node.look()])
    assert found == {
        domains: [(GPUS[gpu], "nvml/fabric_differs") for gpu in differ]
        for domains, differ in expected.items()
    }


def test_another_clique_and_a_gpu_that_has_not_joined() -> None:
    node = Node(4)
    for gpu in range(4):
        node.set(gpu, fabric_state=3.0, fabric_status=0.0, fabric_cluster="aa", fabric_clique=0.0)
    node.set(1, fabric_clique=9.0)
    node.set(2, fabric_state=2.0, fabric_cluster="00")
    found = {code for _ in range(40) for code in codes(node.look())}
    assert found == {(GPUS[1], "nvml/fabric_differs"), (GPUS[2], "nvml/fabric_not_ready")}


def test_a_gpu_without_a_fabric_beside_others_that_have_one() -> None:
    node = Node(4)
    for gpu in range(4):
        node.set(gpu, fabric_state=3.0, fabric_status=0.0, fabric_cluster="aa", fabric_clique=0.0)
    del node.state[GPUS[1]]["values"]["fabric_state"]
    node.state[GPUS[1]]["missing"] = {"fabric_state": "not supported"}
    found = [code for _ in range(40) for code in codes(node.look())]
    assert found == [(GPUS[1], "nvml/fabric_differs")]
    del node.state[GPUS[1]]["missing"]["fabric_state"]
    found = [code for _ in range(40) for code in codes(node.look(fabric_state=3.0))]
    assert found == [(GPUS[1], "nvml/fabric_differs")]  # it has ended


@pytest.mark.parametrize(
    "values", [{"fabric_state": 4.0}, {"fabric_state": 3.0, "fabric_health_summary": 4.0}]
)
def test_a_fabric_that_says_something_unknown(values: dict[str, float]) -> None:
    node = Node(1)
    assert not codes(node.look(fabric_state=3.0, fabric_health_summary=1.0))
    assert codes(node.look(**values)) == [(GPUS[0], "nvml/fabric_unknown")]


@pytest.mark.parametrize("mode", ["ecc_mode", "mig_mode"])
def test_a_pending_change_of_mode_is_said_and_ends(mode: str) -> None:
    node = Node(1)
    assert codes(node.look(**{f"{mode}_change_pending": 1.0})) == [
        (GPUS[0], "nvml/mode_change_pending")
    ]
    assert codes(node.look(**{f"{mode}_change_pending": 0.0})) == [
        (GPUS[0], "nvml/mode_change_pending")
    ]


def test_a_pending_change_of_one_mode_outlasts_that_of_the_other() -> None:
    """The two are read at different looks."""
    node = Node(1)
    node.look(ecc_mode_change_pending=0.0, mig_mode_change_pending=1.0)
    node.look(ecc_mode_change_pending=1.0, mig_mode_change_pending=1.0)
    assert not codes(node.look(mig_mode_change_pending=0.0))
    assert codes(node.look(ecc_mode_change_pending=0.0)) == [(GPUS[0], "nvml/mode_change_pending")]


def test_uncorrectable_errors_are_told_wherever_they_are_counted() -> None:
    found = {}
    for name in (
        *("ecc_uncorrected_dram", "ecc_uncorrected_sram"),
        *("sram_uncorrected_parity", "sram_uncorrected_secded"),
    ):
        node = Node(1)
        node.look(ecc_uncorrected=0.0, **{name: 0.0})
        found[name] = codes(node.look(ecc_uncorrected=0.0, **{name: 3.0}))
    assert found == {name: [(GPUS[0], "nvml/ecc_uncorrected")] for name in found}


def test_an_error_just_before_a_reboot_leaves_a_trace() -> None:
    """The lifetime counter, and that of this boot."""
    cases: list[tuple[list[Any], bool]] = [
        ([(5, 0), (5, 0)], False),  # what it stands at first is nothing
        ([(5, 0), (6, 1)], False),  # counted in this boot, and told as such
        ([(5, 0), (5, 1), (6, 1)], False),  # the lifetime counter follows later
        ([(5, 0), (6, 1), "boot", (6, 0)], False),
        ([(5, 0), "boot", (6, 0)], True),  # after the last look of the former boot
        ([(5, 0), (6, 1), "boot", (7, 0)], True),
        ([(5, 0), (6, 1), "boot", (7, 1)], False),
    ]
    wrong = []
    for looks, missed in cases:
        node, found = Node(1), []
        for look in looks:
            if look == "boot":
                node = Node(1, "boot-2", node.node.memory)
                continue
            found += codes(
                node.look(ecc_uncorrected_lifetime=float(look[0]), ecc_uncorrected=float(look[1]))
            )
        told = (GPUS[0], "nvml/ecc_uncorrected_missed") in found
        if told is not missed or len(found) > len(set(found)) + 1:
            wrong.append((looks, found))
    assert wrong == []


def test_what_is_remembered_of_lifetime_counters_may_make_no_sense() -> None:
    memory = json.loads(Node(1).node.memory) | {
        "lifetime": {"GPU-0": {"ecc_uncorrected_lifetime": [1, 2]}}
    }
    with pytest.raises(ValueError, match="lifetime"):
        GpuNode(CATALOG, "boot-1", of_type=0, configured=0).restore_memory(
            json.dumps(memory), "boot-1"
        )


# --- a GPU that cannot be used


def test_a_gpu_that_cannot_be_looked_up() -> None:
    """At once where the code says what it is, else at the third look."""
    at_once = {
        4: {"nvml/lookup_failed", "nvml/no_permission"},
        8: {"nvml/lookup_failed", "nvml/insufficient_power"},
        14: {"nvml/lookup_failed", "nvml/corrupted_inforom"},
        6: {"nvml/gpu_not_initialised"},
        10: {"nvml/gpu_lost"},
        11: {"nvml/irq_issue"},
        15: {"nvml/gpu_lost"},
        16: {"nvml/reset_required"},
        999: {"nvml/gpu_lost"},
        -2: {"nvml/gpu_excluded"},
    }
    later = {code: {"nvml/lookup_failed"} for code in (2, 9, 18, 23, 27)}
    wrong = []
    for code, expected in (at_once | later).items():
        node = Node(2)
        node.look()
        events: list[Event] = []
        seen = []
        for _ in range(3):
            events += node.answer({GPUS[0]: {"lookup": code}, GPUS[1]: node.state[GPUS[1]]})
            seen.append({event.code for event in events})
        whose = {event.component.id for event in events}
        ended = {event.code for event in node.look() if event.fields.get("recovered")}
        first = expected if code in at_once else set()
        if (seen, whose, ended) != ([first, first, expected], {GPUS[0]}, expected):
            wrong.append((code, seen, whose, ended))
    assert wrong == []


def test_a_look_up_that_is_ready_in_time_is_no_finding() -> None:
    node = Node(1)
    for _ in range(3):
        events = [event for _ in range(2) for event in node.answer({GPUS[0]: {"lookup": 27}})]
        assert not codes(events)
        assert not codes(node.look())


def test_every_call_fails() -> None:
    """Told once no reading of the fast and slow tier is current; what one call fails for is another
    finding.
    """
    node = Node(1)
    fast_calls = [call.name for call in CALLS if call.tier == "fast"]
    failed = dict.fromkeys([call.name for call in CALLS if call.tier in ("fast", "slow")], 999)
    node.look(temperature_celsius=34.0, ecc_uncorrected=0.0, persistence_mode=1.0)
    fast = {
        "values": {},
        "missing": dict.fromkeys(BY_TIER["fast"], "fails"),
        "failing": dict.fromkeys(fast_calls, 999),
    }
    assert codes(node.answer({GPUS[0]: fast})) == [(GPUS[0], "nvml/failing")]
    slow = {
        "values": {},
        "missing": dict.fromkeys(BY_TIER["fast"] + BY_TIER["slow"], "fails"),
        "failing": failed,
    }
    assert codes(node.answer({GPUS[0]: slow})) == [(GPUS[0], "nvml/no_call_succeeds")]
    inventory = {
        "values": {"uuid": "GPU-0", "name": "NVIDIA H100"},
        "missing": {},
        "failing": failed,
    }
    assert not codes(node.answer({GPUS[0]: inventory}))
    assert codes(node.look(temperature_celsius=34.0)) == [
        (GPUS[0], "nvml/failing"),
        (GPUS[0], "nvml/no_call_succeeds"),
    ]


def test_what_the_number_of_a_recovery_action_means() -> None:
    cases = [
        (3, "550.90.07", "inspect", "peer traffic"),
        (4, "570.86.15", "reset_device", "drain, then reset"),
        (5, "580.95.05", "reset_device", "bus reset"),
        (5, "590.48.01", "inspect", "unknown kind"),
        (5, "550.90.07", "inspect", "unknown kind"),
        (5, "595.44.02", "inspect", "IMEX"),
        (5, "615.10", "inspect", "IMEX"),
        (5, "unknown", "inspect", "unknown kind"),
        (6, "615.10", "reset_device", "bus reset"),
        (7, "615.10", "reboot_node", "system reboot"),
        (8, "615.10", "inspect", "unknown kind"),
        (99, "580.95.05", "inspect", "unknown kind"),
    ]
    wrong = []
    for number, driver, action, words in cases:
        node = Node(1)
        node.node.note_attached(attached(driver), set(GPUS[:1]))
        events = node.look(recovery=float(number))
        node.look(recovery=float(number))
        rulings = [
            CATALOG.find_rule(event.code).apply_to(event.fields)
            for event in (*events, *node.node.holding)
            if event.code == "nvml/recovery_action"
        ]
        found = [(one.action.value, words in one.title, one.unusable) for one in rulings]
        if found != [(action, True, action == "inspect")] * 2:
            wrong.append((number, driver, rulings))
    assert wrong == []


def test_a_gpu_that_cannot_be_used_makes_the_node_unfit() -> None:
    names = ("fabric_not_ready", "lookup_failed", "no_call_succeeds", "reset_required")
    unusable = {name: CATALOG.find_rule(f"nvml/{name}").apply_to({}).unusable for name in names}
    assert unusable == dict.fromkeys(names, True)


def link_with_recoveries(*found: float) -> Node:
    node = Node(4)
    for gpu in range(4):
        node.set(gpu, nvlink_recoveries=[0.0] * 18, nvlink_replays=[1.0] * 18)
    node.set(2, nvlink_recoveries=[*([0.0] * 17), *found])
    return node


def test_a_link_with_far_more_recoveries_than_its_siblings() -> None:
    """As it was in a training run: 505 of them at the first look, 0 on all others."""
    node = link_with_recoveries(505.0)
    assert codes(node.look()) == [(GPUS[2], "nvml/nvlink_worse")]


def test_a_link_whose_recoveries_go_on() -> None:
    node, found = link_with_recoveries(5.0), []
    for count in (5.0, 6.0, 7.0):
        node.set(2, nvlink_recoveries=[*([0.0] * 17), count])
        found += codes(node.look(seconds=420.0))
    assert not found
    node.set(2, nvlink_recoveries=[*([0.0] * 17), 8.0])
    assert codes(node.look(seconds=420.0)) == [(GPUS[2], "nvml/nvlink_worse")]


def test_what_all_links_have_alike_is_no_fault_of_one() -> None:
    """As when all of them are trained anew."""
    node = link_with_recoveries(0.0)
    node.look()
    for gpu in range(4):
        node.set(gpu, nvlink_recoveries=[40.0] * 18, nvlink_replays=[90.0] * 18)
    assert "nvml/nvlink_worse" not in {code for _, code in codes(node.look(seconds=1000.0))}


@pytest.mark.parametrize(
    ("name", "count", "active", "absent"),
    [
        ("NVIDIA H100 NVL", 2, 0.0, True),
        ("NVIDIA H200 NVL", 4, 0.0, True),
        ("NVIDIA H100 NVL", 2, 1.0, False),
        ("NVIDIA H100 NVL", 1, 0.0, False),  # alone in a virtual machine
        ("NVIDIA H100 PCIe", 2, 0.0, False),  # the bridge is an option
    ],
)
def test_cards_that_bridges_join(name: str, count: int, active: float, *, absent: bool) -> None:
    node = Node(count)
    for gpu in range(count):
        node.set(gpu, name=name, nvlinks=12.0, nvlink_active=[active] * 12)
    found = {code for _ in range(40) for code in codes(node.look())}
    assert found == ({(gpu, "nvml/nvlinks_absent") for gpu in GPUS[:count]} if absent else set())


def test_links_that_the_configuration_expects() -> None:
    node = Node(2)
    node.node.configure_expected(0, (), 6)
    for gpu in range(2):
        node.set(gpu, nvlinks=12.0, nvlink_active=[0.0] * 12, nvlinks_active=0.0)
    found = {code for _ in range(8) for code in codes(node.look())}
    assert found == {(gpu, "nvml/nvlinks_few") for gpu in GPUS[:2]}
    node.node.configure_expected(0, (), 0)
    ended = [
        event.fields.get("recovered") for event in node.look() if event.code == "nvml/nvlinks_few"
    ]
    assert ended == [True, True]


# --- what the hardware slows, and what the board lacks


def test_a_slowdown_without_heat_and_without_brake() -> None:
    node = Node(1)
    reasons = {"hw_slowdown": 1.0, "hw_thermal_slowdown": 0.0, "power_brake": 0.0}
    found = [code for _ in range(10) for code in codes(node.look(**reasons))]
    assert found == [(GPUS[0], "nvml/hw_slowdown")]
    hot = Node(1)
    reasons["hw_thermal_slowdown"] = 1.0
    assert not [code for _ in range(10) for code in codes(hot.look(**reasons))]


@pytest.mark.parametrize(
    ("modules", "switched", "missing"),
    [
        ((1, 2, 3, 5, 6, 7, 8), True, 1.0),
        ((1, 2, 3, 5, 6, 7, 8), False, 1.0),
        ((1, 2, 3), False, 0.0),
        ((1, 3, 6, 8), False, 0.0),  # a virtual machine has some of a board's
        ((1, 2, 3, 5), True, 1.0),
        ((1, 2, 3, 4, 5, 6, 7, 8), True, 0.0),
        ((5, 6, 7, 8), True, 0.0),
        ((1, 2, 1, 4), True, None),  # two boards
        ((0, 0), True, None),  # no board
        ((1, None, 3), True, None),  # one does not say
    ],
)
def test_a_module_without_a_gpu(
    modules: tuple[int | None, ...], missing: float | None, *, switched: bool
) -> None:
    node = Node(len(modules))
    node.node.current.switched = switched
    for gpu, module in enumerate(modules):
        if module is not None:
            node.set(gpu, module_id=float(module))
    found = [event for _ in range(8) for event in node.look() if event.component.name == "node"]
    assert [event.code for event in found if event.code == "nvml/board_incomplete"] == (
        ["nvml/board_incomplete"] if missing else []
    )
