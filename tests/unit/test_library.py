"""What the log says of clients that cannot be let in: once, and then once a minute with their
number.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from structlog.testing import capture_logs

from vitald.http_server.library import Doorkeeper


class Loop:
    """Of an event loop what the doorkeeper needs, with a clock that is turned by hand."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Any]] = []
        self.passed_on: list[dict[str, Any]] = []

    def call_later(self, seconds: float, work: Any, *arguments: Any) -> object:
        self.later.append((seconds, lambda: work(*arguments)))
        return object()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.passed_on.append(context)

    def turn(self) -> None:
        ((seconds, work),) = self.later
        assert seconds == 60.0
        self.later = []
        work()


def refusal(number: int = errno.EMFILE) -> dict[str, Any]:
    """As asyncio tells it."""
    return {
        "message": "socket.accept() out of system resource",
        "exception": OSError(number, "too many"),
        "socket": None,
    }


def handle(doorkeeper: Doorkeeper, loop: Loop, context: dict[str, Any]) -> None:
    doorkeeper.handle(loop, context)  # type: ignore[arg-type]


def test_once_a_minute_with_their_number() -> None:
    loop, doorkeeper = Loop(), Doorkeeper()
    with capture_logs() as said:
        for _ in range(4697):
            handle(doorkeeper, loop, refusal())
        assert [one["times"] for one in said] == [1]
        loop.turn()
        assert [one["times"] for one in said] == [1, 4696]
        handle(doorkeeper, loop, refusal(errno.ENFILE))
        loop.turn()
        assert [one["times"] for one in said] == [1, 4696, 1]
        loop.turn()  # a quiet minute: the next one is told at once
        handle(doorkeeper, loop, refusal())
    assert [one["times"] for one in said] == [1, 4696, 1, 1]
    assert {one["event"] for one in said} == {"clients_not_let_in"}
    assert loop.passed_on == []


@pytest.mark.parametrize(
    "context",
    [
        {
            "message": "Task exception was never retrieved",
            "exception": OSError(errno.EMFILE, "too many"),
        },
        {"message": "socket.accept() out of system resource", "exception": ValueError("x")},
        {
            "message": "socket.accept() out of system resource",
            "exception": OSError(errno.EBADF, "x"),
        },
        {"message": "no exception at all"},
    ],
)
def test_everything_else_is_told_as_ever(context: dict[str, Any]) -> None:
    loop = Loop()
    with capture_logs() as said:
        handle(Doorkeeper(), loop, context)
    assert (loop.passed_on, said) == ([context], [])


def test_it_is_what_asyncio_says() -> None:
    """The words by which it is known are asyncio's own, of this version."""
    import inspect
    from asyncio import selector_events

    assert "'socket.accept() out of system resource'" in inspect.getsource(
        selector_events.BaseSelectorEventLoop
    )
    assert asyncio.BaseEventLoop.call_exception_handler
