"""What each of NVML's signals comes to: real worker, real binding, simulated library; source and
judge as in the daemon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.clock import HOUR_S
from tests.conftest import require
from tests.exported import read_exported
from tests.system.nvml import (
    BOOT,
    Driven,
    Looking,
    Outcomes,
    beside,
    hasty,
    outcome,
    recorded,
    since,
    story,
)
from vitald.backoff import Backoff
from vitald.catalog import Catalog
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.nvml import collector as nvml_collector
from vitald.collectors.nvml import inbox
from vitald.metrics.gpus import GpuMetrics
from vitald.model.source import SourceState
from vitald.model.words import ComponentKind
from vitald.simulator import simulated_library
from vitald.simulator.profiles import list_profiles
from vitald.simulator.simulated_node import SimulatedNode

XID = 0x8
OF_THE_NODE = {
    *("gpus", "gpus_expected", "unavailable", "driver", "nvml", "vbios_versions"),
    "modules_missing",
}
OF_A_GPU = {
    "lost",
    "reset_required",
    "corrupted_inforom",
    "irq_issue",
    "insufficient_power",
    "not_initialised",
    "no_permission",
}
OF_A_GPU |= {
    "failing_calls",
    "no_call_succeeds",
    "lookup_failed",
    "lookup_code",
    "missing",
    "nvlink_down",
    "nvlink_to_switch",
    "fabric_differs",
    "c2c_links_expected",
}


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    try:
        simulated_library.build_library()
    except simulated_library.CannotBuild as error:
        require(None, str(error))


@dataclass(frozen=True)
class Signal:
    """Values that GPUs of a node have, one GPU each, and what is found: "code action", several by
    commas, or nothing.

    `gone`: the keys whose call is then no longer supported. That must end nothing.
    """

    profile: str
    cases: list[tuple[dict[str, Any], str]]
    gone: tuple[str, ...] = ()
    everywhere: Mapping[str, Any] = field(default_factory=dict)
    abi: Mapping[str, Any] = field(default_factory=dict)


def volatile(
    kind: str, place: str, *values: tuple[int | None, str]
) -> list[tuple[dict[str, Any], str]]:
    return [({f"ecc.{kind}.vol.{place}": value}, found) for value, found in values]


def fabric(
    mask: int, found: str = "", *, state: int = 3, status: int = 0, summary: int = 1
) -> tuple[dict[str, Any], str]:
    return {
        "fabric": f"{state} {status} {mask:#x} {summary} 1 51a10000fab04000800000000000c1a5"
    }, found


def pages(count: int) -> str:
    return " ".join(f"{0x1000 * page:#x}" for page in range(count))


UNWELL, WIDTH = "nvml/fabric_unhealthy inspect", "nvml/pcie_width inspect"
CORRECTED, SPARE, REPAIR = (
    "nvml/ecc_corrected inspect",
    "nvml/spare_rows_low observe",
    "nvml/repair_pending reset_device/after_job",
)
WORDS = (
    "inspect",
    "reset_device",
    "reboot_node",
    "inspect",
    "reset_device/after_job",
    "reset_device",
    "reset_device",
    "reboot_node",
)
HOT, THROTTLED = "nvml/temperature inspect", "nvml/throttled observe"

SIGNALS = {
    "recovery action": Signal(
        "h100",
        [
            ({"fi.230.0": f"u32:{value}"}, f"nvml/recovery_action {WORDS[value]}" if value else "")
            for value in range(8)
        ]
        + [({"fi.230.0": "u32:99"}, "nvml/recovery_action inspect"), ({"fi.230.0": None}, "")],
        gone=("fi.230.0",),
    ),
    "recovery flags of before R565": Signal(
        "v100",
        [
            ({}, ""),
            ({"fi.226.0": 1}, "nvml/recovery_action reset_device"),
            ({"fi.227.0": 1}, "nvml/recovery_action reset_device/after_job"),
            ({"fi.226.0": None, "fi.227.0": None}, ""),
        ],
        gone=("fi.226.0", "fi.227.0"),
    ),
    "what a call says of the GPU": Signal(
        "h100",
        [
            ({"lost": 1}, "nvml/gpu_lost reboot_node"),
            ({"ret.nvmlDeviceGetTemperature": 15}, "nvml/gpu_lost reboot_node"),
            ({"ret.nvmlDeviceGetMemoryInfo_v2": 16}, "nvml/reset_required reset_device"),
            ({"fi.94.0": "ret:16"}, "nvml/reset_required reset_device"),
            ({"ret.nvmlDeviceGetRemappedRows": 14}, "nvml/corrupted_inforom inspect"),
            ({"ret.nvmlDeviceGetPowerUsage": 8}, "nvml/insufficient_power inspect"),
            ({"ret.nvmlDeviceGetUtilizationRates": 11}, "nvml/irq_issue reboot_node"),
            ({"ret.nvmlDeviceGetTemperature": 999}, "nvml/failing inspect"),
            ({"ret.nvmlDeviceGetClockInfo": 10}, "nvml/failing inspect"),
            *(({"ret.nvmlDeviceGetTemperature": code}, "") for code in (3, 4, 13, 25, 26, 21, 27)),
        ],
    ),
    "at the look-up": Signal(
        "h100",
        [
            ({"lookup_ret": 15}, "nvml/gpu_lost reboot_node"),
            ({"lookup_ret": 999}, "nvml/gpu_lost reboot_node"),
            ({"lookup_ret": 10}, "nvml/gpu_lost reboot_node"),
            ({"lookup_ret": 4}, "nvml/no_permission inspect, nvml/lookup_failed inspect"),
            ({"lookup_ret": 8}, "nvml/insufficient_power inspect, nvml/lookup_failed inspect"),
            ({"lookup_ret": 14}, "nvml/corrupted_inforom inspect, nvml/lookup_failed inspect"),
            *(({"lookup_ret": code}, "nvml/lookup_failed inspect") for code in (2, 9, 18, 27)),
            ({"lookup_ret": 11}, "nvml/irq_issue reboot_node"),
            ({"lookup_ret": 16}, "nvml/reset_required reset_device"),
            ({"absent": 1}, "nvml/gpu_not_initialised reboot_node"),
            ({}, ""),
        ],
    ),
    "ECC uncorrected": Signal(
        "h100",
        volatile("unc", "total", (0, ""), (1, "nvml/ecc_uncorrected reset_device"), (None, "")),
        gone=("ecc.unc.vol.total",),
    ),
    "ECC uncorrected, by memory": Signal(
        "h100",
        [
            *volatile("unc", "dram", (0, ""), (3, "nvml/ecc_uncorrected reset_device")),
            *volatile("unc", "sram", (0, ""), (3, "nvml/ecc_uncorrected reset_device"), (None, "")),
            ({"sram": "0 0 0 1 0 0 0 0 0 0 0 0"}, "nvml/ecc_uncorrected reset_device"),
            ({"sram": "0 0 0 0 1 0 0 0 0 0 0 0"}, "nvml/ecc_uncorrected reset_device"),
        ],
    ),
    "ECC corrected": Signal(
        "h100",
        volatile("cor", "total", (50_000_000, ""), (50_000_001, CORRECTED), (None, ""))
        + volatile("cor", "dram", (20_000_000, ""), (20_000_001, CORRECTED), (None, ""))
        + volatile("cor", "sram", (10_000, ""), (10_001, CORRECTED), (None, "")),
        gone=("ecc.cor.vol.total", "ecc.cor.vol.dram", "ecc.cor.vol.sram"),
    ),
    "lifetime counts are history": Signal(
        "h100", [({"ecc.unc.agg.total": 9, "ecc.cor.agg.total": 10**9}, "")]
    ),
    "SRAM threshold": Signal(
        "h100",
        [
            ({"sram": "9 9 9 0 0 9 9 9 9 9 9 0"}, ""),
            ({"sram": "9 9 9 0 0 9 9 9 9 9 9 1"}, "nvml/sram_threshold replace_node"),
            ({"sram": "9 9 9 0 0 9 9 9 9 9 9 1", "privileged": 0}, ""),
            ({"sram": None}, ""),
        ],
        gone=("sram",),
    ),
    "row remapping": Signal(
        "a100",
        [
            ({"remap": "5 511 0 0"}, ""),
            ({"remap": "0 1 1 0"}, "nvml/row_remap_pending reset_device/maintenance"),
            ({"remap": "0 1 0 1"}, "nvml/row_remap_failed replace_node"),
            ({"remap": "0 512 0 0"}, SPARE),
            ({"remap": None}, ""),
        ],
        gone=("remap",),
    ),
    "spare rows": Signal(
        "a100",
        [
            ({"histogram": "600 30 10 0 0"}, ""),
            ({"histogram": "639 0 0 1 0"}, SPARE),
            ({"histogram": "639 0 0 0 1"}, SPARE),
            ({"histogram": None}, ""),
        ],
        gone=("histogram",),
    ),
}

SIGNALS |= {
    "retired pages": Signal(
        "v100",
        [
            ({"pages.sbe": pages(40), "pages.dbe": pages(22)}, ""),
            ({"pages.sbe": pages(40), "pages.dbe": pages(23)}, "nvml/retired_pages replace_node"),
            ({"pages.pending": 1}, "nvml/page_retirement_pending reset_device/after_job"),
            ({"pages.sbe": None, "pages.dbe": None, "pages.pending": None}, ""),
        ],
        gone=("pages.sbe", "pages.dbe", "pages.pending"),
    ),
    "repair": Signal(
        "h100",
        [({"repair": "0 0"}, ""), ({"repair": "1 0"}, REPAIR), ({"repair": "0 1"}, REPAIR)],
        gone=("repair",),
    ),
    **{
        f"unrepairable memory, flag in word {at}": Signal(
            "b200",
            [
                ({"unrepairable": 0}, ""),
                ({"unrepairable": 1}, "nvml/memory_unrepairable replace_node"),
                ({"unrepairable": None}, ""),
            ],
            gone=("unrepairable",),
            abi=abi,
        )
        for at, abi in enumerate(({"abi.unrepairable": 4}, {}))
    },
    "NVLink to a switch": Signal(
        "h100",
        [({}, "")] * 6
        + [
            (keys, "nvml/nvlink_down reset_device")
            for keys in (
                {"nvlink.5.state": 0},
                {"nvlink.5.state": None},  # the driver does not know it, and all the others have it
                {"fi.91.0": "u32:17"},
                {"fi.91.0": "u32:0"},
            )
        ],
        gone=("nvlink.5.state",),
    ),
    "NVLink over a bridge": Signal(
        "h100",
        [({}, ""), ({"nvlink.5.state": 0}, "nvml/nvlink_down inspect"), ({}, ""), ({}, "")],
        gone=("nvlink.5.state",),
        everywhere={f"nvlink.{link}.remote": 0 for link in range(18)},
    ),
    "a link that no card uses": Signal("v100", [({}, "")] * 4, everywhere={"nvlink.5.state": 0}),
    "MIG switches the links off": Signal(
        "h100",
        [({}, "")] * 3
        + [
            ({"mig_mode": "1 1", "fi.91.0": "u32:0"}, ""),
            ({"mig_mode": "1 1", "nvlink.5.state": 0}, ""),
        ],
    ),
    "C2C": Signal(
        "gb200",
        [({}, ""), ({"fi.171.1": "u32:0"}, "nvml/c2c_link_down inspect"), ({"fi.170.0": None}, "")],
        gone=("fi.170.0",),
    ),
    "NVLink 5 recovery": Signal(
        "b200",
        [
            ({"fi.214.3": 0, "fi.213.3": 5}, ""),
            ({"fi.214.3": 1}, "nvml/nvlink_recovery_failed reset_device"),
            ({"fi.214.3": None}, ""),
        ],
        gone=("fi.214.3",),
    ),
    "fabric state": Signal(
        "h100",
        [
            fabric(0x1AA),
            fabric(0x1AA, "nvml/fabric_failed reset_device", status=999),
            fabric(0x1AA, "nvml/fabric_not_ready inspect", state=2, status=999),
            fabric(0x1AA, "nvml/fabric_not_ready inspect", state=1),
            fabric(0, state=0, status=999, summary=0),
            ({"fabric": None}, ""),
        ],
        gone=("fabric",),
    ),
    "fabric health mask": Signal(
        "h100",
        [
            *map(fabric, (0x1AA, 0x51AA, 0x0, 0xAA, 0x11AA, 0x21AA, 0x41AA)),
            *(fabric(bad, UNWELL) for bad in (0x1A9, 0x1A6, 0x19A, 0x16A, 0x81AA, 0x91AA)),
            *(fabric(0xAA | setting << 8, UNWELL) for setting in range(2, 9)),
        ],
        gone=("fabric",),
    ),
    "fabric summary": Signal(
        "h100",
        [
            fabric(0x1AA, found, summary=value)
            for value, found in enumerate(("", "", UNWELL, UNWELL))
        ],
        gone=("fabric",),
    ),
    "fabric before R580": Signal(
        "h100",
        [
            fabric(0x1AA, summary=2),
            fabric(0x1A9, UNWELL),
            fabric(0x1AA, "nvml/fabric_failed reset_device", status=999),
        ],
        gone=("fabric",),
        abi={"abi.fabric_max": 2},
    ),
}

BUSY = {"throttle": "0x0", "utilization": "90 40", "pstate": 0}
SIGNALS |= {
    "PCIe width": Signal(
        "h100",
        [
            ({"pcie.width": 16}, ""),
            ({"pcie.width": 8}, WIDTH),
            ({"pcie.width": 8, "pcie.width_max": 8}, ""),
            ({"pcie.width": None}, ""),
        ],
        gone=("pcie.width",),
    ),
    "PCIe generation": Signal(
        "h100",
        [
            ({**BUSY, "pcie.gen": 5}, ""),
            ({**BUSY, "pcie.gen": 4}, "nvml/pcie_generation inspect"),
            ({**BUSY, "pcie.gen": 4, "pstate": 2}, ""),
            ({**BUSY, "pcie.gen": 1, "throttle": "0x1"}, ""),
            ({**BUSY, "pcie.gen": 4, "throttle": None}, ""),
            ({**BUSY, "pcie.gen": 4, "pcie.gen_max": 4, "pcie.gen_gpu_max": 5}, ""),
            ({**BUSY, "pcie.gen": None}, ""),
        ],
        gone=("pcie.gen",),
    ),
    "PCIe errors": Signal(
        "h100",
        [
            ({"fi.173.0": 100, "fi.181.0": 100}, ""),
            ({"fi.179.0": 1}, "nvml/pcie_errors inspect"),
            ({"fi.180.0": 1}, "nvml/pcie_errors inspect"),
            ({"fi.179.0": None, "fi.180.0": None}, ""),
        ],
        gone=("fi.179.0", "fi.180.0"),
    ),
    "temperature": Signal(
        "a100",
        [
            ({"temp_c": 89}, ""),
            ({"temp_c": 90}, HOT),
            ({"fi.82.0": "u32:95"}, ""),
            ({"fi.82.0": "u32:96"}, HOT),
            ({"temp_c": 99, "threshold.1": None}, ""),
            ({"temp_c": None, "fi.82.0": None}, ""),
        ],
        gone=("temp_c", "fi.82.0"),
    ),
    "thermal margin": Signal(
        "h100",
        [
            ({"margin_c": 1, "throttle": "0x40"}, THROTTLED),
            ({"margin_c": 0, "throttle": "0x40"}, f"{HOT}, {THROTTLED}"),
            ({"margin_c": -3, "throttle": "0x20"}, HOT),
            ({"margin_c": -3, "throttle": "0x4"}, ""),
            ({"margin_c": -3, "throttle": None}, ""),
            ({"margin_c": None, "throttle": "0x0"}, ""),
        ],
        gone=("margin_c", "throttle"),
    ),
    "power": Signal(
        "l40s",
        [
            ({"throttle": "0x80"}, "nvml/power_brake inspect"),
            ({"throttle": "0x8"}, "nvml/hw_slowdown inspect"),
            ({"throttle": "0x48"}, THROTTLED),
            ({"throttle": "0x4"}, ""),
            ({"throttle": None}, ""),
        ],
        gone=("throttle",),
    ),
    "persistence mode": Signal(
        "t4",
        [
            ({"persistence": 1}, ""),
            ({"persistence": 0}, "nvml/persistence_off observe"),
            ({"persistence": None}, ""),
        ],
        gone=("persistence",),
    ),
    "ECC mode": Signal(
        "t4",
        [
            ({"ecc_mode": "1 0"}, "nvml/mode_change_pending observe"),
            ({"ecc_mode": "0 1"}, "nvml/ecc_off observe, nvml/mode_change_pending observe"),
            ({"ecc_mode": None}, ""),
        ],
        gone=("ecc_mode",),
    ),
}


@pytest.fixture(scope="module")
def signals(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("signals")
    numbers = {name: number for number, name in enumerate(SIGNALS)}
    return beside(SIGNALS, lambda name: tried(SIGNALS[name], folder / str(numbers[name])))


@pytest.mark.parametrize("name", SIGNALS)
def test_what_is_found(name: str, signals: Outcomes) -> None:
    outcome(signals, name)


async def tried(signal: Signal, folder: Path) -> None:
    """What is found. Then the call is no longer supported, which ends nothing; then all is well,
    which ends what lasted, and no count.
    """
    node = SimulatedNode(folder, signal.profile, len(signal.cases))
    node.set_global_values(signal.abi)
    healthy = {
        key: node.get_value(0, key) for keys, _ in signal.cases for key in (*keys, *signal.gone)
    }
    node.set_values(None, signal.everywhere)
    for gpu, (keys, _) in enumerate(signal.cases):
        node.set_values(gpu, keys)
    expected = {
        (f"gpu/{node.addresses[gpu]}", *one.split())
        for gpu, (_, found) in enumerate(signal.cases)
        for one in found.split(", ")
        if one
    }
    catalog = hasty()
    async with Looking(
        node, catalog, fast_s=0.08, slow_s=0.08, inventory_s=0.16 if signal.gone else 60
    ) as looking:
        await looking.until(lambda: looking.found() >= expected)
        await looking.looks(3)
        assert looking.found() == expected
        assert looking.state is SourceState.OK
        if signal.gone:
            for gpu, (_, found) in enumerate(signal.cases):
                if found:
                    node.set_values(gpu, dict.fromkeys(signal.gone))
            await looking.looks(5)
            assert looking.found() == expected, "what is not observable any more has not ended"
        for gpu, (keys, _) in enumerate(signal.cases):
            node.set_values(gpu, {key: healthy[key] for key in {*keys, *signal.gone}})
        lasting = {code for _, code, _ in expected if _lasts(catalog, code)}
        await looking.until(lambda: not any(code in lasting for _, code, _ in looking.found()))
        await looking.looks(2)
        assert looking.found() == {one for one in expected if one[1] not in lasting}


def _lasts(catalog: Catalog, code: str) -> bool:
    rule = catalog.find_rule(code)
    return rule.state or all(watch.is_state for watch in rule.thresholds)


# --- names


@pytest.mark.core
@story
async def test_every_watch_is_of_a_reading_that_there_is(tmp_path: Path) -> None:
    """A misspelt name would watch nothing, for ever."""
    names = {ComponentKind.GPU: set(OF_A_GPU), ComponentKind.NODE: OF_THE_NODE}
    for profile in list_profiles():
        node = SimulatedNode(tmp_path / profile, profile, 1)
        async with Looking(node, hasty()) as looking:
            await looking.until(lambda looking=looking: looking.read(0) is not None)
            one = looking.read(0)
            assert one is not None
            names[ComponentKind.GPU] |= set(one.values)
    unknown = {
        (watched.code, name)
        for watched in hasty().find_thresholds("nvml")
        for watch in watched.thresholds
        for name in (watch.of, *watch.only, watch.times, watch.limit)
        if isinstance(name, str) and name and name not in names[watched.component]
    }
    assert unknown == set()


# --- events that ask for nothing


@story
async def test_mig_firmware_and_driver_change_without_a_finding(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "a100", 2)
    node.set_values(0, {"remap": "0 1 1 0"})
    pending = {(f"gpu/{node.addresses[0]}", "nvml/row_remap_pending", "reset_device/maintenance")}
    async with Looking(node, hasty(), fast_s=0.05, slow_s=0.05, inventory_s=0.3) as looking:
        await looking.until(lambda: looking.found() == pending)
        assert not looking.of("nvml/mig_changed", "nvml/vbios_changed", "nvml/driver_changed")
        # Instances are there: rows are no longer told of, and the index space has a hole.
        node.set_values(0, {"mig_mode": "1 1", "mig.0": "1 0", "mig.2": "2 0", "remap": None})
        node.set_values(None, {"vbios": "92.00.99.00.01"})
        await looking.until(
            lambda: looking.of("nvml/mig_changed") and len(looking.of("nvml/vbios_changed")) == 2
        )
        await looking.looks(4)
        one = looking.read(0)
        assert one is not None
        assert (
            one.values["mig_mode"],
            one.values["mig_instances"],
            one.missing["row_remap_pending"],
        ) == (1, 2, "not supported")
        node.set_global_values(
            {"driver.version": "590.10.01"}
        )  # nobody sees that before the handles are stale
        node.reload_driver()
        await looking.until(lambda: looking.of("nvml/driver_changed"))
        assert looking.of("nvml/driver_changed")[0].fields == {
            "driver": "590.10.01",
            "was": "580.95.05",
        }
        assert (len(looking.of("nvml/vbios_changed")), len(looking.of("nvml/driver_changed"))) == (
            2,
            1,
        )
        assert {code for _, code, _ in looking.found()} <= {
            "nvml/row_remap_pending",
            "nvml/vbios_differs",
        }


# --- the driver cannot be asked


def as_real(node: SimulatedNode, path: Path) -> None:
    """The library without the mark by which it is known as simulated: what it says is no drill."""
    marked = node.library.read_bytes()
    assert b"\0vitald_simulated_nvml\0" in marked
    (path.with_suffix(".new")).write_bytes(
        marked.replace(b"\0vitald_simulated_nvml\0", b"\0vitald_something_else\0")
    )
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize(
    ("code", "asks", "advice"),
    [
        (4, "inspect", "/dev/nvidiactl"),
        (9, "inspect", "modprobe"),
        (12, "inspect", "libnvidia-ml"),
        (18, "reboot_node/after_job", "reload"),
        (999, "inspect", "/dev/nvidia"),
        (28, "inspect", "no GPU"),
        (17, "inspect", "NVML error 17"),
    ],
)
@story
async def test_a_driver_that_cannot_be_asked(
    code: int, asks: str, advice: str, tmp_path: Path
) -> None:
    node = SimulatedNode(tmp_path / "node", "h100", 1)
    library = tmp_path / "libnvidia-ml.so.1"
    if code != 12:
        node.set_global_values({"ret.nvmlInitWithFlags": code})
        as_real(node, library)
    with mock.patch.object(nvml_collector, "_RETRY", Backoff(0.02, 0.05)):
        async with Looking(node, hasty(), library=library) as looking:
            await looking.until(lambda: looking.asks(None, "nvml/unavailable", asks))
            assert looking.state is SourceState.FAILED
            assert advice in looking.last.detail
            assert not looking.last.readings
            await looking.looks(3)
            assert len(looking.of("nvml/unavailable")) == 1
            if code == 12:
                as_real(node, library)
            node.set_global_values({"ret.nvmlInitWithFlags": None})
            await looking.until(lambda: looking.state is SourceState.OK)
            assert looking.found() == set()


# --- windows, and an hour of health

# What grows on a sound GPU, in its reading's unit a second. Replays: below DCGM's limit for 16
# lanes of the generation.
GROWTH = {
    "energy_joules": 400.0,
    "power_capped_seconds": 0.05,
    "throttled_seconds": 0.01,
    "sw_thermal_seconds": 0.01,
}
REPLAYS = {1: 2.4, 2: 4.8, 3: 7.68, 4: 15.36, 5: 30.72, 6: 61.44}  # a minute
SLOW_S, STEP_S = 60.0, 10.0
FAST = {
    "recovery",
    "temperature_celsius",
    "margin_celsius",
    "memory_temperature_celsius",
    "power_watts",
    "utilization_ratio",
}
FAST |= {
    "clock_event_reasons",
    "idle",
    "power_capped",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "power_brake",
}
FAST |= {
    "power_capped_seconds",
    "thermal_slowdown_seconds",
    "sw_thermal_seconds",
    "hw_thermal_seconds",
    "power_brake_seconds",
}
FAST |= {"throttled_seconds"}


def at(
    answer: Mapping[str, Any], seconds: float, growth: Mapping[str, float], *, slow: bool
) -> dict[str, Any]:
    """A recorded answer as it is so much later; only the fast readings where it is no slow look's
    turn.
    """
    values = {name: value for name, value in answer["values"].items() if slow or name in FAST}
    for name, rate in growth.items():
        if name in values:
            grown = int(seconds * rate)
            values[name] = (
                [one + grown for one in values[name]]
                if isinstance(values[name], list)
                else values[name] + grown
            )
    return {**answer, "values": values}


@pytest.mark.parametrize("profile", list_profiles())
@story
async def test_a_poll_gives_or_misses_each_declared_reading_and_no_other(
    profile: str, tmp_path: Path
) -> None:
    attached, answers = await recorded(SimulatedNode(tmp_path, profile, 1))
    declared = {
        name
        for tier, names in attached["readings"].items()
        if tier != "profiling"
        for name in names
    }
    (answer,) = answers.values()
    assert {*answer["values"], *answer["missing"]} == declared


@pytest.mark.parametrize("profile", list_profiles())
@story
async def test_a_healthy_node_finds_nothing(profile: str, catalog: Catalog, tmp_path: Path) -> None:
    """A few real looks, then an hour under load."""
    node = SimulatedNode(tmp_path, profile)
    async with Looking(node, catalog, fast_s=0.05, slow_s=0.1, inventory_s=0.2) as looking:
        await looking.looks(6)
        assert (looking.found(), looking.state) == (set(), SourceState.OK)
        assert {event.code for event in looking.events} == {"device/identity"}
    node.set_values(None, {**BUSY, "temp_c": 70})
    attached, answers = await recorded(node)
    answers = dict(list(answers.items())[:4])  # as many as are compared with each other
    driven = Driven(catalog, attached, answers)
    generation = next(iter(answers.values()))["values"]["pcie_generation"]
    growth = {
        **GROWTH,
        "pcie_replays": REPLAYS[generation] * 0.95 / 60,
        "nvlink_crc_errors": 90.0,
        "nvlink_recoveries": 0.9 / 60,
    }
    for step in range(int(3600 / STEP_S)):
        seconds = step * STEP_S
        driven.look(
            {
                gpu: at(one, seconds, growth, slow=seconds % SLOW_S == 0)
                for gpu, one in answers.items()
            },
            STEP_S,
        )
    assert driven.found() == {}
    assert {event.code for event in driven.events} == {"device/identity"}


def windows() -> list[Any]:
    """What has to grow so fast, or to last so long: profile, values that hold, values that just do
    not, code, seconds.
    """
    cases = [
        (
            f"replays, PCIe {generation}",
            "h100",
            {"pcie_generation": generation},
            "pcie_replays",
            most / 60,
            "nvml/pcie_replays",
            600,
        )
        for generation, most in REPLAYS.items()
    ]
    cases += [
        ("CRC errors", "h100", {}, "nvlink_crc_errors", 100.0, "nvml/nvlink_errors", 300),
        *(
            (name, "h100", {}, name, 1 / 60, "nvml/nvlink_errors", 600)
            for name in ("nvlink_replays", "nvlink_recoveries")
        ),
        *(
            (name, "b200", {}, name, 1 / 60, "nvml/nvlink_errors", 600)
            for name in (
                "nvlink_recoveries",
                "nvlink_effective_errors",
                "nvlink_malformed_packets",
                "nvlink_buffer_overruns",
            )
        ),
        ("hardware thermal", "h100", {}, "hw_thermal_seconds", 0.2, "nvml/throttled", 300),
        ("software thermal", "l40s", {}, "sw_thermal_seconds", 0.2, "nvml/throttled", 300),
        (
            "thermal, before field 269",
            "v100",
            {},
            "thermal_slowdown_seconds",
            0.2,
            "nvml/throttled",
            300,
        ),
        ("power brake", "h100", {}, "power_brake_seconds", 0.2, "nvml/power_brake", 300),
    ]
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


@pytest.mark.parametrize(("profile", "fixed", "of", "limit", "code", "window_s"), windows())
@story
async def test_what_grows_too_fast(
    profile: str,
    fixed: dict[str, float],
    of: str,
    limit: float,
    code: str,
    window_s: float,
    catalog: Catalog,
    tmp_path: Path,
) -> None:
    """A tenth below the limit nothing; a tenth above it once the window is full of it; and it ends
    when it stops. The clock is turned by the test.
    """
    node = SimulatedNode(tmp_path, profile, 1)
    attached, answers = await recorded(node)
    gpu, answer = next(iter(answers.items()))
    answer["values"] |= fixed
    assert of in answer["values"]
    driven, total = Driven(catalog, attached, answers), 0.0

    def run(rate: float, seconds: float) -> float | None:
        """Until something is found, or the time is over: how long that took."""
        nonlocal total
        for passed in range(0, int(seconds), 10):
            total += rate * 10
            value = answer["values"][of]
            grown = [one + total for one in value] if isinstance(value, list) else value + total
            driven.look({gpu: {**answer, "values": {**answer["values"], of: grown}}}, 10)
            if code in driven.found():
                return passed
        return None

    assert run(limit * 0.9, window_s * 2) is None
    assert driven.found() == {}
    took = run(limit * 1.1, window_s * 2)
    assert took is not None
    assert took <= window_s
    driven.look(
        {
            gpu: {
                **answer,
                "values": {name: value for name, value in answer["values"].items() if name != of},
            }
        },
        window_s,
    )
    assert code in driven.found(), "what was not read has not ended"
    for _ in range(int(window_s / 10) + 5):
        value = answer["values"][of]
        grown = [one + total for one in value] if isinstance(value, list) else value + total
        driven.look({gpu: {**answer, "values": {**answer["values"], of: grown}}}, 10)
    assert driven.found() == {}


@pytest.mark.parametrize(
    ("profile", "values", "code", "for_s"),
    [
        ("a100", {"temperature_celsius": 90}, "nvml/temperature", 60),
        ("h100", {"margin_celsius": 0, "hw_thermal_slowdown": 1.0}, "nvml/temperature", 60),
        ("h100", {"power_brake": 1.0}, "nvml/power_brake", 60),
        ("h100", {"hw_thermal_slowdown": 1.0}, "nvml/throttled", 300),
        ("h100", {"pcie_width": 8}, "nvml/pcie_width", 60),
        (
            "h100",
            {"pcie_generation": 4, "idle": 0.0, "performance_state": 0},
            "nvml/pcie_generation",
            120,
        ),
        ("h100", {"fabric_state": 2}, "nvml/fabric_not_ready", 300),
        ("h100", {"fabric_route_recovery": 1.0}, "nvml/fabric_unhealthy", 300),
        ("h100", {"fabric_route_unhealthy": 1.0}, "nvml/fabric_unhealthy", 60),
    ],
)
@story
async def test_what_must_last(
    profile: str,
    values: dict[str, float],
    code: str,
    for_s: float,
    catalog: Catalog,
    tmp_path: Path,
) -> None:
    attached, answers = await recorded(SimulatedNode(tmp_path, profile, 1))
    gpu, answer = next(iter(answers.items()))
    driven = Driven(catalog, attached, answers)
    healthy, ill = {gpu: answer}, {gpu: {**answer, "values": {**answer["values"], **values}}}
    driven.look(healthy, 0)
    for _ in range(int(for_s / 10)):
        driven.look(ill, 10)
    assert driven.found() == {}
    driven.look(healthy, 10)  # interrupted: it begins anew
    driven.look(ill, 10)
    driven.look(ill, for_s - 1)
    assert driven.found() == {}
    driven.look(ill, 1)
    assert code in driven.found()
    driven.look(healthy, 10)
    assert code in driven.found()
    driven.look(healthy, 300)
    assert driven.found() == {}


# --- a restart, a boot


OTHER_BOOT = "b0070000-0000-4000-8000-000000000002"


@story
@pytest.mark.core
async def test_a_restart_tells_nothing_twice_and_what_happened_meanwhile_once(
    tmp_path: Path,
) -> None:
    node = SimulatedNode(tmp_path, "h100", 2)
    node.set_values(0, {"ecc.unc.vol.total": 3, "remap": "0 1 1 0", "fi.230.0": "u32:4"})
    node.set_values(1, {"ecc.unc.vol.total": 1, "persistence": 0})
    async with Looking(node, hasty()) as first:
        await first.until(lambda: len(first.found()) == 5)
        await first.looks(2)
    assert len(first.events) == 7  # and who they are
    node.set_values(0, {"ecc.unc.vol.total": 5})
    node.set_values(1, {"persistence": 1})
    async with Looking(node, hasty(), after=first) as second:
        await second.looks(3)
        assert {
            (event.code, event.component.id, tuple(event.fields.items())[:2])
            for event in second.events
        } == {
            ("nvml/ecc_uncorrected", node.addresses[0], (("ecc_uncorrected", 5), ("rise", 2))),
            (
                "nvml/persistence_off",
                node.addresses[1],
                (("recovered", True), ("persistence_mode", 1)),
            ),
        }
        assert len(second.events) == 2
        assert not second.asks(1, "nvml/persistence_off")
    async with Looking(node, hasty(), after=second) as third:
        await third.looks(3)
        assert third.events == []


@story
@pytest.mark.parametrize("boot", [BOOT, OTHER_BOOT])
async def test_a_lost_gpu_keeps_its_identity_over_a_restart(boot: str, tmp_path: Path) -> None:
    """Its metrics carry the same labels, except for the number that the driver gives anew."""
    node = SimulatedNode(tmp_path, "h100", 2)
    async with Looking(node, hasty()) as first:
        await first.looks(2)
        before = labels_of_lost(first)[node.addresses[1]]
    node.lose(1)
    async with Looking(node, hasty(), after=first, boot=boot) as second:
        await second.until(lambda: second.asks(1, "nvml/gpu_lost"))
        after = labels_of_lost(second)[node.addresses[1]]
    assert all(before.values())
    assert after == (before if boot == BOOT else {**before, "gpu": ""})


def labels_of_lost(looking: Looking) -> dict[str, dict[str, str]]:
    """Labels of `vitald_gpu_lost` by PCI address."""
    families = read_exported(GpuMetrics().collect_metrics(looking.last.readings))
    (lost,) = [family for family in families if family.name == "vitald_gpu_lost"]
    return {sample.labels["pci_bus_id"]: sample.labels for sample in lost.samples}


@story
async def test_after_a_boot_what_still_holds_is_told_again(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "h100", 2)
    node.set_values(0, {"ecc.unc.vol.total": 3, "remap": "0 1 1 0", "fi.230.0": "u32:4"})
    async with Looking(node, hasty()) as first:
        await first.until(lambda: len(first.found()) == 3)
        node.lose(1)
        await first.until(lambda: first.asks(1, "nvml/gpu_lost"))
    node.set_values(None, {"energy_mj": 1000})
    node.set_values(0, {"ecc.unc.vol.total": 0})
    async with Looking(node, hasty(), after=first, boot=OTHER_BOOT) as second:
        await second.looks(3)
        assert sorted(event.code for event in second.events) == [
            "nvml/gpu_lost",
            "nvml/recovery_action",
            "nvml/row_remap_pending",
        ]
        assert {event.boot_id for event in second.events} == {OTHER_BOOT}
    node.set_values(1, {"lost": None})
    async with Looking(node, hasty(), after=second, boot=OTHER_BOOT) as third:
        await third.until(lambda: third.of("nvml/gpu_lost"))
        assert third.of("nvml/gpu_lost")[0].fields["recovered"] is True


@story
async def test_a_gpu_that_was_never_met_recovers_too(tmp_path: Path) -> None:
    """It has no UUID while it is lost, and has one in the very look in which it is well again."""
    node = SimulatedNode(tmp_path, "h100", 2)
    node.set_values(1, {"lookup_ret": 15})
    async with Looking(node, hasty()) as first:
        await first.until(lambda: first.asks(1, "nvml/gpu_lost"))
    node.set_values(1, {"lookup_ret": None})
    async with Looking(node, hasty(), after=first) as second:
        await second.looks(4)
        assert second.found() == set()


@story
async def test_a_fault_that_hides_the_uuid_recovers_too(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "h100", 1)
    node.set_values(0, {"ret.nvmlDeviceGetInforomImageVersion": 14})
    async with Looking(node, hasty()) as looking:
        await looking.until(lambda: looking.asks(0, "nvml/corrupted_inforom"))
        node.set_values(0, {"ret.nvmlDeviceGetInforomImageVersion": None})
        await looking.until(lambda: looking.of("device/identity"))
        await looking.looks(8)
        assert looking.found() == set()


@story
async def test_a_gpu_that_is_gone_after_a_boot_is_named_and_may_come_back(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "h100", 4)
    async with Looking(node, hasty()) as first:
        await first.looks(2)
    node.remove(2)
    async with Looking(
        node, hasty(), after=first, boot=OTHER_BOOT, fast_s=5, slow_s=5, inventory_s=5
    ) as second:
        await second.until(lambda: second.batches)
        assert second.found() == {(f"gpu/{node.addresses[2]}", "nvml/gpu_missing", "reboot_node")}
        (event,) = second.of("nvml/gpu_missing")
        assert all(
            word in event.raw
            for word in (
                f"serial {node.serials[2]}",
                node.uuids[2],
                f"PCI {node.addresses[2]}",
                "slot 3",
            )
        )
        assert (event.fields["uuid"], event.fields["serial"], event.fields["slot"]) == (
            node.uuids[2],
            node.serials[2],
            "3",
        )
    async with Looking(node, hasty(), after=second, boot=OTHER_BOOT) as third:
        await third.looks(2)
        assert third.events == []
        node.put_back(2)
        await third.until(lambda: third.of("nvml/gpu_missing"))
        assert third.found() == set()
    async with Looking(node, hasty(), after=third, boot=BOOT) as fourth:
        await fourth.looks(2)
        assert (fourth.events, fourth.found()) == ([], set())


@story
async def test_another_board_in_the_slot_is_not_missing(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "h100", 2)
    async with Looking(node, hasty()) as first:
        await first.looks(2)
    new = "GPU-51a10000-0000-4000-8000-0000000000ff"
    node.set_values(1, {"uuid": new, "serial": "SIM99"})
    async with Looking(node, hasty(), after=first, boot=OTHER_BOOT) as second:
        await second.looks(3)
        assert [(event.code, event.component.id, event.fields) for event in second.events] == [
            ("device/identity", node.addresses[1], {"uuid": new, "serial": "SIM99"})
        ]
        assert second.found() == set()
    async with Looking(node, hasty(), after=second, boot=BOOT) as third:
        await third.looks(3)
        assert third.events == []


@story
async def test_where_a_dead_gpu_lets_the_others_move_up_only_it_is_missing(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "h100", 4)
    async with Looking(node, hasty()) as first:
        await first.looks(2)
    for to, whose in ((1, 2), (2, 3)):
        node.set_values(
            to, {"uuid": node.uuids[whose], "serial": node.serials[whose], "module": whose + 1}
        )
    node.remove(3)
    async with Looking(node, hasty(), after=first, boot=OTHER_BOOT) as second:
        await second.looks(3)
        assert [event.fields["uuid"] for event in second.of("nvml/gpu_missing")] == [node.uuids[1]]
        assert [event.fields["uuid"] for event in second.of("device/identity")] == node.uuids[2:]
        assert {code for _, code, _ in second.found()} == {"nvml/gpu_missing"}
    async with Looking(node, hasty(), after=second, boot=OTHER_BOOT) as third:
        await third.looks(3)
        assert third.events == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, {("nvml/gpu_missing", "reboot_node")}),
        ({"expected_gpus": 3}, set()),
        ({"expected_gpus": 2}, set()),
        ({"expected_gpus": 4}, {("nvml/gpu_missing", "reboot_node")}),
        (
            {"expected_gpus": 5},
            {("nvml/gpu_missing", "reboot_node"), ("nvml/gpu_count", "inspect")},
        ),
        ({"of_type": 8}, {("nvml/gpu_missing", "reboot_node"), ("nvml/gpu_count", "reboot_node")}),
    ],
    ids=["the bus", "3 expected", "2 expected", "4 expected", "5 expected", "8 by the instance"],
)
@story
async def test_how_many_there_should_be(
    settings: dict[str, Any], found: set[tuple[str, str]], tmp_path: Path
) -> None:
    """What the site says counts more than who was here; what the instance type says does not. What
    nobody but the site says is to be looked at: this node never had five.
    """
    node = SimulatedNode(tmp_path, "t4", 4)
    async with Looking(node, hasty()) as first:
        await first.looks(2)
        assert first.found() == set()
    node.remove(3)
    async with Looking(node, hasty(), after=first, boot=OTHER_BOOT, **settings) as second:
        await second.looks(3)
        assert {(code, asks) for _, code, asks in second.found()} == found


@story
async def test_gpus_that_come_late_cost_no_node(tmp_path: Path) -> None:
    """NVML lists one of four GPUs later than the others; then one is lost that was seen."""
    node = SimulatedNode(tmp_path, "t4", 4)
    node.set_values(2, {"absent": 1})
    async with Looking(node, hasty(), settle_s=3600.0) as looking:
        await looking.until(lambda: looking.asks(2, "nvml/gpu_not_initialised", "inspect"))
        node.set_values(2, {"absent": None})
        await looking.until(lambda: looking.found() == set())
        node.set_values(1, {"lost": 1})
        await looking.until(lambda: looking.asks(1, "nvml/gpu_lost", "reboot_node"))


@story
async def test_a_number_that_is_no_longer_configured_ends_its_finding(tmp_path: Path) -> None:
    """At a reload, and at a start."""
    node = SimulatedNode(tmp_path, "t4", 4)
    async with Looking(node, hasty(), expected_gpus=5) as first:
        await first.until(lambda: first.found() == {("node", "nvml/gpu_count", "inspect")})
        first.source.configure_expected(0, ExpectSettings())
        await first.until(lambda: not first.found())
        first.source.configure_expected(6, ExpectSettings())
        await first.until(lambda: first.found() == {("node", "nvml/gpu_count", "inspect")})
    async with Looking(node, hasty(), after=first) as second:
        await second.until(lambda: not second.found())


@story
@pytest.mark.core
async def test_gpus_that_leave_the_bus_at_run_time(tmp_path: Path) -> None:
    """One, then all of them."""
    node = SimulatedNode(tmp_path, "t4", 2)
    async with Looking(node, hasty()) as looking:
        await looking.looks(2)
        node.remove(1)
        await looking.until(lambda: looking.asks(1, "nvml/gpu_missing"))
        node.remove(0)
        await looking.until(lambda: looking.state is SourceState.ABSENT)
        await looking.looks(1)
        assert looking.asks(0, "nvml/gpu_missing", "reboot_node")
        assert looking.asks(1, "nvml/gpu_missing", "reboot_node")


# --- resets, reloads, lost GPUs


@pytest.mark.parametrize("gpus", [1, 3], ids=["the only one", "one of three"])
@story
async def test_a_reset_ends_what_waited_for_it(gpus: int, tmp_path: Path) -> None:
    """Its handle is stale then; the others' are not."""
    node = SimulatedNode(tmp_path, "h100", gpus)
    node.set_values(0, {"remap": "0 1 1 0", "ecc.unc.vol.total": 2})
    async with Looking(node, hasty()) as looking:
        await looking.until(lambda: len(looking.found()) == 2)
        node.reset(0)
        await looking.until(lambda: looking.of("device/reset"))
        assert [event.component.id for event in looking.of("device/reset")] == [node.addresses[0]]
        assert looking.found() == set()
        node.set_values(0, {"ecc.unc.vol.total": 1})
        await looking.until(lambda: looking.asks(0, "nvml/ecc_uncorrected"))
        assert looking.of("nvml/ecc_uncorrected")[-1].fields == {
            "ecc_uncorrected": 1,
            "rise": 1,
            "uuid": node.uuids[0],
            "serial": node.serials[0],
            "slot": "1",
        }
        await looking.looks(6)
        assert not looking.of("nvml/failing")


