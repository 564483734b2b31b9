"""
scrape: both tiers of /metrics over a connection that is kept, as text, compressed, and as
OpenMetrics, as Prometheus asks.

The floor is a bare aiohttp server that answers the same bytes, asked by turns with the daemon over
a connection of its own. On three nodes: a quiet one without devices, the same with a hundred open
findings, and one with eight simulated H100s.
"""

from __future__ import annotations

import gzip
import http.client
import time
from collections.abc import Mapping

from aiohttp import web

from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    Node,
    environment,
    less,
    load,
    memory_mib,
    node,
    pid_of,
    scratch,
    serve_http,
    spread,
    timed,
)
from tests.waiting import until
from vitald.simulator.simulated_library import CannotBuild
from vitald.simulator.simulated_node import SimulatedNode

ROUNDS = 200
FINDINGS = 100
FIRST_SCRAPES = 60  # a quarter of an hour of a usual Prometheus
_PAUSE_S = 0.005
_GPU_METRIC = "vitald_gpu_power_watts{"
_PATHS = {"full": "/metrics", "verdict": "/metrics?collect[]=verdict"}
_GZIP = {"Accept-Encoding": "gzip"}
_FORMATS: Mapping[str, Mapping[str, str]] = {
    "text": {},
    "text_gzip": _GZIP,
    # What Prometheus asks for
    "openmetrics_gzip": {"Accept": "application/openmetrics-text;version=1.0.0", **_GZIP},
}


def run() -> Json:
    with scratch() as folder, node(folder) as running:
        time.sleep(SETTLE_S)
        quiet = _measure_node(running)
        running.write(
            *(
                f"NVRM: Xid (PCI:{number:04x}:01:00): 79, GPU has fallen off the bus."
                for number in range(1, FINDINGS + 1)
            )
        )
        running.wait(lambda status: status["openFindings"] == FINDINGS)
        time.sleep(SETTLE_S)
        busy = _measure_node(running)
    return {
        "unit": "ms",
        "quiet": quiet,
        f"{FINDINGS}_findings": busy,
        "8_gpus": _measure_gpus(),
        "load": load(),
    }


def _measure_gpus() -> Json:
    with scratch() as folder:
        simulated = SimulatedNode(folder / "gpus", "h100")
        try:
            made = Node(folder / "h100", gpus=simulated)
        except CannotBuild as error:
            return {"skipped": str(error)}
        # As often as it is installed to be: a scrape waits for the end of a poll.
        for name, every in (("fast", "1s"), ("slow", "2s"), ("inventory", "30s")):
            made.configure(f'{name} = "{every}"\n', "")
        made.environment |= environment(folder)
        with made as running:
            until(lambda: _GPU_METRIC in running.metrics(), "readings of GPUs")
            time.sleep(SETTLE_S)
            before = memory_mib(pid_of(running))
            for _ in range(FIRST_SCRAPES):
                running.metrics()
            after = memory_mib(pid_of(running))
            return {
                "memory_before_scrapes": before,
                f"memory_after_{FIRST_SCRAPES}_scrapes": after,
                **_measure_node(running),
            }


def _measure_node(running: Node) -> Json:
    return {
        tier: {name: _measure(running, path, headers) for name, headers in _FORMATS.items()}
        for tier, path in _PATHS.items()
    }


def _measure(running: Node, path: str, headers: Mapping[str, str]) -> Json:
    daemon = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5.0)
    body = _get(daemon, path, headers)
    page = gzip.decompress(body) if "Accept-Encoding" in headers else body
    measured: list[float] = []
    floor: list[float] = []
    with Helper(_serve, body) as bare:
        beside = http.client.HTTPConnection("127.0.0.1", int(str(bare.ask())), timeout=5.0)
        _get(beside, path, headers)
        for _ in range(ROUNDS):
            measured.append(timed(lambda: _get(daemon, path, headers))[0])
            time.sleep(_PAUSE_S)
            floor.append(timed(lambda: _get(beside, path, headers))[0])
            time.sleep(_PAUSE_S)
    daemon.close()
    beside.close()
    figures, bottom = spread(measured), spread(floor)
    return {
        "series": sum(1 for line in page.splitlines() if not line.startswith(b"#")),
        "bytes": len(page),
        "bytes_sent": len(body),
        "daemon": figures,
        "floor": bottom,
        "difference": less(figures, bottom),
    }


def _get(connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]) -> bytes:
    connection.request("GET", path, headers=dict(headers))
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, answer.status
    return body


def _serve(pipe: Connection, body: bytes) -> None:
    """A server that has its answer ready, until the pipe ends."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body)

    serve_http(pipe, "/metrics", answer)
