"""The GPUs on the socket, the port and the command line: the real daemon over the simulated
library.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import PYTHON, ROOT, Json, Node
from tests.system.document import conforms
from tests.system.people import cli_as_nobody, request_as_nobody
from tests.system.test_api import SLOW_TO_SHOW
from tests.system.test_cli import on_terminal
from tests.system.test_cli_waits import pretender, saying
from tests.system.test_metrics import complaints
from tests.terminal import show_on_terminal
from tests.waiting import WAIT_S, until
from vitald.cli import demo, main
from vitald.cli.finding_text import MORE_FINDINGS
from vitald.config.paths import Paths
from vitald.config.sections import load_config
from vitald.simulator.simulated_node import SimulatedNode
from vitald.slurm.settings import SlurmSettings

MODEL = "NVIDIA H100 80GB HBM3"
Pair = tuple[SimulatedNode, Node]
# A call that hangs is reported soon, and its worker is ended after an hour.
SLOW_TO_GIVE_UP = 'deadline = "1s"\ngive_up = "1h"'


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Eight H100, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("h100")
    gpus = SimulatedNode(folder / "gpus", "h100")
    with Node(folder / "node", gpus=gpus) as node:
        node.wait(lambda status: status["status"] == "healthy")
        yield gpus, node


@pytest.fixture
def make_pair(make_node: Callable[..., Node], tmp_path: Path) -> Callable[..., Pair]:
    """A node with GPUs, made to order and started."""

    def make(profile: str = "h100", *, trace: bool = False, nvml: str = "") -> Pair:
        gpus = SimulatedNode(tmp_path / "gpus", profile, trace=trace)
        node = make_node(gpus=gpus)
        node.configure("[nvml]\n", f"[nvml]\n{nvml}\n")
        node.start()
        node.wait(lambda status: status["status"] == "healthy")
        return gpus, node

    return make


def listed(node: Node) -> list[Json]:
    """What /v1/gpus says, which is as its document says."""
    answer = node.get("/v1/gpus")
    conforms("Gpus", answer)
    return cast("list[Json]", answer["gpus"])


def source(status: Json) -> Json:
    return next(one for one in cast("list[Json]", status["sources"]) if one["name"] == "nvml")


def samples(node: Node, gpu: str = "") -> list[str]:
    """The series of GPUs, or of one of them."""
    lines = [line for line in node.metrics().splitlines() if line.startswith("vitald_gpu_")]
    return [line for line in lines if f'pci_bus_id="{gpu}' in line]


def workers(node: Node) -> list[int]:
    """The daemon's children that hold NVML."""
    assert node.process is not None
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if (
                parent == str(node.process.pid)
                and b"vitald.collectors.nvml.worker" in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return found


def release(node: Node, seconds: float = 60.0, *gpus: str) -> Json:
    status, answer = node.request(
        "POST",
        "/v1/release",
        {"reason": "test", "seconds": seconds, "gpus": [*gpus]},
        timeout=WAIT_S,
    )
    assert status == 200, answer
    conforms("Released", answer)
    assert answer["free"] == (answer["deviceUsers"] == answer["stuck"] == [])
    return answer


def is_released(status: Json) -> bool:
    return (status["status"], source(status)["state"]) == ("unknown", "released")


def is_healthy(status: Json) -> bool:
    return (status["status"], source(status)["state"]) == ("healthy", "ok")


# --- what is shown


@pytest.mark.core
def test_who_and_how_each_gpu_is(shared: Pair) -> None:
    gpus, node = shared
    shown = listed(node)
    assert [one["pci"] for one in shown] == gpus.addresses
    identities = [cast("Json", one["identity"]) for one in shown]
    assert [one["uuid"] for one in identities] == gpus.uuids
    assert [one["serial"] for one in identities] == gpus.serials
    assert [one["minor"] for one in identities] == [*range(8)]
    assert {one["name"] for one in identities} == {MODEL}
    assert [one["slot"] for one in shown] == [str(number) for number in range(1, 9)]
    for one in shown:
        assert (one["status"], one["findings"], one["fresh"], one["simulated"]) == (
            "healthy",
            [],
            True,
            True,
        )
        readings = cast("Json", one["readings"])
        assert (
            readings["temperature_celsius"],
            readings["power_watts"],
            readings["power_limit_watts"],
        ) == (35, 70, 700)
        assert (readings["lost"], readings["recovery"], readings["nvlink_active"]) == (
            0,
            0,
            [1] * 18,
        )
        assert not {"uuid", "serial", "name"} & readings.keys()
        assert cast("Json", one["notObservable"])["retired_pages"] == "not supported"
    told = source(node.status())
    assert (told["state"], told["detail"]) == ("ok", "SIMULATED: no real GPU")
    assert (node.status()["simulated"], node.status()["status"]) == (True, "healthy")


@pytest.mark.core
def test_the_command_line(shared: Pair) -> None:
    """One line a GPU, and said to be simulated; as JSON what the socket says."""
    gpus, node = shared
    done = node.cli("gpus")
    first, titles, *rows = done.stdout.splitlines()
    assert (done.returncode, done.stderr, first) == (0, "", "SIMULATED: none of these GPUs is real")
    assert titles.split()[:7] == ["gpu", "pci", "minor", "model", "serial", "slot", "temp"]
    assert [row.split()[1] for row in rows] == gpus.addresses
    for number, (row, serial) in enumerate(zip(rows, gpus.serials)):
        assert re.sub(r"  +", "|", row).split("|") == [
            *(
                str(number),
                gpus.addresses[number],
                str(number),
                MODEL.removeprefix("NVIDIA "),
                serial,
                str(number + 1),
                "35C",
                "70W",
                "0%",
                "0/80G",
                "0",
                "0",
                "18/18",
                "5x16",
                "healthy",
            )
        ]
    asked = json.loads(node.cli("gpus", "--json").stdout)
    assert [one["identity"] for one in asked["gpus"]] == [one["identity"] for one in listed(node)]


def test_a_row_a_gpu_on_a_narrow_terminal(shared: Pair) -> None:
    """What it is, how hot, how full and how it is stays, whatever the width."""
    gpus, node = shared
    for columns in (60, 80, 100):
        _, titles, *rows = on_terminal(node, "gpus", columns=columns, NO_COLOR="1").splitlines()
        assert [row.split()[1] for row in rows] == gpus.addresses, columns
        assert max(len(line) for line in (titles, *rows)) <= columns
        assert {"gpu", "temp", "memory", "ecc", "status"} <= {*titles.split()}


def test_everything_is_shown_on_80_columns(shared: Pair) -> None:
    """No line is longer, and no word is lost."""
    gpus, node = shared
    address = gpus.addresses[1]
    in_time = re.compile(r"\b\d+ s\b|\b\d\d:\d\d:\d\d\S*")

    def list_words(shown: str) -> list[str]:
        return sorted(in_time.sub("", shown.partition("\n      line ")[0]).split())

    def show(verb: str, columns: int) -> str:
        return on_terminal(node, *verb.split(), columns=columns, NO_COLOR="1")

    assert node.cli("drill", "xid", "79", "--device", address).returncode == 0
    try:
        for verb in ("status", "components", "diag list", "expect", "findings", "why"):
            # Between the two, something may change.
            until(
                lambda verb=verb: list_words(show(verb, 80)) == list_words(show(verb, 400)),
                f"the same words of {verb}",
            )
            narrow = show(verb, 80)
            assert max(map(len, narrow.splitlines())) <= 80
            number_shown = f"Xid (PCI:{address[:-2]}): 79," in " ".join(narrow.split())
            assert number_shown == ("Xid" in narrow)
    finally:
        node.cli("clear", "--code", "xid/79", "--reason", "the drill is over")


def test_one_drill_makes_no_gpu_simulated(
    tmp_path: Path, shared: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the row of what is not real is marked."""
    _, node = shared
    real, ghost, *_ = listed(node)
    answer = {"gpus": [{**real, "simulated": False}, ghost], "source": None}
    with pretender(tmp_path / "sock", saying(json.dumps(answer).encode())) as place:
        assert main(["gpus", "--socket", str(place)]) == 0
        narrow = show_on_terminal("gpus", "--socket", str(place), columns=80, NO_COLOR="1")
    assert narrow.splitlines()[2].endswith("healthy  SIMULATED")
    titles, *rows = capsys.readouterr().out.splitlines()[:-1]
    assert (titles.split()[0], [row.endswith("healthy  SIMULATED") for row in rows]) == (
        "gpu",
        [False, True],
    )


def test_a_drill_on_the_only_gpu_leaves_it_real(
    tmp_path: Path, shared: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    _, node = shared
    gpu = {**listed(node)[0], "simulated": True, "findings": [1], "status": "unhealthy"}
    drill = {
        "id": 1,
        "component": gpu["component"],
        "code": "xid/79",
        "title": "GPU is lost",
        "action": "reboot_node",
        "instruction": "reboot the node",
        "when": "now",
        "unusable": True,
        "accepted": None,
        "simulated": True,
    }
    answer = {"gpus": [gpu], "source": None, "findings": [drill], "more": True}
    with pretender(tmp_path / "sock", saying(json.dumps(answer).encode())) as place:
        assert main(["gpus", "--socket", str(place)]) == 0
    _, row, reason, more, _ = capsys.readouterr().out.splitlines()
    assert row.endswith("UNHEALTHY  SIMULATED")
    assert reason.endswith(": SIMULATED GPU is lost  xid/79  #1: reboot the node")
    assert more == MORE_FINDINGS


def test_why_a_gpu_is_unknown(
    tmp_path: Path, shared: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    _, node = shared
    gpu = {**listed(node)[0], "simulated": False, "status": "unknown"}
    unseen = [{"name": gpu["component"], "unknownReasons": ["nvml: not read for 90 s"]}]
    answer = {"gpus": [gpu], "source": None, "components": unseen}
    with pretender(tmp_path / "sock", saying(json.dumps(answer).encode())) as place:
        assert main(["gpus", "--socket", str(place)]) == 0
    _, row, reason, *_ = capsys.readouterr().out.splitlines()
    assert row.endswith("UNKNOWN")
    assert reason == f"  GPU 0 {gpu['pci']}: not known: nvml: not read for 90 s"


def test_a_drill_is_on_a_gpu_of_this_node(make_pair: Callable[..., Pair]) -> None:
    """A healthy one, and a switch for a fault of one; the node without says what it does."""
    gpus, node = make_pair()
    done = [node.cli("drill", *words) for words in (("xid", "94"), ("xid/13",), ("sxid", "20034"))]
    assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 3
    on = {str(finding["component"]) for finding in node.findings()}
    assert on >= {f"gpu/{gpus.addresses[0]}", f"gpu/{gpus.addresses[1]}"}
    assert any(name.startswith("nvswitch/") for name in on)


def test_a_node_without_gpus(shared_node: Node) -> None:
    """Nothing is missing there: healthy, and nothing is said of GPUs."""
    node = shared_node
    answer = node.get("/v1/gpus")
    conforms("Gpus", answer)
    assert answer["gpus"] == []
    told = cast("Json", answer["source"])
    assert (told["state"], told["detail"]) == ("not present", "no NVIDIA GPU on PCI")
    assert (node.status()["status"], node.status()["simulated"]) == ("healthy", False)
    assert (
        samples(node),
        node.metric('vitald_source_up{source="nvml"}'),
        node.metric("vitald_simulated"),
    ) == ([], 1, 0)
    assert node.cli("gpus").stdout.splitlines()[-1] == (
        "no GPU on PCI; if this node should have some, say how many: [nvml] expected_gpus"
    )
    hint = "no GPU and no Neuron device on PCI; if this node should have some, say how many"
    assert hint in node.cli("status").stdout


def test_nvml_switched_off(make_node: Callable[..., Node]) -> None:
    node = make_node(extra="[nvml]\nenabled = false")
    node.start()
    answer = node.get("/v1/gpus")
    conforms("Gpus", answer)
    assert answer == {"gpus": [], "source": None}
    assert "nvml" not in [one["name"] for one in cast("list[Json]", node.status()["sources"])]
    for path, body in (("/v1/release", {"reason": "test"}), ("/v1/release/end", {})):
        status, refused = node.request("POST", path, body)
        assert (status, refused["error"]) == (409, "NVML is not asked on this node"), path
    done = node.cli("release", "--reason", "test")
    assert (done.returncode, "NVML is not asked on this node" in done.stderr) == (69, True)
    assert "NVML is not asked on this node" in node.cli("gpus").stdout


def test_gpus_that_nobody_asks(make_node: Callable[..., Node], tmp_path: Path) -> None:
    """NVML is switched off where there are GPUs: what PCI shows, and not a word more."""
    gpus = SimulatedNode(tmp_path / "gpus", "a100")
    node = make_node(gpus=gpus)
    node.configure("[nvml]", "[nvml]\nenabled = false")
    node.start()
    shown = listed(node)
    assert [one["pci"] for one in shown] == gpus.addresses
    for one in shown:
        assert (
            one["identity"],
            one["readings"],
            one["lastRead"],
            one["fresh"],
            one["simulated"],
        ) == ({}, {}, None, False, False)
    assert (samples(node), workers(node), node.status()["status"]) == ([], [], "healthy")
    assert "NVML is not asked" in node.cli("gpus").stdout


@pytest.mark.core
def test_a_lost_gpu(make_pair: Callable[..., Pair]) -> None:
    """Who it is stays known; how hot it was before is not how it is."""
    gpus, node = make_pair()
    before = listed(node)
    gpus.lose(5)
    node.wait(lambda status: status["openFindings"])
    (finding,) = node.findings()
    conforms("Finding", finding)
    assert (finding["code"], finding["component"], finding["simulated"]) == (
        "nvml/gpu_lost",
        f"gpu/{gpus.addresses[5]}",
        True,
    )
    shown = listed(node)
    lost = shown.pop(5)
    assert (lost["status"], lost["fresh"], lost["findings"]) == ("unhealthy", True, [finding["id"]])
    assert lost["identity"] == before[5]["identity"]
    readings = cast("Json", lost["readings"])
    assert readings["lost"] == 1
    assert (
        not {
            "temperature_celsius",
            "power_watts",
            "memory_used_bytes",
            "nvlink_active",
            "recovery",
            "energy_joules",
        }
        & readings.keys()
    )
    assert [one["status"] for one in shown] == ["healthy"] * 7
    assert all("temperature_celsius" in cast("Json", one["readings"]) for one in shown)

    assert {line.partition("{")[0] for line in samples(node, gpus.addresses[5])} == {
        "vitald_gpu_info",
        "vitald_gpu_lost",
    }
    (said,) = [
        line for line in samples(node, gpus.addresses[5]) if line.startswith("vitald_gpu_lost")
    ]
    assert said.endswith(" 1.0")
    row, reason = [row for row in node.cli("gpus").stdout.splitlines() if gpus.addresses[5] in row]
    assert row.split()[-9:] == ["-"] * 8 + ["UNHEALTHY"]
    assert gpus.serials[5] in row
    assert reason.startswith(f"  GPU 5 {gpus.addresses[5]}: SIMULATED NVML cannot reach the GPU  ")
    assert "nvml/gpu_lost" in reason


@pytest.mark.core
def test_a_gpu_comes_back(make_pair: Callable[..., Pair]) -> None:
    gpus, node = make_pair("a100")
    gpus.lose(0)
    node.wait(lambda status: status["status"] == "unhealthy")
    gpus.restore(0)
    node.wait(lambda status: status["status"] == "healthy")
    until(
        lambda: "temperature_celsius" in cast("Json", listed(node)[0]["readings"]),
        "its readings",
    )
    assert cast("Json", listed(node)[0]["readings"])["lost"] == 0


def test_a_lost_gpu_stays_lost_whoever_clears_it(make_pair: Callable[..., Pair]) -> None:
    """At the next look it is open again, and says who cleared it; after a restart too. Accepted, it
    is shown and counts for nothing.
    """
    gpus, node = make_pair()
    gpus.lose(5)
    node.wait(lambda status: status["status"] == "unhealthy")
    for again in range(2):
        (finding,) = node.findings()
        assert node.cli("clear", str(finding["id"]), "--reason", f"ticket {again}").returncode == 0
        if again:
            node.restart()
        node.wait(lambda status: status["status"] == "unhealthy")
        (found,) = node.findings()
        assert found["id"] != finding["id"] and found["code"] == "nvml/gpu_lost"
        assert f"ticket {again}; still observed)" in cast("str", found["raw"])
        assert any(
            line.startswith("vitald_gpu_lost{") and line.endswith(" 1.0")
            for line in samples(node, gpus.addresses[5])
        )
    told = len(node.events("&code=nvml/gpu_lost"))
    assert told == 3, "one for each difference, not one a round"
    done = node.cli("accept", str(found["id"]), "--for", "1h", "--reason", "seven suffice")
    assert done.returncode == 0 and "\n  shown until " in done.stdout
    assert node.status()["status"] == "degraded"
    assert node.cli("check", "--for", "prolog").returncode == 0
    (accepted,) = node.findings()
    conforms("Finding", accepted)
    assert cast("Json", accepted["accepted"])["reason"] == "seven suffice"
    assert "seven suffice" in node.cli("status").stdout
    node.restart()
    assert node.status()["status"] == "degraded", "an acceptance outlives a restart"
    assert node.cli("accept", str(found["id"]), "--end", "--reason", "it does not").returncode == 0
    assert node.status()["status"] == "unhealthy"


# --- metrics


def test_the_metrics_are_well_formed(shared: Pair, promtool: str) -> None:
    gpus, node = shared
    page = node.metrics()
    assert complaints(promtool, page) == ""
    kinds = dict(
        line.split()[2:] for line in page.splitlines() if line.startswith("# TYPE vitald_gpu_")
    )
    assert set(kinds.values()) == {"gauge", "counter"}
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items()), (
        kinds
    )
    found = samples(node)
    assert all(f'model="{MODEL} (simulated)"' in line for line in found)
    assert node.metric("vitald_simulated") == 1
    for address, uuid in zip(gpus.addresses, gpus.uuids):
        assert all(f'uuid="{uuid}"' in line for line in samples(node, address))
    who = f'gpu="2",model="{MODEL} (simulated)",pci_bus_id="{gpus.addresses[2]}"'
    assert (
        node.metric(
            f'vitald_gpu_temperature_celsius{{{who},sensor="memory",uuid="{gpus.uuids[2]}"}}'
        )
        == 36
    )
    assert (
        node.metric(f'vitald_gpu_energy_joules_total{{{who},uuid="{gpus.uuids[2]}"}}') == 900000000
    )


def test_what_cannot_be_observed_has_no_sample(make_pair: Callable[..., Pair]) -> None:
    """A T4 has no NVLink, no sensor in its memory, and no rows that could be remapped."""
    gpus, node = make_pair("t4")
    names = {line.partition("{")[0] for line in samples(node)}
    assert {
        "vitald_gpu_temperature_celsius",
        "vitald_gpu_power_watts",
        "vitald_gpu_retired_pages",
        "vitald_gpu_pcie_width",
    } <= names
    assert not [
        name
        for name in names
        if "nvlink" in name or "remap" in name or "fabric" in name or "sram" in name
    ]
    assert not [line for line in samples(node) if 'sensor="memory"' in line]
    readings = cast("Json", listed(node)[0]["readings"])
    assert not [name for name in readings if "nvlink_" in name or "remap" in name]
    row = node.cli("gpus").stdout.splitlines()[2]
    assert (row.split()[1] == gpus.addresses[0], " 0 pages " in row, row.split()[-3]) == (
        True,
        True,
        "-",
    )


@pytest.mark.core
def test_counters_follow(make_pair: Callable[..., Pair]) -> None:
    """A changed reading is on the port within its tier's time; the others' stay."""
    gpus, node = make_pair("l40s")

    def replays() -> list[float]:
        found = [line for line in samples(node) if line.startswith("vitald_gpu_pcie_replays_total")]
        return [float(line.rpartition(" ")[2]) for line in found]

    assert set(replays()) == {0}
    gpus.set_values(1, {"fi.94.0": "7", "temp_c": 66})
    until(lambda: replays()[:3] == [0, 7, 0], "the counter")
    hot = [
        line
        for line in samples(node, gpus.addresses[1])
        if line.startswith("vitald_gpu_temperature_celsius")
    ]
    assert hot[0].endswith(" 66.0")


# --- letting go


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({}, 400, "reason"),
        ({"reason": " "}, 400, "reason"),
        ({"reason": 7}, 400, "reason"),
        ({"reason": "x" * 501}, 400, "reason"),
        ({"reason": "x", "seconds": 0}, 400, "seconds"),
        ({"reason": "x", "seconds": 86401}, 400, "seconds"),
        ({"reason": "x", "seconds": "600"}, 400, "seconds"),
        ({"reason": "x", "seconds": True}, 400, "seconds"),
        ({"reason": "x", "seconds": float("nan")}, 400, "seconds"),
        ({"reason": "x", "gpus": "0000:19:00.0"}, 400, "gpus"),
        ({"reason": "x", "gpus": [0]}, 400, "gpus"),
        ({"reason": "x", "gpus": ["0000:99:00.0"]}, 404, "no GPU '0000:99:00.0'"),
        ({"reason": "x", "gpus": ["0000:19:00.0", "gpu/x"]}, 404, "no GPU 'x'"),
        ({"reason": "x", "gpus": ["nvswitch/0000:85:00.0"]}, 404, "no GPU 'nvswitch/0000:85"),
        ({"reason": "x", "gpus": ["0000:85:00.0"]}, 404, "no GPU"),
        ({"reason": "x", "minutes": 10}, 400, "minutes"),
        ([], 400, "object"),
        (None, 400, "JSON"),
    ],
    ids=str,
)
def test_a_wrong_release_is_refused(shared: Pair, body: object, code: int, said: str) -> None:
    _, node = shared
    status, answer = node.request("POST", "/v1/release", body)
    assert (status, said in str(answer["error"])) == (code, True), answer
    assert is_healthy(node.status())


def test_others_may_look_and_not_touch(shared: Pair) -> None:
    _, node = shared
    group = (node.socket.stat().st_gid,)
    assert request_as_nobody(node, "GET", "/v1/gpus", groups=group)[0] == 200
    for path, body in (("/v1/release", {"reason": "mine"}), ("/v1/release/end", {})):
        status, answer = request_as_nobody(node, "POST", path, body, groups=group)
        assert (status, "may not change" in str(answer["error"])) == (403, True), answer
    refused = cli_as_nobody(node, "release", "--reason", "mine", groups=group)
    assert (refused.returncode, "may not change" in refused.stderr) == (69, True)
    assert len(workers(node)) == 1
    assert is_healthy(node.status())


@pytest.mark.core
def test_all_of_them(make_pair: Callable[..., Pair]) -> None:
    """Once it is answered no process of ours holds the driver; both ends are kept as events."""
    _, node = make_pair()
    (before,) = workers(node)
    answer = release(node, 600.0)
    assert workers(node) == []
    assert (answer["gpus"], answer["seconds"]) == ([], 600)
    status = node.wait(is_released)
    assert source(status)["detail"].startswith("all GPUs released until ")
    assert "requested by root (uid 0), pid " in str(status["reasons"])
    assert [(one["status"], one["fresh"]) for one in listed(node)] == [("unknown", False)] * 8
    assert node.metric('vitald_source_up{source="nvml"}') == 0
    shown = node.cli("gpus").stdout
    assert "these are not the present values: source nvml is released: all GPUs released" in shown
    assert shown.count("UNKNOWN") == 8
    assert node.cli("check").returncode == 30
    assert workers(node) == []
    assert node.request("POST", "/v1/release/end", {}) == (200, {"ended": 1})
    node.wait(is_healthy)
    (after,) = workers(node)
    assert after != before
    assert all(one["fresh"] for one in listed(node))
    events = node.events("&kind=nvml")
    assert [event["code"] for event in events] == ["nvml/released", "nvml/returned"]
    assert [cast("Json", event["fields"])["reason"] for event in events] == ["test", "test"]
    assert "nothing has changed" in str(events[1]["raw"])
    assert node.findings() == []


def test_it_comes_back_by_itself(make_pair: Callable[..., Pair]) -> None:
    _, node = make_pair("t4")
    release(node, 1.0)
    until(lambda: len(node.events("&code=nvml/returned")) == 1, "the end of it")
    node.wait(is_healthy)
    codes = [event["code"] for event in node.events("&kind=nvml")]
    assert codes == ["nvml/released", "nvml/returned"]


def test_the_answer_is_not_ahead_of_the_status(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """Whoever was told that the GPUs are free reads nothing else; between a commit and its show is
    a moment, here a long one.
    """
    node = make_node(gpus=SimulatedNode(tmp_path / "gpus", "t4"))
    node.command[1:3] = ["-c", SLOW_TO_SHOW]
    node.start()
    node.wait(is_healthy)
    release(node, 60.0)
    assert is_released(node.status())


def test_no_old_values_on_the_port_meanwhile(make_pair: Callable[..., Pair]) -> None:
    """Prometheus cannot see that a sample is of ten minutes ago: what is not read now has none."""
    _, node = make_pair()
    release(node, 60.0)
    node.wait(is_released)
    names = {line.partition("{")[0] for line in samples(node)}
    assert names <= {"vitald_gpu_info"}


def test_taken_back_earlier(make_pair: Callable[..., Pair]) -> None:
    _, node = make_pair("l40s")
    assert node.cli("release", "--end").stdout == "nothing was released\n"
    done = node.cli("release", "--for", "1h", "--reason", "a person's reset")
    assert (done.returncode in (0, 10), done.stderr) == (True, ""), done
    assert done.stdout.startswith("released all GPUs until ")
    assert ("no process is known to have them open" in done.stdout) == (done.returncode == 0)
    assert workers(node) == []
    status = node.wait(is_released)
    assert "a person's reset" in str(source(status)["detail"])
    ended = node.cli("release", "--end", "--json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"ended": 1})
    node.wait(is_healthy)
    assert node.request("POST", "/v1/release/end", {}) == (200, {"ended": 0})


def test_several_at_once(make_pair: Callable[..., Pair]) -> None:
    """Each is answered, and the last one to be over ends it."""
    gpus, node = make_pair("a100")
    for seconds, wanted in (
        (1.0, ()),
        (600.0, ()),
        (600.0, (gpus.addresses[0],)),
        (600.0, (gpus.addresses[0],)),
    ):
        release(node, seconds, *wanted)
    node.wait(is_released)
    time.sleep(1.0)  # so that the first of them is over
    assert is_released(node.status())
    assert workers(node) == []
    assert node.request("POST", "/v1/release/end", {})[1] == {"ended": 3}
    node.wait(is_healthy)


def test_only_one_of_them(make_pair: Callable[..., Pair]) -> None:
    """It is not asked any more, the others are; by the command's own words for it."""
    gpus, node = make_pair(trace=True)
    done = node.cli(
        "release",
        "--device",
        f"gpu/{gpus.addresses[3]}",
        "--for",
        "1h",
        "--reason",
        "reset of one",
        "--json",
    )
    answer = json.loads(done.stdout)
    conforms("Released", answer)
    assert (done.returncode, answer["gpus"]) == (
        0 if answer["free"] else 10,
        [f"gpu/{gpus.addresses[3]}"],
    )
    answered = time.monotonic_ns()
    status = node.wait(is_released)
    assert str(source(status)["detail"]).startswith(f"gpu/{gpus.addresses[3]} released until ")

    def asked(since: int) -> set[int | None]:
        return {call.gpu for call in gpus.read_calls() if call.at_ns > since}

    for _ in range(2):  # rounds
        since = time.monotonic_ns()
        until(lambda since=since: asked(since) >= {0, 1, 2, 4, 5, 6, 7}, "the others to be asked")
    assert 3 not in asked(answered)
    assert is_released(node.status())
    assert node.cli("release", "--end").returncode == 0
    node.wait(is_healthy)
    until(lambda: 3 in asked(answered), "it to be asked again")
    assert listed(node)[3]["fresh"]


@pytest.mark.parametrize("kind", ["sleep", "spin", "fork"])
def test_while_a_call_hangs(make_pair: Callable[..., Pair], kind: str) -> None:
    """Whoever wants the GPUs does not wait for one that hangs: the process in the way is ended."""
    gpus, node = make_pair(nvml=SLOW_TO_GIVE_UP)
    gpus.hang_call(4, "nvmlDeviceGetTemperature", kind)
    (held,) = workers(node)
    until(lambda: node.findings("&code=nvml/hung"), "the hang")
    answer = release(node, 600.0)
    assert (answer["stuck"], workers(node), Path(f"/proc/{held}").exists()) == ([], [], False)
    node.wait(is_released)
    gpus.release_call(4, "nvmlDeviceGetTemperature")
    node.request("POST", "/v1/release/end", {})
    node.wait(is_healthy)


def test_one_that_hangs_alone_is_let_go_of(make_pair: Callable[..., Pair]) -> None:
    gpus, node = make_pair(nvml=SLOW_TO_GIVE_UP)
    gpus.hang_call(4, "nvmlDeviceGetTemperature")
    until(lambda: node.findings("&code=nvml/hung"), "the hang")
    release(node, 600.0, gpus.addresses[4])
    node.wait(is_released)
    gpus.set_values(0, {"temp_c": 51})
    until(
        lambda: cast("Json", listed(node)[0]["readings"])["temperature_celsius"] == 51,
        "the others to be looked at",
    )


# --- the demonstration


def test_demo(tmp_path: Path) -> None:
    """To its end, with everything that it shows of faults marked as simulated, and nothing left
    behind.
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "120"}
    command = [PYTHON, "-m", "vitald", "demo", "--pause", "0"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:]
    lines = done.stdout.splitlines()
    assert [line[:2] for line in lines if re.match(r"\d\. ", line)] == ["1.", "2.", "3.", "4."]
    for number, line in enumerate(lines):
        if re.search(r"  #\d+$", line) and not line.startswith(
            "      and    "
        ):  # what heads an incident
            assert line.startswith("  SIMULATED gpu/"), line
        elif re.match(r"(healthy|degraded|unhealthy|unknown): ", line):
            assert line.partition(": ")[2].startswith("SIMULATED: "), line
        elif re.match(r"\S+  (HEALTHY|DEGRADED|UNHEALTHY|UNKNOWN)", line):
            assert "simulated" in line.lower(), line
        elif line.startswith("gpu  "):
            assert lines[number - 1] == "SIMULATED: none of these GPUs is real"
        elif line.startswith("finding #"):
            assert ", simulated, " in line
    assert len([line for line in lines if line.startswith("  SIMULATED gpu/")]) >= 4
    last = "\n".join(lines).rpartition("$ vitald status")[2]
    assert "xid/79" in last
    assert "nvml/gpu_lost" in last, "NVML's word on the lost GPU is part of the last chapter"
    assert (
        len([line for line in last.splitlines() if line.startswith("  SIMULATED gpu/0000:ab:00.0")])
        == 1
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_demo_ends(tmp_path: Path, how: str) -> None:
    """No daemon is left behind when its terminal is closed, nor when it is killed."""
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.chdir(ROOT)
        named = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
        command = [PYTHON, "-m", "vitald", "demo", "--pause", "0", "--stay"]
        os.execve(command[0], command, named)
    shown = b""
    while b"Ctrl-C. Ask it:" not in shown:
        assert select.select([terminal], [], [], WAIT_S)[0], shown[-500:]
        shown += os.read(terminal, 65536)
    (folder,) = tmp_path.iterdir()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(folder / "run/vitald.sock"))
        peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    daemon, _, _ = struct.unpack("3i", peer)

    def read_command() -> bytes:
        """Empty once it has ended, whether or not somebody has waited for it."""
        with suppress(FileNotFoundError):
            return Path(f"/proc/{daemon}/cmdline").read_bytes()
        return b""

    assert b"\0run\0" in read_command()
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    os.waitpid(pid, 0)
    until(lambda: not read_command(), "the daemon to end")
    if how == "closed":
        assert list(tmp_path.iterdir()) == []


def test_demo_in_a_file(tmp_path: Path) -> None:
    """Says where it stays, too. What Slurm's prolog counted on this machine is not of its node."""
    command = [PYTHON, "-m", "vitald", "demo", "--pause", "0", "--stay"]
    output = tmp_path / "output"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        output.open("wb") as file,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file) as demo,
    ):
        try:
            until(
                lambda: "/metrics\n" in output.read_text().rpartition("Ask it:")[2],
                lambda: f"its port: {output.read_text()[-1000:]}",
            )
            (path,) = tmp_path.glob("vitald-demo-*/config.toml")
            settings = load_config(path)
            for place in (
                settings[Paths].state,
                settings[Paths].runtime,
                settings[SlurmSettings].record,
            ):
                assert place.parent == path.parent
        finally:
            demo.send_signal(signal.SIGINT)