@pytest.mark.parametrize("lost", [False, True], ids=["", "while one is lost"])
@pytest.mark.parametrize("inventory_s", [0.1, 60], ids=lambda period: f"inventory {period}")
@story
async def test_a_driver_reload_is_a_reset_of_every_gpu(
    lost: bool, inventory_s: float, tmp_path: Path
) -> None:
    node = SimulatedNode(tmp_path, "a100", 3)
    node.set_values(0, {"remap": "0 1 1 0"})
    if lost:
        node.set_values(2, {"lookup_ret": 15})
    async with Looking(node, hasty(), inventory_s=inventory_s) as looking:
        await looking.until(
            lambda: (
                looking.asks(0, "nvml/row_remap_pending")
                and looking.asks(2, "nvml/gpu_lost") is lost
            )
        )
        node.reload_driver()
        await looking.until(
            lambda: (
                {event.component.id for event in looking.of("device/reset")}
                >= set(node.addresses[: 2 if lost else 3])
            ),
        )
        await looking.looks(4)
        assert {code for _, code, _ in looking.found()} == ({"nvml/gpu_lost"} if lost else set())
        assert not looking.of("nvml/failing")
        node.emit_event(0, XID, 13)  # an event of the new load is heard
        with mock.patch.object(inbox, "CORROBORATION_S", 0.1):
            await looking.until(lambda: looking.of("xid/13"))


