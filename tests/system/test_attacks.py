"""
Attacks on the daemon, tried for real and refused. What other files try already is not tried again
here:

    another user on the socket, by hand       test_api_rights (every route of openapi.json, and
    lock-outs: here) malformed and oversized requests          test_api_clients, test_api_contract
    (schemathesis); a flood behind a watch: here slow requests, byte by byte
    test_api_clients who does not read his answers             test_api_clients, test_api_watch a
    process writes to /dev/kmsg             test_kernel_log.test_a_process_is_not_believed (tricks
    with lines and drills: here) any bytes as a kernel line                unit/test_fuzz,
    unit/test_forged (every message that begins with a name); forged by the kernel itself: here a
    second line in a crash log
    unit/test_earlier.test_a_second_line_of_a_record_is_not_believed the journal's fields
    unit/test_journal what drivers and firmware say             unit/test_neuron_hostile,
    unit/test_network, unit/test_polled any text from dcgmi                       unit/test_dcgm_*,
    unit/test_checks_tool what Slurm says of jobs                   unit/test_slurm, unit/test_jobs
    files of configuration and catalogue      unit/test_fuzz_tables
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import platform
import pty
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import is_read_only, require
from tests.dcgmi import Answer, Dcgmi
from tests.harness import PYTHON, ROOT, Json, Node
from tests.system import forging
from tests.system.disk import open_codes, stored
from tests.system.lines import Ring, about, fresh_pci, fresh_pid, wait_for_pid, xid
from tests.waiting import WAIT_S, until
from vitald.diagnostics.run import tool
from vitald.simulator.simulated_node import SimulatedNode

NOBODY, GROUP = 65534, 1
Make = Callable[..., Node]
Write = Callable[[str], object]


# --- another local user on the socket, and on the port

# A process of another user. It is told what to do line by line, and answers so; nothing is imported
# after the change of user.
_PERSON = """
import json, os, resource, socket, sys, time
uid, groups = int(sys.argv[1]), json.loads(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
os.setgroups(groups)
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
held = []

def connected(where):
    made = socket.socket(socket.AF_INET if where else socket.AF_UNIX)
    made.settimeout(10.0)
    while True:
        try:
            made.connect(("127.0.0.1", where) if where else "vitald.sock")
            return made
        except BlockingIOError:  # the daemon has not taken the last ones yet
            time.sleep(0.001)

def hold(where, count, data, answered):
    # How many connected. `answered`: of those who asked, how many got their answer; others are
    # refused, or closed at once.
    number = 0
    for _ in range(count):
        made = connected(where)
        held.append(made)
        try:
            made.sendall(data.encode())
            number += not answered or made.recv(12) == b"HTTP/1.1 200"
        except OSError:
            number += not answered
    return number

def ask(requests):
    told = []
    for data in requests:
        with connected(0) as made:
            made.sendall(data.encode())
            received = b""
            while part := made.recv(65536):
                received += part
        told.append(received.decode())
    return told

for line in sys.stdin:
    verb, *arguments = json.loads(line)
    try:
        answer = hold(*arguments) if verb == "hold" else ask(*arguments)
    except OSError as error:
        answer = type(error).__name__
    print(json.dumps(answer), flush=True)
"""


class Person:
    """Somebody else on this machine."""

    def __init__(self, node: Node, uid: int = NOBODY, groups: Sequence[int] = (GROUP,)) -> None:
        command = [PYTHON, "-c", _PERSON, str(uid), json.dumps(list(groups))]
        self._process = subprocess.Popen(
            command, cwd=node.runtime, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Person:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _do(self, *words: object) -> object:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def hold(self, count: int, data: str = "", port: int = 0) -> int:
        """Connect so often, say so much, and stay. How many were let in, where what they say is a
        whole request; else all.
        """
        return cast("int", self._do("hold", port, count, data, data.endswith("\r\n\r\n")))

    def ask(self, *requests: tuple[str, str]) -> list[tuple[int, Json]] | str:
        """Status and answer of each; or the name of the error where one could not even connect."""
        said = [
            f"{method} {path} HTTP/1.1\r\nHost: v\r\nConnection: close\r\nContent-Length:"
            f" {2 * (method == 'POST')}\r\n\r\n{'{}' * (method == 'POST')}"
            for method, path in requests
        ]
        told = self._do("ask", said)
        if isinstance(told, str):
            return told
        return [
            (int(one.split()[1]), json.loads(one.partition("\r\n\r\n")[2] or "{}"))
            for one in cast("list[str]", told)
        ]


def routes(method: str) -> list[str]:
    """All of the contract, with something that is there in place of each parameter. Not the stream,
    which has no end.
    """
    contract = json.loads((ROOT / "agent/vitald/server/openapi.json").read_text())
    known = {"{kind}": "xid", "{code}": "79", "{id}": "1"}
    paths = [
        path
        for path, methods in contract["paths"].items()
        if method in methods and path != "/v1/watch"
    ]
    return [re.sub(r"\{\w+\}", lambda found: known[found[0]], path) for path in paths]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose socket belongs to a group, with one finding."""
    with Node(
        tmp_path_factory.mktemp("guarded"), extra="[socket]\ngroup = " + json.dumps(_group())
    ) as node:
        node.write(xid(1))
        wait_for_pid(node, 1)
        yield node


def _group() -> str:
    import grp

    return grp.getgrgid(GROUP).gr_name


@pytest.mark.core
def test_a_member_of_the_group_reads_all_and_changes_nothing(guarded: Node) -> None:
    """Every route that the contract has, so that none can be added without a decision on who may
    use it.
    """
    reads, changes = routes("get"), routes("post")
    assert len(reads) >= 15
    assert len(changes) >= 8
    before = guarded.findings(), guarded.get("/v1/diagnostics")["active"], len(guarded.events())
    with Person(guarded) as member:
        told = member.ask(*(("GET", path) for path in reads), *(("POST", path) for path in changes))
        assert isinstance(told, list)
        for path, (status, answer) in zip(reads, told):
            assert status in (200, 404), (path, status, answer)  # there may be no such run or drill
            assert status == 200 or "/{" in path or path.endswith("/1"), path
        for path, (status, answer) in zip(changes, told[len(reads) :]):
            assert (status, "may not change" in str(answer["error"])) == (403, True), (path, answer)
    assert (
        guarded.findings(),
        guarded.get("/v1/diagnostics")["active"],
        len(guarded.events()),
    ) == before


def test_who_is_not_in_the_group_cannot_even_connect(guarded: Node) -> None:
    with Person(guarded, groups=()) as stranger:
        assert stranger.ask(("GET", "/v1/status")) == "PermissionError"
        assert stranger.ask(("POST", "/v1/findings/1/clear")) == "PermissionError"


HOLD = "GET /healthz HTTP/1.1\r\nHost: v\r\n\r\n"


def test_a_thousand_clients_of_other_users_do_not_keep_out_root(guarded: Node) -> None:
    """They hold what places they get, each asking just often enough. The prolog asks as root, and
    gets its answer.
    """
    with ExitStack() as stack:
        people = [stack.enter_context(Person(guarded, NOBODY - number)) for number in range(6)]
        assert (
            people.pop().hold(1000) == 1000
        )  # who says nothing connects, and is refused or closed
        held = [person.hold(200, HOLD) for person in people]
        assert held[0] <= 24, "one user has a share"
        assert 48 <= sum(held) <= 96, "and all of them together leave places for root"
        assert guarded.cli("check").returncode == 20
        assert guarded.status()["rebootRequired"]
    until(lambda: (guarded.metric("vitald_api_clients") or 0) <= 1, "them to be gone")


def test_the_watchers_of_other_users_leave_places_for_root(guarded: Node) -> None:
    """A stream has no end."""
    watch = "GET /v1/watch HTTP/1.1\r\nHost: v\r\n\r\n"
    with ExitStack() as stack:
        people = [stack.enter_context(Person(guarded, NOBODY - number)) for number in range(2)]
        assert sum(person.hold(40, watch) for person in people) == 24
        with socket.socket(socket.AF_UNIX) as root:
            root.settimeout(WAIT_S)
            root.connect(str(guarded.socket))
            root.sendall(watch.encode())
            assert root.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    ("count", "data"),
    [(1000, ""), (1000, "GET /met"), (100, "GET /metrics HTTP/1.1\r\nHost: v\r\n\r\n")],
    ids=["idle", "half", "asking"],
)
def test_a_thousand_clients_on_the_port_do_not_keep_out_prometheus(
    guarded: Node, count: int, data: str
) -> None:
    """Nobody knows who asks there: whoever was served longest ago makes room."""
    with Person(guarded) as person:
        assert person.hold(count, data, guarded.port) == count
        for _ in range(3):
            assert guarded.metric("vitald_reboot_required") == 1
        assert guarded.request("GET", "/healthz")[0] == 200


