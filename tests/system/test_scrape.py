"""Scrapes over HTTP: formats, compression, tiers and refusals; and what a real Prometheus makes of
them.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.harness import ROOT, Node
from tests.monitoring import Prometheus
from tests.system.lines import wait_for_pid, xid
from tests.system.test_metrics import complaints
from tests.waiting import WAIT_S
from vitald import __version__
from vitald.metrics.verdict_tier import MAX_SERIES

VERDICT, REST = "/metrics?collect[]=verdict", "/metrics?exclude[]=verdict"
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
GZIP = {"Accept-Encoding": "gzip"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def page(self) -> str:
        """As it was before it was compressed."""
        is_gzip = self.headers["Content-Encoding"] == "gzip"
        return (gzip.decompress(self.body) if is_gzip else self.body).decode()

    @property
    def series(self) -> list[str]:
        return [line for line in self.page.splitlines() if not line.startswith("#")]


def scrape(
    node: Node,
    path: str = "/metrics",
    headers: dict[str, str] | None = None,
    method: str = "GET",
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=WAIT_S)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def list_names(page: str) -> set[str]:
    """The names of the samples."""
    return {re.split("[{ ]", line)[0] for line in page.splitlines() if line[:1] not in ("#", "")}


@pytest.mark.parametrize("path", ["/metrics", VERDICT])
def test_text_unless_openmetrics_is_accepted(shared_node: Node, path: str) -> None:
    text = scrape(shared_node, path)
    assert text.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert list(parse_text(text.page))
    assert "_created" not in text.page
    openmetrics = scrape(shared_node, path, OPENMETRICS)
    assert openmetrics.headers["Content-Type"] == (
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert openmetrics.page.endswith("\n# EOF\n")
    assert list(parse_openmetrics(openmetrics.page))
    assert ("vitald_transitions_created " in openmetrics.page) == (path == "/metrics")
    created = {name for name in list_names(openmetrics.page) if name.endswith("_created")}
    assert list_names(openmetrics.page) - created == list_names(text.page)
    assert {answer.status for answer in (text, openmetrics)} == {200}


@pytest.mark.parametrize("path", ["/metrics", VERDICT])
def test_gzip_where_it_is_accepted(shared_node: Node, path: str) -> None:
    compressed = scrape(shared_node, path, GZIP)
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert int(compressed.headers["Content-Length"]) == len(compressed.body)
    assert len(compressed.body) < len(compressed.page) / 3
    assert "vitald_status{" in compressed.page
    for refused in ("", "identity", "gzip;q=0", "br"):
        plain = scrape(shared_node, path, {"Accept-Encoding": refused})
        assert plain.headers["Content-Encoding"] is None
        assert plain.body.startswith(b"# HELP ")
    for answer in (compressed, plain):
        assert answer.headers["Vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("headers", [{}, GZIP, OPENMETRICS, GZIP | OPENMETRICS])
def test_head_is_get_without_a_body(shared_node: Node, headers: dict[str, str]) -> None:
    head, get = scrape(shared_node, VERDICT, headers, "HEAD"), scrape(shared_node, VERDICT, headers)
    assert (head.status, head.body) == (200, b"")
    for name in ("Content-Type", "Content-Encoding", "Vary", "Server"):
        assert head.headers[name] == get.headers[name]
    assert int(head.headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", VERDICT, 200),
        ("GET", REST, 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?collect[]=gpus", 400),
        ("GET", "/metrics?name[]=up", 400),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/v1/status", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("BREW", "/metrics", 400),
    ],
)
def test_every_answer_is_signed_by_vitald_alone(
    shared_node: Node, method: str, path: str, status: int
) -> None:
    answer = scrape(shared_node, path, method=method)
    assert answer.status == status
    assert answer.headers["Server"] == f"vitald/{__version__}"
    said = f"{answer.headers}{answer.body[:2000].decode()}".lower()
    assert "python" not in said.replace("python_info", "")
    assert "aiohttp" not in said


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("collect[]=gpus", "unknown value of collect[]: only verdict is known"),
        ("collect%5B%5D=%3Cscript%3E", "unknown value of collect[]: only verdict is known"),
        ("collect[]=", "unknown value of collect[]: only verdict is known"),
        ("collect=verdict", "unknown parameter: only collect[] and exclude[] are known"),
        (
            "collect[]=verdict&x=" + "y" * 4000,
            "unknown parameter: only collect[] and exclude[] are known",
        ),
    ],
)
def test_another_query_is_refused_in_words(shared_node: Node, query: str, error: str) -> None:
    answer = scrape(shared_node, f"/metrics?{query}")
    assert answer.status == 400
    assert answer.headers["Content-Type"].startswith("application/json")
    assert json.loads(answer.body) == {
        "error": error,
        "hint": "without a query, /metrics has everything",
    }


@pytest.mark.parametrize(
    "lines",
    [
        ["Accept: " + "a/b;q=0.1," * 700],
        ["Accept: " + "x" * 10_000],
        ["Accept-Encoding: " + "gzip;" * 1500],
        ["Accept: application/openmetrics-text;version=9.x;q=\xff", "Accept-Encoding: gzip;q=nan"],
        ["Accept: ;;;,,,===", "Accept-Encoding: ;q=1,,=;"],
        ["Accept: text/plain", "Accept: application/openmetrics-text", "Accept-Encoding:"],
        ["Accept: application/openmetrics-text;version=1.0.0;q=1e400"],
    ],
    ids=["many", "long", "parameters", "broken weights", "punctuation", "two lines", "huge weight"],
)
def test_hostile_headers_are_answered(shared_node: Node, lines: list[str]) -> None:
    node = shared_node
    request = "\r\n".join(["GET /metrics HTTP/1.1", "Host: v", "Connection: close", *lines, "", ""])
    with socket.create_connection(("127.0.0.1", node.port), timeout=WAIT_S) as client:
        client.sendall(request.encode("latin-1"))
        with client.makefile("rb") as stream:
            status, page = stream.readline(), stream.read()
    assert re.match(rb"HTTP/1\.[01] (200|400) ", status)
    assert f"Server: vitald/{__version__}\r\n".encode() in page
    assert "Traceback" not in node.errors.read_text()
    assert node.said("request_failed") == []


def test_what_clears_falls_in_both_tiers(node: Node) -> None:
    """Labels are remembered from scrape to scrape; values are not."""

    def read() -> list[tuple[str, bool, bool]]:
        found = []
        for path in ("/metrics", VERDICT):
            for headers in ({}, OPENMETRICS):
                page = scrape(node, path, headers).page
                (flag,) = re.findall(r"^vitald_reboot_required (\S+)$", page, re.MULTILINE)
                found.append((flag, 'code="79"' in page, "vitald_findings{" in page))
        return found

    (quiet,) = {(flag, has_finding) for flag, _, has_finding in read()}
    assert quiet == ("0.0", False)
    for pid in (1, 2):
        node.write(xid(pid))
        wait_for_pid(node, pid)
        assert set(read()) == {("1.0", True, True)}
        (finding,) = node.findings("&code=xid/79")
        node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "over"})
        assert {(flag, has_finding) for flag, _, has_finding in read()} == {("0.0", False)}


def test_the_verdict_of_a_node_with_a_hundred_faults(node: Node, promtool: str) -> None:
    node.write(*(xid(number, pci=f"{number:04x}:01:00") for number in range(1, 101)))
    node.wait(lambda status: status["openFindings"] == 100)
    for headers in ({}, OPENMETRICS):
        assert 20 < len(scrape(node, VERDICT, headers).series) <= MAX_SERIES
    assert len(scrape(node).series) > 200
    assert sum(
        float(line.rpartition(" ")[2])
        for line in scrape(node, VERDICT).series
        if line.startswith("vitald_findings{")
    ) == pytest.approx(100)
    for path in ("/metrics", VERDICT):
        assert complaints(promtool, scrape(node, path).page) == ""


def test_the_tiers_share_no_family_and_leave_none_out(node: Node) -> None:
    node.write(xid(1))
    wait_for_pid(node, 1)
    full, verdict, rest = (
        list_names(scrape(node, path).page) for path in ("/metrics", VERDICT, REST)
    )
    assert not verdict & rest
    assert verdict | rest == full


@pytest.mark.parametrize(
    ("shipped", "jobs"),
    [("scrape", ["vitald"]), ("scrape-large-fleet", ["vitald", "vitald-rest"])],
)
def test_prometheus_with_the_shipped_jobs(
    node: Node, tmp_path: Path, shipped: str, jobs: list[str]
) -> None:
    """Each series is stored once, with the name of the node."""
    node.write(xid(1))
    wait_for_pid(node, 1)
    text = (ROOT / f"packaging/prometheus/{shipped}.yml").read_text("utf-8")
    text, targets = re.subn(r"targets: .*", f'targets: ["127.0.0.1:{node.port}"]', text)
    text, intervals = re.subn(r"(scrape_interval): \S+", r"\1: 1s", text)
    assert (targets, intervals) == (1, len(jobs))
    with Prometheus(tmp_path / "prometheus", yaml.safe_load(text)) as prometheus:
        prometheus.wait_until_scraped(len(jobs))
        stored = [
            series["metric"] for series in prometheus.query('{__name__=~"(vitald|process)_.+"}')
        ]
        sizes = prometheus.query("scrape_samples_scraped")
    assert {series["instance"] for series in stored} == {"127.0.0.1"}
    assert sorted(size["metric"]["job"] for size in sizes) == jobs
    without_job = [frozenset(series.items() - {("job", series["job"])}) for series in stored]
    assert len(set(without_job)) == len(without_job)
    names = {(series["job"], series["__name__"]) for series in stored}
    assert {("vitald", "vitald_findings"), (jobs[-1], "process_open_fds")} <= names
    assert (jobs[-1], "vitald_finding_opened_timestamp_seconds") in names
    if len(jobs) == 2:
        (size,) = (int(size["value"][1]) for size in sizes if size["metric"]["job"] == "vitald")
        assert 20 < size <= MAX_SERIES
