"""Uevents: whom they wake, how often, and what happens where nobody can listen. The kernel is
played by a socket and a list.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Union

import pytest

from tests.clock import run_turned, turn
from tests.waiting import until_async
from vitald.collectors import uevents
from vitald.collectors.uevents import Uevents


@dataclass(frozen=True)
class Announced:
    subsystem: str
    sys_path: str = "/sys/devices/pci0000:80/0000:81:00.0"


class Monitor:
    """Readable as long as something is left to be said."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.left: list[Announced | Exception] = []
        self.is_open = False

    def fileno(self) -> int:
        self.is_open = True
        return self.ours.fileno()

    def say(self, *said: Union[Announced, Exception]) -> None:
        self.left += said
        self.theirs.send(b"x" * len(said))

    def poll(self, timeout: float) -> Announced | None:
        assert timeout == 0, "nothing may wait on the loop"
        if not self.left:
            return None
        self.ours.recv(1)
        said = self.left.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


class Heard:
    """A listener that counts, over a monitor of ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monitors = [Monitor()]
        self.woken: Counter[str] = Counter()
        self.gives_up = False
        monkeypatch.setattr(Uevents, "_open_socket", lambda _: self.monitors[-1])
        monkeypatch.setattr(uevents, "_OPEN_S", math.inf)  # the clock is turned meanwhile
        self.uevents = Uevents(
            {name: [lambda name=name: self.woken.update([name])] for name in ("pci", "net", "nvme")}
        )

    def run(self, story: Coroutine[None, None, None]) -> None:
        async def whole() -> None:
            listening = asyncio.create_task(self.uevents.listen())
            await story
            assert listening.done() == self.gives_up
            listening.cancel()

        run_turned(whole())

    async def settled(self) -> Counter[str]:
        """What woke since this was last asked, once all was read and no pause is left."""

        def is_read() -> bool:
            if not self.monitors[-1].is_open:
                turn(uevents._AGAIN_S)
            return self.monitors[-1].is_open and not self.monitors[-1].left

        await until_async(is_read)
        for _ in range(5):  # a pause may begin another
            turn(uevents._PAUSE_S)
            await asyncio.sleep(0.001)
        woken, self.woken = Counter(self.woken), Counter()
        return woken


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    return Heard(monkeypatch)


def test_a_subsystem_wakes_its_own_listeners_and_the_beginning_wakes_all(heard: Heard) -> None:
    async def story() -> None:
        assert await heard.settled() == {"pci": 1, "net": 1, "nvme": 1}
        heard.monitors[-1].say(Announced("pci"))
        assert await heard.settled() == {"pci": 1}
        heard.monitors[-1].say(Announced("hidraw"))  # not asked for
        assert await heard.settled() == {}

    heard.run(story())


def test_a_storm_is_no_storm_of_looks(heard: Heard) -> None:
    async def story() -> None:
        await heard.settled()
        heard.monitors[-1].say(*[Announced("pci")] * 1000)
        assert await heard.settled() == {"pci": 2}  # at once, and when it is over
        assert heard.uevents.heard == 1000

    heard.run(story())


def test_interfaces_of_containers_wake_nobody(heard: Heard) -> None:
    async def story() -> None:
        await heard.settled()
        heard.monitors[-1].say(
            Announced("net", "/sys/devices/virtual/net/veth1"),
            Announced("nvme", "/sys/devices/virtual/nvme-subsystem/x"),
        )
        assert await heard.settled() == {"nvme": 1}

    heard.run(story())


def test_what_was_lost_makes_everything_be_looked_at(heard: Heard) -> None:
    async def story() -> None:
        await heard.settled()
        heard.monitors[-1].say(
            OSError(errno.ENOBUFS, "No buffer space available"), Announced("pci")
        )
        assert await heard.settled() == {"pci": 2, "net": 1, "nvme": 1}
        assert (heard.uevents.lost, heard.uevents.error) == (1, "")

    heard.run(story())


@pytest.mark.parametrize(
    "error", [OSError(errno.EBADF, "Bad file descriptor"), ValueError("Invalid argument")]
)
def test_a_socket_that_fails_is_said_and_opened_again(heard: Heard, error: Exception) -> None:
    async def story() -> None:
        await heard.settled()
        broken = heard.monitors[-1]
        heard.monitors.append(Monitor())
        broken.say(error)
        await until_async(lambda: heard.uevents.error)
        assert str(error) in heard.uevents.error
        assert (await heard.settled())["pci"] >= 1
        assert heard.uevents.error == ""
        heard.monitors[-1].say(Announced("pci"))
        assert await heard.settled() == {"pci": 1}

    heard.run(story())


@pytest.mark.parametrize(
    "error",
    [ImportError("No library named udev"), PermissionError(errno.EPERM, os.strerror(errno.EPERM))],
)
def test_where_nobody_can_listen_that_is_said(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_: Uevents) -> Monitor:
        raise error

    monkeypatch.setattr(Uevents, "_open_socket", refuse)
    heard.gives_up = isinstance(error, ImportError)  # that does not change while we run

    async def story() -> None:
        await until_async(lambda: heard.uevents.error)
        assert (str(error) in heard.uevents.error, heard.woken) == (True, Counter())

    heard.run(story())


def test_no_descriptor_to_listen_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said and tried again, and the daemon goes on."""
    heard, tried = Heard(monkeypatch), []

    def refused(fd: int) -> int:
        tried.append(fd)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(uevents.os, "dup", refused)
    monkeypatch.setattr(uevents, "_AGAIN_S", 0.01)
    listener = Uevents({})

    async def run() -> None:
        listening = asyncio.create_task(listener.listen())
        await until_async(lambda: len(tried) >= 2 or listening.done())
        assert not listening.done(), listening.exception()
        listening.cancel()

    asyncio.run(run())
    assert "Too many open files" in listener.error
    assert heard.monitors