# --- requests that are too much


def _flood(node: Node, begin: bytes, piece: bytes, seconds: float = 2.0) -> int:
    """Send as much as is taken, and read nothing. Bytes that were taken."""
    sent, end = 0, time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(0.5)
        client.connect(str(node.socket))
        client.sendall(begin)
        while time.monotonic() < end:
            sent += client.send(piece)
    return sent


POST = b"POST /v1/findings/1/clear HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (
            b"GET /v1/watch HTTP/1.1\r\nHost: v\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: v\r\n\r\n" * 4000,
        ),
        (b"GET /v1/watch HTTP/1.1\r\nHost: v\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 65536),
        (POST, b"1;" + b"e" * 65536),
        (POST, b"1\r\nx\r\n" * 10_000),
        (
            b"GET /healthz HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"ffff\r\n" + b"x" * 65535 + b"\r\n",
        ),
        (POST + b"1\r\n{\r\n0\r\n", b"Trailer: x\r\n" * 5000),
    ],
    ids=[
        "requests behind a watch",
        "a body behind a watch",
        "one chunk's extension",
        "chunks",
        "a body nobody asked for",
        "trailers",
    ],
)
def test_a_flood_costs_no_memory(guarded: Node, begin: bytes, piece: bytes) -> None:
    before = guarded.memory_kib()
    for _ in range(2):
        _flood(guarded, begin, piece, 1.0)
    assert guarded.memory_kib() - before < 16 * 1024
    assert guarded.request("GET", "/v1/status")[0] == 200
    assert guarded.said("request_failed") == []


