"""
scrape: /metrics over a connection that is kept, as Prometheus asks.

The floor is a bare aiohttp server that answers the same bytes, asked by turns with the daemon over
a connection of its own. Twice: on a quiet node, and with a hundred open findings.
"""

from __future__ import annotations

import asyncio
import http.client
import time

from aiohttp import web

from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    Node,
    less,
    load,
    node,
    scratch,
    spread,
    timed,
)

ROUNDS = 200
FINDINGS = 100
_PAUSE_S = 0.005


def run() -> Json:
    with scratch() as folder, node(folder) as running:
        time.sleep(SETTLE_S)
        quiet = _series(running)
        running.write(
            *(
                f"NVRM: Xid (PCI:{number:04x}:01:00): 79, GPU has fallen off the bus."
                for number in range(1, FINDINGS + 1)
            )
        )
        running.wait(lambda status: status["openFindings"] == FINDINGS)
        time.sleep(SETTLE_S)
        busy = _series(running)
    return {"unit": "ms", "quiet": quiet, f"{FINDINGS}_findings": busy, "load": load()}


def _series(running: Node) -> Json:
    daemon = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5.0)
    body = _get(daemon)
    measured: list[float] = []
    floor: list[float] = []
    with Helper(_serve, body) as bare:
        beside = http.client.HTTPConnection("127.0.0.1", int(str(bare.ask())), timeout=5.0)
        _get(beside)
        for _ in range(ROUNDS):
            measured.append(timed(lambda: _get(daemon))[0])
            time.sleep(_PAUSE_S)
            floor.append(timed(lambda: _get(beside))[0])
            time.sleep(_PAUSE_S)
    daemon.close()
    beside.close()
    figures, bottom = spread(measured), spread(floor)
    return {
        "bytes": len(body),
        "daemon": figures,
        "floor": bottom,
        "difference": less(figures, bottom),
    }


def _get(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, answer.status
    return body


def _serve(pipe: Connection, body: bytes) -> None:
    """A server that has its answer ready, until the pipe ends."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body)

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send("ready")
        pipe.send(runner.addresses[0][1])
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
        await ended.wait()

    asyncio.run(serve())
