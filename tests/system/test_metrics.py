"""The Prometheus endpoint: well-formed, complete, and gauges that fall again."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request

import pytest

from tests.harness import Node
from tests.system.lines import ordinary, wait_for_pid, xid
from tests.waiting import WAIT_S

GPU = (
    'accepted="false",action="{0}",code="{1}",component="gpu/0000:{2}:00.0",kind="xid"'
    ',pci_bus_id="0000:{2}:00.0",simulated="false",when="now"'
)
REBOOT, RESTART = GPU.format("reboot_node", 79, 65), GPU.format("restart_workload", 13, 66)


def complaints(promtool: str, page: str) -> str:
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=WAIT_S
    )
    return (
        done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")
    )


@pytest.mark.core
def test_promtool_has_nothing_to_say(shared_node: Node, promtool: str) -> None:
    """In health and in trouble, with names from the log that need escaping."""
    node = shared_node
    assert complaints(promtool, node.metrics()) == ""
    node.write(
        xid(1),
        "nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 38 LTSSM Fault Up",
        'EXT4-fs error (device sd"a\\1): x: y',
    )
    node.write(
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        xid(2, code=9999),
    )
    wait_for_pid(node, 2)
    page = node.metrics()
    assert 'code="9999"' in page
    assert complaints(promtool, page) == ""


@pytest.mark.core
def test_gauges_rise_and_fall(node: Node) -> None:
    def gauges() -> tuple[float | None, ...]:
        names = (
            "vitald_reboot_required",
            f"vitald_findings{{{REBOOT}}}",
            f"vitald_findings{{{RESTART}}}",
            'vitald_status{status="unhealthy"}',
        )
        component = (
            'vitald_component_status{component="gpu/0000:65:00.0",component_kind="gpu"'
            ',pci_bus_id="0000:65:00.0",status="unhealthy"}'
        )
        return tuple(node.metric(name) for name in (*names, component))

    assert gauges() == (0, None, None, 0, None)
    node.write(xid(1, code=13, pci="0000:66:00", message="Graphics Exception"))
    wait_for_pid(node, 1)
    assert gauges() == (0, None, 1, 0, None)
    node.write(xid(2), xid(3))
    wait_for_pid(node, 3)
    assert gauges() == (1, 1, 1, 1, 1)
    (finding,) = node.findings("&code=xid/79")
    node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "over"})
    assert gauges() == (0, None, 1, 0, None)
    assert node.metric('vitald_status{status="degraded"}') == 1
    assert (
        sum(
            node.metric(f'vitald_status{{status="{status}"}}') or 0
            for status in ("healthy", "degraded", "unhealthy", "unknown")
        )
        == 1
    )


@pytest.mark.core
def test_the_steps_of_an_incident(node: Node) -> None:
    def steps() -> dict[str, float]:
        name = re.compile(r'vitald_incident_step_seconds{simulated="false",step="(\w+)"} (\S+)')
        return {step: float(seconds) for step, seconds in name.findall(node.metrics())}

    assert steps() == {}
    node.write(xid(1))
    wait_for_pid(node, 1)
    assert list(steps()) == ["detected", "unfit"]
    assert node.request("POST", "/v1/scheduler", {"state": "drained"})[0] == 200
    (finding,) = node.findings("&code=xid/79")
    node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "over"})
    assert list(steps()) == ["detected", "unfit", "drained", "remedied"]
    assert node.request("POST", "/v1/scheduler", {"state": "in_service"})[0] == 200
    assert list(steps()) == ["detected", "unfit", "drained", "remedied", "back"]
    assert list(steps().values()) == sorted(steps().values())
    status, refused = node.request("POST", "/v1/scheduler", {"state": "idle"})
    assert (status, refused["error"]) == (
        400,
        "state: must be one of drained, in_service, not 'idle'",
    )


@pytest.mark.core
def test_counters(node: Node) -> None:
    """Events by kind and code, records read; an SXid's follow-up lines are not further events."""
    node.write(
        ordinary(1), xid(1), xid(2), xid(3, code=13, pci="0000:66:00", message="Graphics Exception")
    )
    node.write("nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 38 LTSSM Fault Up")
    node.write(
        "nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 20034, Severity 1 Engine instance 38 Sub-engine"
        " instance 00"
    )
    node.write(xid(4, code=31, pci="0000:67:00", message="-"))
    wait_for_pid(node, 4)
    series = 'vitald_events_total{{code="{}",kind="{}",simulated="false",trust="kernel"}}'
    assert [
        node.metric(series.format(code, kind))
        for kind, code in (("xid", 79), ("xid", 13), ("xid", 31), ("sxid", 20034))
    ] == [
        2,
        1,
        1,
        1,
    ]
    assert node.metric("vitald_kernel_records_read_total") == 7
    assert node.metric("vitald_transitions_total") == 4
    assert (node.metric("vitald_ledger_commits_total") or 0) >= 1


@pytest.mark.core
def test_the_process_and_its_version(shared_node: Node) -> None:
    """tests/system/test_metrics_page.py has vitald's own families."""
    node = shared_node
    page = node.metrics()
    for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds"):
        assert f"\nprocess_{name}" in page, name
    assert f'version="{node.status()["version"]}"' in page
    assert (node.metric("vitald_ledger_size_bytes") or 0) > 0


def test_codes_without_end(node: Node) -> None:
    """Hostile lines cannot make series without end: beyond a bound they are counted as `other`, and
    none is lost.
    """
    node.write(*(xid(number, code=1000 + number) for number in range(3000)))
    wait_for_pid(node, 2999)
    series = [
        line for line in node.metrics().splitlines() if line.startswith("vitald_events_total{")
    ]
    assert len(series) < 2100
    assert sum(float(line.rpartition(" ")[2]) for line in series) == 3000
    assert any('code="other"' in line for line in series)


def test_nothing_else_is_served(shared_node: Node) -> None:
    """What the socket knows is not told on the port."""
    node = shared_node
    for path in ("/", "/v1/status", "/v1/findings", "/healthz", "/metrics/x"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{node.port}{path}", timeout=WAIT_S)
        assert refused.value.code == 404
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.port}/metrics", data=json.dumps({}).encode(), method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=WAIT_S)
    assert refused.value.code == 405
