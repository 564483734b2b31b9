"""
`vitald recovery`: who acts on this node, what is asked for, what stands in the way, what waits for
a second witness, and what was decided lately. Changes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, client, render
from vitald.config import DEFAULT_PATH, Config, ConfigError
from vitald.model import Action
from vitald.recovery import decision_log, files, inputs
from vitald.recovery.action_log import Book, Clock
from vitald.recovery.report import format_decision
from vitald.recovery.request import Kind, asks_for
from vitald.timestamps import format_rfc3339

if TYPE_CHECKING:
    from typing import TypedDict

    from vitald.server import schema

    class Ground(TypedDict):
        """A finding that something is asked for."""

        id: int
        component: str
        code: str
        raw: str

    class Asked(TypedDict):
        """What the daemon asks of root. `ageSeconds`: null where it is of another boot."""

        id: str
        action: str
        time: str
        ageSeconds: float | None
        findings: list[Ground]

    class Waiting(TypedDict):
        """A finding that nobody acts on before a second source has seen it."""

        id: int
        component: str
        code: str
        action: str
        writtenByProcess: bool
        witnesses: list[str]

    class Cause(TypedDict):
        component: str
        code: str
        time: str

    class Budget(TypedDict):
        """Of one kind of action. `used`: null where the book cannot be read."""

        perDay: int
        used: int | None
        causes: list[Cause]

    class Recovery(TypedDict):
        """What `vitald recovery --json` says. A trouble or a stop is empty where there is none."""

        mode: str
        drain: str
        replace: str
        killSwitch: str
        maintenance: str
        request: Asked | None
        requestTrouble: str
        unconfirmed: list[Waiting]
        unconfirmedTrouble: str
        bookTrouble: str
        budget: dict[str, Budget]
        decisions: list[dict[str, object]]  # as root wrote them


_SHOWN = 8
_UNHEARD_S = 120.0  # root's unit waits a minute before it decides
_OPEN = 1000
_ANSWER_S = 2.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_PATH,
        metavar="FILE",
        help=f"the daemon's configuration (default: {DEFAULT_PATH})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """0, or 78 where the configuration is none by which root would act."""
    try:
        config = inputs.read_config(arguments.config)
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


def gathered(config: Config) -> Recovery:
    settings = config.recovery
    request, request_trouble = inputs.read_request(config, client.owners())
    book, book_trouble = inputs.read_action_log(settings.state)
    book_trouble = book_trouble or files.forgets(inputs.find_existing_folder(settings.state))
    now = inputs.read_clock(config)
    unconfirmed, silent = _unconfirmed(config) if settings.mode == "automatic" else ([], "")
    return {
        "mode": settings.mode,
        "drain": str(settings.drain),
        "replace": str(settings.replace),
        "killSwitch": inputs.describe_stop(settings.kill_switch, "thrown"),
        "maintenance": inputs.describe_stop(settings.maintenance, "under maintenance"),
        "request": (
            None
            if request is None
            else {
                "id": request.id,
                "action": request.kind.value,
                "time": format_rfc3339(request.time),
                "ageSeconds": (
                    round(now.uptime - request.uptime, 1)
                    if request.boot_id == now.boot_id
                    else None
                ),
                "findings": [
                    {"id": one.id, "component": one.component, "code": one.code, "raw": one.raw}
                    for one in request.grounds
                ],
            }
        ),
        "requestTrouble": request_trouble,
        "unconfirmed": unconfirmed,
        "unconfirmedTrouble": silent,
        "bookTrouble": book_trouble,
        "budget": {
            "reboots": _budget(book, Kind.REBOOT, settings.reboots_per_day, now),
            "replacements": _budget(book, Kind.REPLACE, settings.replacements_per_day, now),
        },
        "decisions": decision_log.read(settings.state)[-_SHOWN:][::-1],
    }


def _unconfirmed(config: Config) -> tuple[list[Waiting], str]:
    """Findings that would be asked for if a second source confirmed them; or why that is
    not known.
    """
    asking = argparse.Namespace(socket=config.socket_path, timeout=_ANSWER_S)
    try:
        findings = client.ask(asking, "/v1/findings", limit=_OPEN)["findings"]
        waiting = [one for one in findings if _waits(one, device_reset=config.policy.device_reset)]
        return [_waiting(one) for one in waiting], ""
    except (client.NoAnswer, client.Refused) as error:
        return [], str(error)


def _waiting(found: schema.Finding) -> Waiting:
    return {
        "id": found["id"],
        "component": found["component"],
        "code": found["code"],
        "action": found["action"],
        "writtenByProcess": found["writtenByProcess"],
        "witnesses": found["witnesses"],
    }


def _waits(found: schema.Finding, *, device_reset: bool) -> bool:
    counts = found["accepted"] is None and (found["when"] != "maintenance" or found["unusable"])
    asked = asks_for(Action(found["action"]), device_reset=device_reset)
    return bool(counts and asked and not found["simulated"] and not found["confirmed"])


def _budget(book: Book | None, kind: Kind, most: int, now: Clock) -> Budget:
    used = list(book.recent(kind, now)) if book is not None else []
    causes: list[Cause] = [
        {"component": component, "code": code, "time": format_rfc3339(one.time)}
        for one in used
        for component, code in one.causes
    ]
    return {"perDay": most, "used": len(used) if book is not None else None, "causes": causes}


def show(told: Recovery) -> None:
    automatic = told["mode"] == "automatic"
    print(
        render.colour("recovery", "bold"),
        told["mode"] if automatic else 'none: nobody acts by itself ([recovery] mode = "none")',
    )
    if automatic:
        _line("drain", f"{told['drain']}, replacement: {told['replace']}")
    for name, said in (
        ("stopped", told["killSwitch"]),
        ("stopped", told["maintenance"]),
        ("request", told["requestTrouble"]),
        ("book", told["bookTrouble"]),
    ):
        if said:
            _line(name, render.colour(render.safe(said), "yellow"))
    request = told["request"]
    if request is None:
        if not told["requestTrouble"]:
            _line("request", "none")
    else:
        age = (
            "made in another boot"
            if request["ageSeconds"] is None
            else f"{render.span(request['ageSeconds'])} old"
        )
        _line("request", f"{render.safe(request['action'])}, {age}")
        for one in request["findings"][:_SHOWN]:
            _line(
                "",
                render.cut(
                    render.safe(f"#{one['id']} {one['code']} of {one['component']}: {one['raw']}"),
                    render.width() - 13,
                ),
            )
    for waiting in told["unconfirmed"][:_SHOWN]:
        _line("waits", render.safe(_missing(waiting)))
    if told["unconfirmedTrouble"]:
        _line(
            "waits", f"what is unconfirmed is not known: {render.safe(told['unconfirmedTrouble'])}"
        )
    for name, what in told["budget"].items():
        used = "not known how many" if what["used"] is None else what["used"]
        _line("budget", f"{used} of {what['perDay']} {name} in a day")
        for cause in what["causes"]:
            _line(
                "",
                render.safe(
                    f"{render.clock(cause['time'])} for {cause['code']} of {cause['component']}"
                ),
            )
    decisions = told["decisions"]
    for number, decision in enumerate(decisions):
        _line(
            "decided" if number == 0 else "",
            f"{render.clock(decision.get('last'))}  {format_decision(decision)}",
        )
    if not decisions:
        _line("decided", "nothing yet")
    if (
        request is not None
        and (request["ageSeconds"] or 0.0) > _UNHEARD_S
        and all(one.get("request") != request["id"] for one in decisions)
    ):
        _line(
            "",
            "nobody has decided on the request: systemctl status vitald-recover.path"
            " vitald-recover.service",
        )


def _missing(found: Waiting) -> str:
    """Who has to agree before anybody repairs the node for it."""
    could = ", ".join(found["witnesses"])
    who = f"for a second witness of #{found['id']} {found['code']} of {found['component']}"
    written = " (a process wrote it)" if found["writtenByProcess"] else ""
    return (
        f"{who}{written}: {could}"
        if could
        else f"{who}{written}: no other source can see it, a person must decide"
    )


def _line(name: str, text: object) -> None:
    render.tell(f"  {name:<9} {text}")
