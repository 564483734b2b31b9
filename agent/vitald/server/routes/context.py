"""What the routes of the API share: the node's state, the pipeline, the catalogue, the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from vitald.catalog import Catalog
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.judge.verdict import group_by_incident
from vitald.ledger import LedgerError
from vitald.model import Finding, Incident, make_single_incident
from vitald.server.request import RequestRefused
from vitald.worker_thread import ThreadStuck, WorkerThread

Stored = TypeVar("Stored")
_READ_S = 5.0
_FIRST_POLL_S = 1.5  # less than the command line waits


@dataclass(slots=True, kw_only=True)
class RouteContext:
    """Parts that several routes read. `catalog` is replaced when it is reloaded. `is_idle`: nothing
    uses the node.
    """

    node_state: NodeState
    pipeline: Pipeline
    catalog: Catalog
    inventory: PciInventory
    reader: WorkerThread
    is_idle: Callable[[], bool]

    async def wait_until_answerable(self) -> None:
        """At a start, wait a moment until the sources have been read: a client must not take the
        start for a fault.
        """
        with anyio.move_on_after(_FIRST_POLL_S):
            await self.node_state.answerable.wait()

    async def read_ledger(self, work: Callable[[], Stored]) -> Stored:
        """Run `work` in the thread that reads the ledger. Raises RequestRefused if that fails or
        takes too long.
        """
        try:
            stored = await self.reader.call(work, _READ_S)
        except (LedgerError, ThreadStuck) as error:
            raise RequestRefused(
                503, f"the ledger cannot be read: {error}", "vitald status says more"
            ) from error
        # Else an answer could contain an event before its finding is published.
        await self.pipeline.wait_until_published()
        return stored

    def list_open_incidents(self) -> list[tuple[Incident, list[Finding]]]:
        """The open incidents with their findings, in the order of the verdict's reasons."""
        incidents = self.node_state.incidents
        return [
            (incidents.get(head.incident) or make_single_incident(head), own)
            for head, own in group_by_incident(self.node_state.findings, incidents)
        ]
