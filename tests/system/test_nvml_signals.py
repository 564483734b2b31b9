"""What each of NVML's signals comes to: real worker, real binding, simulated library; source and judge as in the daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agent.catalog import Catalog
from agent.catalog.watch import Test as Check
from agent.model import Component, ComponentKind, Readings, Sample, SourceState
from agent.simulator import build
from agent.simulator.node import SimulatedNode, profiles
from agent.sources.nvml import node as nvml_node
from agent.sources.nvml import source as nvml_source
from agent.sources.nvml.node import GpuNode
from agent.sources.watch import Watcher
from tests.conftest import require
from tests.system.nvml import BOOT, Driven, Looking, recorded, hasty, renewed, since, story

XID, NODE_WATCHES = 0x8, {"gpus", "gpus_expected", "unavailable", "driver", "nvml", "vbios_versions"}
OF_THE_NODE = {"lost", "reset_required", "corrupted_inforom", "irq_issue", "insufficient_power", "not_initialised", "no_permission"}
OF_THE_NODE |= {"failing_calls", "missing", "nvlink_down"} | NODE_WATCHES


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    try:
        build.library()
    except build.CannotBuild as error:
        require(None, str(error))


@dataclass(frozen=True)
class Signal:
    """Values that GPUs of a node have, one GPU each, and what is found: "code action", several by commas, or nothing.

    `gone`: the keys whose call is then no longer supported. That must end nothing.
    """

    profile: str
    cases: list[tuple[dict[str, Any], str]]
    gone: tuple[str, ...] = ()
    everywhere: Mapping[str, Any] = field(default_factory=dict)
    abi: Mapping[str, Any] = field(default_factory=dict)


def volatile(kind: str, place: str, *values: tuple[int | None, str]) -> list[tuple[dict[str, Any], str]]:
    return [({f"ecc.{kind}.vol.{place}": value}, found) for value, found in values]


def fabric(mask: int, found: str = "", *, state: int = 3, status: int = 0, summary: int = 1) -> tuple[dict[str, Any], str]:
    return {"fabric": f"{state} {status} {mask:#x} {summary} 1 51a10000fab04000800000000000c1a5"}, found


def pages(count: int) -> str:
    return " ".join(f"{0x1000 * page:#x}" for page in range(count))


UNWELL, WIDTH = "nvml/fabric_unhealthy inspect", "nvml/pcie_width inspect"
CORRECTED, SPARE, REPAIR = "nvml/ecc_corrected inspect", "nvml/spare_rows_low observe", "nvml/repair_pending reset_device/after_job"
WORDS = "inspect", "reset_device", "reboot_node", "inspect", "reset_device/after_job", "inspect", "reset_device", "reboot_node"
HOT, THROTTLED = "nvml/temperature inspect", "nvml/throttled observe"

SIGNALS = {
    "recovery action": Signal(
        "h100",
        [({"fi.230.0": f"u32:{value}"}, f"nvml/recovery_action {WORDS[value]}" if value else "") for value in range(8)]
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
            ({"ret.nvmlDeviceGetMemoryInfo": 16}, "nvml/reset_required reset_device"),
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
            ({"lookup_ret": 4}, "nvml/no_permission inspect"),
            ({"lookup_ret": 8}, "nvml/insufficient_power inspect"),
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
    "ECC corrected": Signal(
        "h100",
        volatile("cor", "total", (50_000_000, ""), (50_000_001, CORRECTED), (None, ""))
        + volatile("cor", "dram", (20_000_000, ""), (20_000_001, CORRECTED), (None, ""))
        + volatile("cor", "sram", (10_000, ""), (10_001, CORRECTED), (None, "")),
        gone=("ecc.cor.vol.total", "ecc.cor.vol.dram", "ecc.cor.vol.sram"),
    ),
    "lifetime counts are history": Signal("h100", [({"ecc.unc.agg.total": 9, "ecc.cor.agg.total": 10**9}, "")]),
    "SRAM threshold": Signal(
        "h100",
        [
            ({"sram": "9 9 9 9 9 9 9 9 9 9 9 0"}, ""),
            ({"sram": "9 9 9 9 9 9 9 9 9 9 9 1"}, "nvml/sram_threshold replace_node"),
            ({"sram": "9 9 9 9 9 9 9 9 9 9 9 1", "privileged": 0}, ""),
            ({"sram": None}, ""),
        ],
        gone=("sram",),
    ),
    "row remapping": Signal(
        "a100",
        [
            ({"remap": "5 511 0 0"}, ""),
            ({"remap": "0 1 1 0"}, "nvml/row_remap_pending reset_device/after_job"),
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
    "repair": Signal("h100", [({"repair": "0 0"}, ""), ({"repair": "1 0"}, REPAIR), ({"repair": "0 1"}, REPAIR)], gone=("repair",)),
    **{
        f"unrepairable memory, flag in word {at}": Signal(
            "b200",
            [({"unrepairable": 0}, ""), ({"unrepairable": 1}, "nvml/memory_unrepairable replace_node"), ({"unrepairable": None}, "")],
            gone=("unrepairable",),
            abi=abi,
        )
        for at, abi in enumerate(({"abi.unrepairable": 4}, {}))
    },
    "NVLink to a switch": Signal(
        "h100",
        [({}, ""), ({"nvlink.5.state": 0}, "nvml/nvlink_down reset_device"), ({"nvlink.5.state": None}, ""), ({}, ""), ({}, "")],
        gone=("nvlink.5.state",),
    ),
    "NVLink over a bridge": Signal(
        "h100",
        [({}, ""), ({"nvlink.5.state": 0}, "nvml/nvlink_down inspect"), ({}, ""), ({}, "")],
        gone=("nvlink.5.state",),
        everywhere={f"nvlink.{link}.remote": 0 for link in range(18)},
    ),
    "a link that no card uses": Signal("v100", [({}, "")] * 4, everywhere={"nvlink.5.state": 0}),
    "NVLink 5 recovery": Signal(
        "b200",
        [({"fi.214.3": 0, "fi.213.3": 5}, ""), ({"fi.214.3": 1}, "nvml/nvlink_recovery_failed reset_device"), ({"fi.214.3": None}, "")],
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
        "h100", [fabric(0x1AA, found, summary=value) for value, found in enumerate(("", "", UNWELL, UNWELL))], gone=("fabric",)
    ),
    "fabric before R580": Signal(
        "h100",
        [fabric(0x1AA, summary=2), fabric(0x1A9, UNWELL), fabric(0x1AA, "nvml/fabric_failed reset_device", status=999)],
        gone=("fabric",),
        abi={"abi.fabric_max": 2},
    ),
}

BUSY = {"throttle": "0x0", "utilization": "90 40", "pstate": 0}
SIGNALS |= {
    "PCIe width": Signal(
        "h100",
        [({"pcie.width": 16}, ""), ({"pcie.width": 8}, WIDTH), ({"pcie.width": 8, "pcie.width_max": 8}, ""), ({"pcie.width": None}, "")],
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
            ({"throttle": "0x8"}, ""),
            ({"throttle": "0x4"}, ""),
            ({"throttle": None}, ""),
        ],
        gone=("throttle",),
    ),
    "persistence mode": Signal(
        "t4",
        [({"persistence": 1}, ""), ({"persistence": 0}, "nvml/persistence_off observe"), ({"persistence": None}, "")],
        gone=("persistence",),
    ),
    "ECC mode": Signal(
        "t4",
        [({"ecc_mode": "1 0"}, ""), ({"ecc_mode": "0 1"}, "nvml/ecc_off observe"), ({"ecc_mode": None}, "")],
        gone=("ecc_mode",),
    ),
}


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=list(SIGNALS))
@story
async def test_what_is_found(signal: Signal, tmp_path: Path) -> None:
    """Then the call is no longer supported, which ends nothing; then all is well, which ends what lasted, and no count."""
    node = SimulatedNode(tmp_path, signal.profile, len(signal.cases))
    node.set_global(signal.abi)
    healthy = {key: node.get(0, key) for keys, _ in signal.cases for key in (*keys, *signal.gone)}
    node.set(None, signal.everywhere)
    for gpu, (keys, _) in enumerate(signal.cases):
        node.set(gpu, keys)
    expected = {
        (f"gpu/{node.addresses[gpu]}", *one.split()) for gpu, (_, found) in enumerate(signal.cases) for one in found.split(", ") if one
    }
    catalog = hasty()
    async with Looking(node, catalog, fast_s=0.04, slow_s=0.04, inventory_s=0.08 if signal.gone else 60) as looking:
        await looking.until(lambda: looking.found() >= expected)
        await looking.looks(3)
        assert looking.found() == expected
        assert looking.state is SourceState.OK
        if signal.gone:
            for gpu, (keys, found) in enumerate(signal.cases):
                if found:
                    node.set(gpu, dict.fromkeys(signal.gone))
            await looking.looks(5)
            assert looking.found() == expected, "what is not observable any more has not ended"
        for gpu, (keys, _) in enumerate(signal.cases):
            node.set(gpu, {key: healthy[key] for key in {*keys, *signal.gone}})
        lasting = {code for _, code, _ in expected if _lasts(catalog, code)}
        await looking.until(lambda: not any(code in lasting for _, code, _ in looking.found()))
        await looking.looks(2)
        assert looking.found() == {one for one in expected if one[1] not in lasting}


def _lasts(catalog: Catalog, code: str) -> bool:
    rule = catalog.rule(code)
    return rule.state or all(watch.lasting for watch in rule.watches)


# --- names


@story
async def test_every_watch_is_of_a_reading_that_there_is(tmp_path: Path) -> None:
    """A misspelt name would watch nothing, for ever."""
    names = set(OF_THE_NODE)
    for profile in profiles():
        node = SimulatedNode(tmp_path / profile, profile, 1)
        async with Looking(node, hasty()) as looking:
            await looking.until(lambda looking=looking: looking.read(0) is not None)
            one = looking.read(0)
            assert one is not None
            names |= set(one.values)
    named = {}
    for watched in hasty().watched("nvml"):
        for watch in watched.watches:
            named |= dict.fromkeys((watch.of, *watch.only, *filter(None, (watch.times,))), watched.code)
            named |= {watch.limit: watched.code} if isinstance(watch.limit, str) else {}
    assert {name: code for name, code in named.items() if name not in names} == {}


# --- events that ask for nothing


@story
async def test_mig_firmware_and_driver_change_without_a_finding(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path, "a100", 2)
    node.set(0, {"remap": "0 1 1 0"})
    pending = {(f"gpu/{node.addresses[0]}", "nvml/row_remap_pending", "reset_device/after_job")}
    async with Looking(node, hasty(), fast_s=0.05, slow_s=0.05, inventory_s=0.3) as looking:
        await looking.until(lambda: looking.found() == pending)
        assert not looking.of("nvml/mig_changed", "nvml/vbios_changed", "nvml/driver_changed")
        # Instances are there: rows are no longer told of, and the index space has a hole.
        node.set(0, {"mig_mode": "1 1", "mig.0": "1 0", "mig.2": "2 0", "remap": None})
        node.set(None, {"vbios": "92.00.99.00.01"})
        await looking.until(lambda: looking.of("nvml/mig_changed") and len(looking.of("nvml/vbios_changed")) == 2)
        await looking.looks(4)
        one = looking.read(0)
        assert one is not None
        assert (one.values["mig_mode"], one.values["mig_instances"], one.missing["remapped_rows"]) == (1, 2, "not supported")
        node.set_global({"driver.version": "590.10.01"})  # nobody sees that before the handles are stale
        node.reload_driver()
        await looking.until(lambda: looking.of("nvml/driver_changed"))
        assert looking.of("nvml/driver_changed")[0].fields == {"driver": "590.10.01", "was": "580.95.05"}
        assert (len(looking.of("nvml/vbios_changed")), len(looking.of("nvml/driver_changed"))) == (2, 1)
        assert {code for _, code, _ in looking.found()} <= {"nvml/row_remap_pending", "nvml/vbios_differs"}


# --- the driver cannot be asked


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
async def test_a_driver_that_cannot_be_asked(code: int, asks: str, advice: str, tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path / "node", "h100", 1)
    library = tmp_path / "libnvidia-ml.so.1" if code == 12 else None
    if code != 12:
        node.set_global({"ret.nvmlInitWithFlags": code})
    with mock.patch.object(nvml_source, "_RETRY_S", (0.1, 0.2)):
        async with Looking(node, hasty(), library=library) as looking:
            await looking.until(lambda: looking.asks(None, "nvml/unavailable", asks))
            assert looking.state is SourceState.FAILED
            assert advice in looking.last.detail
            assert not looking.last.readings
            await looking.looks(3)
            assert len(looking.of("nvml/unavailable")) == 1
            if library is not None:
                library.symlink_to(node.library)
            node.set_global({"ret.nvmlInitWithFlags": None})
            await looking.until(lambda: looking.state is SourceState.OK)
            assert [event.fields["unavailable"] for event in looking.of("nvml/unavailable")] == [code, 0]


# --- windows, and an hour of health

# What grows on a sound GPU, in its reading's unit a second. Replays: below DCGM's limit for 16 lanes of the generation.
GROWTH = {"energy_joules": 400.0, "power_capped_seconds": 0.05, "throttled_seconds": 0.01, "sw_thermal_seconds": 0.01}
REPLAYS = {1: 2.4, 2: 4.8, 3: 7.68, 4: 15.36, 5: 30.72, 6: 61.44}  # a minute
SLOW_S, STEP_S = 60.0, 10.0
FAST = {"recovery", "temperature_celsius", "margin_celsius", "memory_temperature_celsius", "power_watts", "utilization_ratio"}
FAST |= {"clock_event_reasons", "idle", "power_capped", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "power_brake"}
FAST |= {"power_capped_seconds", "thermal_slowdown_seconds", "sw_thermal_seconds", "hw_thermal_seconds", "power_brake_seconds"}
FAST |= {"throttled_seconds"}


def at(answer: Mapping[str, Any], seconds: float, growth: Mapping[str, float], *, slow: bool) -> dict[str, Any]:
    """A recorded answer as it is so much later; only the fast readings where it is no slow look's turn."""
    values = {name: value for name, value in answer["values"].items() if slow or name in FAST}
    for name, rate in growth.items():
        if name in values:
            grown = int(seconds * rate)
            values[name] = [one + grown for one in values[name]] if isinstance(values[name], list) else values[name] + grown
    return {**answer, "values": values}


