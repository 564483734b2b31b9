"""
Faults that the daemon survives: answers go on, it is said, and afterwards nothing is lost or
doubled. What other files try already:

    state disk full, read-only                test_ledger (also locked, more than can be held,
    newer) ledger overwritten                        test_ledger (all of it, and while running); at
    random bytes: here kill -9                                   test_chaos, test_ledger, test_boot,
    test_whole_node no journal, one that hangs or is damaged  unit/test_earlier, unit/test_journal,
    test_history.test_without_a_journal_all_is_counted clock stepped
    unit/test_pipeline, scenarios (judgement), unit/test_schedule (diagnostics); on a whole daemon:
    here files that hang                           test_whole_node, unit/test_polled a driver that
    hangs or crashes            test_nvml_worker; its worker killed again and again on a whole node:
    here the daemon gets no turn                   test_nvml_worker (one source); on a whole node:
    here
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import cast

import anyio
import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.system.disk import open_codes, stored
from tests.system.lines import pids, wait_for_pid, xid
from tests.system.nvml import as_if_real
from tests.unit.builders import catalogue, event, gpu
from tests.waiting import until
from tests.whole_tree import WholeTree
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.ledger.schema import AuditRecord
from vitald.ledger.store import Ledger
from vitald.model.source import Batch, Position
from vitald.simulator.simulated_node import SimulatedNode
from vitald.worker_thread import WorkerThread

Make = Callable[..., Node]
LOOKS = ("neuron", "network", "pci", "host")
OFTEN = "".join(f'[{section}]\nevery = "200ms"\ndeadline = "1s"\n' for section in LOOKS)


def standing(node: Node) -> list[tuple[object, ...]]:
    """What is open but for what the daemon says of itself."""
    return [
        (one["id"], one["code"], one["component"], one["count"], one["since"])
        for one in node.findings()
        if one["kind"] != "vitald"
    ]


def told(node: Node) -> Counter[tuple[str, str]]:
    """How often each fault was said, in all runs together."""
    return Counter(
        (str(one["code"]), str(one["component"]))
        for one in node.events()
        if one["kind"] not in ("device", "vitald")
    )


# --- the state folder goes away


@pytest.mark.core
def test_the_state_folder_is_removed(make_node: Make) -> None:
    """What was stored in it is gone; what stands is stored anew at once, and told. SQLite itself
    goes on writing to the removed file.
    """
    node = make_node()
    node.start()
    node.write(xid(1), xid(2), xid(3, pci="0000:66:00"))
    wait_for_pid(node, 3)
    node.request("POST", "/v1/findings/2/clear", {"reason": "replaced"})
    before = standing(node)
    shutil.rmtree(node.state)
    # Nobody has to wait for the next fault: it is seen when the place in the log is noted.
    node.write("nothing of interest")
    until(lambda: "vitald/ledger_replaced" in open_codes(node), "the finding")
    node.wait(lambda status: status["ledger"]["ok"])
    assert standing(node) == before
    node.write(xid(4, pci="0000:67:00"))
    wait_for_pid(node, 4)
    assert stored(node) == [4]
    after = node.findings()
    node.restart(signal.SIGKILL)
    assert node.findings() == after
    assert [one["id"] for one in node.findings("&component=gpu/0000:66:00.0")] == []
    assert len({one["id"] for one in after}) == len(after)


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal"])
def test_one_file_of_the_ledger_is_removed(make_node: Make, name: str) -> None:
    """The next fault is not stored where nobody will find it."""
    node = make_node()
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    (node.state / name).unlink()
    node.write(xid(2, pci="0000:66:00"))
    until(lambda: len(standing(node)) == 2, "the second finding")
    until(lambda: "vitald/ledger_replaced" in open_codes(node), "it to be told")
    before = node.findings()
    node.restart(signal.SIGKILL)
    assert node.findings() == before


def test_another_file_is_put_in_place_of_the_ledger(make_node: Make) -> None:
    """An older copy, say. It is set aside, not written over and not believed."""
    node = make_node()
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    copy = node.folder / "copy"
    with (
        closing(sqlite3.connect(node.state / "ledger.db")) as ledger,
        closing(sqlite3.connect(copy)) as other,
    ):
        ledger.backup(other)
        other.execute("UPDATE findings SET component = 'gpu/0000:99:00.0'")
        other.commit()
    content = copy.read_bytes()
    copy.replace(node.state / "ledger.db")
    node.write(xid(2, pci="0000:66:00"))
    until(lambda: "vitald/ledger_replaced" in open_codes(node), "it to be told")
    assert {one[2] for one in standing(node)} == {"gpu/0000:65:00.0", "gpu/0000:66:00.0"}
    before = node.findings()
    node.restart(signal.SIGKILL)
    assert node.findings() == before
    assert content in [path.read_bytes() for path in node.state.glob("ledger.db.damaged-*")]


class Disks:
    """File systems that are mounted on the state folder and taken away again."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node, self._folder = node, folder
        self._mounted: list[Path] = []

    def make(self, name: str) -> Path:
        place = self._folder / name
        place.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m,mode=750", "vitald-test", str(place)],
            capture_output=True,
        )
        require(done.returncode == 0, "the right to mount a tmpfs")
        self._mounted.append(place)
        return place

    def mount(self, disk: Path) -> None:
        self._node.state.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(disk), str(self._node.state)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._node.state)], check=True)

    def end(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._node.state)], capture_output=True)
        for place in self._mounted:
            subprocess.run(["umount", "--lazy", str(place)], capture_output=True)


