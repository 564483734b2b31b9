"""
Events and derived readings of a source.

Events of the kernel log are made where its lines are read; these have no line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from vitald.model.component import Component
from vitald.model.event import Event, Fields, Trust
from vitald.model.source import Readings, Sample


class EventFactory:
    """Makes the events of one source in one boot, each with an identity of its own."""

    def __init__(self, source: str, boot_id: str) -> None:
        self._source = source
        self._boot_id = boot_id
        self._serial = 0

    def make_event(
        self,
        code: str,
        component: Component,
        fields: Fields,
        raw: str,
        *,
        moment: float | None = None,
        simulated_until: float | None = None,
    ) -> Event:
        """`moment`: when it happened, in seconds since the epoch; by default, now."""
        now = time.time()
        self._serial += 1
        return Event(
            identity=(
                f"{self._source}:{self._boot_id}:{component.name}:{code}:{now:.6f}:{self._serial}"
            ),
            time=now if moment is None else moment,
            source=self._source,
            kind=code.partition("/")[0],
            code=code,
            component=component,
            boot_id=self._boot_id,
            raw=raw,
            trust=Trust.DAEMON,
            fields=fields,
            simulated_until=simulated_until,
        )


def derive_readings(
    component: Component,
    values: Mapping[str, Sample],
    identity: str = "",
    missing: Mapping[str, str] | None = None,
    *,
    simulated: bool = False,
) -> Readings:
    """Readings that were calculated, not read. `identity`: by default, the component's name."""
    return Readings(
        component=component,
        identity=identity or component.name,
        time=time.time(),
        polled_at=time.monotonic(),
        values=values,
        fresh=frozenset(values),
        missing=missing or {},
        simulated=simulated,
    )
