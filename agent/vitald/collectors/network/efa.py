"""
An EFA device: its heartbeat, its commands and its counters.

A dead device is not read any further: once a command was never completed, its driver answers each
request with an error and a line in the kernel log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from vitald.collectors.network.port import EFA_COUNTERS, PortCounters
from vitald.collectors.raw_readings import Files, RawReadings

_DEVICE_COUNTERS = ("submitted_cmds", "completed_cmds", "no_completion_cmds", "keep_alive_rcvd")
# The rhythm of a heartbeat is known after so many beats, seen in so many reads.
_MIN_BEATS, _MIN_MOVES = 10, 3


@dataclass(slots=True)
class KeepAlive:
    """A counter that should keep rising. Its rate is not documented, so it is learned."""

    first: tuple[float, float] | None = None  # time and count
    last: tuple[float, float] = (0.0, 0.0)
    moves: int = 0

    def record_beat(self, now: float, count: float) -> tuple[float, float] | None:
        """For how many seconds the count has not risen, and the seconds between two beats, at
        least 1. None while the rhythm is not known.
        """
        # A count that falls began again, as when the driver is reloaded.
        if self.first is None or count < self.last[1]:
            self.first, self.last, self.moves = (now, count), (now, count), 0
        elif count > self.last[1]:
            self.last, self.moves = (now, count), self.moves + 1
        beats = self.last[1] - self.first[1]
        if self.moves < _MIN_MOVES or beats < _MIN_BEATS:
            return None
        return now - self.last[0], max(1.0, (self.last[0] - self.first[0]) / beats)


@dataclass(slots=True)
class EfaDevice:
    """Reads one EFA device. `counters`: the adapter's."""

    files: Files
    counters: PortCounters
    _keep_alive: KeepAlive = field(default_factory=KeepAlive)
    _completed: float = -1.0  # commands at the last read; negative: not read yet

    def read_device(self, raw: RawReadings, folder: str, *, had_counters: bool) -> None:
        """`folder`: the device in sysfs; `had_counters`: its port's counters were readable before,
        if not by this process.

        The device's own counters are in the node's memory and readable even if the card is dead, so
        they are read first.
        """
        self.counters.read_counters(raw, f"{folder}/hw_counters", _DEVICE_COUNTERS)
        now = time.monotonic()
        self._derive_waiting(raw)
        self._derive_keep_alive(raw, now)
        self.files.read_text(raw, "rate", f"{folder}/ports/1/rate")
        self.counters.begin_read()  # that the device's own are readable proves nothing
        if raw.values.get("no_completion_cmds"):
            reason = "the device answers no commands any more, so it is not asked"
            raw.missing |= dict.fromkeys(EFA_COUNTERS, reason)
            return
        self.counters.read_counters(
            raw, f"{folder}/ports/1/hw_counters", EFA_COUNTERS, before=had_counters
        )
        # The port's state is constant: only counters show that a device is dead.
        if not self.counters.report_unreadable(raw) and "no_completion_cmds" not in raw.values:
            reason = "the driver offers no counters of this device"
            raw.missing.setdefault("no_completion_cmds", reason)
            raw.require("no_completion_cmds")

    def _derive_waiting(self, raw: RawReadings) -> None:
        """The number of commands that wait while none is completed, without those that the driver
        gave up.
        """
        submitted, completed, lost = (
            raw.values.get(name)
            for name in ("submitted_cmds", "completed_cmds", "no_completion_cmds")
        )
        if not isinstance(submitted, float) or not isinstance(completed, float):
            return
        if self._completed >= 0:
            waiting = submitted - completed - (lost if isinstance(lost, float) else 0.0)
            raw.values["commands_waiting"] = (
                max(0.0, waiting) if completed == self._completed else 0.0
            )
        self._completed = completed

    def _derive_keep_alive(self, raw: RawReadings, now: float) -> None:
        count = raw.values.get("keep_alive_rcvd")
        if not isinstance(count, float):
            return
        rhythm = self._keep_alive.record_beat(now, count)
        if rhythm is not None:
            still_s, beat_s = rhythm
            raw.values["keep_alive_still_seconds"] = still_s
            raw.values["keep_alive_rhythm_seconds"] = beat_s
