"""What packaging/otel gives an OpenTelemetry Collector, which is a real one, and what it sends on.

Not in the gate: the collector is built from a module proxy that may lack a version of it.
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
from tests.pace import patient
from vitald.simulator.node import SimulatedNode

SHIPPED, FILELOG = (ROOT / f"packaging/otel/{name}.yaml" for name in ("collector", "filelog"))
XID_79 = "NVRM: Xid (PCI:{pci}): 79, pid=1234, name=python3, GPU has fallen off the bus."
# What a test changes: JSON over HTTP, which it can read, in place of gRPC, and no waiting.
_CHANGES = """\
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: vitald
          scrape_interval: 1s
          static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
{journald}
processors:
  batch: {{timeout: 200ms}}
  resource_detection: {{detectors: [env, system]}}
exporters:
  otlp_http:
    endpoint: {url}
    encoding: json
    compression: none
service:
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


@pytest.fixture
def faulty_node(tmp_path: Path, make_node: Callable[..., Node]) -> Node:
    """With GPUs, one of which has fallen off the bus."""
    gpus = SimulatedNode(tmp_path / "gpus", "h100")
    node = make_node(gpus=gpus)
    node.start()
    node.wait(lambda status: status["status"] == "healthy", 15.0)
    node.write(XID_79.format(pci=gpus.addresses[5].rpartition(".")[0]))
    node.wait(lambda status: status["status"] == "unhealthy", 10.0)
    return node


def _set_environment(folder: Path, **more: str) -> dict[str, str]:
    storage = folder / "storage"
    storage.mkdir(exist_ok=True)
    given = {"OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_STORAGE": str(storage)}
    attributes = "k8s.node.name=node-17"
    return {**os.environ, **given, "OTEL_RESOURCE_ATTRIBUTES": attributes, **more}


@contextmanager
def _run_collector(
    collector: Path, node: Node, endpoint: Endpoint, *configs: Path, journal: Path | None = None
) -> Iterator[None]:
    folder = node.folder
    journald = f"  journald: {{directory: {journal}, start_at: beginning}}" if journal else ""
    changes = folder / "changes.yaml"
    changes.write_text(_CHANGES.format(port=node.port, url=endpoint.origin, journald=journald))
    options = [f"--config={path}" for path in (*configs, changes)]
    with (folder / "otelcol.log").open("wb") as log:
        running = subprocess.Popen(
            [collector, *options],
            env=_set_environment(folder, VITALD_LOG=str(node.errors)),
            stdout=log,
            stderr=log,
        )
        try:
            yield
            assert running.poll() is None, (folder / "otelcol.log").read_text()[-3000:]
        finally:
            running.terminate()
            running.wait(patient(20.0))


def _find_opened(endpoint: Endpoint) -> list[LogRecord]:
    return [
        record
        for record in endpoint.list_log_records()
        if record.attributes.get("event") == "finding_opened"
    ]


def _has_resource(resource: dict[str, object]) -> bool:
    wanted = {"service.name": "vitald", "k8s.node.name": "node-17"}
    return wanted.items() <= resource.items() and {"host.name", "host.id"} <= resource.keys()


@pytest.mark.parametrize("configs", [(SHIPPED,), (SHIPPED, FILELOG)], ids=["journal", "file"])
def test_what_is_shipped_is_valid(
    tmp_path: Path, collector: Path, configs: tuple[Path, ...]
) -> None:
    done = subprocess.run(
        [collector, "validate", *(f"--config={path}" for path in configs)],
        env=_set_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=patient(30.0),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_finding_becomes_a_sample_and_a_log_record(collector: Path, faulty_node: Node) -> None:
    """By metrics, and by the file of the log."""
    with (
        Endpoint() as endpoint,
        _run_collector(collector, faulty_node, endpoint, SHIPPED, FILELOG),
    ):
        faulty_node.until(lambda: endpoint.list_samples("vitald_findings"), 20.0, "its findings")
        faulty_node.until(lambda: _find_opened(endpoint), 20.0, "the line of its log")
    samples = endpoint.list_samples("vitald_findings")
    (of_the_loss,) = {
        sample.attributes["component"] for sample in samples if sample.attributes["code"] == "79"
    }
    assert re.fullmatch(r"gpu/0000:[0-9a-f]{2}:00\.0", of_the_loss)
    assert all(_has_resource(sample.resource) for sample in samples)
    record = _find_opened(endpoint)[0]
    assert _has_resource(record.resource)
    assert (record.attributes["code"], record.attributes["component"]) == ("xid/79", of_the_loss)
    assert (record.severity, record.attributes["action"]) == ("warning", "reboot_node")


def test_the_journal_becomes_log_records(collector: Path, faulty_node: Node) -> None:
    journals.needed()
    folder = faulty_node.folder / "journal"
    lines = faulty_node.errors.read_bytes().splitlines()
    of_vitald = {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "vitald.service"}
    entries = [journals.entry(10 + at, line, **of_vitald) for at, line in enumerate(lines)]
    other = journals.entry(9, "of another unit", _SYSTEMD_UNIT="cron.service")
    journals.write(folder, other, *entries)
    with (
        Endpoint() as endpoint,
        _run_collector(collector, faulty_node, endpoint, SHIPPED, journal=folder),
    ):
        faulty_node.until(lambda: _find_opened(endpoint), 20.0, "the line of its log")
    record = _find_opened(endpoint)[0]
    assert _has_resource(record.resource)
    assert (record.attributes["code"], record.severity) == ("xid/79", "warning")
    assert str(record.body).startswith("{")
    assert all("of another unit" not in str(one.body) for one in endpoint.list_log_records())
