"""The checks with programs on PATH that stand for the real ones, run as the daemon runs them:
started, timed, ended, read.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network_tree import EFA, NetworkTree
from tests.neuron_tree import TRN2, NeuronTree
from tests.trees import NVIDIA, Tree
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.check import Check
from vitald.diagnostics.checks import dcgm_health, efa_loopback, nccl, nccom
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics.settings import (
    DcgmHealthSettings,
    EfaLoopbackSettings,
    NcclSettings,
    NccomSettings,
)
from vitald.model.diagnostic import Report, RunRequest
from vitald.model.words import Outcome

# A pingpong over TCP: the server waits for its client, and says nothing on its own. Its data do not
# go through an adapter.
FI_PINGPONG = """\
import json, os, socket, sys, time
options = dict(zip(sys.argv[1:-1:2], sys.argv[2::2]))
adapter = options["-d"].removesuffix("-rdm")
how = json.load(open(os.environ["HOW"])).get(adapter, {})
assert (options["-e"], options["-p"], os.environ["FI_EFA_ENABLE_SHM_TRANSFER"]) == ("rdm", "efa", "0"), sys.argv
if "-B" in options:
    print("server of", adapter)
    if "server" in how:
        sys.exit(how["server"])
    time.sleep(how.get("late", 0))
    with socket.create_server(("127.0.0.1", int(options["-B"]))) as listening:
        with listening.accept()[0] as client:
            while client.recv(100):
                pass
    sys.exit(0)
with socket.create_connection((sys.argv[-1], int(options["-P"]))) as server:
    server.send(b"ping")
    if "client" in how:
        print(how["client"], file=sys.stderr)
        sys.exit(1)
    if how.get("hang"):
        time.sleep(600)
    speed = how.get("speed", 4000.0)
    print("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec")
    for size, us in (("64", 21.0), ("256", 21.5), ("1k", 22.0), ("4k", 24.5), ("64k", 60.0)):
        print(f"{size:8}1k      =1k      1m          0.04s{100.0:10.2f}{us:11.2f}{0.04:11.2f}")
    print(f"{'1m':8}1k      =1k      1.9g        0.52s{speed:10.2f}{260.0:11.2f}{0.0:11.2f}")
"""
DCGMI = """\
import json, os, sys, time
how = json.load(open(os.environ["HOW"]))
def save():
    json.dump(how, open(os.environ["HOW"], "w"))
if how.get("engine") == "down":
    print("Error: unable to establish a connection to the specified host: localhost")
    print("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
    sys.exit(235)
if sys.argv[1:] == ["health", "-g", "0", "-s", "a"]:
    how["watches"] = True
    save()
    print("Health monitor systems set successfully.")
elif sys.argv[1:] == ["health", "-g", "0", "-c", "-j"]:
    if not how.get("watches"):
        print("Error: Health watches not enabled. Please enable watches. ")
        sys.exit(253)
    time.sleep(how.get("stall", 0))
    print(json.dumps(how.get("answer") or {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}, indent=1))
else:
    sys.exit(255)
"""
NCCOM = """\
import os, sys
words = sys.argv[1:]
print("workers:", words[words.index("-r") + 1], "logical:", os.environ.get("NEURON_LOGICAL_NC_CONFIG"), file=sys.stderr)
print("    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)")
for size, bus in ((1 << 20, 25.94), (1 << 26, 102.4), (1 << 30, 105.22)):
    print(f"{size:12}{size // 4:12}    fp32    {100.0:10.2f}    {bus / 2:10.2f}    {bus:10.2f}")
print("Avg bus bandwidth:\\t77.8533GB/s")
"""
NCCL = """\
import os, sys
count = int(sys.argv[sys.argv.index("-g") + 1])
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
assert os.environ["NCCL_DEBUG"] == "WARN" and os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
print("# Using devices")
for rank in range(count):
    print(f"#  Rank {rank:2} Group  0 Pid {os.getpid():6} on      node7 device {rank:2} [0x{0x18 + rank:02x}] NVIDIA H100 80GB HBM3")
print("#")
print("#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong")
print("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)")
wrong = 5 if visible == "0,2" else 0
print(f"  8589934592    2147483648     float     sum      -1    27715  309.94  464.91      0    27689  310.23  465.35 {wrong:6}")
print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
print("# Avg bus bandwidth    : 465.13")
sys.exit(1 if wrong else 0)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program on PATH. What it is to do it reads from a file that `how` writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOW", str(tmp_path / "how"))
    (tmp_path / "how").write_text("{}")

    def put(name: str, text: str) -> None:
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)

    return put


def perform(check: Check, *, gpus: tuple[int, ...] = ()) -> Report:
    assert check.find_obstacle() == ""

    async def run() -> Report:
        programs = Programs()
        try:
            return await check.run_check(RunRequest(check=check.name, gpus=gpus), programs.execute)
        finally:
            await programs.close()

    return asyncio.run(run())


