"""
The real NVML source over a simulated node: its worker process, the real binding, and a judge that
hears what it says.

    async with Looking(SimulatedNode(folder, "h100", 2), catalog) as looking:
        looking.node.lose(1)
        await looking.until(lambda: looking.asks(1, "nvml/gpu_lost"))
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Union
from unittest import mock

from tests.clock import HOUR_S
from tests.conftest import require
from tests.looking import batches_of
from tests.waiting import WAIT_S
from vitald import tomlfile
from vitald.catalog import Catalog, load_catalog
from vitald.catalog.loader import FOLDER
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.nvml import attachment
from vitald.collectors.nvml.collector import Nvml
from vitald.collectors.nvml.gpu_node import GpuNode
from vitald.collectors.nvml.settings import NvmlSettings as Settings
from vitald.collectors.nvml.worker import SIMULATED
from vitald.collectors.nvml.worker_process import WorkerProcess
from vitald.judge.engine import Judge
from vitald.model.event import Event
from vitald.model.finding import Finding
from vitald.model.source import Batch, Position, Readings, SourceState
from vitald.simulator.simulated_node import SimulatedCall, SimulatedNode
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread

BOOT = "b0070000-0000-4000-8000-000000000001"


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is told as a coroutine."""

    @functools.wraps(test)
    def told(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return told


Outcomes = dict[str, Union[BaseException, None]]


def beside(cases: Iterable[str], one: Callable[[str], Awaitable[None]], most: int = 4) -> Outcomes:
    """What each case came to, or what went wrong in it. A few at a time: they are mostly
    waiting.
    """
    told: Outcomes = {}

    async def every() -> None:
        turn = asyncio.Semaphore(most)

        async def alone(case: str) -> None:
            async with turn:
                try:
                    told[case] = await one(case)
                except (Exception, asyncio.CancelledError) as error:
                    told[case] = error

        await asyncio.gather(*map(alone, cases))

    asyncio.run(every())
    return told


def outcome(told: Outcomes, case: str) -> None:
    """Raises what went wrong."""
    found = told[case]
    if found is not None:
        raise found


@functools.cache
def hasty() -> Catalog:
    """The catalogue without its `for`: what holds is said at the first look. Windows are tested
    with a clock of their own.
    """
    overrides: dict[str, object] = {}
    for kind, table in tomlfile.read_toml(FOLDER / "nvml.toml")[1].items():
        assert isinstance(table, dict)
        for name, rule in table.items():
            given = rule.get("thresholds")
            thresholds = given if isinstance(given, list) else [given] if given else []
            if any("for" in one for one in thresholds):
                overrides[f"{kind}/{name}"] = {
                    "thresholds": [
                        {key: value for key, value in one.items() if key != "for"}
                        for one in thresholds
                    ]
                }
    return load_catalog(overrides=overrides)


_environments: dict[str, dict[str, str]] = {}
_started: dict[str, list[int]] = {}  # process ids, by library


class _Worker(WorkerProcess):
    """Started in the environment of its node: several nodes may be looked at beside each other."""

    def __init__(self, library: str, tell: Callable[[Mapping[str, Any]], None]) -> None:
        with mock.patch.dict(os.environ, _environments.get(library, {})):
            super().__init__(library, tell)
        _started.setdefault(library, []).append(self.pid)


attachment.WorkerProcess = _Worker


def own(node: SimulatedNode) -> Path:
    """The library under a name of this node."""
    path = node.folder / "lib" / node.library.name
    if not path.is_symlink():
        path.parent.mkdir()
        path.symlink_to(node.library)
    return path


class Looking:
    """One run of the source. Hand `position` and `judge` of a former one over, and it is a restart
    of the daemon.
    """

    def __init__(
        self,
        node: SimulatedNode,
        catalog: Catalog,
        *,
        after: Looking | None = None,
        boot: str = BOOT,
        of_type: int = 0,
        settle_s: float = 0.0,
        library: Path | None = None,
        **settings: Any,
    ) -> None:
        periods: dict[str, Any] = {
            "fast_s": 0.1,
            "slow_s": 0.1,
            "inventory_s": 0.3,
            "deadline_s": WAIT_S,
            "give_up_s": HOUR_S,
            **settings,
        }
        library = library or own(node)
        self.node = node
        self.source = Nvml(
            Settings(library=library, **periods),
            catalog,
            PciInventory(node.sysfs),
            boot,
            WorkerThread("nvml test"),
            of_type=of_type,
            expected=ExpectSettings(settle_s=settle_s),
        )
        self.judge = after.judge if after is not None else Judge(catalog)
        self.position: Position | None = after.position if after is not None else None
        self.events: list[Event] = []
        self.batches: list[Batch] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        _environments[str(library)] = node.environment

    async def __aenter__(self) -> Looking:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        batches = batches_of(self.source, self.position)
        try:
            async for batch in batches:
                self.batches.append(batch)
                self.position = batch.position or self.position
                for event in batch.events:
                    self.events.append(event)
                    self.judge.apply_event(event)
                self._news.set()
        finally:
            self._news.set()
            await batches.aclose()

    # --- waiting

    async def until(self, holds: Callable[[], object]) -> None:
        """Looked at after each batch."""
        began = time.monotonic()
        while not holds():
            assert self._task is not None
            if self._task.done():
                self._task.result()
                raise AssertionError("the source ended")
            self._news.clear()
            left = began + WAIT_S - time.monotonic()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(0.01, min(left, 0.5)))
            if left <= 0:
                raise AssertionError(f"not within {WAIT_S:g} s: {self.told()}")

    async def looks(self, more: int = 2) -> None:
        """So many whole batches that came after now. The first of them may have been under way."""
        upto = len(self.batches) + more
        await self.until(lambda: len(self.batches) >= upto)

    # --- what it says

    @property
    def workers(self) -> list[int]:
        """The process ids of all that were started for this node."""
        return _started.get(str(self.source.settings.library), [])

    @property
    def last(self) -> Batch:
        return self.batches[-1]

    @property
    def state(self) -> SourceState | None:
        return self.batches[-1].state if self.batches else None

    def read(self, gpu: int) -> Readings | None:
        """What is known of one GPU."""
        address = self.node.addresses[gpu]
        return (
            next((one for one in self.last.readings if one.component.id == address), None)
            if self.batches
            else None
        )

    def finding(self, gpu: int | None, code: str) -> Finding | None:
        """Open now, of a GPU or (None) of the node."""
        name = "node" if gpu is None else f"gpu/{self.node.addresses[gpu]}"
        return next(
            (
                one
                for one in self.judge.open_findings
                if one.component.name == name and one.code == code
            ),
            None,
        )

    def asks(self, gpu: int | None, code: str, action: str = "") -> bool:
        """Whether it is open, and asks for this."""
        found = self.finding(gpu, code)
        return found is not None and (not action or said(found) == action)

    def found(self) -> set[tuple[str, str, str]]:
        """All that is open: component, code, what it asks for."""
        return {(one.component.name, one.code, said(one)) for one in self.judge.open_findings}

    def of(self, *codes: str) -> list[Event]:
        return [event for event in self.events if event.code in codes]

    def told(self) -> str:
        state = f"{self.last.state.value} ({self.last.detail})" if self.batches else "no batch"
        return f"{state}; {sorted(self.found())}; {[event.raw for event in self.events[-6:]]}"


