"""
What a ledger's files are written and synced, seen from below SQLite.

A library in front of libc's notes each write and each sync of them. A process that runs with it,
`python -m tests.syncs FOLDER`, notes in the same file what it reads, stores and shows. So a test
can tell what would be left after a power cut.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.waiting import WAIT_S
from vitald.catalog import load_catalog
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.judge.engine import Judge
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.finding import Incident, Transition
from vitald.model.source import Batch, Position
from vitald.model.words import ComponentKind
from vitald.worker_thread import WorkerThread

ROOT = Path(__file__).resolve().parent.parent
EVENTS = 3  # that the pipeline is given
POSITIONS = (
    1050  # noted one by one; after 1000 pages in its log SQLite moves them into the database
)

_TRACE = 900  # the descriptor on which it is noted
_BOOT = "boot-a"
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void note(const char *what, int fd, off_t offset)
{
    char link[64], path[4096], line[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    char *name = strrchr(path, '/');
    if (!name || strncmp(name, "/ledger.db", 10) || strstr(name, "-shm")) return;
    int size = snprintf(line, sizeof line, "%s %s %ld\n", what, name + 1, (long)offset);
    if (write(TRACE, line, size) != size) _exit(99);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

int fsync(int fd) { REAL(fsync); int done = real(fd); note("sync", fd, 0); return done; }
int fdatasync(int fd) { REAL(fdatasync); int done = real(fd); note("sync", fd, 0); return done; }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    REAL(pwrite64); note("write", fd, offset); return real(fd, data, size, offset);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    REAL(pwrite); note("write", fd, offset); return real(fd, data, size, offset);
}
"""


def compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def trace(folder: Path) -> list[tuple[str, ...]]:
    """What the process below did, line by line: `write FILE OFFSET`, `sync FILE`, and what it said
    of itself. Needs a compiler.
    """
    shim, noted = folder / "syncs.so", folder / "trace"
    flags = [
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        f"-DTRACE={_TRACE}",
        "-x",
        "c",
        "-",
        "-o",
        str(shim),
        "-ldl",
    ]
    subprocess.run([str(compiler()), *flags], input=_SHIM, text=True, check=True, timeout=WAIT_S)
    command = [sys.executable, "-m", "tests.syncs", str(folder)]
    preload = {**os.environ, "LD_PRELOAD": str(shim)}
    fd = os.open(noted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(fd, _TRACE)
        subprocess.run(
            command, cwd=ROOT, env=preload, pass_fds=[_TRACE], check=True, timeout=WAIT_S
        )
    finally:
        os.close(fd)
        os.close(_TRACE)
    return [tuple(line.split()) for line in noted.read_text("utf-8").splitlines()]


# --- in the process that is looked at


def _say(*words: str) -> None:
    os.write(_TRACE, (" ".join(words) + "\n").encode())


class _Told(NodeState):
    """Says when it shows something."""

    def publish_changes(
        self,
        judge: Judge,
        events: Iterable[Event] = (),
        transitions: Sequence[Transition] = (),
        incidents: Iterable[Incident] = (),
        read_at: float | None = None,
    ) -> None:
        for one in (shown := tuple(events)):
            _say("shown", one.identity)
        super().publish_changes(judge, shown, transitions, incidents, read_at)


def _event(identity: str, device: int) -> Event:
    return Event(
        identity=identity,
        time=1000.0,
        source="kernel_log",
        kind="xid",
        code="xid/79",
        component=Component(ComponentKind.GPU, f"0000:{device:02x}:00.0"),
        boot_id=_BOOT,
        raw="",
    )


async def _judge(folder: Path) -> None:
    """Some events, each waited for; the position of an ordinary line is noted before the last."""
    lane, catalog = WorkerThread("test"), load_catalog()
    board = _Told(_BOOT, 0.0, device_reset=False)
    pipeline = Pipeline(Ledger(folder), lane, board, catalog, _BOOT)
    await pipeline.open(catalog)
    judging = asyncio.create_task(pipeline.run())
    for number in range(EVENTS):
        if number == EVENTS - 1:
            _say("noting")
            pipeline.ledger.store_position(Position("kernel_log", _BOOT, "ordinary"))
            _say("noted")
        name = f"record-{number}"
        _say("read", name)
        at = Position("kernel_log", _BOOT, str(number))
        await pipeline.store(Batch("kernel_log", (_event(name, number),), at))
        _say("answered", name)
    judging.cancel()
    await pipeline.close()
    lane.close()


def _note_many(folder: Path) -> None:
    """One commit into a new ledger, then positions alone until its log has been emptied, and
    further.
    """
    ledger = Ledger(folder)
    ledger.open()
    _say("opened")
    ledger.commit([LedgerEntry(events=(_event("one", 0),))])
    for number in range(POSITIONS):
        ledger.store_position(Position("kernel_log", _BOOT, str(number)))


if __name__ == "__main__":
    asyncio.run(_judge(Path(sys.argv[1], "judged")))
    _say("another")
    _note_many(Path(sys.argv[1], "noted"))
