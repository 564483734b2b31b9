"""The publisher's report of what a scheduler does with the node, to a daemon that refuses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

from aiohttp import web

from vitald.model.response import ServiceState
from vitald.publish import service_report
from vitald.publish.service_report import ServiceReport


def test_a_change_that_was_refused_is_repeated_with_its_time(tmp_path: Path) -> None:
    """The daemon stores one change to a state in ten seconds, and dates it by `since`."""
    asked: list[dict[str, str]] = []
    statuses = [200, 429, 429, 200]

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"ok": True}, status=statuses[len(asked) - 1])

    async def work() -> None:
        app = web.Application()
        app.router.add_post("/v1/scheduler", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        report = ServiceReport(tmp_path / "s", "kubernetes")
        drained, in_service = ServiceState.DRAINED, ServiceState.IN_SERVICE
        for moment, state in enumerate((drained, in_service, in_service, in_service, in_service)):
            with mock.patch.object(service_report.time, "time", lambda at=moment: 1000.0 + at):
                await report.send_state(state)
        await runner.cleanup()

    asyncio.run(work())
    assert [each["state"] for each in asked] == ["drained"] + ["in_service"] * 3
    assert [each["since"][-6:] for each in asked] == ["0.000Z", *["1.000Z"] * 3]
