"""
`vitald recovery`: who acts on this node, what is asked for, what stands in the way, what waits for a second witness, and what was
decided lately. Changes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import cast

from vitald.cli import EX_CONFIG, client, recover, render
from vitald.cli.render import Json
from vitald.config import DEFAULT_PATH, Config, ConfigError
from vitald.model import Action
from vitald.recovery import files, record
from vitald.recovery.book import Book, Clock
from vitald.recovery.request import Kind, asks_for
from vitald.timestamps import format_rfc3339

_SHOWN = 8
_UNHEARD_S = 120.0  # root's unit waits a minute before it decides
_OPEN = 1000
_WAITING = ("id", "component", "code", "action", "writtenByProcess", "witnesses")  # what is told of them
_ANSWER_S = 2.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help=f"the daemon's configuration (default: {DEFAULT_PATH})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """0, or 78 where the configuration is none by which root would act."""
    try:
        config = recover.read_config(arguments.config)
    except (files.Untrusted, ConfigError) as error:
        said = f"root would refuse to act: {error}"
        render.emit_json({"error": said}) if arguments.json else print(f"recovery  {said}")
        return EX_CONFIG
    told = gathered(config)
    if arguments.json:
        render.emit_json(told)
    else:
        show(told)
    return 0


def gathered(config: Config) -> Json:
    settings = config.recovery
    request, request_trouble = recover.request_of(config)
    book, book_trouble = recover.book_of(settings.state)
    book_trouble = book_trouble or files.forgets(recover.nearest(settings.state))
    now = recover.clock(config)
    unconfirmed, silent = _unconfirmed(config) if settings.mode == "automatic" else ([], "")
    return {
        "mode": settings.mode,
        "drain": str(settings.drain),
        "replace": str(settings.replace),
        "killSwitch": recover.stops(settings.kill_switch, "thrown"),
        "maintenance": recover.stops(settings.maintenance, "under maintenance"),
        "request": None
        if request is None
        else {
            "id": request.id,
            "action": request.kind.value,
            "time": format_rfc3339(request.time),
            "ageSeconds": round(now.uptime - request.uptime, 1) if request.boot_id == now.boot_id else None,
            "findings": [{"id": one.id, "component": one.component, "code": one.code, "raw": one.raw} for one in request.grounds],
        },
        "requestTrouble": request_trouble,
        "unconfirmed": unconfirmed,
        "unconfirmedTrouble": silent,
        "bookTrouble": book_trouble,
        "budget": {
            "reboots": _budget(book, Kind.REBOOT, settings.reboots_per_day, now),
            "replacements": _budget(book, Kind.REPLACE, settings.replacements_per_day, now),
        },
        "decisions": record.read(settings.state)[-_SHOWN:][::-1],
    }


def _unconfirmed(config: Config) -> tuple[list[Json], str]:
    """Findings that would be asked for if a second source confirmed them; or why that is not known."""
    asking = argparse.Namespace(socket=config.socket_path, timeout=_ANSWER_S)
    try:
        findings = cast("list[Json]", client.ask(asking, "/v1/findings", limit=_OPEN)["findings"])
        waiting = [one for one in findings if _waits(one, device_reset=config.policy.device_reset)]
        return [{key: one[key] for key in _WAITING} for one in waiting], ""
    except (client.NoAnswer, client.Refused) as error:
        return [], str(error)


def _waits(found: Json, *, device_reset: bool) -> bool:
    counts = found["accepted"] is None and (found["when"] != "maintenance" or found["unusable"])
    asked = asks_for(Action(found["action"]), device_reset=device_reset)
    return bool(counts and asked and not found["simulated"] and not found["confirmed"])


def _budget(book: Book | None, kind: Kind, most: int, now: Clock) -> Json:
    used = list(book.recent(kind, now)) if book is not None else []
    causes = [{"component": component, "code": code, "time": format_rfc3339(one.time)} for one in used for component, code in one.causes]
    return {"perDay": most, "used": len(used) if book is not None else None, "causes": causes}


def show(told: Json) -> None:
    automatic = told["mode"] == "automatic"
    print(render.colour("recovery", "bold"), told["mode"] if automatic else 'none: nobody acts by itself ([recovery] mode = "none")')
    if automatic:
        _line("drain", f"{told['drain']}, replacement: {told['replace']}")
    for name, key in (("stopped", "killSwitch"), ("stopped", "maintenance"), ("request", "requestTrouble"), ("book", "bookTrouble")):
        if told[key]:
            _line(name, render.colour(render.safe(told[key]), "yellow"))
    request = cast("Json | None", told["request"])
    if request is None:
        if not told["requestTrouble"]:
            _line("request", "none")
    else:
        age = "made in another boot" if request["ageSeconds"] is None else f"{render.span(cast('float', request['ageSeconds']))} old"
        _line("request", f"{render.safe(request['action'])}, {age}")
        for one in cast("list[Json]", request["findings"])[:_SHOWN]:
            _line("", render.cut(render.safe(f"#{one['id']} {one['code']} of {one['component']}: {one['raw']}"), render.width() - 13))
    for one in cast("list[Json]", told["unconfirmed"])[:_SHOWN]:
        _line("waits", render.safe(_missing(one)))
    if told["unconfirmedTrouble"]:
        _line("waits", f"what is unconfirmed is not known: {render.safe(told['unconfirmedTrouble'])}")
    for name, what in cast("dict[str, Json]", told["budget"]).items():
        used = "not known how many" if what["used"] is None else what["used"]
        _line("budget", f"{used} of {what['perDay']} {name} in a day")
        for cause in cast("list[Json]", what["causes"]):
            _line("", render.safe(f"{render.clock(cause['time'])} for {cause['code']} of {cause['component']}"))
    decisions = cast("list[Json]", told["decisions"])
    for number, one in enumerate(decisions):
        _line("decided" if number == 0 else "", f"{render.clock(one.get('last'))}  {recover.in_words(one)}")
    if not decisions:
        _line("decided", "nothing yet")
    if (
        request is not None
        and cast("float", request["ageSeconds"] or 0.0) > _UNHEARD_S
        and all(one.get("request") != request["id"] for one in decisions)
    ):
        _line("", "nobody has decided on the request: systemctl status vitald-recover.path vitald-recover.service")


def _missing(found: Json) -> str:
    """Who has to agree before anybody repairs the node for it."""
    could = ", ".join(cast("list[str]", found["witnesses"]))
    who = f"for a second witness of #{found['id']} {found['code']} of {found['component']}"
    written = " (a process wrote it)" if found["writtenByProcess"] else ""
    return f"{who}{written}: {could}" if could else f"{who}{written}: no other source can see it, a person must decide"


def _line(name: str, text: object) -> None:
    render.tell(f"  {name:<9} {text}")