def test_half_open_connections_leave_nothing_behind(guarded: Node) -> None:
    """One end closed, at every place of a request."""
    whole = b"GET /v1/status HTTP/1.1\r\nHost: v\r\n\r\n"
    for length in range(len(whole) + 1):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(guarded.socket))
            client.sendall(whole[:length])
            client.shutdown(socket.SHUT_WR)
    until(lambda: guarded.metric("vitald_api_clients") == 0, "them to be gone")
    assert guarded.said("request_failed") == []


# --- forged kernel lines


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that reads the real kernel log, past what older tests left in it, and believes no
    process.
    """
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    with Node(tmp_path_factory.mktemp("strict"), kernel_log="kmsg", userspace="ignore") as node:
        node.wait(lambda status: status["sources"][0]["state"] == "ok")
        yield node


class Told:
    """What the daemon makes of what is written to the kernel log in a `with`."""

    def __init__(self, node: Node, write: Write) -> None:
        self.node, self.write = node, write
        self.records: list[str] = []
        self.events: list[Json] = []
        self.findings: list[Json] = []

    def __enter__(self) -> Told:
        self._newest = max((cast("int", event["id"]) for event in self.node.events()), default=0)
        self._before = {finding["id"]: finding["count"] for finding in self.node.findings()}
        self._ring = Ring()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = fresh_pid()
        self.write(f"<3>{xid(end, pci=fresh_pci())}")  # not believed, but seen
        wait_for_pid(self.node, end)
        self.records = [text for _, text in self._ring.records()]
        self.events = [
            event
            for event in self.node.events()
            if cast("int", event["id"]) > self._newest
            and cast("Json", event["fields"]).get("pid") != end
        ]
        self.findings = [
            one for one in self.node.findings() if self._before.get(one["id"]) != one["count"]
        ]


@pytest.mark.core
@pytest.mark.kmsg
def test_no_trick_makes_the_kernels_own_of_a_written_line(strict: Node, kmsg: Write) -> None:
    """Other facilities, levels, several lines, a dictionary, prefixes of rendered logs, what sounds
    like a drill.
    """
    pci = fresh_pci()
    line = xid(1, pci=pci)
    with Told(strict, kmsg) as told:
        for prefix in (
            "",
            "<0>",
            "<3>",
            "<7>",
            "<11>",
            "<30>",
            "<2047>",
            "<-1>",
            "<99999>",
            "\x013",
            "\x01c",
            "\n",
            "0,1,2,-;",
            "6,1,2,-;",
        ):
            kmsg(f"{prefix}{line}")
        for before in (
            "[    1.000000] ",
            "kernel: ",
            "Feb 23 16:24:18 node7 kernel: ",
            "<3>[    1.000000] kernel: ",
            "vitald drill: ",
        ):
            kmsg(f"{before}{line}")
        kmsg(f"<3>{line}\n SUBSYSTEM=pci\n DEVICE=+pci:{pci}.0")
        kmsg(f"<6>ordinary\n<3>{line}")
        kmsg(f"<6>ordinary\n4,99999999,99999999,-;{line}")
        kmsg(f"<6>x\\x0a{line}")
    assert sum(line in record for record in told.records) >= 18, "the kernel took them"
    assert {event["trust"] for event in told.events} == {"untrusted"}
    assert told.findings == []
    assert not strict.status()["rebootRequired"]


@pytest.mark.kmsg
def test_an_announced_drill_lends_nobody_its_trust(strict: Node, kmsg: Write) -> None:
    """One record, of exactly the announced text, as a drill; what is written beside it is a
    process's.
    """
    pci, other = fresh_pci(), fresh_pci()
    drill = xid(5, pci=pci)
    with Person(strict) as member:
        assert member.ask(("POST", "/v1/drills")) in ("PermissionError", [(403, {})])
    with Told(strict, kmsg) as told:
        assert strict.request("POST", "/v1/drills", {"line": drill, "holdSeconds": 60})[0] == 201
        kmsg(f"<3>{xid(6, pci=other)}")
        kmsg(f"<3>{drill} ")
        for _ in range(3):
            kmsg(f"<3>{drill}")
    assert sorted(str(event["trust"]) for event in told.events) == ["announced", *["untrusted"] * 4]
    assert [(one["simulated"], one["count"]) for one in told.findings] == [(True, 1)]
    assert about(strict.findings(), other) == []
    for finding in told.findings:
        strict.request(
            "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "the drill is over"}
        )


def _as_nobody(name: bytes, do: Callable[[], object]) -> int:
    """Run something in a process of another user that has this name. How it ended."""
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()  # pytest's
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
            do()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


NAMES = (
    *(
        b"NVRM: Xid (PCI:",
        b"a\nNVRM: Xid (PC",
        b"\x013NVRM: Xid (P",
        b"\x01cXFS (a): ",
        b"XFS (\\): ",
        b"EDAC MC2: 1 UE ",
        b"Oops: 0002 [#1]",
    ),
    *(
        b"a 0000:65:00.0:",
        b"NEURON_HW_ERR=X",
        b"\x1b[2J\x1b]0;x\x07",
        b"\xff\xfe\xe2\x80\xae\x9b31m",
        b"<b>&\"'{}=\x7f",
    ),
)


@pytest.mark.kmsg
def test_the_kernels_own_words_about_a_process_are_no_fault(strict: Node, kmsg: Write) -> None:
    """Facility 0, and a text that an ordinary user chose: crashes, and signals where those are
    printed, of processes with crafted names.
    """
    setting, limit = (
        Path("/proc/sys/kernel/print-fatal-signals"),
        Path("/proc/sys/kernel/printk_ratelimit"),
    )
    require(not is_read_only(setting), f"{setting} to be writable")
    before, usual = setting.read_text(), limit.read_text()
    written: list[str] = []
    events: list[Json] = []
    for fatal in ("0\n", "1\n"):
        for some in (
            NAMES[::2],
            NAMES[1::2],
        ):  # each signal is some twenty records, of the thousand that the ring holds
            try:
                with Told(strict, kmsg) as told:
                    limit.write_text("0\n")  # else ten crashes in 5 s, whoever's they are
                    setting.write_text(fatal)
                    for name in some:
                        assert (
                            os.WTERMSIG(_as_nobody(name, lambda: ctypes.memset(8, 1, 1)))
                            == signal.SIGSEGV
                        )
                    setting.write_text("0\n")
            finally:
                setting.write_text(before)
                limit.write_text(usual)
            written += [
                record
                for record in told.records
                if "segfault at" in record or "fatal signal" in record
            ]
            events += told.events
            assert told.findings == []
    require(len(written) >= 2 * len(NAMES), "a kernel that prints crashes (debug.exception-trace)")
    assert any("fatal signal" in record for record in written)
    assert any(record.startswith("NVRM: Xid (PCI:[") for record in written)
    assert {(event["code"], event["trust"], event["component"]) for event in events} == {
        ("crash/segfault", "kernel", "node")
    }
    for verb in ("events", "status", "findings"):
        assert "\x1b" not in strict.cli(verb).stdout


def test_a_line_about_what_this_machine_has_not_is_shown_with_the_reason(make_node: Make) -> None:
    """Word for word as the kernel writes it, in a log that is followed: the machine's own sysfs
    says otherwise.
    """
    require(
        Path("/sys/devices/system").is_dir()
        and not Path("/sys/devices/system/edac/mc/mc99").exists(),
        "a sysfs without a controller 99",
    )
    node = make_node()
    node.start()
    node.write("usb 1-1: x", xid(1, code=13, message="Graphics Exception"))
    wait_for_pid(node, 1)
    node.write(
        "EDAC MC99: 1 UE memory scrubbing error on D (channel:0 slot:1 page:0x8a1 offset:0x0"
        " grain:32)"
    )
    until(
        lambda: any(event["code"] == "edac/uncorrected" for event in node.events()),
        "the line",
    )
    assert "edac/uncorrected" not in open_codes(node)
    assert not node.status()["rebootRequired"]
    assert (
        "UNTRUSTED (no memory controller MC99 on this node, not judged)"
        in node.cli("events").stdout
    )


# Beginnings of shapes that asked for something, each with room for no more than a name.
BEGINNINGS = (
    b"EDAC MC7: UE - ",
    b"EDAC MC0: 1 UE ",
    b"NVRM: Xid (PCI:",
    b"JBD2: I/O error",
    b"NMI: IOCK error",
    b"NEURON_HW_ERR=X",
    b"XFS (sda): xxxx",
    b"md/raid0:md0: x",
    b"Oops: 0002 [#1]",
    b"mce: [Hardware ",
    b"MCE: Killing x:",
    b"neuron:x: nd0: ",
)


@pytest.mark.kmsg
def test_no_name_makes_a_fault_of_what_the_kernel_says(strict: Node, kmsg: Write) -> None:
    """Twenty messages of the real kernel's, each with names that shapes begin with, as an ordinary
    user. Half of them come once a boot only.
    """
    require(platform.machine() == "x86_64", "x86-64")
    before, limit = strict.status(), Path("/proc/sys/kernel/printk_ratelimit")
    require(not is_read_only(limit), f"{limit} to be writable")
    usual, heard = limit.read_text(), set[str]()
    for name in BEGINNINGS:
        try:
            with Told(strict, kmsg) as told:
                limit.write_text("0\n")
                for way in forging.WAYS:
                    _as_nobody(name, way)
        finally:
            limit.write_text(usual)
        heard |= {
            said for said in forging.WAYS.values() if any(said in record for record in told.records)
        }
        assert {event["code"] for event in told.events} <= {
            "crash/segfault",
            "crash/trap",
        }, told.events
        assert told.findings == []
    require(len(heard) >= 6, f"a kernel that prints more than {sorted(heard)}")
    after = strict.status()
    assert [after[key] for key in ("status", "rebootRequired", "replacementRequired")] == [
        before[key] for key in ("status", "rebootRequired", "replacementRequired")
    ]


@pytest.fixture
def image() -> Iterator[Callable[[], Path]]:
    """An ordinary user's file system, mounted from a file, as udisks and Apptainer do for him.
    Where it is, after it was made or mounted again.
    """
    place = Path(tempfile.mkdtemp())  # not pytest's, which only root may enter
    place.chmod(0o755)
    file, folder = place / "image", place / "mounted"
    folder.mkdir()
    commands = [
        ["truncate", "-s", "8M", str(file)],
        [
            "mkfs.ext4",
            "-q",
            "-F",
            "-b",
            "1024",
            "-O",
            "^metadata_csum",
            "-e",
            "remount-ro",
            str(file),
        ],
    ]

    def mounted() -> Path:
        subprocess.run(["umount", str(folder)], capture_output=True, timeout=WAIT_S)
        for command in commands:
            require(shutil.which(command[0]), command[0])
            subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
        commands.clear()
        done = subprocess.run(
            ["mount", "-o", "loop", str(file), str(folder)], capture_output=True, timeout=WAIT_S
        )
        require(done.returncode == 0, f"loop devices: {done.stderr!r}")
        return folder

    yield mounted
    subprocess.run(["umount", str(folder)], capture_output=True, timeout=WAIT_S)
    shutil.rmtree(place)


@pytest.mark.kmsg
def test_a_users_image_is_no_disk_of_the_node(
    strict: Node, kmsg: Write, image: Callable[[], Path]
) -> None:
    """Cut short: the kernel says whose access went beyond its end, name first. And with a directory
    overwritten: its file system gives up.
    """
    folder = image()
    file = folder.parent / "image"
    (folder / "data").write_bytes(os.urandom(4 << 20))
    (folder / "inner").mkdir()
    (folder / "inner" / "x").touch()
    folder.chmod(0o755)
    shape = (folder / "inner").stat().st_ino
    subprocess.run(["umount", str(folder)], check=True, timeout=WAIT_S)
    found = subprocess.run(
        ["debugfs", "-R", f"blocks <{shape}>", str(file)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    block = int(found.stdout.split()[0])
    with file.open("r+b") as opened:
        opened.seek(block * 1024)
        opened.write(b"\xff" * 1024)
    with Told(strict, kmsg) as told:
        folder = image()
        with file.open("r+b") as opened:
            opened.truncate(3 << 20)
        device = subprocess.run(
            ["losetup", "-n", "-O", "NAME", "-j", str(file)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        ).stdout.strip()
        subprocess.run(["losetup", "-c", device], check=True, timeout=WAIT_S)
        for name in (b"EDAC MC7: UE - ", b"EDAC MC0: 1 UE "):
            _as_nobody(name, lambda: (folder / "data").read_bytes())
            _as_nobody(name, lambda: list((folder / "inner").iterdir()))
    require(
        any("error (device loop" in record for record in told.records),
        f"a kernel that mounts it: {told.records}",
    )
    assert any("attempt to access beyond end of device" in record for record in told.records)
    assert {
        (event["code"], str(event["component"]).rstrip("0123456789")) for event in told.events
    } <= {("fs/not_of_the_node", "disk/loop"), ("fs/mounted", "disk/loop")}
    assert {finding["action"] for finding in told.findings} <= {"observe"}
    assert not strict.status()["rebootRequired"]


@pytest.mark.kmsg
def test_the_kernels_words_about_a_network_device_are_no_fault(strict: Node, kmsg: Write) -> None:
    """One that an ordinary user made in a namespace of his own."""
    require(
        shutil.which("unshare") and shutil.which("ip") and shutil.which("setpriv"),
        "unshare, setpriv (util-linux) and ip (iproute2)",
    )
    names = ("NEURON_HW_ERR=X", "NVRM", "nd0", "nvme0n1")
    with Told(strict, kmsg) as told:
        script = "ip link add v0 type veth peer name v1; " + "; ".join(
            f"ip link set {old} name {new}" for old, new in zip(("v0", *names), names)
        )
        ordinary = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            "unshare",
            "-Urn",
            "sh",
            "-c",
            script,
        ]
        subprocess.run(ordinary, capture_output=True, timeout=WAIT_S)
    require(
        any("renamed from" in record for record in told.records),
        "a kernel where anybody may have a namespace of his own, and veth",
    )
    assert "NEURON_HW_ERR=X: renamed from v0" in told.records
    assert (told.events, told.findings) == ([], [])


@pytest.mark.kmsg
def test_the_out_of_memory_killers_words_are_no_fault_of_a_device(
    strict: Node, kmsg: Write
) -> None:
    """A process with a crafted name, in a control group with a crafted name, killed for real."""
    name = "x,task=NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus,pid=1"
    folders = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
    setting = next(
        (
            folder
            for folder in folders
            if (folder / "cgroup.procs").exists() and "memory" in _controllers(folder)
        ),
        None,
    )
    require(setting is not None, "the memory controller of control groups")
    assert setting is not None
    require(not is_read_only(setting), f"{setting} to be writable")
    group = setting / name
    group.mkdir()
    try:
        limit = group / (
            "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        )
        limit.write_text("30000000")
        with suppress(OSError):
            (group / "memory.swap.max").write_text("0")

        def eat() -> None:
            for _ in range(100):
                kept.append(b"x" * (1 << 20))

        kept: list[bytes] = []
        with Told(strict, kmsg) as told:
            for process in (b"NVRM: Xid (PCI:", b"EDAC MC2: 1 UE "):
                child = os.fork()
                if not child:
                    try:
                        (group / "cgroup.procs").write_text(str(os.getpid()))
                        ctypes.CDLL(None).prctl(15, process, 0, 0, 0)
                        eat()
                    finally:
                        os._exit(0)
                os.waitpid(child, 0)
        killed = [record for record in told.records if "Killed process" in record]
        require(killed, "a kernel that kills")
        assert any(
            record.startswith("NVRM: Xid (PCI: invoked oom-killer") for record in told.records
        )
        assert {str(event["kind"]) for event in told.events} == {"oom"}
        assert {event["component"] for event in told.events} == {"node"}
        assert {finding["kind"] for finding in told.findings} <= {"oom"}
        assert not strict.status()["rebootRequired"]
        assert not strict.status()["replacementRequired"]
    finally:
        group.rmdir()


def _controllers(folder: Path) -> str:
    """What a folder of control groups can bound; the folder of one controller of the first version
    has its name.
    """
    known = folder / "cgroup.controllers"
    return known.read_text() if known.exists() else folder.name


# --- files that are not what they seem


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize(
    "name", ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal"]
)
def test_nothing_is_written_through_a_link_in_the_state_folder(
    make_node: Make, tmp_path: Path, name: str, kind: str
) -> None:
    """It is told, judging goes on, and once it is removed all is stored. A named pipe in the way
    holds up nobody either.
    """
    node, victim = make_node(), tmp_path / "victim"
    victim.write_bytes(b"precious\n" * 10_000)
    before = victim.read_bytes(), victim.stat().st_mtime_ns
    node.state.mkdir()
    way = node.state / name
    if kind == "link":
        way.symlink_to(victim)
    else:
        os.mkfifo(way)
    node.start()
    node.write(xid(1))
    status = node.wait(lambda status: status["rebootRequired"])
    assert (status["ledger"]["ok"], str(way) in str(status["ledger"]["error"])) == (False, True)
    assert ("link" in str(status["ledger"]["error"])) is (kind == "link")
    assert "vitald/ledger_failed" in open_codes(node)
    assert node.cli("events").returncode == 0
    way.unlink()
    until(lambda: cast("Json", node.status()["ledger"])["ok"], "the ledger")
    assert stored(node) == [1]
    assert (victim.read_bytes(), victim.stat().st_mtime_ns) == before


def test_nothing_is_overwritten_under_the_name_of_a_damaged_ledger(
    make_node: Make, tmp_path: Path
) -> None:
    """The names can be guessed. A link of such a name is left alone, as is an older copy."""
    node, victim = make_node(), tmp_path / "victim"
    victim.write_bytes(b"precious")
    node.state.mkdir()
    (node.state / "ledger.db").write_bytes(b"no database at all" * 1000)
    for second in range(-1, 20):
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + second))
        (node.state / f"ledger.db.damaged-{stamp}").symlink_to(victim)
    node.start()
    until(lambda: "vitald/ledger_lost" in open_codes(node), "the finding")
    assert victim.read_bytes() == b"precious"
    assert sum(path.is_symlink() for path in node.state.iterdir()) == 21
    kept = [path for path in node.state.glob("ledger.db.damaged-*") if not path.is_symlink()]
    assert [path.read_bytes()[:18] for path in kept] == [b"no database at all"]
    (finding,) = (one for one in node.findings() if one["code"] == "vitald/ledger_lost")
    assert cast("Json", finding["fields"])["aside"] == str(kept[0])


@pytest.mark.core
def test_a_link_in_place_of_the_socket_is_replaced(make_node: Make, tmp_path: Path) -> None:
    node, victim = make_node(), tmp_path / "victim"
    victim.write_bytes(b"precious")
    victim.chmod(0o600)
    node.runtime.mkdir()
    node.socket.symlink_to(victim)
    node.start()
    assert node.socket.is_socket() and not node.socket.is_symlink()
    assert (victim.read_bytes(), victim.stat().st_mode & 0o777) == (b"precious", 0o600)


# --- a hostile program in place of dcgmi


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Path, Path]:
    """A program that leaves a trace when it is run, in a folder of its own."""
    folder, trace = tmp_path / "planted", tmp_path / "trace"
    folder.mkdir()
    program = folder / "dcgmi"
    program.write_text(f"#!/bin/sh\necho run >> {trace}\n")
    program.chmod(0o755)
    return program, trace


class Spoiled:
    """Ways in which an ordinary user may have a hand in a program that root would run."""

    @staticmethod
    def owner(program: Path) -> None:
        os.chown(program, NOBODY, NOBODY)

    @staticmethod
    def owner_of_folder(program: Path) -> None:
        os.chown(program.parent, NOBODY, NOBODY)

    @staticmethod
    def writable(program: Path) -> None:
        program.chmod(0o757)

    @staticmethod
    def writable_folder(program: Path) -> None:
        program.parent.chmod(0o777)

    @staticmethod
    def group(program: Path) -> None:
        os.chown(program, 0, 1000)
        program.chmod(0o775)


@pytest.mark.parametrize(
    "how",
    [
        "owner",
        "owner_of_folder",
        "writable",
        "writable_folder",
        "group",
        "a link through another user's folder",
    ],
)
def test_root_runs_nothing_that_an_ordinary_user_could_have_put_there(
    planted: tuple[Path, Path], tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(os.geteuid() == 0, "root")
    program, _ = planted
    good = tmp_path / "good"
    good.mkdir()
    shutil.copy(program, good / "dcgmi")
    if hasattr(Spoiled, how):
        getattr(Spoiled, how)(program)
        asked = program
    else:
        theirs, ours = tmp_path / "theirs", tmp_path / "ours"
        theirs.mkdir()
        ours.mkdir()
        (theirs / "dcgmi").symlink_to(program)
        os.chown(theirs, NOBODY, NOBODY)
        asked = ours / "dcgmi"
        asked.symlink_to(theirs / "dcgmi")
    monkeypatch.setenv("PATH", f"{asked.parent}:{good}")
    assert tool.find_program("dcgmi") == str(good / "dcgmi"), "the next one is taken"
    monkeypatch.setenv("PATH", str(asked.parent))
    assert tool.find_program("dcgmi") == ""
    assert tool.find_program(str(asked)) == ""
    for name in ("dcgmi", str(asked)):
        assert "is not run as root" in tool.explain_absence(name)
    monkeypatch.setattr(tool, "is_root", lambda: False)
    assert tool.find_program("dcgmi") == str(asked), "an ordinary user runs what he likes"


@pytest.mark.parametrize("path", [".", "", "bin", "./bin"])
def test_where_somebody_stands_is_no_place_for_a_program(
    planted: tuple[Path, Path], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = planted
    monkeypatch.chdir(program.parent if path in (".", "") else program.parent.parent)
    (program.parent.parent / "bin").symlink_to(program.parent)
    monkeypatch.setenv("PATH", f"{path}:/nowhere")
    assert tool.find_program("dcgmi") == ""


def test_a_planted_dcgmi_is_passed_over(
    make_node: Make, planted: tuple[Path, Path], tmp_path: Path
) -> None:
    """The daemon by hand, as root, from a shell with somebody's folder first on its PATH."""
    require(
        os.geteuid() == 0 and (shutil.which("cc") or shutil.which("gcc")), "root and a C compiler"
    )
    program, trace = planted
    os.chown(program.parent, NOBODY, NOBODY)
    with Dcgmi(tmp_path / "bin") as dcgmi:
        node = make_node(
            gpus=SimulatedNode(tmp_path / "gpus", "h100"),
            extra='[dcgm]\nlevel_1 = "off"\nlevel_2 = "off"\n',
        )
        node.environment["PATH"] = f"{program.parent}:{dcgmi.search_path}"
        node.start()
        done = node.cli("diag", "run", "1", "--reason", "test")
        assert (done.returncode, [run.level for run in dcgmi.runs()]) == (0, [1]), (
            done.stdout + done.stderr
        )
        assert not trace.exists()


