"""
Collector of GPU readings and events through NVML.

The worker process calls the driver; it alone may block. Each round reads the fast readings of all
GPUs and the slow ones of a few, so that a node never polls everything at once. Baselines and
reported events are this collector's position, committed together with the events that changed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from vitald.backoff import Backoff
from vitald.catalog import Catalog
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.nvml import gpu_state
from vitald.collectors.nvml.attachment import Attachment, Emit
from vitald.collectors.nvml.gpu_node import NAME, GpuNode
from vitald.collectors.nvml.gpu_state import GpuState, PciGpus
from vitald.collectors.nvml.inbox import Inbox, Pids
from vitald.collectors.nvml.readings import READINGS
from vitald.collectors.nvml.release import ReleaseReport, Releases
from vitald.collectors.nvml.settings import SECTION, NvmlSettings
from vitald.collectors.nvml.worker_process import list_device_users
from vitald.config.paths import Paths
from vitald.model.source import Batch, Position
from vitald.tasks import end_tasks
from vitald.topology.pci_inventory import PciInventory, read_machine_type
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvml")

_RETRY = Backoff(5.0, 60.0)  # between attempts while the driver does not answer


_NOTHING_EXPECTED = ExpectSettings(settle_s=0.0)


class Nvml:
    """The collector. It runs one worker process at a time."""

    name = NAME

    def __init__(
        self,
        settings: NvmlSettings,
        catalog: Catalog,
        inventory: PciInventory,
        boot_id: str,
        thread: WorkerThread,
        *,
        of_type: int = 0,
        expected: ExpectSettings = _NOTHING_EXPECTED,
    ) -> None:
        """`of_type`: how many GPUs the instance type has; 0 if unknown."""
        self.settings = settings
        self.boot_id = boot_id
        self.deadline_s = 2 * settings.fast_s + settings.deadline_s + 5.0
        self._of_type = of_type
        self._expected = expected
        self._catalog = catalog
        self._thread = thread
        self._inbox = Inbox(is_release_requested=lambda: self.releases.is_requested)
        self.releases = Releases(wake_up=self._inbox.wake_up)
        self._state = GpuState(
            boot_id=boot_id,
            node=self._create_node(),
            pci=PciGpus(inventory, thread),
            releases=self.releases,
        )
        self._attachment: Attachment | None = None

    def poll_now(self) -> None:
        """The kernel announced a device: a node without a GPU may have one."""
        self._state.pci.note_change()
        self._inbox.wake_up()

    async def list_processes(self, seconds: float) -> Pids | None:
        """The processes that run on each GPU now. None if the driver is not polled at all. Raises
        asyncio.TimeoutError after so many seconds.

        By the component's name; a GPU that does not answer is left out.
        """
        serving = self._attachment is not None and self._attachment.is_serving
        if not serving or self.releases.is_requested:
            return None
        answer = self._inbox.process_request.add_waiter()
        self._inbox.wake_up()
        return await asyncio.wait_for(asyncio.shield(answer), seconds)

    @property
    def expected(self) -> int:
        """How many GPUs there should be, by the configuration or the instance type; 0 if
        unknown.
        """
        return self.settings.expected_gpus or self._of_type

    def configure(self, catalog: Catalog) -> None:
        """Use a catalogue that was reloaded."""
        self._catalog = catalog
        self._state.node.configure(catalog)

    def configure_expected(self, gpus: int, expected: ExpectSettings) -> None:
        """Use what a reloaded configuration expects; `gpus`: how many."""
        self.settings, self._expected = replace(self.settings, expected_gpus=gpus), expected
        self._state.node.configure_expected(gpus, expected.vbios, expected.nvlinks)

    def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """An asynchronous generator without end: close it to stop."""
        return iterate_batches(lambda emit: self._run_attachments(after, emit))

    async def _run_attachments(self, after: Position | None, emit: Emit) -> None:
        self._state.node, self._state.committed_memory = self._create_node(), ""
        if after is not None:
            try:
                self._state.node.restore_memory(after.cursor, after.boot_id)
            except ValueError as error:
                log.error("nvml_memory_not_read", error=str(error), effect="baselines begin anew")
        failures = 0  # in succession
        while True:
            pci = self._state.pci
            if pci.list_usable() or pci.is_scan_due(self.settings.inventory_s):
                await pci.scan_bus()
            if self.releases.is_requested:  # no worker runs now: this process holds no device
                await self._admit_releases(emit)
            if (idle_s := await self._report_idle(emit)) is not None:
                await self._inbox.sleep(idle_s)
                continue
            attachment = self._attachment = Attachment(
                self.settings, self._state, self._inbox, emit
            )
            if not await attachment.run_worker():
                await self._inbox.sleep(_RETRY.delay_s(failures))
            failures = 0 if attachment.had_readings else failures + 1

    def _create_node(self) -> GpuNode:
        settings = self.settings
        periods = {
            "fast": settings.fast_s,
            "slow": settings.slow_s,
            "inventory": settings.inventory_s,
            "profiling": settings.fast_s,
        }
        return GpuNode(
            self._catalog,
            self.boot_id,
            of_type=self._of_type,
            configured=settings.expected_gpus,
            vbios=self._expected.vbios,
            nvlinks=self._expected.nvlinks,
            settle_s=self._expected.settle_s,
            overdue_s={
                tier: 2 * period + settings.deadline_s + 5.0 for tier, period in periods.items()
            },
        )

    async def _report_idle(self, emit: Emit) -> float | None:
        """Reports why no worker can be started, and returns after how many seconds to try again.
        None if one can.
        """
        state, releases = self._state, self.releases
        if releases.covers_all:
            await emit(state.build_released_batch())
            return min(releases.left_s, self.deadline_s / 3)
        usable = state.pci.list_usable()
        if not usable and state.pci.error:
            await emit(state.build_failed_batch(state.pci.describe_error()))
            return _RETRY.first_s
        if not usable:
            await emit(state.build_absent_batch())
            return min(self.settings.inventory_s, self.deadline_s / 3)
        if state.exclusions.is_driver_stuck:
            await emit(state.build_failed_batch(state.exclusions.describe_stuck_driver()))
            return gpu_state.BACKOFF.first_s
        return None

    async def _admit_releases(self, emit: Emit) -> None:
        self.releases.admit_requests()
        await emit(self._state.build_released_batch())
        self.releases.answer_requests(await self._list_device_users())

    async def _list_device_users(self) -> ReleaseReport:
        """The processes that have the released devices open."""
        minors = (
            []
            if self.releases.covers_all
            else self._state.node.current.list_minors(self.releases.gpus)
        )
        found: list[tuple[int, str]] = []
        hidden = -1
        with suppress(ThreadStuck, OSError):
            found, hidden = await self._thread.call(lambda: list_device_users(minors))
        return ReleaseReport(
            device_users=tuple(found), hidden=hidden, stuck=self._state.exclusions.stuck_pids
        )


async def iterate_batches(produce: Callable[[Emit], Awaitable[None]]) -> AsyncIterator[Batch]:
    """The batches that `produce` emits. It is cancelled when the iterator is closed, and what it
    raises is raised here.

    `emit` returns once the batch was processed, that is when the next one is requested: readings
    taken while the pipeline is busy would be out of date when their turn comes.
    """
    queue: asyncio.Queue[Batch | None] = asyncio.Queue()

    async def emit(batch: Batch) -> None:
        queue.put_nowait(batch)
        await queue.join()

    producer = asyncio.ensure_future(produce(emit))
    producer.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (batch := await queue.get()) is not None:
            yield batch
            queue.task_done()
        await producer
    finally:
        await end_tasks([producer])


def _build_nvml(context: CollectorContext) -> Nvml:
    config, catalog = context.config, context.catalog
    return Nvml(
        config[NvmlSettings],
        catalog,
        context.inventory,
        context.boot_id,
        WorkerThread("nvml"),
        of_type=catalog.find_instance(read_machine_type(config[Paths].sysfs)).gpus,
        expected=config[ExpectSettings],
    )


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=(NAME,),
    subsystems=("pci",),
    build_source=_build_nvml,
)
