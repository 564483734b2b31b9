"""packaging/otel/collector.yaml in a real OpenTelemetry Collector, and what it sends on.

Not in the gate: the collector is built from a module proxy that may lack a version of a component.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import journals
from tests.harness import ROOT, Node
from tests.otel.build import find_built_collector
from tests.otel.endpoint import Endpoint, LogRecord
from tests.system.lines import xid
from tests.waiting import WAIT_S, until
from vitald.simulator.simulated_node import SimulatedNode

SHIPPED = ROOT / "packaging/otel/collector.yaml"
# What a test changes: JSON over HTTP, which it can read, in place of gRPC, and no waiting.
CHANGES = """\
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: vitald
          scrape_interval: 1s
          static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
  journald: {{directory: {journal}, start_at: beginning}}
processors:
  resource_detection: {{detectors: [env, system]}}
exporters:
  otlp_http:
    endpoint: http://127.0.0.1:{endpoint}
    encoding: json
    compression: none
service:
  telemetry: {{metrics: {{level: none}}}}  # no fixed port
  pipelines:
    metrics: {{exporters: [otlp_http]}}
    logs: {{exporters: [otlp_http]}}
"""


@pytest.fixture
def collector() -> Path:
    built = find_built_collector()
    if built is None:
        pytest.skip("needs an OpenTelemetry Collector: .venv/bin/python -m tests.otel.build")
    return built


def make_environment(folder: Path) -> dict[str, str]:
    storage = folder / "storage"
    storage.mkdir(exist_ok=True)
    return {
        **os.environ,
        "OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_STORAGE": str(storage),
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.node.name=node-17",
    }


@contextmanager
def run_collector(collector: Path, node: Node, journal: Path, endpoint: Endpoint) -> Iterator[None]:
    folder = node.folder
    changes, log = folder / "changes.yaml", folder / "otelcol.log"
    changes.write_text(
        CHANGES.format(port=node.port, endpoint=endpoint.port, journal=journal), encoding="utf-8"
    )
    with log.open("wb") as written:
        running = subprocess.Popen(
            [collector, f"--config={SHIPPED}", f"--config={changes}"],
            env=make_environment(folder),
            stdout=written,
            stderr=written,
        )
    try:
        yield
        assert running.poll() is None, log.read_text()[-3000:]
    finally:
        running.terminate()
        running.wait(WAIT_S)


def write_journal(folder: Path, lines: list[bytes]) -> None:
    """As journald stores the lines of the daemon, beside one of another unit."""
    of_vitald = {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "vitald.service"}
    entries = [journals.entry(10 + at, line, **of_vitald) for at, line in enumerate(lines)]
    other = journals.entry(9, "of another unit", _SYSTEMD_UNIT="cron.service")
    journals.write(folder, other, *entries)


def find_opened(endpoint: Endpoint) -> list[LogRecord]:
    return [
        record
        for record in endpoint.list_log_records()
        if record.attributes.get("event") == "finding_opened"
    ]


def is_of_the_node(resource: dict[str, object]) -> bool:
    given = {"service.name": "vitald", "k8s.node.name": "node-17"}
    return given.items() <= resource.items() and {"host.name", "host.id"} <= resource.keys()


def test_the_collector_finds_the_configuration_valid(tmp_path: Path, collector: Path) -> None:
    done = subprocess.run(
        [collector, "validate", f"--config={SHIPPED}"],
        env=make_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_finding_becomes_a_sample_and_a_log_record(
    collector: Path, tmp_path: Path, make_node: Callable[..., Node]
) -> None:
    journals.needed()
    gpus = SimulatedNode(tmp_path / "gpus", "h100")
    node = make_node(gpus=gpus)
    node.start()
    node.wait(lambda status: status["status"] == "healthy")
    node.write(xid(79, pci=gpus.addresses[5].rpartition(".")[0]))
    node.wait(lambda status: status["status"] == "unhealthy")
    lines = node.errors.read_bytes().splitlines()
    journal = node.folder / "journal"
    write_journal(journal, lines)
    with Endpoint() as endpoint, run_collector(collector, node, journal, endpoint):
        until(lambda: endpoint.list_samples("vitald_findings"), "its findings")
        until(lambda: find_opened(endpoint), "the line of its log")
        samples, records = endpoint.list_samples("vitald_findings"), endpoint.list_log_records()
    (component,) = {
        sample.attributes["component"] for sample in samples if sample.attributes["code"] == "79"
    }
    assert re.fullmatch(r"gpu/0000:[0-9a-f]{2}:00\.0", component)
    opened = next(each for each in find_opened(endpoint) if each.attributes["code"] == "xid/79")
    assert (opened.attributes["component"], opened.attributes["action"]) == (
        component,
        "reboot_node",
    )
    assert opened.severity == "error"
    assert str(opened.body).encode() in lines
    assert all(is_of_the_node(each.resource) for each in (*samples, *records))
    assert not [record for record in records if "of another unit" in str(record.body)]
