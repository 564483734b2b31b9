"""In which order the past and the present are handed in, what a fault of ours in reading the past
costs, and who may connect when.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitald.core.supervisor import Supervisor
from vitald.daemon import Daemon
from vitald.http_server.listeners import open_unix_socket
from vitald.model.source import Batch


class Past:
    """Reading it fails in one of its two parts."""

    def __init__(self, broken: str, said: list[str]) -> None:
        self.broken = broken
        self.said = said

    async def read_former_boots(
        self, _: object, crashes: object, *, orderly: bool
    ) -> AsyncIterator[Batch]:
        async for batch in self._part("former boots"):
            yield batch

    async def read_this_boot(self, _: object) -> AsyncIterator[Batch]:
        async for batch in self._part("this boot"):
            yield batch

    async def _part(self, name: str) -> AsyncIterator[Batch]:
        if name == self.broken:
            raise RuntimeError("a fault of ours")
        yield Batch(name)

    def close(self) -> None:
        self.said.append("closed")


@pytest.mark.parametrize(
    ("broken", "wanted"),
    [
        ("", ["former boots", "booted", "this boot", "closed", "watched"]),
        ("former boots", ["vitald/not_watched", "booted", "this boot", "closed", "watched"]),
        ("this boot", ["former boots", "booted", "vitald/not_watched", "closed", "watched"]),
    ],
)
def test_the_boot_is_told_once(broken: str, wanted: list[str]) -> None:
    said: list[str] = []

    async def put(batch: Batch) -> None:
        said.append(batch.source)

    async def report_boot() -> None:
        said.append("booted")

    async def put_own_event(code: str, *_: object) -> None:
        said.append(code)

    class Supervised(Supervisor):
        async def read(self, _: object) -> None:
            said.append("watched")

    pipeline: Any = SimpleNamespace(
        put=put,
        report_boot=report_boot,
        put_own_event=put_own_event,
        position=lambda _: None,
        was_stopped=True,
    )
    sources = SimpleNamespace(
        kernel_log=SimpleNamespace(name="kernel_log"), backfill=Past(broken, said)
    )
    daemon: Any = SimpleNamespace(
        sources=sources,
        pipeline=pipeline,
        past_read=asyncio.Event(),
        supervisor=Supervised(pipeline),
    )
    asyncio.run(Daemon._read_kernel_log(daemon))
    assert said == wanted


def test_who_finds_the_socket_may_connect(tmp_path: Path) -> None:
    """Also while the daemon is not serving yet: refused, a client would say that the daemon has
    stopped.
    """
    path = tmp_path / "vitald.sock"
    with open_unix_socket(path, os.getegid()), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
