"""
The socket API: HTTP and JSON over a Unix socket. `openapi.json` beside this file is its contract.

Owns     the routes of the verdict, findings, events, rules and drills; who may ask, and that every
         error is told as JSON.
Refuses  judging and waiting: everything is read off the board, and a change goes through the
         pipeline's queue.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
import structlog
from aiohttp import web

from vitald import __version__
from vitald.catalog import Catalog
from vitald.checking import read_flag, read_line
from vitald.collectors.kernel_log.drills import WINDOW_S, Announcement
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import Board
from vitald.core.pipeline import Pipeline
from vitald.judge.verdict import Work, by_strength, fold, told
from vitald.ledger import (
    Audit,
    LedgerError,
    Listed,
    Past,
    Query,
    StoredEvent,
    read_events,
    read_findings,
    read_past,
)
from vitald.model import NODE, Component, Event, Finding, Incident, alone
from vitald.server import serialize
from vitald.server.connection_limit import Gate
from vitald.server.peer import Peer, peer_of
from vitald.server.recovery_requester import Asking
from vitald.server.request import (
    PAGE,
    Refused,
    flag_of,
    limit_of,
    read_body,
    read_query,
    reason_of,
    seconds_of,
    since_of,
    value_of,
    who_changes,
)
from vitald.server.routes import components, gpus, library
from vitald.server.routes.diagnostics import DiagnosticsView, serialize_outline
from vitald.worker_thread import Lane, LaneStuck

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

_CLIENTS, _WATCHERS = 128, 32
_RESERVED, _EACH = (
    32,
    24,
)  # clients: places for root and the daemon's own user, and the share of any other
_WATCHERS_RESERVED = 8
_BODY_BYTES = 16 * 1024
_HEARTBEAT_S, _WRITE_S = 15.0, 5.0
_HOLD_S = 600.0
_ACCEPTED_MOST_S = 90 * 86400.0
_FIRST_LOOK_S = 1.5  # less than the command line waits
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Stored = TypeVar("Stored")


class Routes(Protocol):
    """Handlers of something that has a module of its own."""

    def add(self, app: web.Application) -> None: ...


class Api:
    """The handlers, over what the composition root gives them; `more` are those of the other
    modules.
    """

    def __init__(
        self,
        *,
        board: Board,
        pipeline: Pipeline,
        catalog: Catalog,
        interpreter: Interpreter,
        inventory: PciInventory,
        reader: Lane,
        inject_path: Path,
        group: int,
        diagnostics: DiagnosticsView,
        recovery: Asking | None = None,
        more: Sequence[Routes] = (),
    ) -> None:
        self.board = board
        self.pipeline = pipeline
        self.catalog = catalog  # replaced on reload
        self.interpreter = interpreter
        self.inventory = inventory
        self.reader = reader
        self.inject_path = inject_path
        self.group = group
        self.diagnostics = diagnostics
        self.recovery = recovery
        self.more = more
        self.gate = Gate(_CLIENTS, reserved=_RESERVED, each=_EACH)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._outermost], client_max_size=_BODY_BYTES)
        app.on_response_prepare.append(_sign)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/v1/status", self.status)
        app.router.add_get("/v1/findings", self.findings)
        app.router.add_post("/v1/findings/{id}/clear", self.clear)
        app.router.add_post("/v1/findings/{id}/accept", self.accept)
        app.router.add_post("/v1/findings/{id}/remedy", self.remedy)
        app.router.add_get("/v1/findings/{id}/why", self.why)
        app.router.add_get("/v1/incidents", self.incidents)
        app.router.add_get("/v1/events", self.events)
        app.router.add_get("/v1/components", self.components)
        app.router.add_get("/v1/gpus", self.gpus)
        app.router.add_get("/v1/rules/{kind}/{code}", self.rule)
        app.router.add_get("/v1/watch", self.watch)
        app.router.add_get("/v1/openapi.json", self.openapi)
        app.router.add_post("/v1/injections", self.announce)
        app.router.add_get("/v1/injections/{id}", self.injection)
        for routes in self.more:
            routes.add(app)
        return app

    # What anybody in the socket's group may ask.

    async def healthz(self, request: web.Request) -> web.Response:
        """Whether the daemon itself works; the node's health is /v1/status."""
        read_query(request)
        if self.pipeline.wedged():
            raise Refused(503, "the judge is stuck", "see the daemon's log")
        answer: schema.Health = {"ok": True, "version": __version__}
        return web.json_response(answer)

    async def status(self, request: web.Request) -> web.Response:
        wanted = read_query(request, "for").get("for", Work.RUNNING.value)
        if wanted not in [work.value for work in Work]:
            raise Refused(
                400, f"for: {wanted[:80]!r} is none of {', '.join(work.value for work in Work)}"
            )
        with anyio.move_on_after(
            _FIRST_LOOK_S
        ):  # who asks while we start anew shall not take it for a fault
            await self.board.answerable.wait()
        now = time.time()
        board, counters = self.board, self.interpreter.counters
        judged = board.verdict(Work(wanted))
        answer: schema.NodeStatus = {
            **serialize.verdict(judged),
            "components": components.listed(
                board,
                self.inventory,
                judged,
                components.sights(board, self.inventory),
                Work(wanted),
            ),
            "sources": [serialize.source(source) for source in board.sources.values()],
            "findings": [
                serialize.finding(found, self.catalog)
                for found in by_strength(board.findings)[:PAGE]
            ],
            "openFindings": len(board.findings),
            "incidents": [
                serialize.incident(told, own, self.catalog, self.board.jobs.near(told))
                for told, own in self._told()[:PAGE]
            ],
            "trials": [
                serialize.finding(found, self.catalog) for found in by_strength(board.trials)[:PAGE]
            ],
            "suspects": self._suspects(now),
            "diagnostics": serialize_outline(self.diagnostics),
            "recovery": self.recovery.shown() if self.recovery is not None else None,
            "ledger": {
                "ok": board.ledger.ok,
                "error": board.ledger.error,
                "unsavedEvents": board.ledger.unsaved,
                "droppedEvents": board.ledger.dropped,
                "sizeBytes": board.ledger.size_bytes,
            },
            "kernelLog": {
                "recordsRead": counters.read,
                "recordsLost": counters.lost,
                "untrusted": counters.untrusted,
            },
            "profile": self.catalog.profile,
            "host": socket.gethostname(),
            "bootId": board.boot_id,
            "version": __version__,
            "pid": os.getpid(),
            "startedAt": serialize.moment(board.started_at),
            "time": serialize.moment(now),
        }
        return web.json_response(answer)

    async def findings(self, request: web.Request) -> web.Response:
        query = read_query(request, "state", "limit", "component", "code")
        state, component, code, most = (
            query.get("state", "open"),
            query.get("component"),
            query.get("code"),
            limit_of(query),
        )
        if state == "open":
            ordered = by_strength(self.board.findings)
            found = [
                one
                for one in ordered
                if component in (None, one.component.name) and code in (None, one.code)
            ][:most]
        elif state == "cleared":
            found = await self._read(
                lambda: read_findings(self.pipeline.ledger.path, most, component, code)
            )
        else:
            raise Refused(400, f"state: {state[:80]!r} is none of open, cleared")
        answer: schema.Findings = {
            "findings": [serialize.finding(one, self.catalog) for one in found],
            "damaged": serialize.damaged_in(found),
        }
        return web.json_response(answer)

    async def incidents(self, request: web.Request) -> web.Response:
        """The open ones, the strongest first, and then those that ended or began without a finding
        a moment ago.
        """
        query = read_query(request, "limit")
        open_ones = self._told()
        over = sorted(
            (one for one in self.board.incidents.values() if one.closed_at is not None),
            key=lambda one: -one.last,
        )
        listed = [*open_ones, *((one, []) for one in over)][: limit_of(query)]
        answer: schema.Incidents = {
            "incidents": [
                serialize.incident(told, own, self.catalog, self.board.jobs.near(told))
                for told, own in listed
            ]
        }
        return web.json_response(answer)

    async def why(self, request: web.Request) -> web.Response:
        """How a finding came to be, from the lines to the flags."""
        read_query(request)
        number = _number(request)
        current = next(
            (found for found in (*self.board.findings, *self.board.trials) if found.id == number),
            None,
        )
        try:
            past = await self._read(lambda: read_past(self.pipeline.ledger.path, number))
        except Refused:
            if current is None:
                raise
            past = None
        if (
            past is None and current is not None
        ):  # held in memory, for a ledger that cannot be written
            seen = [
                one
                for one in self.board.recent
                if (one.event.component, one.event.code) == (current.component, current.code)
            ]
            past = Past(current, (), tuple(seen[:4]), None)
        if past is None:
            raise Refused(
                404,
                f"no finding {number}",
                "vitald findings shows the open ones, vitald findings --cleared the others",
            )
        current = current or past.finding
        told = self.board.incidents.get(current.incident) or past.incident
        own = [
            found for found in self.board.findings if told is not None and found.incident == told.id
        ]
        verdict = fold(
            [current] if current.open and not current.shadow else [],
            [],
            0.0,
            device_reset=self.board.device_reset,
        )
        flags = serialize.flags(verdict)
        return web.json_response(
            serialize.why(
                replace(past, finding=current),
                told,
                own,
                self.catalog,
                flags,
                self.board.jobs.near(told) if told is not None else (),
            )
        )

    def _told(self) -> list[tuple[Incident, list[Finding]]]:
        """The open incidents with their findings, in the order of the verdict's reasons."""
        incidents = self.board.incidents
        return [
            (incidents.get(head.incident) or alone(head), own)
            for head, own in told(self.board.findings, incidents)
        ]

    def _suspects(self, now: float) -> list[schema.Suspect]:
        watched = (Component(device.kind, device.address) for device in self.inventory.watched())
        names = {self.board.identity(component): component.name for component in watched}
        return serialize.suspects(self.board.suspects(now), self.catalog, names)[:PAGE]

    async def events(self, request: web.Request) -> web.Response:
        query = read_query(request, "since", "limit", "component", "code", "kind", "newest")
        after, since = since_of(query.get("since"))
        code, kind = query.get("code"), query.get("kind")
        if code is not None and "/" not in code:
            raise Refused(
                400, f"code: {code!r} names no kind", "write it as kind/code, e.g. xid/79"
            )
        wanted = Query(
            after=after,
            since=since,
            component=query.get("component"),
            code=code,
            kind=kind,
            limit=limit_of(query),
            newest=flag_of(query, "newest"),
        )
        try:
            stored = await self._read(lambda: read_events(self.pipeline.ledger.path, wanted))
        except Refused:
            if self.board.ledger.ok:
                raise  # it is only slow: half an answer would look like a whole one
            stored = self._from_memory(wanted)
        damaged = serialize.damaged_in(stored)
        more = len(stored) + damaged == wanted.limit and not wanted.newest
        answer: schema.Events = {
            "events": [serialize.event(one) for one in stored],
            "damaged": damaged,
            "next": stored.last if more else None,
        }
        return web.json_response(answer)

    async def components(self, request: web.Request) -> web.Response:
        read_query(request)
        return web.json_response(components.in_full(self.board, self.inventory))

    async def gpus(self, request: web.Request) -> web.Response:
        read_query(request)
        board, source = self.board, self.board.sources.get(NVML)
        listed = gpus.listed(board, self.inventory)
        answer: schema.Gpus = {
            "gpus": listed,
            "source": serialize.source(source) if source is not None else None,
        }
        return web.json_response(answer)

    async def rule(self, request: web.Request) -> web.Response:
        read_query(request)
        return web.json_response(
            serialize.rule(
                self.catalog.rule(f"{request.match_info['kind']}/{request.match_info['code']}")
            )
        )

    async def openapi(self, request: web.Request) -> web.Response:
        read_query(request)
        return web.Response(
            text=resources.files("vitald.server").joinpath("openapi.json").read_text("utf-8"),
            content_type="application/json",
        )

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """One JSON object a line: the verdict first, then every event, transition and changed
        verdict, and a heartbeat.
        """
        read_query(request)
        if self.board.watchers >= (
            _WATCHERS if request["peer"].may_change else _WATCHERS - _WATCHERS_RESERVED
        ):
            raise Refused(
                503,
                "too many watchers",
                f"{_WATCHERS} at once, {_WATCHERS_RESERVED} of them kept for root; try again later",
            )
        self.gate.serving(request.transport, streaming=True)
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        subscription = self.board.subscribe()
        try:
            await response.prepare(request)
            shown = await self._show_verdict(response, None)
            while not subscription.lagged:
                try:
                    change = await asyncio.wait_for(subscription.queue.get(), _HEARTBEAT_S)
                except asyncio.TimeoutError:
                    await _line(
                        response, {"type": "heartbeat", "time": serialize.moment(time.time())}
                    )
                    shown = await self._show_verdict(response, shown)
                    continue
                if change is None:
                    shown = await self._show_verdict(response, shown)
                    continue
                if isinstance(change, Event):
                    await _line(
                        response,
                        {"type": "event", "event": serialize.event(StoredEvent(0, change))},
                    )
                elif isinstance(change, Incident):
                    own = [found for found in self.board.findings if found.incident == change.id]
                    await _line(
                        response,
                        {
                            "type": "incident",
                            "incident": serialize.incident(
                                change, own, self.catalog, self.board.jobs.near(change)
                            ),
                        },
                    )
                else:
                    await _line(response, serialize.transition(change, self.catalog))
                if subscription.queue.empty():
                    shown = await self._show_verdict(response, shown)
            await _line(
                response,
                {"type": "lagged", "hint": "read /v1/events for what was missed, then watch again"},
            )
        except (ConnectionError, asyncio.TimeoutError):
            log.debug("watcher_gone")
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.board.unsubscribe(subscription)
        return response

    # What only root and the daemon's own user may do.

    async def clear(self, request: web.Request) -> web.Response:
        peer = who_changes(request)
        number, body = _number(request), await read_body(request, "reason", "replaced")
        replaced = value_of(body, "replaced", read_flag, False)
        meant = next(
            (found for found in (*self.board.findings, *self.board.trials) if found.id == number),
            None,
        )
        if replaced and meant is not None and (meant.simulated or meant.component == NODE):
            raise Refused(
                400,
                "replaced: a drill and the node itself have no device that could be",
                "clear it without, or with a new node",
            )
        audit = _audit(peer, "clear", number, body)
        closed = await self.pipeline.clear(number, peer.name, audit, replaced=replaced)
        return self._acted(closed, audit)

    async def accept(self, request: web.Request) -> web.Response:
        """A person lives with a finding for a time: it stays open, and changes neither fitness nor
        flags meanwhile.
        """
        peer = who_changes(request)
        number, body = _number(request), await read_body(request, "reason", "seconds")
        seconds = seconds_of(body, "seconds", None, least=0.0, most=_ACCEPTED_MOST_S)
        audit = _audit(peer, "accept", number, body)
        return self._acted(await self.pipeline.accept(number, peer.name, audit, seconds), audit)

    async def remedy(self, request: web.Request) -> web.Response:
        """Somebody begins what a finding asks for. It stands until the evidence says that
        it held.
        """
        peer = who_changes(request)
        number, body = _number(request), await read_body(request, "reason")
        audit = _audit(peer, "remedy", number, body)
        return self._acted(await self.pipeline.begin_remedy(number, peer.name, audit), audit)

    def _acted(self, found: Finding | None, audit: Audit) -> web.Response:
        if found is None:
            raise Refused(
                404, f"no open finding {audit.target}", "vitald findings shows the open ones"
            )
        log.info(
            audit.verb, finding=audit.target, uid=audit.uid, pid=audit.pid, reason=audit.reason
        )
        answer: schema.OneFinding = {"finding": serialize.finding(found, self.catalog)}
        return web.json_response(answer)

    async def announce(self, request: web.Request) -> web.Response:
        peer = who_changes(request)
        body = await read_body(request, "line", "holdSeconds")
        expected = "one printable line of ASCII, at most 900 characters"
        read = partial(read_line, least=1, most=900, expected=expected, ascii_only=True)
        line = value_of(body, "line", read)
        hold = seconds_of(body, "holdSeconds", _HOLD_S)
        if self.interpreter.recognise(line.encode()) is None:
            raise Refused(
                400,
                "line: no rule recognises it, so a drill with it would show nothing",
                "try it with: vitald scan -",
            )
        made = self.interpreter.announcements.announce(line, time.time(), hold)
        log.warning("drill_announced", id=made.id, line=line, uid=peer.uid, pid=peer.pid)
        answer: schema.AnnouncedDrill = {
            **self._drill(made),
            "writeTo": str(self.inject_path),
            "windowSeconds": WINDOW_S,
        }
        return web.json_response(answer, status=201)

    async def injection(self, request: web.Request) -> web.Response:
        read_query(request)
        made = self.interpreter.announcements.get(request.match_info["id"])
        if made is None:
            raise Refused(404, "no such drill")
        return web.json_response(self._drill(made))

    def _drill(self, made: Announcement) -> schema.Drill:
        seen = next(
            (one for one in reversed(self.board.recent) if one.event.identity == made.seen), None
        )
        finding = None
        if seen is not None:
            key = (seen.event.component, seen.event.code, True, False)
            finding = next((found.id for found in self.board.findings if found.key == key), None)
        waiting = time.time() - made.announced_at <= WINDOW_S
        return {
            "id": made.id,
            "line": made.text,
            "state": "seen" if seen is not None else "announced" if waiting else "expired",
            "finding": finding,
            "simulatedUntil": serialize.moment(made.simulated_until),
        }

    async def _show_verdict(
        self, response: web.StreamResponse, shown: schema.Verdict | None
    ) -> schema.Verdict:
        judged = serialize.verdict(self.board.verdict())
        if judged != shown:
            await _line(response, {"type": "verdict", **judged})
        return judged

    async def _read(self, work: Callable[[], Stored]) -> Stored:
        """Read the ledger in the readers' lane: a slow disk delays whoever asks, and nobody
        else.
        """
        try:
            stored = await self.reader.call(work, 5.0)
        except (LedgerError, LaneStuck) as error:
            raise Refused(
                503, f"the ledger cannot be read: {error}", "vitald status says more"
            ) from error
        await self.pipeline.show_committed()  # else an event could be told before its finding
        return stored

    def _from_memory(self, wanted: Query) -> Listed[StoredEvent]:
        """The most recent events, numbered as they came, when the ledger cannot be read."""
        kept = [
            one
            for one in self.board.recent
            if one.id > wanted.after
            and wanted.code in (None, one.event.code)
            and wanted.kind in (None, one.event.kind)
            and wanted.component in (None, one.event.component.name)
            and (wanted.since is None or one.event.time >= wanted.since)
        ]
        listed = Listed(kept[-wanted.limit :] if wanted.newest else kept[: wanted.limit])
        listed.last = listed[-1].id if listed else 0
        return listed

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who asks, whether that one may, and every error as JSON."""
        self.gate.serving(request.transport)
        try:
            peer = _peer(request)
            if not peer.may_read(self.group):
                raise Refused(
                    403,
                    f"uid {peer.uid} may not read",
                    "be a member of the socket's group, or root",
                )
            request["peer"] = peer
            return await handler(request)
        except Refused as refused:
            return library.error(refused.status, refused.error, refused.hint)
        except web.HTTPException as raised:
            hint = "see /v1/openapi.json" if raised.status in (404, 405) else ""
            what = (
                f"no such path: vitald {__version__} has version 1 of the API, /v1"
                if raised.status == 404
                else ""
            )
            return library.of_library(raised, what, hint)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("request_failed", path=request.path)
            return library.error(
                500, "vitald failed to answer", "its log says why; please report it"
            )


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    library.sign(response)


def _peer(request: web.Request) -> Peer:
    sock = request.get_extra_info("socket")
    if sock is None:
        raise ConnectionResetError("the client is gone")
    return peer_of(sock)


def _number(request: web.Request) -> int:
    id_ = request.match_info["id"]
    if not re.fullmatch(r"[0-9]{1,15}", id_):
        raise Refused(
            400, f"id: {id_[:80]!r} is not a finding's number", "vitald findings shows them"
        )
    return int(id_)


def _audit(peer: Peer, verb: str, number: int, body: serialize.Json) -> Audit:
    """Who did it, to which finding, and why."""
    return Audit(
        time=time.time(),
        uid=peer.uid,
        pid=peer.pid,
        verb=verb,
        target=str(number),
        reason=reason_of(body),
    )


async def _line(response: web.StreamResponse, value: schema.WatchLine) -> None:
    await asyncio.wait_for(response.write(json.dumps(value).encode() + b"\n"), _WRITE_S)
