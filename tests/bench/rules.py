"""
rules: the shipped alerts and recording rules over 1,000 nodes, in a real Prometheus.

Two real daemons with eight simulated GPUs each are scraped once as Prometheus asks: a quiet one, and
one with a lost GPU; each has a publisher. A server answers these pages for 980 and 20 targets of the
first job of a large fleet. Filled in beforehand is what the rules read of the past: what they record
of nodes for 28 days, a sample a minute, and of each node 7 hours of the series that they compare
with earlier ones. The floor is a group of as many rules that read nothing.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    Node,
    Skipped,
    load,
    memory_mib,
    scratch,
    serve_http,
)
from tests.harness import ROOT
from tests.monitoring import Prometheus
from tests.system.lines import xid
from tests.system.nvml import as_if_real
from tests.system.test_publishers import WELL
from tests.waiting import WAIT_S, until
from vitald.simulator.simulated_library import CannotBuild
from vitald.simulator.simulated_node import SimulatedNode

Pages = dict[str, bytes]  # of a node, by their query
NODES = 1000
FAULTY_OF = 50  # one in so many
RUN_S = 180.0
_RULES = ROOT / "packaging/prometheus/rules.yml"
_MINUTES = 28 * 1440
_COMPARED_S = 7 * 3600
_SCRAPE_S = 15
_FAR_FUTURE = "4000000000.0"
_GPU_METRIC = "vitald_gpu_power_watts{"
_QUERIES = ("", "collect[]=verdict", "exclude[]=verdict")
_REPORT = "vitald_publish_last_report_timestamp_seconds"
_COMPARED = {  # with their labels
    _REPORT: "",
    "vitald_kernel_records_lost_total": "",
    "vitald_slurm_unknown_jobs_total": ',choice="allow"',
}
_SCRAPED_AS = {
    "Accept": "application/openmetrics-text;version=1.0.0",
    "Accept-Encoding": "gzip",
}


def run() -> Json:
    with scratch() as folder, Helper(serve_pages, scrape_nodes(folder)) as server:
        jobs = read_jobs("scrape-large-fleet", 1)
        config = make_config(int(str(server.ask())), NODES, jobs)
        config["rule_files"].append("floor.yml")
        prometheus = Prometheus(folder / "prometheus", config)
        _write_floor(prometheus.folder)
        now = int(time.time())
        for lines in (_write_recorded(now), _write_compared(now)):
            _fill_history(prometheus.folder, lines)
        with prometheus:
            wait_until_scraped(prometheus, NODES)
            time.sleep(RUN_S)
            return {"unit": "ms", "nodes": NODES, **read_figures(prometheus), "load": load()}


def wait_until_scraped(prometheus: Prometheus, targets: int) -> None:
    until(lambda: prometheus.query(f"count(up == 1) == {targets}"), "scrapes", 400.0)


def scrape_nodes(folder: Path) -> list[Pages]:
    """Of a quiet node, and of one with a lost GPU."""
    try:
        return [_scrape_node(folder / str(lost), lost) for lost in range(2)]
    except CannotBuild as error:
        raise Skipped(str(error)) from None


def _scrape_node(folder: Path, lost: int) -> Pages:
    gpus = as_if_real(SimulatedNode(folder / "gpus", "h100"))
    record = f'[slurm]\nrecord = "{folder}/record"\n'
    with Node(folder / "node", gpus=gpus, extra=record) as node:
        for number in range(lost):
            node.write(xid(number, pci=gpus.addresses[number].removesuffix(".0")))
            gpus.lose(number)
        node.wait(lambda status: (status["status"] == "unhealthy") == bool(lost))
        until(lambda: _GPU_METRIC in node.metrics(), "readings of GPUs")
        time.sleep(SETTLE_S)
        node.request("POST", "/v1/publishers", {"sinks": [WELL]})
        return {query: _scrape(node.port, query) for query in _QUERIES}


def _scrape(port: int, query: str) -> bytes:
    """A page, compressed. The publisher of its node never falls silent."""
    url = f"http://127.0.0.1:{port}/metrics?{query}"
    request = urllib.request.Request(url, headers=_SCRAPED_AS)
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        page = gzip.decompress(response.read()).decode()
    return gzip.compress(re.sub(rf"(?m)^{_REPORT} .*", f"{_REPORT} {_FAR_FUTURE}", page).encode())


def read_jobs(name: str, count: int) -> list[Json]:
    """The first jobs of a shipped file."""
    text = (ROOT / f"packaging/prometheus/{name}.yml").read_text("utf-8")
    jobs: list[Json] = yaml.safe_load(text)["scrape_configs"][:count]
    return jobs


def make_config(port: int, nodes: int, jobs: Iterable[Json]) -> Any:
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {
                "__metrics_path__": f"/{int(number % FAULTY_OF == 0)}",
                "instance": f"node-{number}",
                "cluster": "one",
            },
        }
        for number in range(nodes)
    ]
    return {
        "global": {"evaluation_interval": f"{_SCRAPE_S}s"},
        "rule_files": [str(_RULES)],
        "scrape_configs": [
            {**job, "static_configs": targets, "relabel_configs": []} for job in jobs
        ],
    }


def _write_floor(folder: Path) -> None:
    """As many rules as are shipped, which read nothing."""
    groups = yaml.safe_load(_RULES.read_text("utf-8"))["groups"]
    rules = [
        {"record": f"floor:rule_{number}", "expr": "vector(1)"}
        for number in range(sum(len(group["rules"]) for group in groups))
    ]
    floor = {"groups": [{"name": "floor", "rules": rules}]}
    (folder / "floor.yml").write_text(yaml.safe_dump(floor), encoding="utf-8")


def _fill_history(folder: Path, lines: Iterable[str]) -> None:
    """promtool reads the file once for every two hours of it."""
    path = folder / "history"
    with path.open("w", encoding="utf-8") as history:
        history.writelines(f"{line}\n" for line in (*lines, "# EOF"))
    make = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*make, path, folder / "data"], check=True, stdout=subprocess.DEVNULL)


def _write_compared(now: int) -> Iterator[str]:
    for name, labels in _COMPARED.items():
        yield f"# TYPE {name} gauge"
        for number in range(NODES):
            series = f'{name}{{cluster="one",instance="node-{number}",job="vitald"{labels}}}'
            for at in range(now - _COMPARED_S, now - 300, _SCRAPE_S):
                yield f"{series} {_FAR_FUTURE if name == _REPORT else 0} {at}"


def _write_recorded(now: int) -> Iterator[str]:
    faulty = NODES // FAULTY_OF
    counts = {"healthy": NODES - faulty, "degraded": 0, "unhealthy": faulty, "unknown": 0}
    one, gpus = 'cluster="one"', 'cluster="one",component_kind="gpu"'
    families: dict[str, dict[str, int]] = {
        "cluster:vitald_nodes:count": {f'{one},status="{s}"': n for s, n in counts.items()},
        "cluster:vitald_accelerators:count": {
            f'{gpus},status="{s}"': 8 * n for s, n in counts.items()
        },
        "cluster:vitald_interruptions:count1m": {one: 0},
    }
    for name, values in families.items():
        yield f"# TYPE {name} gauge"
        for labels, value in values.items():
            for minute in range(_MINUTES, 5, -1):
                yield f"{name}{{{labels}}} {value} {now - 60 * minute}"


def read_figures(prometheus: Prometheus) -> Json:
    def read(expression: str) -> float:
        (series,) = prometheus.query(expression)
        return float(series["value"][1])

    groups = prometheus.get("/api/v1/rules")["data"]["groups"]
    return {
        "evaluation": {group["name"]: round(1000 * group["evaluationTime"], 1) for group in groups},
        "slowest_rules": {
            rule["name"]: round(1000 * rule["evaluationTime"], 1)
            for rule in sorted(
                (rule for group in groups for rule in group["rules"]),
                key=lambda rule: -float(rule["evaluationTime"]),
            )[:5]
        },
        "failed_rules": [
            rule["lastError"]
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ],
        "firing": sorted(
            {
                alert["metric"]["alertname"]
                for alert in prometheus.query('ALERTS{alertstate="firing"}')
            }
        ),
        "series_a_node": {
            series["metric"]["job"]: int(series["value"][1])
            for series in prometheus.query("max by (job) (scrape_samples_scraped)")
        },
        "series": read("sum(scrape_samples_scraped)"),
        "memory": memory_mib(prometheus.pid),
    }


def serve_pages(pipe: Connection, pages: list[Pages]) -> None:
    """A server of these pages, `/0` and on, each by its query, until the pipe ends."""

    async def answer(request: web.Request) -> web.Response:
        headers = {
            "Content-Type": "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "Content-Encoding": "gzip",
        }
        page = pages[int(request.match_info["node"])]
        return web.Response(body=page[request.rel_url.query_string], headers=headers)

    serve_http(pipe, "/{node}", answer)
