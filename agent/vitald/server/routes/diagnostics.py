"""
Diagnostics over the socket: `GET /v1/diagnostics` and `/v1/diagnostics/runs`, and `POST
/v1/diagnostics/run` and `/cancel`.

Owns     what somebody may ask for, and how a check, a run under way and a run that has ended are
         told.
Refuses  running: whoever asks is answered at once, and the result comes later as any other event.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiohttp import web

from vitald import tomlfile
from vitald.checking import Unexpected, read_flag, read_list, read_match, read_text, read_whole
from vitald.diagnostics.check import Check
from vitald.ledger import LedgerError
from vitald.model.diagnostic import Ask, Due, Fault, Going, Measure, Refusal, Run, Test
from vitald.server import serialize
from vitald.server.request import (
    RequestRefused,
    read_body,
    read_limit,
    read_query,
    read_reason,
    read_value,
    require_change_right,
)
from vitald.worker_thread import Lane, LaneStuck

if TYPE_CHECKING:
    from vitald.server import schema

_READ_S = 5.0
_GPUS, _INDEX, _LEVEL = 64, 4095, 100
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}")
Stored = TypeVar("Stored")
Json = serialize.Json


class Shown(Protocol):
    """What the outputs read of the diagnostics."""

    @property
    def checks(self) -> Mapping[str, Check]: ...
    @property
    def missing(self) -> Mapping[str, str]: ...
    @property
    def going(self) -> Sequence[Going]: ...
    @property
    def due(self) -> Sequence[Due]: ...
    @property
    def last(self) -> Mapping[tuple[str, int], Run]: ...
    @property
    def blocked(self) -> str: ...


class Asked(Shown, Protocol):
    """And what they ask of them. `ask` raises Refusal; `cancel` means the run under way where it is
    given no id. Both are logged there.
    """

    def ask(self, ask: Ask) -> Going: ...
    def cancel(self, run_id: str | None, by: str, reason: str) -> Going | None: ...


class DiagnosticRoutes:
    """The handlers. `runs` and `run` read the ledger, in the readers' lane."""

    def __init__(
        self,
        diagnostics: Asked,
        reader: Lane,
        runs: Callable[[int, str | None], Sequence[Run]],
        run: Callable[[str], Run | None],
    ) -> None:
        self._diagnostics = diagnostics
        self._reader = reader
        self._read_runs = runs
        self._read_run = run

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/diagnostics", self.diagnostics)
        app.router.add_get("/v1/diagnostics/runs", self.runs)
        app.router.add_get("/v1/diagnostics/runs/{id}", self.one)
        app.router.add_post("/v1/diagnostics/run", self.ask)
        app.router.add_post("/v1/diagnostics/cancel", self.cancel)

    async def diagnostics(self, request: web.Request) -> web.Response:
        """What can be run here, what runs, what comes next, and how it went the last time."""
        read_query(request)
        shown = self._diagnostics
        answer: schema.Diagnostics = {
            "checks": [
                check(one, shown.missing.get(name, "not looked for yet"))
                for name, one in shown.checks.items()
            ],
            **outline(shown),
            "due": [due(one) for one in shown.due],
            "blocked": shown.blocked,
        }
        return web.json_response(answer)

    async def runs(self, request: web.Request) -> web.Response:
        """Those that have ended, the newest first."""
        query = read_query(request, "limit", "check")
        most, wanted = read_limit(query), query.get("check")
        if wanted is not None:
            self._check(wanted)
        listed = await self._read(lambda: self._read_runs(most, wanted))
        answer: schema.DiagnosticRuns = {
            "runs": [run(one) for one in listed],
            "damaged": serialize.count_damaged(listed),
        }
        return web.json_response(answer)

    async def one(self, request: web.Request) -> web.Response:
        read_query(request)
        id_ = request.match_info["id"]
        found = await self._read(lambda: self._read_run(id_)) if _ID.fullmatch(id_) else None
        if found is not None:
            return web.json_response(in_full(found))
        going_on = next((one for one in self._diagnostics.going if one.id == id_), None)
        if going_on is not None:
            raise RequestRefused(
                404, f"run {id_} has not ended", "/v1/diagnostics shows how far it is"
            )
        raise RequestRefused(
            404, f"no run {id_[:80]!r}", "vitald diag list shows those that are remembered"
        )

    async def ask(self, request: web.Request) -> web.Response:
        """Ask for a run. Answers at once; the run waits for its turn."""
        peer = require_change_right(request)
        body = await read_body(request, "check", "level", "gpus", "reason", "busy")
        asked = self._ask_of(body, f"{peer.name}, pid {peer.pid}")
        try:
            begun = self._diagnostics.ask(asked)
        except Refusal as refusal:
            raise RequestRefused(409, str(refusal), refusal.hint) from None
        answer: schema.OneGoing = {"going": going(begun)}
        return web.json_response(answer, status=202)

    async def cancel(self, request: web.Request) -> web.Response:
        """End a run, or take it out of the queue. Answers at once; its programs get their time to
        end.
        """
        peer = require_change_right(request)
        body = await read_body(request, "id", "reason")
        id_, reason = _id_of(body), read_reason(body)
        ended = self._diagnostics.cancel(id_, f"{peer.name}, pid {peer.pid}", reason)
        if ended is None:
            error = "no diagnostic runs" if id_ is None else f"no diagnostic {id_} runs or waits"
            raise RequestRefused(409, error, "vitald diag list shows what does")
        answer: schema.OneGoing = {"going": going(ended)}
        return web.json_response(answer)

    def _ask_of(self, body: Json, by: str) -> Ask:
        names = f"one of {', '.join(self._diagnostics.checks)}"
        named = read_value(body, "check", partial(read_text, expected="a name"), "dcgm", names)
        busy = read_value(body, "busy", read_flag, False)
        level, gpus, reason = _level_of(body), _gpus_of(body), read_reason(body)
        meant = self._check(named)
        if level is None:
            level = min(meant.levels)
        elif level not in meant.levels:
            levels = ", ".join(map(str, meant.levels)) if any(meant.levels) else ""
            hint = (
                f"{meant.name} has {levels}"
                if levels
                else f"{meant.name} has no levels: leave it out"
            )
            raise RequestRefused(400, f"level: {meant.name} has no level {level}", hint)
        return Ask(check=meant.name, level=level, gpus=gpus, by=by, reason=reason, busy=busy)

    def _check(self, name: str) -> Check:
        known = self._diagnostics.checks
        if name not in known:
            raise RequestRefused(
                404,
                f"no check {name[:80]!r}{tomlfile.suggest(name[:80], known)}",
                f"there are {', '.join(known)}",
            )
        return known[name]

    async def _read(self, work: Callable[[], Stored]) -> Stored:
        try:
            return await self._reader.call(work, _READ_S)
        except (LedgerError, LaneStuck) as error:
            raise RequestRefused(
                503, f"the ledger cannot be read: {error}", "vitald status says more"
            ) from error


