"""
The interface of a check. A new check is one file in `checks/`; `check_set` has those of the site.

A check knows its program, whether it may run beside other work, how long it takes, and how to read
its output. It starts programs through `execute` only, so that deadlines, cancellation and the
record are the same for all checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from vitald.catalog import Catalog
from vitald.diagnostics.run.held_processes import Process
from vitald.model.diagnostic import Report, RunRequest

MAX_BYTES = 4 * 1024 * 1024


class ProgramEnd(Enum):
    """How a program ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"  # from outside, or by a crash
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    NOT_STARTED = "not started"  # `Output.why` says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to run. Times in seconds."""

    argv: tuple[str, ...]
    deadline_s: float
    grace_s: float = (
        5.0  # between SIGTERM and SIGKILL: some need it to stop what they started elsewhere
    )
    environment: Mapping[str, str] = field(default_factory=dict)  # added to a cleaned one
    max_bytes: int = MAX_BYTES  # of its output that are kept, both streams together


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output of a program. Text is decoded with replacement; if it is too long, the middle is
    dropped.
    """

    ended: ProgramEnd
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None  # below 0: the signal
    dropped: int = 0  # bytes
    seconds: float = 0.0
    why: str = ""  # in words, where it did not exit by itself
    left: tuple[Process, ...] = ()  # that could not be ended


Execute = Callable[[Command], Awaitable[Output]]


class Check(Protocol):
    """One kind of diagnostic."""

    name: str  # `dcgm`, `nccl`, or that of a check of the site
    title: str
    levels: tuple[int, ...]  # at which it can be requested; (0,) if it has none
    covers_gpus: bool  # a pass must name all GPUs of the node

    def find_obstacle(self) -> str:
        """Why the check cannot run on this node, such as a program that is not installed; "" if it
        can.
        """

    def every_s(self, level: int) -> float:
        """Its period in seconds; 0 if it runs on request only."""

    def needs_idle(self, level: int) -> bool:
        """True if it must not run beside other work on the devices."""

    def expected_s(self, level: int) -> float:
        """Its usual duration in seconds."""

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        """Runs the check and reads the result. Nothing that a program does or prints raises: it
        becomes an outcome.
        """


@runtime_checkable
class CatalogReader(Protocol):
    """A check that reads the catalogue."""

    def use_catalog(self, catalog: Catalog) -> None:
        """Takes the catalogue: at the start, and after it was reloaded."""
