"""
Watches whether the GPUs only wait, and opens a notice when they have for long.

Owns     what of the readings of GPUs and network adapters makes a look, and the notice.
Refuses  the rule, which is in `waiting`, and findings: a notice changes no status.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import structlog

from vitald.collectors.event_factory import EventFactory
from vitald.collectors.network.collector import NAME as NETWORK
from vitald.collectors.nvml.node import NAME as NVML
from vitald.core.node_state import NodeState
from vitald.core.waiting import (
    STILL_BYTES_PER_SECOND,
    GpuLook,
    NodeLook,
    Waiting,
    advance_waiting,
    describe_waiting,
)
from vitald.model import NODE, Batch, Component, ComponentKind, Fields, Readings
from vitald.model.notice import WAITING, Notice
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

SOURCE = "waiting"
_UNCERTAIN_TIMES = 2  # where the traffic of a GPU cannot be read, it takes so many times as long
_PCIE = ("pcie_received_bytes", "pcie_transmitted_bytes")
_NVLINK = ("nvlink_received_bytes", "nvlink_transmitted_bytes")
# InfiniBand and RoCE, EFA: what goes around the counters of the GPUs
_NETWORK = (
    *("received_bytes", "transmitted_bytes"),
    *("rx_bytes", "tx_bytes", "rdma_read_bytes", "rdma_write_bytes"),
    *("rdma_read_resp_bytes", "rdma_write_recv_bytes"),
)
_MAX_CGROUP_BYTES = 65536


class TrafficMeter:
    """Bytes per second since the counters were read before, by component and group of counters."""

    def __init__(self) -> None:
        self._former: dict[tuple[str, str], tuple[float, float]] = {}

    def measure_rate(self, readings: Readings, names: Sequence[str]) -> float | None:
        """None if they were not read in this poll, never before, or began anew."""
        fresh = [name for name in names if name in readings.fresh]
        if not fresh:
            return None
        key, total = (
            (readings.component.name, names[0]),
            sum(_sum_parts(readings.values[name]) for name in fresh),
        )
        at, former = self._former.get(key, (readings.polled_at, total))
        self._former[key] = readings.polled_at, total
        seconds = readings.polled_at - at
        return (total - former) / seconds if seconds > 0 and total >= former else None


def _sum_parts(value: object) -> float:
    parts = value if isinstance(value, tuple) else (value,)
    return sum(part for part in parts if isinstance(part, float) and part == part)


class WaitingMonitor:
    """`after_s`: how long the GPUs must have waited; 0: nothing is watched. `exclude`: patterns of
    control groups whose GPUs take no part. `store` returns once a batch is stored and published.
    """

    def __init__(
        self,
        node_state: NodeState,
        store: Callable[[Batch], Awaitable[None]],
        reader: WorkerThread,
        *,
        procfs: Path,
        after_s: float,
        exclude: Sequence[str] = (),
    ) -> None:
        self._node_state = node_state
        self._store = store
        self._reader = reader
        self._procfs = procfs
        self._after_s = after_s
        self._exclude = exclude
        self._facts = EventFactory(SOURCE, node_state.boot_id)
        self._meter = TrafficMeter()
        self._polled_at = 0.0  # of the last look, on the monotonic clock
        self._excluded: frozenset[str] = frozenset()  # GPUs

    async def run(self) -> None:
        """Until cancelled."""
        changed = self._node_state.readings_changed
        while self._after_s:
            await changed.wait()
            changed.clear()
            await self.observe()

    async def observe(self) -> None:
        """Look at the present readings, if there are newer ones of the GPUs."""
        state = self._node_state
        nics = [
            readings
            for readings in state.list_readings(NETWORK)
            if readings.component.kind is ComponentKind.NIC
        ]
        rates = [self._meter.measure_rate(readings, _NETWORK) for readings in nics]
        gpus = [
            readings
            for readings in state.list_readings(NVML)
            if readings.component.kind is ComponentKind.GPU
        ]
        polled_at = max((readings.polled_at for readings in gpus), default=0.0)
        moved = sum(rate or 0.0 for rate in rates)
        if polled_at <= self._polled_at and moved < STILL_BYTES_PER_SECOND:
            return
        self._polled_at = polled_at
        await self._find_excluded(gpus)
        look = NodeLook(
            time=polled_at, gpus=tuple(self._make_look(gpu) for gpu in gpus), moved=moved
        )
        waiting = advance_waiting(state.waiting or Waiting(), look)
        state.waiting = waiting
        if waiting.time == look.time:
            await self._update_notice(waiting)

    def _make_look(self, readings: Readings) -> GpuLook:
        values = readings.values
        has_nvlink = all(name in values for name in _NVLINK)
        decisive = _NVLINK if has_nvlink else _PCIE
        rates = {names: self._meter.measure_rate(readings, names) for names in (_PCIE, _NVLINK)}
        known = [rate for rate in rates.values() if rate is not None]
        moved = max(known, default=0.0)
        processes = values.get("processes")
        return GpuLook(
            name=readings.component.name,
            processes=processes is None or bool(processes),
            utilization=_read_number(values, "utilization_ratio"),
            watts=_read_number(values, "power_watts"),
            limit_watts=_read_number(values, "power_limit_watts"),
            moved=moved if moved >= STILL_BYTES_PER_SECOND or rates[decisive] is not None else None,
            counts=has_nvlink
            or (not values.get("nvlinks") and all(name in values for name in _PCIE)),
            excluded=bool(values.get("mig_mode")) or readings.component.name in self._excluded,
        )

    async def _find_excluded(self, gpus: Sequence[Readings]) -> None:
        """Which GPUs have a process of an excluded control group."""
        if not self._exclude:
            return
        users = {
            readings.component.name: pids
            for readings in gpus
            if isinstance(pids := readings.values.get("process_pids"), tuple)
        }
        try:
            self._excluded = await self._reader.call(lambda: self._match_cgroups(users))
        except ThreadStuck as error:  # as far as known before
            log.warning("control_groups_not_read", error=str(error))

    def _match_cgroups(self, users: Mapping[str, tuple[float, ...]]) -> frozenset[str]:
        return frozenset(
            name for name, pids in users.items() if any(self._is_excluded(int(pid)) for pid in pids)
        )

    def _is_excluded(self, pid: int) -> bool:
        text = ""
        with suppress(OSError), (self._procfs / str(pid) / "cgroup").open("rb") as file:
            text = file.read(_MAX_CGROUP_BYTES).decode("utf-8", "replace")
        groups = [line.split(":", 2)[-1] for line in text.splitlines()]
        return any(fnmatch(group, pattern) for group in groups for pattern in self._exclude)

    async def _update_notice(self, waiting: Waiting) -> None:
        notices = self._node_state.notices
        opened = notices.find_notice((WAITING, NODE, ""))
        times = 1 if waiting.is_certain else _UNCERTAIN_TIMES
        if opened is None and waiting.seconds < self._after_s * times:
            return
        if not waiting.seconds:
            await self._close_notice(time.time() - opened.since if opened is not None else 0.0)
            return
        text, fields = describe_waiting(waiting), self._make_fields(waiting)
        if opened is None:
            log.info("gpus_wait", text=text)
            event = self._facts.make_event(WAITING, NODE, fields, text)
            await self._store(Batch(SOURCE, (event,)))
        now = time.time()
        since = opened.since if opened is not None else now - waiting.seconds
        notices.open_notice(
            Notice(code=WAITING, component=NODE, since=since, last=now, text=text, fields=fields)
        )

    def _make_fields(self, waiting: Waiting) -> Fields:
        """`oddDevices`: the identities of those that take no part, as far as they can be read."""
        odd = map(Component.parse_name, waiting.odd)
        return {
            "seconds": round(waiting.seconds),
            "gpus": len(waiting.gpus),
            "watts": round(waiting.mean_watts),
            "traffic": "none" if waiting.is_certain else "not readable",
            "odd": ", ".join((*waiting.odd, *waiting.unread)),
            "oddDevices": ", ".join(map(self._node_state.get_identity, odd)),
        }

    async def _close_notice(self, seconds: float) -> None:
        fields: Fields = {"recovered": True, "seconds": round(seconds)}
        text = f"the GPUs do not only wait any more, after {seconds / 60:.0f} min"
        log.info("gpus_wait_no_more", seconds=round(seconds))
        await self._store(Batch(SOURCE, (self._facts.make_event(WAITING, NODE, fields, text),)))
        self._node_state.notices.close_notice((WAITING, NODE, ""))


def _read_number(values: Mapping[str, object], name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, float) else None
