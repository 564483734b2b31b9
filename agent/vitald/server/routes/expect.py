"""
What this node should have, over the socket: `GET /v1/expect`, and `POST /v1/expect/confirm` for a
person who says that it is right.

Owns     the form of the answer, and that a confirmation is in the history: who, why, and what was
         confirmed.
Refuses  counting and learning, which the source does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from vitald.collectors.inventory.collector import CountsNotSettled, ExpectedInventory
from vitald.collectors.inventory.readings import KINDS, VERSIONS
from vitald.collectors.polling import PollingSource
from vitald.model.source import Batch
from vitald.server import endpoints
from vitald.server.request import (
    RequestRefused,
    make_route,
    read_body,
    read_reason,
    require_change_right,
)

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

CONFIRMED = "vitald/confirmed"
_BY_NVML = "source nvml knows each of them by its UUID"


class ExpectRoutes:
    """The handlers. `source` is the one that has `expected` as its subject; `store` returns once a
    batch is in the ledger.
    """

    def __init__(
        self,
        expected: ExpectedInventory,
        source: PollingSource,
        store: Callable[[Batch], Awaitable[None]],
    ) -> None:
        self._expected = expected
        self._source = source
        self._store = store

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.EXPECT, self.show_expected),
            make_route(endpoints.CONFIRM, self.confirm_expected),
        ]

    async def show_expected(self, _: web.Request) -> schema.ApiExpected:
        return make_answer(self._expected)

    async def confirm_expected(self, request: web.Request) -> schema.Confirmed:
        """Accepts the present counts and versions as the expected ones."""
        peer = require_change_right(request)
        reason = read_reason(await read_body(request, "reason"))
        try:
            confirmed = self._expected.confirm_counts(peer.name, reason)
        except CountsNotSettled as error:
            raise RequestRefused(
                409, str(error), "try again in a few minutes; vitald expect shows what is counted"
            ) from None
        if not confirmed:
            raise RequestRefused(
                409,
                "nothing to confirm: the configuration says how many there should be",
                "change [expect] there",
            )
        counts = (
            ", ".join(f"{count} {KINDS[kind]}" for kind, count in confirmed.items() if count)
            or "that there are none"
        )
        text = f"{peer.name} confirmed {counts}: {reason}"
        await self._store(
            self._source.make_event_batch(
                CONFIRMED, {**confirmed, "by": peer.name, "reason": reason}, text
            )
        )
        self._source.poll_now()
        log.warning("expect_confirmed", **confirmed, uid=peer.uid, pid=peer.pid, reason=reason)
        return {"confirmed": confirmed, **make_answer(self._expected)}


def _explain_count(expected: ExpectedInventory, kind: str) -> str:
    """Why so many are expected; "" if no number is known yet."""
    wanted = expected.find_expectation(kind)
    if wanted is not None:
        return wanted.reason
    return "" if kind in expected.judged_kinds else _BY_NVML


def make_answer(expected: ExpectedInventory) -> schema.ApiExpected:
    """The answer of `GET /v1/expect`. Unknown values are null."""
    counts: list[schema.ExpectedCount] = []
    for kind, title in KINDS.items():
        wanted, here = expected.find_expectation(kind), expected.counts.get(kind)
        counts.append(
            {
                "kind": kind,
                "title": title,
                "found": here,
                "notObservable": expected.uncounted.get(kind, "") if here is None else "",
                "expected": wanted.count if wanted is not None else None,
                "confirmed": wanted is not None and wanted.confirmed,
                "source": _explain_count(expected, kind),
            }
        )
    versions: list[schema.ExpectedVersion] = [
        {
            "name": name,
            "found": expected.versions.get(name),
            "expected": list(expected.list_allowed_versions(name)),
        }
        for name in VERSIONS
    ]
    return {
        "instanceType": expected.machine,
        "counts": counts,
        "versions": versions,
        "healthyBoots": expected.boots_to_confirm,
        "thisBootCounted": expected.is_boot_counted,
    }