def leftover(word: str) -> list[str]:
    """Processes of this machine with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if word.encode() in command and b"pytest" not in command:
            found.append(f"{path.parent.name}: {command!r}")
    return found


# --- EFA


@pytest.fixture
def adapters(tmp_path: Path) -> list[str]:
    tree = NetworkTree(tmp_path / "sys")
    return [tree.efa(address) for address in EFA[:2]]


def loopback(tmp_path: Path, **settings: float) -> Check:
    return efa_loopback.build_check(
        Config(Paths(sysfs=tmp_path / "sys"), EfaLoopbackSettings(**settings))
    )


@pytest.mark.core
def test_efa_server_and_client_meet_and_are_measured(
    tmp_path: Path, program: Callable[[str, str], None], adapters: list[str]
) -> None:
    program("fi_pingpong", FI_PINGPONG)
    (tmp_path / "how").write_text(
        f'{{"{adapters[0]}": {{"late": 0.5}}}}'
    )  # a server that takes its time
    report = perform(loopback(tmp_path))
    assert (report.outcome, report.reason) == (Outcome.PASS, "")
    best = {
        measure.device: measure.value
        for measure in report.measures
        if measure.name == "bandwidth_bytes_per_second"
    }
    assert best == dict.fromkeys(adapters, 4e9)
    assert leftover(str(tmp_path)) == []


def test_efa_blames_the_adapter_that_is_slow_or_fails(
    tmp_path: Path, program: Callable[[str, str], None], adapters: list[str]
) -> None:
    program("fi_pingpong", FI_PINGPONG)
    (tmp_path / "how").write_text(
        f'{{"{adapters[0]}": {{"speed": 500.0}}, "{adapters[1]}": {{"client": "cq_readerr:'
        ' Unreachable remote"}}'
    )
    report = perform(loopback(tmp_path, min_gbps=8.0))
    assert [(fault.code, fault.device) for fault in report.faults] == [
        ("efa_loopback/slow", f"nic/{EFA[0]}"),
        ("efa_loopback/failed", f"nic/{EFA[1]}"),
    ]
    assert "Unreachable remote" in report.reason
    assert leftover(str(tmp_path)) == []  # the server of the client that failed is gone, too


def test_efa_server_that_dies_and_client_that_hangs(
    tmp_path: Path, program: Callable[[str, str], None], adapters: list[str]
) -> None:
    program("fi_pingpong", FI_PINGPONG)
    (tmp_path / "how").write_text(
        f'{{"{adapters[0]}": {{"server": 61}}, "{adapters[1]}": {{"hang": true}}}}'
    )
    report = perform(loopback(tmp_path, deadline_s=2.0))
    assert [fault.code for fault in report.faults] == ["efa_loopback/failed"] * 2
    assert "ended with 61" in report.reason and "within 2 s" in report.reason
    assert leftover(str(tmp_path)) == []


# --- DCGM's watches


def test_dcgm_health_from_an_engine_that_is_down_to_a_failing_gpu(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    program("dcgmi", DCGMI)
    tree = Tree(tmp_path / "sys")
    tree.pci("0000:18:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    now = [1000.0]
    settings = Config(Paths(sysfs=tmp_path / "sys"), DcgmHealthSettings(deadline_s=2.0))
    check = dcgm_health.DcgmHealthCheck(settings, lambda: now[0])

    (tmp_path / "how").write_text('{"engine": "down"}')
    assert [fault.code for fault in perform(check).faults] == ["dcgm/engine_down"]
    (tmp_path / "how").write_text("{}")
    assert "just now" in perform(check).reason
    now[0] += 600.0
    assert perform(check).outcome is Outcome.PASS
    (tmp_path / "how").write_text("{}")  # the engine was restarted
    assert "set again" in perform(check).reason
    now[0] += 600.0
    (tmp_path / "how").write_text(
        '{"watches": true, "answer": {"body": {"Overall Health": {"value": "Failure"}, "GPU":'
        ' {"children": {"0": {"children": {"Errors": {"children": {"Memory system": {"value":'
        ' "Failure", "overflow": ["a DBE", "on GPU 0"]}}}}, "value": "Failure"}}}}}}'
    )
    report = perform(check)
    assert [(fault.code, fault.gpu) for fault in report.faults] == [("dcgm_health/memory", 0)]
    assert "a DBE on GPU 0" in report.reason
    (tmp_path / "how").write_text('{"watches": true, "stall": 60}')
    assert [fault.code for fault in perform(check).faults] == ["dcgm_health/stalled"]
    assert leftover(str(tmp_path)) == []


# --- all-reduces


def test_nccom_over_all_cores(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    program("nccom-test", NCCOM)
    NeuronTree(tmp_path / "sys", TRN2)
    make = Config(Paths(sysfs=tmp_path / "sys"), NccomSettings(min_gbytes=100.0))
    assert perform(nccom.build_check(make)).outcome is Outcome.PASS
    more = Config(Paths(sysfs=tmp_path / "sys"), NccomSettings(min_gbytes=120.0))
    assert [fault.code for fault in perform(nccom.build_check(more)).faults] == ["nccom/slow"]


def test_nccl_over_all_gpus_and_over_some(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    program("all_reduce_perf", NCCL)
    tree = Tree(tmp_path / "sys")
    for bus in ("18", "19", "1a", "1b"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    check = nccl.build_check(Config(Paths(sysfs=tmp_path / "sys"), NcclSettings(min_gbytes=400.0)))
    assert perform(check).outcome is Outcome.PASS
    assert [fault.code for fault in perform(check, gpus=(2, 0)).faults] == ["nccl/wrong"]


def test_a_program_that_is_broken_has_no_verdict(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    tree = Tree(tmp_path / "sys")
    for bus in ("18", "19"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    check = nccl.build_check(Config(Paths(sysfs=tmp_path / "sys")))
    for text in (
        "import os\nos.abort()\n",
        "raise SystemExit('libnccl.so.2: error while loading shared libraries')\n",
        "print('x' * 10**6)\n",
    ):
        program("all_reduce_perf", text)
        report = perform(check)
        assert (
            report.outcome in (Outcome.ERROR, Outcome.CONFIG, Outcome.INCONCLUSIVE)
            and report.reason
            and not report.faults
        )
    program("all_reduce_perf", "")
    (tmp_path / "bin" / "all_reduce_perf").write_text("\x7fELF no such thing")
    assert perform(check).outcome in (Outcome.ERROR, Outcome.CONFIG)