def _id_of(body: Json) -> str | None:
    """None where it is left out: the run under way."""
    if "id" not in body:
        return None
    read = partial(read_match, pattern=_ID, expected="the id of a run")
    return read_value(body, "id", read, hint="leave it out for the one that runs")


def _level_of(body: Json) -> int | None:
    """None where it is left out."""
    if "level" not in body:
        return None
    return read_value(body, "level", partial(read_whole, least=0, most=_LEVEL, from_json=True))


def _gpus_of(body: Json) -> tuple[int, ...]:
    """By index, as the diagnostic's program numbers them; none for all."""
    expected = f"a list of at most {_GPUS} numbers from 0 to {_INDEX}, each once"

    def read(value: object) -> tuple[int, ...]:
        listed = read_list(value, 0, _GPUS, expected)
        gpus = {read_whole(gpu, 0, _INDEX, expected, from_json=True) for gpu in listed}
        if len(gpus) != len(listed):
            raise Unexpected(expected, value)
        return tuple(sorted(gpus))

    return read_value(body, "gpus", read, [], "leave it out for all of them")


# --- how they are told


def outline(shown: Shown) -> schema.DiagnosticOutline:
    """What runs and waits, and the last run of each kind: what `/v1/status` shows too."""
    return {
        "going": [going(one) for one in shown.going],
        "last": [run(one) for _, one in sorted(shown.last.items())],
    }