@pytest.mark.parametrize(
    ("start", "how"),
    [
        (False, {"lost": 1}),
        (True, {"lost": 1}),
        (True, {"lookup_ret": 15}),
        (True, {"lookup_ret": 999}),
    ],
    ids=str,
)
@story
async def test_a_lost_gpu_is_asked_once_a_look_and_its_events_do_not_spin(
    start: bool, how: dict[str, int], tmp_path: Path
) -> None:
    node = SimulatedNode(tmp_path, "h100", 2, trace=True)
    if start:
        node.set_values(1, how)
    async with Looking(node, hasty(), fast_s=0.25, slow_s=0.25, inventory_s=60) as looking:
        await looking.until(lambda: looking.batches)
        node.set_values(1, how)
        await looking.until(lambda: looking.asks(1, "nvml/gpu_lost", "reboot_node"))
        began, looks = time.monotonic_ns(), len(looking.batches)
        await looking.looks(4)
        looks = len(looking.batches) - looks
        calls = since(node.read_calls(), began)
        on_it = [call for call in calls if call.gpu == 1]
        assert {call.ret for call in on_it} <= {15, 999}
        assert looks - 1 <= len(on_it) <= looks + 1, [call.function for call in on_it]
        assert len(since(calls, began, "nvmlEventSetWait_v2")) < 5 * looks
        assert (
            len([call for call in calls if call.gpu == 0]) > 20 * looks
        )  # the other is looked at in full
        one = looking.read(1)
        assert one is not None
        assert "temperature_celsius" not in one.values
        if not start:
            assert one.values["serial"] == node.serials[1]
        node.set_values(1, dict.fromkeys(how))
        await looking.until(lambda: not looking.asks(1, "nvml/gpu_lost"))