def test_a_demo_shows_why_its_daemon_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that stops after it listened, and one that never listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken, monkeypatch.context() as port:
        port.setattr(demo, "_free_port", lambda: taken.getsockname()[1])
        assert main(["demo", "--pause", "0"]) == 69
    assert "cannot listen there ([metrics] listen)" in capsys.readouterr().err
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    Path(tempfile.gettempdir()).mkdir()
    assert main(["demo", "--pause", "0"]) == 69
    assert "longer than the 107 bytes" in capsys.readouterr().err


# --- which board


@pytest.mark.core
def test_a_finding_says_which_board_it_is(make_pair: Callable[..., Pair]) -> None:
    """By all its names: in the status, the verdict, the findings, the API, the metrics and the log.
    Each is accepted where a component is asked for.
    """
    gpus, node = make_pair()
    address, serial, uuid = gpus.addresses[3], gpus.serials[3], gpus.uuids[3]
    text = f"GPU 3, serial {serial}, slot 4, module 4"
    bus = address.rpartition(".")[0]
    node.write(f"NVRM: Xid (PCI:{bus}): 79, pid=1, name=x, GPU has fallen off the bus.")
    status = node.wait(lambda status: bool(status["findings"]))
    (finding,) = cast("list[Json]", status["findings"])
    assert finding["device"] == {
        "index": 3,
        "serial": serial,
        "uuid": uuid,
        "slot": "4",
        "module": "4",
        "pci": address,
        "text": text,
    }
    assert node.cli("check").stdout.startswith(f"unhealthy: gpu/{address} ({text}): GPU has fallen")
    for command in ("status", "findings", "why"):
        assert f"{text}, {uuid}" in node.cli(command).stdout, command
    assert f"gpu/{address} ({text}): GPU has fallen off the bus" in node.errors.read_text()
    (change,) = cast("list[Json]", node.get("/v1/transitions")["transitions"])
    assert change["device"] == finding["device"]
    (info,) = [
        line
        for line in node.metrics().splitlines()
        if line.startswith(f'vitald_device_info{{component="gpu/{address}"')
    ]
    for label in ('index="3"', f'serial="{serial}"', f'uuid="{uuid}"', 'slot="4"'):
        assert label in info
    for name in ("3", "gpu/3", serial, uuid, address, bus, "slot 4", "module 4"):
        listed = node.cli("events", "--component", name, "--code", "xid/79", "--json").stdout
        entries = [json.loads(line) for line in listed.splitlines()]
        assert [one["component"] for one in entries] == [f"gpu/{address}"] * 2, name
        shown = json.loads(node.cli("components", name, "--json").stdout)
        assert [one["name"] for one in shown["components"]] == [f"gpu/{address}"], name
        released = json.loads(
            node.cli("release", "--device", name, "--reason", "x", "--json").stdout
        )
        assert released["gpus"] == [f"gpu/{address}"], name
        node.cli("release", "--end")
    for command in (
        ("events", "--component"),
        ("components",),
        ("release", "--reason", "x", "--device"),
    ):
        done = node.cli(*command, "1650523000123")
        assert done.returncode == 69, command
        assert "'1650523000123' on this node" in done.stderr, command


