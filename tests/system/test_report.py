"""`vitald report` on a real daemon: well, killed, stopped in the middle, seen by others, and with a
long history.
"""

from __future__ import annotations

import grp
import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.dcgmi import Dcgmi, Fault, diag
from tests.harness import PYTHON, ROOT, Json, Node
from tests.system.lines import dbe, fallen_with_company, remap, wait_for_pid, xid
from tests.system.people import NOBODY, cli_as_nobody
from tests.unit.test_ledger_versions import write_ledger
from tests.waiting import WAIT_S, until
from vitald.ledger.store import FILE, Ledger, LedgerEntry
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.words import ComponentKind
from vitald.simulator.simulated_node import SimulatedNode

GROUP = grp.getgrgid(1)
SECRET = "hunter2-Tr0ub4dor"
MIB = 1024 * 1024
# The most memory that the command ever had, in KiB on standard error.
_MEASURED = """
import pathlib, re, sys
from vitald.cli import main
code = main(sys.argv[1:])
status = pathlib.Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+(\\d+)", status)[1], file=sys.stderr)
sys.exit(code)
"""


class Archived:
    """An archive, looked at with Python's tarfile and with GNU tar."""

    def __init__(self, path: Path) -> None:
        self.path = path
        assert path.stat().st_mode & 0o777 == 0o600
        subprocess.run(["tar", "tzf", str(path)], check=True, capture_output=True)
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            assert all(member.isreg() for member in members)
            (self.folder,) = {member.name.partition("/")[0] for member in members}
            assert path.name == f"{self.folder}.tar.gz"
            files = {member.name.partition("/")[2]: tar.extractfile(member) for member in members}
            self.parts = {name: file.read() for name, file in files.items() if file is not None}
        for name, data in self.parts.items():
            if name.endswith(".json"):
                json.loads(data)
            elif name.endswith((".txt", ".log")):
                assert all(char.isprintable() or char in "\n\t" for char in data.decode()), name

    def json(self, name: str) -> Json:
        return cast("Json", json.loads(self.parts[name]))

    def text(self, name: str) -> str:
        return self.parts[name].decode()

    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.parts["events.jsonl"].splitlines()]

    def missing(self) -> list[str]:
        """Without what this machine does not have: systemd, and a journal of our units."""
        absent = ("service.txt", "vitald.log")
        return [
            line
            for line in self.text("errors.txt").splitlines()
            if line != "nothing is missing" and not line.startswith(absent)
        ]