Answers = dict[str, dict[str, Any]]


async def recorded(node: SimulatedNode) -> tuple[Mapping[str, Any], Answers]:
    """What a worker answers to being attached, and to a whole look."""
    _environments[str(own(node))] = node.environment
    worker = _Worker(str(own(node)), lambda told: None)
    try:
        gpus = node.addresses
        attached = await asyncio.wait_for(
            worker.send_command({"do": "attach", "gpus": gpus}), WAIT_S
        )
        looked = await asyncio.wait_for(
            worker.send_command({"do": "look", "fast": gpus, "slow": gpus, "inventory": gpus}),
            WAIT_S,
        )
        return attached, looked["gpus"]
    finally:
        worker.kill_process()


class Driven:
    """The same meaning without a process: recorded answers, at the pace of a clock that is set by
    hand.
    """

    def __init__(self, catalog: Catalog, attached: Mapping[str, Any], gpus: Iterable[str]) -> None:
        self.judge = Judge(catalog)
        self.node = GpuNode(catalog, BOOT, of_type=0, configured=0)
        self.node.note_library(simulated=True)
        self.now, self.began = 0.0, time.time()
        self.events: list[Event] = []
        self.node.note_attached(attached, set(gpus))

    def look(self, answers: Mapping[str, Mapping[str, Any]], seconds: float = 0.0) -> list[Event]:
        """So much later: these answers, all of the node."""
        self.now += seconds
        with (
            mock.patch("time.time", lambda: self.began + self.now),
            mock.patch("time.monotonic", lambda: self.now),
        ):
            events = self.node.process_answers(answers, set(answers))
        self.events += events
        for event in events:
            self.judge.apply_event(event)
        return events

    def found(self) -> dict[str, str]:
        """Codes that are open, with what they ask for."""
        return {one.code: said(one) for one in self.judge.open_findings}


def said(finding: Finding) -> str:
    """`reset_device`, or `reset_device/after_job`."""
    when = finding.when.value
    return finding.action.value + ("" if when == "now" else f"/{when}")


def since(calls: Iterable[SimulatedCall], moment_ns: int, *functions: str) -> list[SimulatedCall]:
    """Those that began after this moment (CLOCK_MONOTONIC), of these functions or all."""
    return [
        call
        for call in calls
        if call.at_ns >= moment_ns and (not functions or call.function in functions)
    ]


def as_if_real(gpus: SimulatedNode) -> SimulatedNode:
    """What its library answers counts as the driver's: it no longer says that it is simulated.
    Skips the test where the library cannot be built.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    require(compiler, "a C compiler (apt-get install gcc libc6-dev)")
    marked = SIMULATED.encode() + b"\0"
    data = gpus.library.read_bytes()
    assert marked in data
    gpus.library = gpus.folder / gpus.library.name
    gpus.library.write_bytes(data.replace(marked, marked.replace(b"simulated", b"genuine__")))
    return gpus