# --- text that could drive a terminal, a page or a parser

EVIL = "\x1b[2J\x1b]0;x\x07\u202e\u2066<b>&\"'{}=\\n\x9b31m\x85\u2028\x00\x7f"
ALLOWED = re.compile(r"\x1b\[[0-9;]*m")  # colours, of ours and on a terminal only


def _unprintable(text: str, *, terminal: bool = False) -> set[str]:
    return {
        char
        for char in (ALLOWED.sub("", text) if terminal else text)
        if not char.isprintable() and char != "\n"
    }


def _on_a_terminal(node: Node, *arguments: str) -> str:
    """What a person sees, colours and all."""
    reading, writing = pty.openpty()
    command = [PYTHON, "-m", "vitald", *arguments, "--socket", str(node.socket)]
    with subprocess.Popen(
        command, stdout=writing, stderr=writing, cwd=ROOT, env={**os.environ, "TERM": "xterm"}
    ):
        os.close(writing)
        shown = b""
        with suppress(OSError):
            while part := os.read(reading, 65536):
                shown += part
    os.close(reading)
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node where everything that can have a name has an evil one: processes, files, servers,
    GPUs, what dcgmi says.
    """
    require(shutil.which("cc") or shutil.which("gcc"), "a C compiler")
    folder = tmp_path_factory.mktemp("named")
    gpus = SimulatedNode(folder / "gpus", "h100")
    word = EVIL.replace("\x00", "").replace("\x85", "").replace("\u2028", "")
    for key in ("name", "serial", "vbios", "part"):
        gpus.set_values(0, {key: f"{key} {word}"})
    with Dcgmi(folder / "bin") as dcgmi:
        dcgmi.answer("diag -r 1", Answer(stdout=f"{EVIL}\n{{{EVIL}", stderr=EVIL, exit_code=1))
        extra = (
            f'[dcgm]\nprogram = "{dcgmi.path}"\nlevel_1 = "off"\nlevel_2 ='
            ' "off"\n[dcgm_health]\nenabled = false\n'
        )
        with Node(folder / "node", gpus=gpus, extra=extra) as node:
            node.write(
                f"NVRM: Xid (PCI:0000:65:00): 79, pid=1, name={word}, GPU has fallen off the bus.",
                f"NVRM: Xid (PCI:0000:66:00): 13, pid=2, name={word}, Graphics Exception: {word}",
                f"NVRM: Xid (PCI:0000:67:00): 9999, {word}{'A' * 7000}",
                f"nfs: server {word.replace(' ', '')} not responding, still trying",
                f"Out of memory: Killed process 77 ({word}) total-vm:1kB, anon-rss:1kB",
                f"EXT4-fs error (device nvme0n1p1): ext4_find_entry:1463: inode #2: comm {word}:"
                " reading directory lblock 0",
                f"INFO: task {word}:123 blocked for more than 122 seconds.",
                f"Kernel panic - not syncing: {word}",
                xid(2147483000),
            )
            wait_for_pid(node, 2147483000)
            node.cli("diag", "run", "1", "--reason", "test")
            yield node


@pytest.mark.parametrize(
    "verb",
    [
        ("status",),
        ("findings",),
        ("events",),
        ("components",),
        ("gpus",),
        ("diag", "list"),
        ("diag", "show", "last"),
        ("diag", "show", "last", "--raw"),
        *(("why", str(number)) for number in (1, 2, 3, 4)),
        ("check",),
        ("check", "--as", "nagios"),
        ("check", "--as", "npd"),
        ("status", "--json"),
        ("events", "--json"),
    ],
    ids=" ".join,
)
def test_no_name_drives_a_terminal(named: Node, verb: tuple[str, ...]) -> None:
    done = named.cli(*verb)
    assert done.stdout
    if "--raw" not in verb:  # into a pipe that is what the program printed, for other programs
        assert _unprintable(done.stdout + done.stderr) == set()
    shown = _on_a_terminal(named, *verb)
    assert _unprintable(shown, terminal=True) == set()
    assert len(shown) > 10


@pytest.mark.core
def test_no_name_breaks_the_metrics_the_log_or_the_answers(named: Node) -> None:
    """The page parses to what was meant, each entry of the log is one line, and JSON is JSON."""
    page = named.metrics()
    assert [line for line in page.splitlines() if _unprintable(line)] == []
    samples = [
        sample for family in text_string_to_metric_families(page) for sample in family.samples
    ]
    assert {
        sample.labels["component"] for sample in samples if sample.name == "vitald_findings"
    } >= {"gpu/0000:65:00.0"}
    if (promtool := shutil.which("promtool")) is not None:
        done = subprocess.run(
            [promtool, "check", "metrics"],
            input=page,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    log = named.errors.read_text()
    assert _unprintable(log) == set()
    assert all(json.loads(line)["event"] for line in log.splitlines())
    assert cast("Json", named.status()["ledger"])["ok"]
    for path in (
        "/v1/status",
        "/v1/events",
        "/v1/findings",
        "/v1/components",
        "/v1/gpus",
        "/v1/incidents",
        "/v1/diagnostics/runs",
    ):
        assert json.dumps(named.get(path)).isascii()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/findings/1/clear",
        "/v1/findings/1/remedy",
        "/v1/release",
        "/v1/diagnostics/run",
        "/v1/expect/confirm",
    ],
)
def test_a_reason_is_words(named: Node, path: str) -> None:
    """What people give ends up in the ledger, in the log and on terminals."""
    for reason in (
        EVIL,
        "two\nlines",
        "\u202eesrever",
        "",
        " ",
        "x" * 5000,
        7,
        None,
        ["x"],
        {"a": 1},
    ):
        status, answer = named.request("POST", path, {"reason": reason})
        assert (status, bool(answer["error"])) == (400, True), (reason, answer)
    assert {finding["state"] for finding in named.findings()} == {"open"}


@pytest.mark.parametrize("key", ["job", "user", "uid", "exitCode", "signal", "reason"])
def test_a_job_is_what_schedulers_say(named: Node, key: str) -> None:
    """Of any size and kind, a job's fields are taken or refused; nothing else."""
    values: tuple[object, ...] = (EVIL, "x" * 10_000, 10**40, -1, 1.5, True, [], {}, "\ud800")
    for value in values:
        body = {
            "event": "end" if key in ("exitCode", "signal", "reason") else "begin",
            "job": "1",
            key: value,
        }
        status, answer = named.request("POST", "/v1/jobs", body)
        assert status in (200, 201, 202, 400, 404), (value, answer)
    assert named.said("request_failed") == []
    assert cast("Json", named.status()["ledger"])["ok"]