@pytest.fixture
def disks(make_node: Make, tmp_path: Path) -> Iterator[tuple[Node, Disks, Path]]:
    """A running node whose state folder is a disk of its own, with one fault."""
    node = make_node()
    made = Disks(node, tmp_path / "disks")
    try:
        disk = made.make("first")
        made.mount(disk)
        node.start()
        node.write(xid(1))
        wait_for_pid(node, 1)
        yield node, made, disk
    finally:
        node.stop()
        made.end()


def test_the_state_disk_is_taken_away_and_comes_back(disks: tuple[Node, Disks, Path]) -> None:
    """Meanwhile nothing is written to what lies underneath; then all is stored, once, where the
    rest is.
    """
    node, made, disk = disks
    made.unmount()
    until(lambda: "vitald/ledger_failed" in open_codes(node), "it to be noticed")
    node.write(xid(2, pci="0000:66:00"), xid(3))
    until(lambda: [one[3] for one in standing(node)] == [2, 1], "the new faults")
    status = node.wait(lambda status: "not mounted" in status["ledger"]["error"])
    assert status["rebootRequired"]
    assert node.metric("vitald_ledger_ok") == 0
    assert pids(node.events())[-2:] == [2, 3]
    assert list(node.state.iterdir()) == []
    before = standing(node)
    made.mount(disk)
    node.wait(lambda status: status["ledger"]["ok"])
    until(lambda: "vitald/ledger_failed" not in open_codes(node), "the finding to be closed")
    assert stored(node) == [1, 2, 3]
    assert standing(node) == before
    node.restart(signal.SIGKILL)
    assert standing(node) == before
    assert open_codes(node) == {"xid/79"}


def test_another_disk_comes_in_its_place(disks: tuple[Node, Disks, Path]) -> None:
    """A new ledger is begun on it, with all that stands, and that the history is gone is told."""
    node, made, _ = disks
    made.unmount()
    until(lambda: "vitald/ledger_failed" in open_codes(node), "it to be noticed")
    before = standing(node)
    made.mount(made.make("second"))
    until(lambda: "vitald/ledger_replaced" in open_codes(node), "it to be told")
    node.wait(lambda status: status["ledger"]["ok"])
    assert standing(node) == before
    node.restart(signal.SIGKILL)
    assert standing(node) == before


# --- the ledger is damaged at random bytes

BOOT = "boot-a"
KNOWN = catalogue()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Pipeline]:
    """As the daemon does it."""
    lane = WorkerThread("test")
    pipeline = Pipeline(Ledger(folder), lane, NodeState(BOOT, 0.0, device_reset=False), KNOWN, BOOT)
    try:
        await pipeline.open(KNOWN)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipeline.run)
            yield pipeline
            tasks.cancel_scope.cancel()
        await pipeline.close()
    finally:
        lane.close()


Stand = tuple[tuple[int, str, str], ...]


