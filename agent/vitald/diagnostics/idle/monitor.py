"""
Whether the node is idle, measured while a repair waits for the running job.

Nothing is measured otherwise: each measurement reads all processes and asks the driver. A repair
ends whatever runs, so more is required than for a diagnostic: in a container that does not share
the node's process ids, and without accelerators, the node is never known to be idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from vitald.diagnostics.device_access import DeviceAccess

_PERIOD_S = 10.0
_MAX_AGE_S = 30.0


class IdleMonitor:
    """`is_needed`: whether somebody waits for the node to be idle. `is_testing`: a diagnostic of
    ours has the devices. `idle_s`: for how long they must have been unused.
    """

    def __init__(
        self,
        access: DeviceAccess,
        *,
        is_needed: Callable[[], bool],
        is_testing: Callable[[], bool],
        idle_s: float,
    ) -> None:
        self._access = access
        self._is_needed = is_needed
        self._is_testing = is_testing
        self._idle_s = idle_s
        self._idle_since: float | None = None
        self._measured_at = -_MAX_AGE_S

    def is_idle(self) -> bool:
        """Whether nothing used the node for `idle_s`, as measured a moment ago. Jobs that have
        begun since count at once.
        """
        if time.monotonic() - self._measured_at >= _MAX_AGE_S or self._access.list_jobs():
            return False
        return self._idle_since is not None and time.monotonic() - self._idle_since >= self._idle_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._is_needed() and not self._is_testing():
                await self._measure()
            await asyncio.sleep(_PERIOD_S)

    async def _measure(self) -> None:
        idle_s, uses = await self._access.measure_idle()
        now = time.monotonic()
        self._measured_at = now
        is_idle = not uses and self._access.sees_all_work()
        self._idle_since = now - idle_s if is_idle else None
