"""Bytes over PCIe and NVLink, and the load of encoders and decoders: what the worker reads."""

from __future__ import annotations

import pytest

from tests.unit.test_nvml_readings import Look, failing, fields

SENT, RECEIVED = 5 * 2**32, 6 * 2**32
ALL_LINKS = 0xFFFFFFFF
NARROW = "the counter may have only 32 bits"


def test_bytes_over_pcie_by_direction() -> None:
    look = Look(nvmlDeviceGetFieldValues=fields({197: SENT, 198: RECEIVED}))
    assert look.read("pcie_bytes")["values"] == {
        "pcie_transmitted_bytes": SENT,
        "pcie_received_bytes": RECEIVED,
    }


def test_a_counter_that_may_wrap_is_not_observable() -> None:
    """Until it has passed 32 bits: from then on it counts, also after a reset."""
    counts = {197: 3020371496.0, 198: 3893142392.0}
    look = Look(nvmlDeviceGetFieldValues=lambda ids: fields(counts)(ids))
    answer = look.read("pcie_bytes")
    assert (answer["values"], answer["failing"]) == ({}, {})
    assert set(answer["missing"].values()) == {NARROW}
    counts[198] = 2.0**32
    assert look.read("pcie_bytes")["values"]["pcie_transmitted_bytes"] == 3020371496.0
    counts |= {197: 1.0, 198: 2.0}
    assert look.read("pcie_bytes")["values"]["pcie_received_bytes"] == 2.0


def test_bytes_over_all_nvlinks_are_the_drivers_sum() -> None:
    known = {(138, ALL_LINKS): 3.0, (139, ALL_LINKS): 4.0}
    look = Look(nvmlDeviceGetFieldValues=fields(known))
    assert look.read("nvlink_bytes")["missing"] == dict.fromkeys(
        ("nvlink_received_bytes", "nvlink_transmitted_bytes"), "not supported"
    )
    look.gpu.links = 18
    look.gpu.skipped.clear()
    assert look.read("nvlink_bytes")["values"] == {
        "nvlink_transmitted_bytes": 3072.0,
        "nvlink_received_bytes": 4096.0,
    }


def test_nvlink_5_is_summed_over_its_links_where_the_driver_has_no_sum() -> None:
    """A link that is down answers nothing."""
    counts = {(202, 0): 5.0, (202, 2): 7.0, (204, 0): 1.0}
    look = Look(nvmlDeviceGetFieldValues=lambda ids: fields(counts)(ids))
    look.gpu.links, look.gpu.nvlink5 = 3, True
    answer = look.read("nvlink_bytes")
    assert (answer["values"], answer["missing"]) == (
        {"nvlink_transmitted_bytes": 12.0, "nvlink_received_bytes": 1.0},
        {},
    )
    del counts[202, 2]
    counts[202, 0] = 9.0
    assert look.read("nvlink_bytes")["values"]["nvlink_transmitted_bytes"] == 16.0
    counts.clear()
    assert look.read("nvlink_bytes")["values"] == {}


def test_encoders_and_decoders() -> None:
    look = Look(
        nvmlDeviceGetEncoderUtilization=lambda: [25, 167000],
        nvmlDeviceGetDecoderUtilization=lambda: [0, 167000],
    )
    assert look.read("codecs")["values"] == {
        "encoder_utilization_ratio": 0.25,
        "decoder_utilization_ratio": 0.0,
    }


@pytest.mark.parametrize("call", ["codecs", "pcie_bytes", "nvlink_bytes"])
def test_what_only_shows_traffic_is_no_fault(call: str) -> None:
    """That such a call fails is no finding: nothing is judged by it."""
    look = Look(
        nvmlDeviceGetFieldValues=failing(999),
        nvmlDeviceGetEncoderUtilization=failing(999),
        nvmlDeviceGetDecoderUtilization=failing(999),
    )
    look.gpu.links = 18
    for _ in range(5):
        answer = look.read(call)
    assert set(answer["missing"].values()) == {"fails with NVML error 999"}
    assert answer["failing"] == {}
