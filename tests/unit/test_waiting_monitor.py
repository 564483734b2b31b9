"""What of the readings makes a look, and when the notice comes and goes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builders import catalogue, gpu
from vitald.core.node_state import NodeState
from vitald.core.waiting_monitor import TrafficMeter, WaitingMonitor
from vitald.judge.engine import Judge
from vitald.model import (
    NODE,
    Batch,
    Component,
    ComponentKind,
    Event,
    Readings,
    Sample,
    SourceHealth,
    SourceState,
)
from vitald.model.notice import WAITING
from vitald.worker_thread import WorkerThread

NIC = Component(ComponentKind.NIC, "0000:1a:00.0")
WAITS = {
    "utilization_ratio": 1.0,
    "power_watts": 128.0,
    "power_limit_watts": 700.0,
    "processes": 1.0,
    "nvlinks": 18.0,
    "pcie_received_bytes": 1e12,
    "pcie_transmitted_bytes": 1e12,
    "nvlink_received_bytes": 1e12,
    "nvlink_transmitted_bytes": 1e12,
}
T4 = {
    name: value
    for name, value in WAITS.items()
    if not name.endswith("_bytes") and name != "nvlinks"
}


def read(
    component: Component, at: float, values: Mapping[str, Sample], fresh: set[str] | None = None
) -> Readings:
    return Readings(
        component=component,
        identity=component.name,
        time=at,
        polled_at=at,
        values=values,
        fresh=frozenset(values if fresh is None else fresh),
    )


class Watched:
    """A node whose readings a test gives, every ten seconds."""

    def __init__(self) -> None:
        self.state = NodeState("boot-a", 0.0, device_reset=False)
        for name in ("nvml", "network"):
            self.state.sources[name] = SourceHealth(
                name=name, state=SourceState.OK, deadline=math.inf
            )
        self.events: list[Event] = []
        self.at = 1000.0  # not this machine's clock: its fractions would be rounded at each look
        self.monitor = WaitingMonitor(
            self.state,
            self._store,
            WorkerThread("test"),
            procfs=Path("/nowhere"),
            after_s=600.0,
        )

    async def _store(self, batch: Batch) -> None:
        self.events += batch.events
        self.state.publish_changes(Judge(catalogue()), batch.events)

    def look(self, *gpus: Mapping[str, Sample], nic: Mapping[str, Sample] | None = None) -> None:
        readings = [read(gpu(number), self.at, values) for number, values in enumerate(gpus)]
        self.state.replace_readings("nvml", readings)
        self.state.replace_readings("network", [read(NIC, self.at, nic)] if nic else [])
        asyncio.run(self.monitor.observe())
        self.at += 10.0

    @property
    def is_open(self) -> bool:
        return self.state.notices.find_notice((WAITING, NODE, "")) is not None


def test_the_notice_comes_after_the_limit_and_goes_with_the_cause() -> None:
    node = Watched()
    for _ in range(60):
        node.look(WAITS, WAITS)
    assert not node.is_open
    node.look(WAITS, WAITS)
    assert node.is_open
    node.look(WAITS, WAITS)
    assert len(node.events) == 1  # one for each transition
    assert node.state.findings == ()
    node.look({**WAITS, "power_watts": 650.0}, WAITS)
    assert not node.is_open
    assert [event.fields.get("recovered") for event in node.events] == [None, True]


def test_without_counters_it_takes_twice_as_long() -> None:
    node = Watched()
    for _ in range(120):
        node.look(T4)
    assert not node.is_open
    node.look(T4)
    assert node.is_open
    text = node.state.notices.notices[0].text
    assert text.startswith("1 GPU has only waited for 20 min: 100 % busy, 128 W, what moves cannot")


@pytest.mark.parametrize("name", ["received_bytes", "transmitted_bytes", "tx_bytes"])
def test_what_adapters_move_is_no_wait(name: str) -> None:
    node = Watched()
    for number in range(100):
        node.look(WAITS, nic={name: (number * 3e7, 0.0) if "tx" not in name else number * 3e7})
    assert not node.is_open
    assert node.state.waiting is not None
    assert node.state.waiting.seconds < 60


def test_gpus_that_cannot_be_read_neither_open_nor_close_it() -> None:
    node = Watched()
    for _ in range(62):
        node.look(WAITS)
    assert node.is_open
    node.look({"nvlinks": 18.0})
    node.look()
    assert node.is_open
    assert len(node.events) == 1


def test_a_gpu_in_mig_mode_takes_no_part() -> None:
    node = Watched()
    for _ in range(100):
        node.look({**WAITS, "mig_mode": 1.0})
    assert not node.is_open


def test_a_rate_follows_from_two_reads() -> None:
    meter, names = TrafficMeter(), ("tx_bytes", "rx_bytes")
    first = read(NIC, 100.0, {"tx_bytes": 1000.0, "rx_bytes": (1.0, float("nan"))})
    assert meter.measure_rate(first, names) is None
    assert meter.measure_rate(first, names) is None  # the same read again
    assert meter.measure_rate(replace(first, polled_at=110.0, fresh=frozenset()), names) is None
    second = replace(first, polled_at=120.0, values={"tx_bytes": 3000.0, "rx_bytes": 1.0})
    assert meter.measure_rate(second, names) == 100.0
    reset = replace(first, polled_at=130.0, values={"tx_bytes": 0.0, "rx_bytes": 0.0})
    assert meter.measure_rate(reset, names) is None  # it began anew