def report(node: Node, *arguments: str, config: Path | None = None) -> Archived:
    """Made by the command, in a folder of its own."""
    folder = node.folder / f"report{time.monotonic_ns()}"
    folder.mkdir()
    done = node.cli(
        "report",
        "--config",
        str(config or node.config),
        "--output",
        str(folder),
        *arguments,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    (path,) = folder.iterdir()
    assert done.stdout.startswith(f"{path}  ")
    return Archived(path)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Four findings, one that was cleared, and a line that would drive a terminal. Its socket
    belongs to a group.
    """
    with Node(
        tmp_path_factory.mktemp("node"), extra=f'[socket]\ngroup = "{GROUP.gr_name}"'
    ) as node:
        red = f"x \x1b[31mred, {SECRET}"
        node.write(
            *fallen_with_company(1),
            dbe(2, "0000:66:00"),
            remap(3, "0000:67:00"),
            xid(4, pci="0000:68:00", message=red),
        )
        wait_for_pid(node, 4)
        node.cli("clear", "3", "--reason", "replaced the \U0001f41b board")
        yield node


@pytest.mark.core
def test_everything_is_in_it(troubled: Node) -> None:
    found = report(troubled)
    assert found.missing() == []
    status = found.json("status.json")
    assert (status["status"], status["rebootRequired"]) == ("unhealthy", True)
    findings = cast("dict[str, list[Json]]", found.json("findings.json"))
    assert [one["id"] for one in findings["open"]] == [one["id"] for one in troubled.findings()]
    assert [one["id"] for one in findings["cleared"]] == [3]
    assert found.events() == troubled.events()
    assert [
        cast("Json", one["finding"])["id"] for one in cast("list[Json]", found.json("why.json"))
    ] == [one["id"] for one in findings["open"]]
    assert found.json("incidents.json") == troubled.get("/v1/incidents?limit=1000")["incidents"]
    assert found.json("inventory/components.json").keys() == troubled.get("/v1/components").keys()
    assert "vitald_reboot_required 1.0" in found.text("metrics.txt")
    assert found.json("versions.json")["python"] == sys.version.split()[0]
    tables = cast("dict[str, Json]", found.json("config.json")["tables"])
    assert tables["paths"]["state"] == str(troubled.state)
    assert xid(1) in found.text("kernel.log")
    summary = found.text("summary.txt")
    for part in (
        "UNHEALTHY  reboot required",
        "=== open findings: 4",
        "=== findings that ended: 1",
        "replaced the \U0001f41b board",
        "do     reboot the node",
        xid(1),
        "=== how the open findings came to be",
        "    -> ",
        "\\x1b[31mred",
    ):
        assert part in summary, part
    for name in found.parts.keys() - {"README.txt"}:
        assert name.partition("/")[0] in found.text("README.txt"), name
    assert "kernel.log" not in report(troubled, "--no-logs").parts


def test_a_secret_of_the_configuration_is_nowhere(troubled: Node) -> None:
    """Although a line of the kernel log has it too."""
    assert SECRET in json.dumps(report(troubled).events())
    config = troubled.folder / "secret.toml"
    more = (
        f'# {SECRET}\n[alerts]\npassword = "{SECRET}"\nurl ='
        f' "https://u:{SECRET}@x.example"\n[alerts.env]\nA = ["{SECRET}"]\n'
    )
    config.write_text(troubled.config.read_text() + more)
    found = report(troubled, config=config)
    assert not [name for name, data in found.parts.items() if SECRET.encode() in data]
    assert "x [redacted]" not in found.text("events.jsonl") and "red, [redacted]" in found.text(
        "events.jsonl"
    )
    assert "alerts.password: by its name" in cast(
        "list[str]", found.json("config.json")["redacted"]
    )


def test_members_of_the_group_get_what_they_may_read(troubled: Node) -> None:
    """`errors.txt` names the rest and what to do. Others get hardly anything, but that."""
    out = troubled.runtime / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    config = troubled.runtime / "config.toml"  # that of the node lies in a folder of root's
    shutil.copyfile(troubled.config, config)
    config.chmod(0o644)
    for groups, answers in (((GROUP.gr_gid,), True), ((), False)):
        done = cli_as_nobody(
            troubled, "report", "--output", "out", "--config", "config.toml", groups=groups
        )
        (path,) = out.iterdir()
        assert (done.returncode, path.stat().st_uid) == (0, NOBODY), done
        found = Archived(path)
        assert (found.json("status.json")["status"] == "unhealthy") is answers
        assert ("inventory/components.json" in found.parts) is answers
        assert not {"findings.json", "events.jsonl"} & {*found.parts}
        (why,) = (line for line in found.missing() if line.startswith("the history: "))
        assert f"{troubled.state}/ledger.db: Permission denied: run it with sudo" in why
        assert ("not allowed to ask" in found.text("errors.txt")) is not answers
        path.unlink()
    done = cli_as_nobody(troubled, "report", "-o", "out", "--config", str(troubled.config))
    (path,) = out.iterdir()
    assert f"{troubled.config}: Permission denied" in Archived(path).text("errors.txt")


def test_to_standard_output_and_as_json(troubled: Node) -> None:
    """Nothing but the archive on standard output."""
    command = [
        PYTHON,
        "-m",
        "vitald",
        "report",
        "--socket",
        str(troubled.socket),
        "--config",
        str(troubled.config),
    ]
    done = subprocess.run(
        [*command, "--output", "-"], cwd=ROOT, capture_output=True, timeout=WAIT_S
    )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        assert len(tar.getnames()) > 10
    assert done.returncode == 0 and b"look through it" in done.stderr
    path = troubled.folder / "named.tgz"
    said = json.loads(troubled.cli("report", "--output", str(path), "--json").stdout)
    assert (said["file"], said["bytes"]) == (str(path), path.stat().st_size)
    with tarfile.open(path) as tar:
        parts = {name.rpartition("/")[2] for name in tar.getnames()}
    # Its journal is there where vitald runs as a service on this machine.
    assert ("vitald.log" in {one["part"] for one in said["missing"]}) is not ("vitald.log" in parts)
    path.unlink()


@pytest.mark.core
def test_of_a_daemon_that_was_killed(make_node: Callable[..., Node]) -> None:
    """The ledger tells the same, and is left as it was."""
    node = make_node()
    node.start()
    node.write(*fallen_with_company(1), dbe(2, "0000:66:00"), remap(3, "0000:67:00"))
    wait_for_pid(node, 3)
    node.cli("clear", "3", "--reason", "swapped")
    before = report(node)
    node.kill()
    held = {
        path: hashlib.sha256(path.read_bytes()).digest()
        for path in node.state.glob("ledger.db*")
        if path.suffix != ".db-shm"
    }
    found = report(node, "--ledger")
    for name in (
        "findings.json",
        "why.json",
        "incidents.json",
        "events.jsonl",
        "diagnostics/runs.json",
    ):
        assert found.parts[name] == before.parts[name], name
    status = found.json("status.json")
    assert (status["status"], status["remembered"], status["rebootRequired"]) == (
        "unknown",
        "unhealthy",
        True,
    )
    summary = found.text("summary.txt")
    assert (
        "DOES NOT ANSWER" in summary
        and "=== as it was then\n\nunhealthy, rebootRequired\n" in summary
        and xid(1) in summary
    )
    assert "all that only the daemon knows: nobody listens" in found.missing()[0]
    assert {path: hashlib.sha256(path.read_bytes()).digest() for path in held} == held
    raw = node.folder / "raw"
    raw.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        (raw / name).write_bytes(found.parts[f"ledger/{name}"])
    with closing(sqlite3.connect(raw / "ledger.db")) as db:
        assert db.execute("SELECT count(*) FROM events").fetchone()[0] >= len(found.events()) > 0


def test_of_a_daemon_that_hangs(make_node: Callable[..., Node]) -> None:
    """It is waited for once, and the ledger is read beside it."""
    node = make_node()
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    with node.frozen():
        found = report(node, "--timeout", "1")
    assert [
        one["code"] for one in cast("dict[str, list[Json]]", found.json("findings.json"))["open"]
    ] == ["xid/79"]
    assert "in time" in found.missing()[0] and any(
        "metrics.txt" in line for line in found.missing()
    )
    assert found.events() == node.events()


def test_the_ledger_is_read_with_its_owners_rights(make_node: Callable[..., Node]) -> None:
    """What a daemon that was taken over could point root at stays closed."""
    require(os.geteuid() == 0, "root")
    node = make_node()
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    node.stop()
    for path in (node.state, *node.state.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    for path in node.folder.parents[:-2]:  # pytest's folders are for root only
        path.chmod(path.stat().st_mode | 0o011)
    node.folder.chmod(0o755)
    assert len(report(node).events()) == len(report(node, "--ledger").events()) > 0
    secret = node.folder / "of-root.db"
    shutil.copyfile(node.state / "ledger.db", secret)
    secret.chmod(0o600)
    (node.state / "ledger.db").unlink()
    (node.state / "ledger.db").symlink_to(secret)
    found = report(node, "--ledger")
    assert not [
        name
        for name, data in found.parts.items()
        if xid(1).encode() in data and name != "kernel.log"
    ]
    assert f"the history: {node.state}/ledger.db: Permission denied" in found.missing()


def test_a_newer_ledger_is_not_read(make_node: Callable[..., Node]) -> None:
    """And left as it was."""
    node = make_node()
    path = write_ledger(node.state) / FILE
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    found = report(node, "--since", "30d")
    assert "events.jsonl" not in found.parts
    assert any("written by a newer vitald: its schema is 99" in line for line in found.missing())
    assert path.read_bytes() == before


def test_a_long_history_stays_within_bounds(make_node: Callable[..., Node]) -> None:
    """100,000 events: all without a daemon, and beside one as many as fit."""
    node = make_node()
    now = time.time()
    ledger = Ledger(node.state)
    ledger.open()
    gpu = Component(ComponentKind.GPU, "0000:65:00.0")
    for begin in range(0, 100_000, 10_000):
        events = (
            Event(
                identity=f"b:{number}",
                time=now - (100_000 - number) * 26.0,
                source="kernel_log",
                kind="xid",
                code="xid/13",
                component=gpu,
                boot_id="b",
                fields={"number": 13, "pci": "0000:65:00", "pid": number, "process": "python3"},
                raw=xid(number, 13, message=hashlib.sha256(str(number).encode()).hexdigest()),
            )
            for number in range(begin, begin + 10_000)
        )
        ledger.commit([LedgerEntry(events=tuple(events))])
    ledger.close()

    def measured(*arguments: str) -> tuple[list[object], Archived, int]:
        out = node.folder / f"out{time.monotonic_ns()}"
        out.mkdir()
        command = [
            PYTHON,
            "-c",
            _MEASURED,
            "report",
            "--config",
            str(node.config),
            "--socket",
            str(node.socket),
            "-o",
            str(out),
            *arguments,
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
        )
        (path,) = out.iterdir()
        found = Archived(path)
        mib = int(done.stderr) // 1024
        return [cast("Json", one["fields"])["pid"] for one in found.events()], found, mib

    pids, found, mib = measured("--since", "90d")
    assert pids == [*range(100_000)]
    assert mib < 150
    node.start()
    pids, found, mib = measured("--max-size", "3MiB")
    assert 1000 < len(pids) < 60_000 and pids == [*range(100_000 - len(pids), 100_000)]
    assert found.path.stat().st_size <= 3 * MIB and mib < 150
    assert any("are left out: there are too many" in line for line in found.missing())


def test_diagnostics_and_serial_numbers(make_node: Callable[..., Node], tmp_path: Path) -> None:
    """Simulated GPUs and a recorded dcgmi that fails."""
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    gpus = SimulatedNode(tmp_path / "gpus", "h100")
    with Dcgmi(tmp_path / "bin", gpus=8) as dcgmi:
        dcgmi.answer("diag -r 1", diag(level=1, faults=[Fault(57, gpu=3, test="memory")]))
        extra = (
            f'[dcgm]\nprogram = "{dcgmi.path}"\nlevel_1 = "off"\nlevel_2 ='
            ' "off"\n[dcgm_health]\nenabled = false\n'
        )
        node = make_node(gpus=gpus, extra=extra)
        node.start()
        node.request("POST", "/v1/diagnostics/run", {"level": 1, "reason": "test"})
        until(lambda: node.get("/v1/diagnostics/runs")["runs"], "the run")
        found = report(node)
        gpu_list = cast("list[dict[str, Json]]", found.json("inventory/gpus.json")["gpus"])
        assert [one["identity"]["serial"] for one in gpu_list] == gpus.serials
        (run,) = cast("list[Json]", found.json("diagnostics/runs.json"))
        assert (run["check"], run["printed"], "raw" in run) == (
            "dcgm",
            "diagnostics/run-001.txt",
            False,
        )
        assert found.json("versions.json")["dcgm"] == run["dcgmVersion"] != ""
        assert run["tests"] and "DCGM" in found.text("diagnostics/run-001.txt")
        node.kill()
        after = report(node)
        assert after.parts["diagnostics/run-001.txt"] == found.parts["diagnostics/run-001.txt"]
        assert after.json("diagnostics/runs.json") == [run]
        assert (
            list(cast("Json", after.json("inventory/devices.json")["serials"]).values())
            == gpus.serials
        )
