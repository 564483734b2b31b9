"""Events that the daemon makes about itself and its node: boots, clock steps, faults of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import structlog

from vitald.model import NODE, Component, Event, Fields, Finding, Trust
from vitald.model.codes import BOOT, CLOCK_STEPPED

log: structlog.stdlib.BoundLogger = structlog.get_logger("pipeline")

OWN_SOURCE = "vitald"
_MIN_STEP_S = 2.0  # slewing between two checks changes the clock by less


class DaemonEvents:
    """Makes events of the source `vitald`, each with an identity of its own."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self._serial = 0
        self._booted_at = time.time() - _read_uptime_s()

    def make_event(
        self, code: str, fields: Fields, component: Component, raw: str, at: float | None = None
    ) -> Event:
        """An event of the daemon at `at`, in seconds since the epoch; None is now."""
        now = time.time()
        self._serial += 1
        return Event(
            identity=f"vitald:{self.boot_id}:{now:.6f}:{self._serial}",
            time=now if at is None else at,
            source=OWN_SOURCE,
            kind="vitald",
            code=code,
            component=component,
            boot_id=self.boot_id,
            raw=raw,
            trust=Trust.DAEMON,
            fields=fields,
        )

    def make_boot_event(self, opened: Iterable[Finding]) -> Event:
        """The boot of the node, after the last fault of an earlier boot in `opened` and before
        those of this one, which the kernel may have logged before the daemon ran.
        """
        former = [finding.last for finding in opened if finding.boot_id != self.boot_id]
        booted_at = min(time.time(), max([time.time() - _read_uptime_s(), *former]))
        event = self.make_event(BOOT, {}, NODE, "the node was booted", booted_at)
        return replace(event, identity=f"vitald:boot:{self.boot_id}")

    def detect_clock_step(self) -> tuple[Event, ...]:
        """An event if the clock was stepped since the last call: time windows and quiet times are
        measured on the new clock from then on.
        """
        seconds = time.time() - _read_uptime_s() - self._booted_at
        if abs(seconds) < _MIN_STEP_S:
            return ()
        self._booted_at += seconds
        log.warning("clock_stepped", seconds=round(seconds, 3))
        raw = f"the clock was stepped by {seconds:+.3f} s"
        return (self.make_event(CLOCK_STEPPED, {"seconds": seconds}, NODE, raw),)


def _read_uptime_s() -> float:
    """Seconds since the boot, suspend included: unlike the wall clock it cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