@pytest.mark.parametrize("code", [2, 17, 23])
@story
async def test_a_gpu_whose_look_up_fails_is_never_healthy(code: int, tmp_path: Path) -> None:
    """Silence is not health: whatever the code, it is a finding, or the source says that it does
    not look at all of its GPUs.
    """
    node = SimulatedNode(tmp_path, "h100", 2)
    node.set_values(1, {"lookup_ret": code})
    async with Looking(node, hasty(), fast_s=0.05) as looking:
        await looking.looks(6)
        assert looking.found() or looking.state is not SourceState.OK


@pytest.mark.parametrize("code", [4, 27])
@story
async def test_a_gpu_that_answers_nothing_without_a_fault_is_not_known(
    code: int, tmp_path: Path
) -> None:
    """No permission, or not ready: neither says anything of its health."""
    node = SimulatedNode(tmp_path, "h100", 2)
    async with Looking(node, hasty(), fast_s=0.05) as looking:
        await looking.until(lambda: looking.state is SourceState.OK)
        node.set_values(1, {"ret.*": code})
        await looking.until(lambda: looking.state is SourceState.FAILED)
        assert f"gpu/{node.addresses[1]}: NVML answers nothing about it" in looking.last.detail
        assert looking.found() == set()
        node.set_values(1, {"ret.*": None})
        await looking.until(lambda: looking.state is SourceState.OK)