def stand(pipeline: Pipeline) -> Stand:
    return tuple(
        sorted(
            (one.id, one.code, one.component.name)
            for one in pipeline.judge.open_findings
            if one.kind != "vitald"
        )
    )


def told_of_itself(pipeline: Pipeline) -> set[str]:
    return {one.code for one in pipeline.judge.open_findings if one.kind == "vitald"}


async def fill(folder: Path, killed: Path) -> list[Stand]:
    """A ledger with some history, and as a kill would have left it. What stood after each
    commit.
    """
    stood = []
    async with running(folder) as pipeline:
        for number in range(72):
            device, code = gpu(number // 6), "xid/79" if number // 6 % 2 else "xid/48"
            happened = event(
                code, device, 1e9 + number, identity=f"record {number}", fields={"pid": number}
            )
            await pipeline.store(
                Batch("kernel_log", (happened,), Position("kernel_log", BOOT, str(number)))
            )
            stood.append(stand(pipeline))
        for number in (1, 2):
            audit = AuditRecord(
                time=time.time(), uid=0, pid=1, verb="clear", target=str(number), reason="test"
            )
            await pipeline.actions.clear_finding(number, "root", audit)
            stood.append(stand(pipeline))
        shutil.copytree(folder, killed)
    (killed / "ledger.db-shm").unlink()
    return stood


def damaged(folder: Path, seed: int) -> str:
    """One file, in one way."""
    chance = random.Random(seed)
    path = chance.choice(sorted(path for path in folder.glob("ledger.db*") if path.stat().st_size))
    data, how = (
        bytearray(path.read_bytes()),
        chance.choice(("bit", "bits", "cut", "zeros", "noise")),
    )
    at = chance.randrange(len(data))
    if how in ("bit", "bits"):
        for _ in range(1 if how == "bit" else 20):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del data[at:]
    else:
        begin = at // 4096 * 4096 if how == "zeros" else at
        end = min(len(data), begin + (4096 if how == "zeros" else chance.randrange(1, 9000)))
        data[begin:end] = bytes(end - begin) if how == "zeros" else chance.randbytes(end - begin)
    path.write_bytes(data)
    return f"{path.name} {how}"


async def outcome(base: Path, seed: int, stood: list[Stand], work: Path) -> tuple[str, str]:
    """What became of a ledger that was damaged so: a word, or what is wrong."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)
    what = damaged(work, seed)
    content = {path.read_bytes() for path in work.iterdir()}
    async with running(work) as pipeline:
        found = tuple(one for one in stand(pipeline))
        new = event("xid/31", gpu(40), 2e9, identity="new")
        await pipeline.store(Batch("kernel_log", (new,), Position("kernel_log", BOOT, "new")))
        own, ok, after = told_of_itself(pipeline), pipeline.node_state.ledger.ok, stand(pipeline)
    async with running(work) as pipeline:
        if stand(pipeline) != after:
            return what, "forgotten by the next start"
    if not ok:
        return what, "it can never be written again"
    if own & {"vitald/ledger_replaced", "vitald/ledger_lost"}:
        kept = {path.read_bytes() for path in work.iterdir() if "damaged" in path.name}
        # Of one that was killed SQLite may have moved the log into the file before the damage was
        # seen.
        return what, (
            "replaced"
            if content & kept or (kept and base.name == "killed")
            else "the damaged file was not kept"
        )
    if found == stood[-1]:
        return what, "same"
    return what, f"silent: {set(stood[-1]) - set(found)} lost, {set(found) - set(stood[-1])} new"


@pytest.mark.parametrize("begin", [0, 40, 80])
def test_a_ledger_damaged_at_random_bytes_is_never_lost_in_silence(begin: int) -> None:
    """Never a crash nor a hang: the same stands, or it is told and the damaged file kept. Rows that
    can be read are rescued.
    """
    folder = Path(
        tempfile.mkdtemp(
            prefix="vitald-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
    )
    try:

        async def work() -> Counter[str]:
            clean, killed = folder / "clean", folder / "killed"
            stood = await fill(clean, killed)
            seen: Counter[str] = Counter()
            for seed in range(begin, begin + 40):
                for base in (clean, killed):
                    what, became = await asyncio.wait_for(
                        outcome(base, seed, stood, folder / "work"), 20.0
                    )
                    assert became in ("same", "replaced"), (base.name, seed, what, became)
                    seen[became] += 1
            return seen

        seen = asyncio.run(work())
        assert seen["same"] >= 20
        assert seen["replaced"] >= 20
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "change",
    [
        "base = '[]'",
        'base = \'{"action": "none"}\'',
        "base = replace(base, 'false', '2')",
        "base = '{'",
        "fields = 'x'",
        "fields = " + repr("[" * 100_000),
        "state = 'opem'",
        "component = ''",
        "component = 'x/'",
        "confirmed_action = 7",
        "title = CAST(X'ff' AS TEXT)",
    ],
    ids=lambda change: change[:30],
)
def test_a_row_that_cannot_be_read_costs_only_itself(tmp_path: Path, change: str) -> None:
    """Told as damage; the other findings are carried over, and the file is kept."""

    async def work() -> tuple[Stand, Stand, set[str]]:
        before = (await fill(tmp_path / "state", tmp_path / "killed"))[-1]
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.db")) as ledger:
            ledger.execute(f"UPDATE findings SET {change} WHERE id = 5")
            ledger.commit()
        async with running(tmp_path / "state") as pipeline:
            await pipeline.wait_until_stored()
            return before, stand(pipeline), told_of_itself(pipeline)

    before, after, own = asyncio.run(work())
    assert own == {"vitald/ledger_lost"}
    assert after == tuple(one for one in before if one[0] != 5)
    assert list((tmp_path / "state").glob("ledger.db.damaged-*"))


def test_an_index_that_lacks_a_row_hides_no_finding(tmp_path: Path) -> None:
    """SQLite would find nothing by it, and say nothing."""

    async def work() -> tuple[Stand, Stand, set[str]]:
        before = (await fill(tmp_path / "state", tmp_path / "killed"))[-1]
        for former, now in (("!= 'cleared'", "= 'nobody'"), ("= 'nobody'", "!= 'cleared'")):
            with closing(
                sqlite3.connect(tmp_path / "state" / "ledger.db", isolation_level=None)
            ) as ledger:
                ledger.execute("PRAGMA writable_schema = ON")
                ledger.execute(
                    "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name ="
                    " 'findings_open'",
                    (former, now),
                )
            if now == "= 'nobody'":
                with closing(
                    sqlite3.connect(tmp_path / "state" / "ledger.db", isolation_level=None)
                ) as ledger:
                    ledger.execute("REINDEX findings_open")
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.db")) as ledger:
            assert ledger.execute(
                "SELECT count(*) FROM findings WHERE state != 'cleared'"
            ).fetchone() == (0,), "the damage is of that kind"
        async with running(tmp_path / "state") as pipeline:
            await pipeline.wait_until_stored()
            return before, stand(pipeline), told_of_itself(pipeline)

    before, after, own = asyncio.run(work())
    assert before == after
    assert own == {"vitald/ledger_replaced"}


def test_a_log_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    """A signal or a power cut in the middle of a write, at any byte: what had been committed before
    it stands, and nothing is said.
    """

    async def work() -> None:
        stood = await fill(tmp_path / "clean", tmp_path / "killed")
        whole = (tmp_path / "killed" / "ledger.db-wal").read_bytes()
        salt = whole[16:24]
        ours = [at for at in range(32, len(whole) - 4119, 4120) if whole[at + 8 : at + 16] == salt]
        chance = random.Random(7)
        for end in (
            ours[-1] + 4119,
            ours[-1] + 24,
            ours[-1] + 1,
            *(chance.randrange(ours[-40], ours[-1] + 4120) for _ in range(12)),
        ):
            shutil.rmtree(tmp_path / "work", ignore_errors=True)
            shutil.copytree(tmp_path / "killed", tmp_path / "work")
            (
                tmp_path / "work" / "ledger.count"
            ).unlink()  # what was cut off had not been counted then
            # What lies behind is of an earlier round, as SQLite leaves it.
            (tmp_path / "work" / "ledger.db-wal").write_bytes(whole[:end] + bytes(len(whole) - end))
            async with running(tmp_path / "work") as pipeline:
                await pipeline.wait_until_stored()  # and judged
                assert stand(pipeline) in stood[-6:], end
                assert told_of_itself(pipeline) == set(), end

    asyncio.run(work())


# --- what the machine does to a process: its clock, its files, its turn

_SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* In a file that the test changes: how far the wall clock is off, and which files cannot be opened
   or read, and how. */
static volatile struct { double shift; int opening, reading; char prefix[240]; } *told;
static char reads[65536];

static void begin(void) {
    if (told) return;
    int fd = syscall(SYS_openat, AT_FDCWD, getenv("VITALD_TEST_SHIM"), O_RDONLY);
    void *at = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    told = at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int ret = syscall(SYS_clock_gettime, clock, now);
    begin();
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += (long)told->shift;
    return ret;
}

static int refused(const char *path) {
    begin();
    const char *prefix = (const char *)told->prefix;
    return prefix[0] && !strncmp(path, prefix, strlen(prefix));
}

static int opened(int folder, const char *path, int flags, int mode) {
    if (refused(path) && told->opening) { errno = told->opening; return -1; }
    int fd = syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && fd < (int)sizeof reads) reads[fd] = refused(path);
    return fd;
}

#define READ_MODE \
    va_list rest; \
    va_start(rest, flags); \
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
    va_end(rest)
int open(const char *path, int flags, ...) {
    READ_MODE;
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    READ_MODE;
    return opened(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    READ_MODE;
    return opened(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    READ_MODE;
    return opened(folder, path, flags, mode);
}

ssize_t read(int fd, void *buffer, size_t size) {
    begin();
    /* Whatever was opened under that name before the fault began fails, too. */
    if (told->reading && told->prefix[0] && fd >= 0 && fd < (int)sizeof reads) {
        char link[64], name[256];
        strcpy(link, "/proc/self/fd/");
        int length = 14, digits[8], count = 0, rest = fd;
        do digits[count++] = rest % 10; while (rest /= 10);
        while (count) link[length++] = '0' + digits[--count];
        link[length] = 0;
        ssize_t got = syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1);
        if (got > 0) { name[got] = 0; if (refused(name)) { errno = told->reading; return -1; } }
    }
    return syscall(SYS_read, fd, buffer, size);
}

DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (!real) real = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    if (refused(path) && told->opening) { errno = told->opening; return 0; }
    return real(path);
}
"""


class Shim:
    """Stands between one daemon and its C library. The machine itself is left alone."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._told = folder / "shim"
        self._told.write_bytes(bytes(4096))
        self.environment = {"LD_PRELOAD": str(library), "VITALD_TEST_SHIM": str(self._told)}
        self._shift, self._opening, self._reading, self._prefix = 0.0, 0, 0, ""

    def _write(self) -> None:
        with self._told.open("r+b") as file:
            file.write(
                struct.pack(
                    "=dii240s", self._shift, self._opening, self._reading, self._prefix.encode()
                )
            )

    def step(self, seconds: float) -> None:
        """The wall clock."""
        self._shift += seconds
        self._write()

    def fail(self, prefix: str, opening: int = 0, reading: int = 0) -> None:
        """What cannot be opened or read, with these errors."""
        self._opening, self._reading, self._prefix = opening, reading, prefix
        self._write()

    def mend(self) -> None:
        self.fail("")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    require(compiler, "a C compiler (apt-get install gcc libc6-dev)")
    folder = tmp_path_factory.mktemp("shim")
    source, made = folder / "shim.c", folder / "shim.so"
    source.write_text(_SHIM)
    subprocess.run(
        [str(compiler), "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"], check=True
    )
    return made


@pytest.fixture
def shim(library: Path, tmp_path: Path) -> Shim:
    return Shim(library, tmp_path)


DAY = 86400.0


@pytest.mark.parametrize("seconds", [DAY, -DAY], ids=["forward", "back"])
def test_the_clock_is_stepped_a_day_and_back(
    make_node: Make, shim: Shim, tmp_path: Path, seconds: float
) -> None:
    """Open findings, and quiet times that run: nothing ends or begins by the clock alone, nobody
    looks stale, and what happens afterwards is counted where it belongs. A kill in between changes
    nothing.
    """
    node = make_node(gpus=SimulatedNode(tmp_path / "gpus", "h100"))
    node.environment |= shim.environment
    node.start()
    node.write(
        xid(1), xid(2, code=31, pci="0000:66:00", message="Ch 00000008, intr 10000000. MMU Fault")
    )
    wait_for_pid(node, 2)

    def found() -> list[tuple[object, ...]]:
        return [
            (one["id"], one["code"], one["state"], one["count"])
            for one in node.findings()
            if one["kind"] == "xid"
        ]

    before = found()
    assert len(before) == 2
    for number, step in enumerate((seconds, -seconds)):
        shim.step(step)
        node.write(xid(10 + number))
        wait_for_pid(node, 10 + number)
        until(lambda: len(node.events("&code=vitald/clock_stepped")) == number + 1, "the step")
        assert found() == [(*before[0][:3], 2 + number), before[1]]
        assert {str(one["state"]) for one in cast("list[Json]", node.status()["sources"])} <= {
            "ok",
            "not present",
        }
        stepped = cast("Json", node.events("&code=vitald/clock_stepped")[-1]["fields"])
        assert abs(cast("float", stepped["seconds"]) - step) < 5.0
        if number == 0:
            node.restart(signal.SIGKILL)
            assert len(node.events("&code=vitald/clock_stepped")) == 1
    assert pids(node.events()) == [1, 2, 10, 11]
    assert node.status()["rebootRequired"]


@pytest.mark.core
def test_gpus_that_the_driver_does_not_know_are_unhealthy_though_the_node_has_the_finding(
    make_node: Make, tmp_path: Path
) -> None:
    gpus = as_if_real(SimulatedNode(tmp_path / "gpus", "h100"))
    for number in range(len(gpus.addresses)):
        gpus.set_values(number, {"absent": 1})
    node = make_node(gpus=gpus)
    node.start()
    status = node.wait(lambda status: status["action"] == "inspect")
    assert not status["rebootRequired"]
    (finding,) = node.findings()
    shown = node.get("/v1/gpus")["gpus"]
    assert [(one["status"], one["findings"]) for one in shown] == [
        ("unhealthy", [finding["id"]]) for _ in gpus.addresses
    ]
    assert node.findings(f"&component={shown[0]['component']}") == [finding]
    by_name = {one["name"]: one for one in node.get("/v1/components")["components"]}
    assert {by_name[one["component"]]["status"] for one in shown} == {"unhealthy"}


@pytest.mark.core
def test_a_line_without_a_date_is_settled_by_who_sees_the_device(
    make_node: Make, tmp_path: Path
) -> None:
    """The file may be weeks old; a driver that answers for the GPU knows better."""
    gpus = as_if_real(SimulatedNode(tmp_path / "gpus", "h100"))
    node = make_node(gpus=gpus)
    present, absent = gpus.addresses[0].rpartition(".")[0], "0000:ee:00"
    node.log.write_text(f"{xid(1, pci=present)}\n{xid(2, pci=absent)}\n")
    node.start()
    node.wait(lambda status: status["action"] == "inspect")
    until(lambda: len(node.findings()) == 1, "NVML settles the one of its GPU")
    (other,) = node.findings()
    assert (other["component"], other["action"]) == (f"gpu/{absent}.0", "inspect")
    (settled,) = node.get("/v1/findings?state=cleared")["findings"]
    assert settled["clearedBy"] == "cleared by nvml: nvml observes it without this fault"
    assert not node.status()["rebootRequired"]


def test_the_clock_jumps_again_and_again(make_node: Make, shim: Shim) -> None:
    """A machine whose clock two masters fight over."""
    node = make_node()
    node.environment |= shim.environment
    node.start()
    for number in range(20):
        shim.step((-1) ** number * (3600.0 + number))
        node.write(xid(number, pci=f"0000:{number:02x}:00"))
    wait_for_pid(node, 19)
    assert sorted(pids(node.events())) == [*range(20)]
    assert [one["count"] for one in node.findings("&code=xid/79")] == [1] * 20
    before = standing(node)
    node.restart(signal.SIGKILL)
    assert standing(node) == before
    assert node.said("event_not_judged", "request_failed") == []


EIO, EACCES, ENOENT, EMFILE = errno.EIO, errno.EACCES, errno.ENOENT, errno.EMFILE


def unknown(status: Json) -> bool:
    return bool(status["status"] == "unknown")


@pytest.mark.kmsg
@pytest.mark.usefixtures("kmsg")
@pytest.mark.parametrize(
    ("opening", "reading"),
    [(0, EIO), (EACCES, EIO), (ENOENT, EIO), (EMFILE, EIO)],
    ids=["input/output error", "permission", "missing", "files"],
)
def test_the_kernel_log_cannot_be_read_any_more(
    make_node: Make, shim: Shim, opening: int, reading: int
) -> None:
    """Unknown, not healthy, in every answer; and when it can be read again that is so at once."""
    node = make_node(kernel_log="kmsg", userspace="ignore")
    node.environment |= shim.environment
    node.start()
    node.wait(lambda status: status["status"] == "healthy")
    shim.fail("/dev/kmsg", opening, reading)
    with Path("/dev/kmsg").open("w") as log:
        log.write("<6>vitald-test: there is something to be read\n")
    node.wait(unknown)
    source = cast("list[Json]", node.status()["sources"])[0]
    assert (source["name"], source["state"]) == ("kernel_log", "failed")
    assert node.cli("check").returncode == 30
    assert node.metric('vitald_source_up{source="kernel_log"}') == 0
    assert node.metric('vitald_status{status="healthy"}') == 0
    assert "vitald/source_failed" in open_codes(node)
    assert len(node.said("source_failed")) == 1, "said once"
    shim.mend()
    node.wait(lambda status: status["status"] == "healthy")
    assert open_codes(node) == set()


@pytest.mark.parametrize("kind", ["missing", "folder", "file", "pipe", "socket", "null", "zero"])
def test_what_stands_in_place_of_the_kernel_log_is_none(make_node: Make, kind: str) -> None:
    """Misconfigured, or a container without the device. Silence is not health, and neither is an
    endless stream of nothing.
    """
    node = make_node(kernel_log="kmsg")
    path = node.folder / "kmsg"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("6,1,1,-;an ordinary record\n" * 100)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o600 | 0o140000)
    elif kind in ("null", "zero"):
        path = Path("/dev") / kind
    node.configure('source = "kmsg"', f'source = "kmsg"\npath = "{path}"')
    node.start()
    node.wait(unknown)
    assert node.cli("check").returncode == 30
    assert "vitald/source_failed" in open_codes(node)
    until(lambda: node.answers("/healthz"), "an answer")
    node.restart(signal.SIGKILL)
    node.wait(unknown)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[WholeTree]:
    folder = Path(
        tempfile.mkdtemp(
            prefix="vitald-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
        )
    )
    yield WholeTree(folder)
    shutil.rmtree(folder)


@pytest.fixture
def whole(tree: WholeTree, make_node: Make, shim: Shim) -> Node:
    """A node with everything that can be looked at, healthy."""
    node = make_node(sysfs=tree.root, looks=LOOKS, extra=OFTEN)
    node.configure("[paths]\n", f'[paths]\nprocfs = "{tree.proc.root}"\n')
    node.environment |= shim.environment
    node.start()
    node.wait(lambda status: status["status"] == "healthy")
    return node


def states(node: Node, names: Collection[str] = LOOKS) -> set[str]:
    return {
        str(one["state"])
        for one in cast("list[Json]", node.status()["sources"])
        if one["name"] in names
    }


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("sys", EIO),
        ("sys", EACCES),
        ("sys", EMFILE),
        ("devices", EACCES),
        ("neuron", EIO),
        ("proc", EIO),
        ("proc", EMFILE),
    ],
    ids=lambda value: value if isinstance(value, str) else errno.errorcode[value],
)
def test_parts_of_the_kernels_files_cannot_be_read(
    whole: Node, tree: WholeTree, shim: Shim, part: str, error: int
) -> None:
    """Nobody is missing, lost or ill for that; nobody is healthy either. Afterwards all is as it
    was.
    """
    prefix = {
        "sys": str(tree.root),
        "proc": str(tree.proc.root),
        "devices": f"{tree.root}/bus/pci/devices",
        "neuron": f"{tree.root}/devices/virtual/neuron_device",
    }[part]
    before = told(whole)
    shim.fail(prefix, error, error)
    time.sleep(2.5)  # a dozen rounds
    assert told(whole) == before
    assert {str(one["kind"]) for one in whole.findings()} <= {"vitald", *LOOKS}
    assert {str(one["action"]) for one in whole.findings()} <= {"inspect", "observe"}
    status = whole.status()
    assert (status["rebootRequired"], status["replacementRequired"]) == (False, False)
    assert status["status"] != "healthy"
    shim.mend()
    whole.wait(lambda status: status["status"] == "healthy")
    assert told(whole) == before
    assert states(whole) == {"ok"}


def test_no_file_can_be_opened_any_more(whole: Node, tree: WholeTree) -> None:
    """The limit on descriptors is reached: who is connected is answered, no device is lost, and all
    recovers when there is room.
    """
    assert whole.process is not None
    pid = whole.process.pid
    before, limits = told(whole), resource.prlimit(pid, resource.RLIMIT_NOFILE)
    whole.write(xid(1, code=13, pci="0000:99:00", message="Graphics Exception"))
    wait_for_pid(whole, 1)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    whole.log.open("a").write(
        xid(2, code=13, pci="0000:98:00", message="Graphics Exception") + "\n"
    )
    time.sleep(3.0)
    assert whole.process.poll() is None
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: whole.answers("/healthz"), "an answer")
    wait_for_pid(whole, 2)
    whole.wait(
        lambda status: (
            states(whole) == {"ok"} and {one["code"] for one in status["findings"]} == {"xid/13"}
        ),
    )
    assert told(whole) - before == Counter(
        {("xid/13", "gpu/0000:99:00.0"): 1, ("xid/13", "gpu/0000:98:00.0"): 1}
    )
    assert stored(whole) == [1, 2]
    tree.neuron.ecc(11, "sram_ecc_uncorrected", 1)
    whole.wait(lambda status: status["replacementRequired"])
    for line in whole.errors.read_text().splitlines():
        assert json.loads(line)["event"], "the log stays a log"


def test_the_daemon_gets_no_turn_for_a_while(whole: Node, tree: WholeTree) -> None:
    """Six deadlines of each source. It was not the devices that hung, and what happened meanwhile
    is judged.
    """
    before = told(whole)
    with whole.frozen():
        whole.write(xid(1))
        tree.network.down("mlx5_5")
        time.sleep(6.0)
    wait_for_pid(whole, 1)
    whole.wait(lambda status: states(whole) == {"ok"} and len(status["findings"]) == 2)
    assert sorted(code for code, _ in told(whole) - before) == ["ib/port_down", "xid/79"]
    assert not any("hung" in str(one["code"]) for one in whole.events())


def test_the_drivers_worker_is_killed_again_and_again(make_node: Make, tmp_path: Path) -> None:
    """A new one is begun each time, at a pace; the GPUs are not blamed, the kernel log is judged
    meanwhile, and nothing piles up.
    """
    node = make_node(gpus=SimulatedNode(tmp_path / "gpus", "h100"))
    node.start()
    node.wait(lambda status: status["status"] == "healthy")
    assert node.process is not None
    process = node.process.pid

    def workers() -> set[int]:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return {int(child) for child in children if runs(child)}

    def runs(child: str) -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0] != "Z"
        except (FileNotFoundError, ProcessLookupError):  # gone since
            return False

    def descriptors() -> int:
        return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())

    calm, killed = descriptors(), set[int]()

    def kill_new_workers() -> bool:
        for worker in workers() - killed:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(worker, signal.SIGKILL)
                killed.add(worker)
        return len(killed) >= 3

    until(kill_new_workers, "three workers, one after the other")
    node.write(xid(1, code=13, message="Graphics Exception"))
    wait_for_pid(node, 1)
    node.wait(
        lambda status: all(one["state"] in ("ok", "not present") for one in status["sources"])
    )
    until(
        lambda: {str(one["code"]) for one in node.findings()} <= {"xid/13"},
        "the GPUs to be well again",
    )
    assert {
        one["component"] for one in node.findings() if one["kind"] not in ("vitald", "xid")
    } == set()
    assert not any(str(one["kind"]) == "gpu_lost" for one in node.events())
    assert len(workers()) <= 2
    assert descriptors() <= calm + 2
