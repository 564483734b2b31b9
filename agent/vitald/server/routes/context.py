"""What the routes of the API share: the node's state, the pipeline, the catalogue, the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import anyio

from vitald.catalog import Catalog
from vitald.core.device_directory import DeviceDirectory
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.judge.verdict import group_by_incident
from vitald.ledger.errors import LedgerError
from vitald.ledger.queries import PastQuery, read_events
from vitald.model.component import Component
from vitald.model.finding import Finding, Incident, make_single_incident
from vitald.model.words import ComponentKind
from vitald.server import serialize
from vitald.server.request import (
    RequestRefused,
    read_flag_parameter,
    read_limit,
    read_since,
)
from vitald.tomlfile import suggest_word
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import ThreadStuck, WorkerThread

if TYPE_CHECKING:
    from vitald.server import schema

Stored = TypeVar("Stored")
_READ_S = 5.0
_MAX_NAMED = 4
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

    def read_past_query(self, query: Mapping[str, str]) -> PastQuery:
        """A selection of the past, from a request's parameters. Raises RequestRefused."""
        after, since = read_since(query.get("since"))
        code = query.get("code")
        if code is not None and "/" not in code:
            raise RequestRefused(
                400, f"code: {code!r} names no kind", "write it as kind/code, e.g. xid/79"
            )
        return PastQuery(
            after=after,
            since=since,
            component=self.find_component(query["component"]) if "component" in query else None,
            code=code,
            kind=query.get("kind"),
            limit=read_limit(query),
            newest=read_flag_parameter(query, "newest"),
        )

    async def check_kind(self, kind: str | None, code: str | None) -> None:
        """Of a selection that found nothing. Raises RequestRefused for a kind that neither the
        catalogue nor the ledger has; `kind`, or that of the code.
        """
        named = code.partition("/")[0] if kind is None and code is not None else kind
        kinds = self.catalog.list_kinds()
        if named is None or named in kinds:
            return
        wanted, path = PastQuery(kind=named, limit=1), self.pipeline.ledger.path
        if not await self.read_ledger(lambda: read_events(path, wanted)):
            close = suggest_word(named, kinds)
            hint = "" if close else f"there are {', '.join(sorted(kinds))}"
            raise RequestRefused(400, f"there is no kind {named[:80]!r}{close}", hint)

    def list_open_incidents(self) -> list[tuple[Incident, list[Finding]]]:
        """The open incidents with their findings, in the order of the verdict's reasons."""
        incidents = self.node_state.incidents
        return [
            (incidents.get(head.incident) or make_single_incident(head), own)
            for head, own in group_by_incident(self.node_state.findings, incidents)
        ]

    def format_finding(self, finding: Finding) -> schema.ApiFinding:
        names = self.node_state.devices.find_names_of(finding)
        return serialize.format_finding(finding, self.catalog, names)

    def format_incident(self, incident: Incident, own: Iterable[Finding]) -> schema.ApiIncident:
        """`own`: its open findings."""
        state = self.node_state
        jobs = state.jobs.list_near_incident(incident)
        describe = state.devices.describe_component
        return serialize.format_incident(incident, own, self.catalog, jobs, describe)

    def find_component(self, name: str) -> str:
        """The name of the component that a request means. Raises RequestRefused."""
        return find_component(self.node_state.devices, name).name


def find_component(
    devices: DeviceDirectory, name: str, kind: ComponentKind | None = None
) -> Component:
    """The component that a request means by any of its names; of one kind, if that is given. Raises
    RequestRefused.
    """
    found = devices.find_components(name, kind)
    if not found:
        what, hint = "component", "vitald components shows them with their names"
        if kind is ComponentKind.GPU:
            what, hint = "GPU", "vitald gpus shows them with their names"
        raise RequestRefused(404, f"no {what} {name[:80]!r} on this node", hint)
    if len(found) > 1:
        names = ", ".join(component.name for component in found[:_MAX_NAMED])
        raise RequestRefused(400, f"{name[:80]!r} is ambiguous", f"it may be {names}")
    return found[0]