def check(one: Check, missing: str) -> schema.DiagnosticCheck:
    """By level, where it has levels; else all is under `0`. A period of 0: on request only.
    `missing`: looked for elsewhere, as that blocks.
    """
    return {
        "name": one.name,
        "title": one.title,
        "levels": list(one.levels),
        "missing": missing,
        "every": {str(level): one.every_s(level) for level in one.levels},
        "expected": {str(level): one.expected_s(level) for level in one.levels},
        "needsIdle": {str(level): one.needs_idle(level) for level in one.levels},
    }


def due(one: Due) -> schema.DiagnosticDue:
    return {
        "check": one.check,
        "level": one.level,
        "at": serialize.format_moment(one.at),
        "waitsFor": one.waits_for,
    }


def going(one: Going) -> schema.DiagnosticGoing:
    """`elapsed` is 0 while it waits."""
    return {
        **_ask(one.id, one.ask),
        "stage": one.stage.value,
        "askedAt": serialize.format_moment(one.asked_at),
        "began": serialize.format_moment(one.began),
        "elapsed": round(max(0.0, time.time() - one.began), 3) if one.began is not None else 0.0,
        "expected": one.expected_s,
        "waitsFor": one.waits_for,
        "test": one.test,
    }


def run(one: Run) -> schema.DiagnosticRun:
    report = one.report
    return {
        **_ask(one.id, one.ask),
        "began": serialize.format_moment(one.began),
        "ended": serialize.format_moment(one.ended),
        "seconds": round(max(0.0, one.ended - one.began), 3),
        "outcome": report.outcome.value,
        "why": report.reason,
        "action": report.remedy.value,
        "rebootRequired": report.reboot_required,
        "replacementRequired": report.replacement_required,
        "exitCode": one.exit_code,
        "culprits": list(report.culprits),
        "preempted": one.preempted,
        "dcgmVersion": report.dcgm_version,
        "driverVersion": report.driver_version,
        "deviceIds": list(report.device_ids),
    }


def in_full(one: Run) -> schema.DiagnosticRunInFull:
    """With what was printed, and all that was read out of it."""
    report = one.report
    return {
        **run(one),
        "command": one.command,
        "tests": [_test(test) for test in report.tests],
        "faults": [_fault(fault) for fault in report.faults],
        "measures": [_measure(measure) for measure in report.measures],
        "raw": one.raw,
    }


def _ask(id_: str, ask: Ask) -> schema.DiagnosticAsk:
    return {
        "id": id_,
        "check": ask.check,
        "level": ask.level,
        "gpus": list(ask.gpus),
        "by": ask.by,
        "reason": ask.reason,
    }


def _test(test: Test) -> schema.DiagnosticTest:
    return {
        "name": test.name,
        "category": test.category,
        "status": test.status,
        "gpus": {str(gpu): status for gpu, status in test.gpus.items()},
        "cpus": {str(cpu): status for cpu, status in test.cpus.items()},
    }


def _fault(fault: Fault) -> schema.DiagnosticFault:
    return {
        "code": fault.code,
        "test": fault.test,
        "text": fault.text,
        "gpu": fault.gpu,
        "device": fault.device,
        "errorId": fault.error_id,
        "category": fault.category,
        "severity": fault.severity,
        "action": fault.remedy.value,
        "confirm": fault.confirm,
        "confirmed": fault.confirmed,
    }


def _measure(measure: Measure) -> schema.DiagnosticMeasure:
    return {
        "name": measure.name,
        "device": measure.device,
        "value": _number(measure.value),
        "least": _number(measure.least),
        "most": _number(measure.most),
    }


def _number(value: float | None) -> float | None:
    """JSON knows no infinity, and programs print what they like."""
    return value if value is not None and math.isfinite(value) else None