@pytest.mark.parametrize("profile", profiles())
@story
async def test_a_healthy_node_finds_nothing(profile: str, catalog: Catalog, tmp_path: Path) -> None:
    """A few real looks, then an hour under load."""
    node = SimulatedNode(tmp_path, profile)
    async with Looking(node, catalog, fast_s=0.05, slow_s=0.2) as looking:
        await looking.until(lambda: looking.batches)
        await looking.looks(6)
        assert (looking.found(), looking.state) == (set(), SourceState.OK)
        assert {event.code for event in looking.events} == {"device/identity"}
    node.set(None, {**BUSY, "temp_c": 70})
    attached, answers = await recorded(node)
    driven = Driven(catalog, attached, answers)
    generation = next(iter(answers.values()))["values"]["pcie_generation"]
    growth = {**GROWTH, "pcie_replays": REPLAYS[generation] * 0.95 / 60, "nvlink_crc_errors": 90.0, "nvlink_recoveries": 0.9 / 60}
    for step in range(int(3600 / STEP_S)):
        seconds = step * STEP_S
        driven.look({gpu: at(one, seconds, growth, slow=seconds % SLOW_S == 0) for gpu, one in answers.items()}, STEP_S)
    assert driven.found() == {}
    assert {event.code for event in driven.events} == {"device/identity"}