@pytest.mark.parametrize(
    ("profile", "driver", "older"),
    [
        (
            "v100",
            "470.256.02",
            ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"),
        ),
        ("h100", "550.90.07", ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetPlatformInfo")),
        ("gb200", "595.44.02", ()),
    ],
)
@story
async def test_what_is_observable_is_the_same_at_each_look(
    profile: str, driver: str, older: tuple[str, ...], tmp_path: Path
) -> None:
    """Whichever tier was asked: each reading is there or not observable, and never both."""
    node = SimulatedNode(tmp_path, profile, 2)
    node.set_global_values({"driver.version": driver, **{f"ret.{name}": 13 for name in older}})
    async with Looking(node, hasty(), fast_s=0.05, slow_s=0.15, inventory_s=0.5) as looking:
        await looking.looks(6)
        await looking.looks(24)
        seen = [
            one
            for batch in looking.batches[6:]
            for one in batch.readings
            if one.component.id == node.addresses[0]
        ]
        assert len({(frozenset(one.values), frozenset(one.missing.items())) for one in seen}) == 1
        assert not seen[-1].values.keys() & seen[-1].missing.keys()


@story
async def test_mig_that_takes_links_away_is_no_fault_of_them(tmp_path: Path) -> None:
    """The mode is read with the links, not minutes after them."""
    node = SimulatedNode(tmp_path, "h100", 3)
    async with Looking(node, hasty(), inventory_s=60) as looking:
        await looking.looks(3)
        node.set_values(
            1, {"mig_mode": "1 1", "mig.0": "1 0", "nvlink.3.state": 0, "nvlink.4.state": 0}
        )
        await looking.until(
            lambda: (one := looking.read(1)) is not None and one.values.get("nvlinks_active") == 16
        )
        await looking.looks(3)
        assert looking.found() == set()


@story
async def test_what_a_call_said_before_it_was_no_longer_supported_can_end(tmp_path: Path) -> None:
    """A call that failed, and is then not supported (MIG was switched on): there is nothing left
    that fails.
    """
    node = SimulatedNode(tmp_path, "a100", 1)
    node.set_values(0, {"ret.nvmlDeviceGetRemappedRows": 999})
    async with Looking(node, hasty(), fast_s=0.05, slow_s=0.05) as looking:
        await looking.until(lambda: looking.asks(0, "nvml/failing"))
        node.set_values(0, {"ret.nvmlDeviceGetRemappedRows": None, "remap": None})
        await looking.until(lambda: not looking.asks(0, "nvml/failing"))


@story
async def test_a_look_that_fails_ends_no_fault(tmp_path: Path) -> None:
    """Lost, and then every call fails with an error that says nothing: it has not come back."""
    node = SimulatedNode(tmp_path, "a100", 2)
    async with Looking(node, hasty()) as looking:
        await looking.looks(2)
        node.lose(1)
        await looking.until(lambda: looking.asks(1, "nvml/gpu_lost"))
        node.set_values(1, {"lost": None, "ret.*": 999})
        await looking.looks(6)
        assert looking.asks(1, "nvml/gpu_lost")
        node.set_values(1, {"ret.*": None})
        await looking.until(lambda: looking.found() == set())


# --- NVML's own events


@story
async def test_an_xid_event_is_a_reason_to_look_at_once_and_speaks_later(tmp_path: Path) -> None:
    """The next look without an event would come in an hour."""
    node = SimulatedNode(tmp_path, "h100", 2)
    async with Looking(node, hasty(), fast_s=HOUR_S, slow_s=HOUR_S, inventory_s=HOUR_S) as looking:
        await looking.until(lambda: looking.batches)
        node.set_values(1, {"remap": "0 1 1 0"})
        node.emit_event(1, XID, 79)
        node.emit_event(0, XID, 999)
        await looking.until(lambda: looking.of("xid/79"))
        told = time.time()
        (remap,), (event,) = looking.of("nvml/row_remap_pending"), looking.of("xid/79")
        assert looking.events.index(remap) < looking.events.index(event)
        assert (event.component.id, event.fields["witness"], event.fields["number"]) == (
            node.addresses[1],
            "nvml",
            79,
        )
        assert told - event.time >= inbox.CORROBORATION_S - 0.1  # when heard, not when told
        assert {one.code for one in looking.events if one.kind == "xid"} == {"xid/79"}


@story
async def test_an_event_is_about_the_gpu_that_it_names(tmp_path: Path) -> None:
    """Also where it comes through every GPU's event set, as from NVIDIA's mock."""
    node = SimulatedNode(tmp_path, "h100", 3)
    node.set_global_values({"abi.any_set": 1})
    with mock.patch.object(inbox, "CORROBORATION_S", 0.1):
        async with Looking(node, hasty()) as looking:
            await looking.until(lambda: looking.batches)
            node.emit_event(1, XID, 79)
            await looking.until(lambda: looking.of("xid/79"))
            await looking.looks(5)
            assert {event.component.id for event in looking.of("xid/79")} == {node.addresses[1]}


@story
async def test_another_event_is_a_reason_to_look_too(tmp_path: Path) -> None:
    """GPU unavailable, and a changed recovery action: they carry no data, and no Xid comes with
    them.
    """
    node = SimulatedNode(tmp_path, "h100", 2)
    async with Looking(node, hasty(), fast_s=HOUR_S, slow_s=HOUR_S, inventory_s=HOUR_S) as looking:
        await looking.until(lambda: looking.batches)
        node.set_values(1, {"fi.230.0": "u32:2"})
        node.emit_event(1, 0x8000)
        await looking.until(lambda: looking.asks(1, "nvml/recovery_action", "reboot_node"))
        node.set_values(0, {"fi.230.0": "u32:1"})
        node.emit_event(0, 0x4000)
        await looking.until(lambda: looking.asks(0, "nvml/recovery_action", "reset_device"))
        assert not [event for event in looking.events if event.kind == "xid"]


@story
async def test_a_storm_of_events_is_a_few_looks(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "h100", 2, trace=True)
    async with Looking(node, hasty(), fast_s=20, slow_s=20, inventory_s=20) as looking:
        await looking.until(lambda: looking.batches)
        began, looks = time.monotonic_ns(), len(looking.batches)
        for number in range(500):
            node.emit_event(number % 2, XID, 31)
            if number % 50 == 49:
                await asyncio.sleep(0.1)
        assert len(looking.batches) - looks <= 10
        await looking.until(lambda: looking.of("xid/31"))
        asked = since(node.read_calls(), began, "nvmlDeviceGetTemperature")
        assert 2 <= len(asked) <= 2 * 5 * 4  # both GPUs, five looks a second
        assert 1 <= len(looking.of("xid/31")) <= 500


@pytest.mark.parametrize(
    "failing",
    [
        {
            "ret.nvmlSystemGetCudaDriverVersion_v2": 12
        },  # as documented, where libcuda.so.1 is not there: a container for `utility` only
        {"ret.nvmlSystemGetNVMLVersion": 999},
        {"ret.nvmlGetExcludedDeviceCount": 999},
        {"ret.nvmlEventSetCreate": 999},
        {"ret.nvmlDeviceRegisterEvents": 999},
    ],
    ids=lambda failing: next(iter(failing)),
)
@story
async def test_what_is_not_needed_may_fail(failing: dict[str, int], tmp_path: Path) -> None:
    """The GPUs are looked at all the same."""
    node = SimulatedNode(tmp_path, "h100", 2)
    node.set_global_values(failing)
    async with Looking(node, hasty()) as looking:
        await looking.until(lambda: looking.batches)
        assert (looking.state, looking.found(), len(looking.last.readings)) == (
            SourceState.OK,
            set(),
            2,
        )


@story
async def test_a_bus_that_cannot_be_read_is_said_and_misses_nobody(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path / "node", "h100", 2)
    async with Looking(node, hasty()) as looking:
        await looking.looks(2)
        devices = node.sysfs / "bus/pci/devices"
        devices.rename(devices.with_name("aside"))
        devices.write_text("")
        await looking.until(lambda: looking.state is SourceState.FAILED)
        assert looking.found() == set()
        devices.unlink()
        devices.with_name("aside").rename(devices)
        await looking.until(lambda: looking.state is SourceState.OK)
        assert looking.found() == set()
