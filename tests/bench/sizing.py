"""
sizing: what Prometheus takes for 10, 500 and 10,000 nodes with the shipped jobs and rules.

The nodes answer with the pages that real daemons have for eight simulated GPUs, one in 50 with a
lost one. There is nothing of the past: a Prometheus that has run for hours has more in memory.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench.measure import Helper, Json, cpu_s, load, scratch
from tests.bench.rules import (
    make_config,
    read_figures,
    read_jobs,
    scrape_nodes,
    serve_pages,
    wait_until_scraped,
)
from tests.monitoring import Prometheus

FLEETS = {  # nodes, with the shipped file and how many of its jobs
    10: ("scrape", 1),
    500: ("scrape-large-fleet", 2),
    10_000: ("scrape-large-fleet", 1),
}
RUN_S = 300.0


def run() -> Json:
    with scratch() as folder, Helper(serve_pages, scrape_nodes(folder)) as server:
        port = int(str(server.ask()))
        fleets = {str(nodes): _measure(folder / str(nodes), nodes, port) for nodes in FLEETS}
        return {"unit": "ms", **fleets, "load": load()}


def _measure(folder: Path, nodes: int, port: int) -> Json:
    jobs = read_jobs(*FLEETS[nodes])
    with Prometheus(folder, make_config(port, nodes, jobs)) as prometheus:
        wait_until_scraped(prometheus, nodes * len(jobs))
        used, begun = cpu_s(prometheus.pid), time.monotonic()
        time.sleep(RUN_S)
        cores = (cpu_s(prometheus.pid) - used) / (time.monotonic() - begun)
        return {"cores": round(cores, 2), **read_figures(prometheus)}