def test_a_gpu_that_is_gone_keeps_its_names(make_pair: Callable[..., Pair]) -> None:
    """Over a restart of the daemon, too: by then nothing can be read of it. Its number is that of
    the GPU to which the driver gave it.
    """
    gpus, node = make_pair()
    (shown,) = cast("list[Json]", node.get("/v1/components?component=3")["components"])
    named = cast("Json", shown["device"])
    del named["index"]
    named["text"] = str(named["text"]).removeprefix("GPU 3, ")
    gpus.remove(3)

    def missing(status: Json) -> bool:
        return "nvml/gpu_missing" in [one["code"] for one in cast("list[Json]", status["findings"])]

    def device(status: Json) -> object:
        findings = cast("list[Json]", status["findings"])
        return next(one["device"] for one in findings if one["code"] == "nvml/gpu_missing")

    assert device(node.wait(missing)) == named
    node.stop()
    node.start()
    assert device(node.wait(missing)) == named
    row = next(one for one in listed(node) if one["pci"] == gpus.addresses[3])
    identity = cast("Json", row["identity"])
    assert (identity["serial"], "index" in identity, row["slot"]) == (gpus.serials[3], False, "4")
    assert node.cli("components", "3").stdout.splitlines()[1].startswith(f"gpu/{gpus.addresses[4]}")
