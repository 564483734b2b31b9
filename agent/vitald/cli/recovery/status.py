"""
`vitald recovery status`: settings of automatic recovery, the request, what prevents it, findings
that wait for confirmation, and the recent decisions. Changes nothing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, client, render
from vitald.config.errors import ConfigError
from vitald.config.values import Config
from vitald.judge.settings import PolicySettings
from vitald.model.words import Action, Repair
from vitald.recovery import decision_log, files, inputs
from vitald.recovery.action_log import ActionLog, BootClock
from vitald.recovery.decision_log import format_decision
from vitald.recovery.recovery_request import Request
from vitald.recovery.settings import RecoverySettings
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE
from vitald.server.settings import find_socket
from vitald.timestamps import format_rfc3339

if TYPE_CHECKING:
    from typing import TypedDict

    from vitald.server import schema

    class RequestedFinding(TypedDict):
        """A finding for which the action is requested."""

        id: int
        component: str
        code: str
        raw: str

    class RequestSummary(TypedDict):
        """What the daemon requests of root. `ageSeconds`: null if it was made in another boot."""

        id: str
        action: str
        time: str
        ageSeconds: float | None
        findings: list[RequestedFinding]

    class UnconfirmedFinding(TypedDict):
        """A finding that recovery does not act on until a second source confirms it."""

        id: int
        component: str
        code: str
        action: str
        writtenByProcess: bool
        witnesses: list[str]

    class BudgetCause(TypedDict):
        component: str
        code: str
        time: str

    class ActionBudget(TypedDict):
        """Of one kind of action. `used`: null if the action log cannot be read."""

        perDay: int
        used: int | None
        causes: list[BudgetCause]

    class RecoveryState(TypedDict):
        """The output of `vitald recovery status --json`. A trouble or a stop is empty if there is
        none.
        """

        bootId: str
        mode: str
        drain: str
        replace: str
        brake: str
        killSwitch: str
        maintenance: str
        request: RequestSummary | None
        requestTrouble: str
        unconfirmed: list[UnconfirmedFinding]
        unconfirmedTrouble: str
        actionLogTrouble: str
        budget: dict[str, ActionBudget]
        decisions: list[dict[str, object]]  # as root wrote them


_MAX_LISTED = 8
_MAX_UNDECIDED_S = 120.0  # vitald-recover.service waits a minute before it decides
_DAEMON_TIMEOUT_S = 2.0


def show_status(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 78 if root would reject the configuration."""
    try:
        config = inputs.read_config(arguments.config)
    except (files.Untrusted, ConfigError) as error:
        problem = f"root would refuse to act: {error}"
        if arguments.json:
            render.emit_json({"error": problem})
        else:
            print(f"recovery  {problem}")
        return EX_CONFIG
    state = gather_state(config)
    if arguments.json:
        render.emit_json(state)
    else:
        show_state(state)
    return 0


def gather_state(config: Config) -> RecoveryState:
    settings = config[RecoverySettings]
    request, request_trouble = inputs.read_request(config, client.find_owners())
    log, log_trouble = inputs.read_action_log(settings.state)
    folder = inputs.find_existing_folder(settings.state)
    log_trouble = log_trouble or files.describe_volatility(folder)
    now = inputs.read_clock(config)
    unconfirmed: list[UnconfirmedFinding] = []
    unconfirmed_trouble = ""
    if settings.mode == "automatic":
        unconfirmed, unconfirmed_trouble = _list_unconfirmed(config)
    return {
        "bootId": now.boot_id,
        "mode": settings.mode,
        "drain": str(settings.drain),
        "replace": str(settings.replace),
        "brake": settings.describe_brake(),
        "killSwitch": inputs.describe_stop(settings.kill_switch, "kill switch"),
        "maintenance": inputs.describe_stop(settings.maintenance, "maintenance"),
        "request": _build_request(request, now) if request is not None else None,
        "requestTrouble": request_trouble,
        "unconfirmed": unconfirmed,
        "unconfirmedTrouble": unconfirmed_trouble,
        "actionLogTrouble": log_trouble,
        "budget": {
            "reboots": _build_budget(log, Repair.REBOOT, settings.reboots_per_day, now),
            "replacements": _build_budget(log, Repair.REPLACE, settings.replacements_per_day, now),
        },
        "decisions": decision_log.read_records(settings.state)[-_MAX_LISTED:][::-1],
    }


def _build_request(request: Request, now: BootClock) -> RequestSummary:
    age_s = None
    if request.boot_id == now.boot_id:
        age_s = round(now.uptime - request.uptime, 1)
    return {
        "id": request.id,
        "action": request.kind.value,
        "time": format_rfc3339(request.time),
        "ageSeconds": age_s,
        "findings": [
            {
                "id": found.id,
                "component": found.component,
                "code": found.code,
                "raw": found.raw,
            }
            for found in request.findings
        ],
    }


def _list_unconfirmed(config: Config) -> tuple[list[UnconfirmedFinding], str]:
    """Findings that would be requested if a second source confirmed them; or why these are not
    known.
    """
    request = argparse.Namespace(socket=find_socket(config), timeout=_DAEMON_TIMEOUT_S)
    try:
        findings = client.get(request, endpoints.FINDINGS, limit=MAX_PAGE)["findings"]
        device_reset = config[PolicySettings].device_reset
        return [
            _build_unconfirmed(found)
            for found in findings
            if _is_unconfirmed(found, device_reset=device_reset)
        ], ""
    except (client.NoAnswer, client.DaemonRefused) as error:
        return [], str(error)


def _build_unconfirmed(found: schema.ApiFinding) -> UnconfirmedFinding:
    return {
        "id": found["id"],
        "component": found["component"],
        "code": found["code"],
        "action": found["action"],
        "writtenByProcess": found["writtenByProcess"],
        "witnesses": found["witnesses"],
    }


def _is_unconfirmed(found: schema.ApiFinding, *, device_reset: bool) -> bool:
    counts = found["accepted"] is None and (found["when"] != "maintenance" or found["unusable"])
    required = Action(found["action"]).choose_repair(device_reset=device_reset)
    return bool(counts and required and not found["simulated"] and not found["confirmed"])


def _build_budget(
    log: ActionLog | None, kind: Repair, per_day: int, now: BootClock
) -> ActionBudget:
    used = log.list_recent(kind, now) if log is not None else ()
    causes: list[BudgetCause] = [
        {"component": component, "code": code, "time": format_rfc3339(entry.time)}
        for entry in used
        for component, code in entry.causes
    ]
    return {"perDay": per_day, "used": len(used) if log is not None else None, "causes": causes}


def show_state(state: RecoveryState) -> None:
    if state["mode"] == "automatic":
        print(render.colour_text("recovery", "bold"), state["mode"])
        _print_line("drain", f"{state['drain']}, replacement: {state['replace']}")
        _print_line("brake", state["brake"])
    else:
        mode = 'none: no automatic recovery ([recovery] mode = "none")'
        render.print_line(f"{render.colour_text('recovery', 'bold')} {mode}")
    for name, problem in (
        ("stopped", state["killSwitch"]),
        ("stopped", state["maintenance"]),
        ("request", state["requestTrouble"]),
        ("action log", state["actionLogTrouble"]),
    ):
        if problem:
            _print_line(name, render.colour_text(render.escape_text(problem), "yellow"))
    _show_request(state)
    for found in state["unconfirmed"][:_MAX_LISTED]:
        _print_line("waits", render.escape_text(_describe_unconfirmed(found)))
    if state["unconfirmedTrouble"]:
        trouble = render.escape_text(state["unconfirmedTrouble"])
        _print_line("waits", f"what is unconfirmed is not known: {trouble}")
    for name, budget in state["budget"].items():
        _show_budget(name, budget)
    _show_decisions(state)


def _show_request(state: RecoveryState) -> None:
    request = state["request"]
    if request is None:
        if not state["requestTrouble"]:
            _print_line("request", "none")
        return
    age = "made in another boot"
    if request["ageSeconds"] is not None:
        age = f"{render.format_span(request['ageSeconds'])} old"
    _print_line("request", f"{render.escape_text(request['action'])}, {age}")
    for found in request["findings"][:_MAX_LISTED]:
        text = f"#{found['id']} {found['code']} of {found['component']}: {found['raw']}"
        _print_line("", render.cut_text(render.escape_text(text), render.get_width() - 14))


def _show_budget(name: str, budget: ActionBudget) -> None:
    used = "not known how many" if budget["used"] is None else budget["used"]
    _print_line("budget", f"{used} of {budget['perDay']} {name} in a day")
    for cause in budget["causes"]:
        text = f"{render.describe_time(cause['time'])} for {cause['code']} of {cause['component']}"
        _print_line("", render.escape_text(text))


def _show_decisions(state: RecoveryState) -> None:
    decisions, request = state["decisions"], state["request"]
    for number, decision in enumerate(decisions):
        when = render.describe_time(decision.get("last"))
        text = format_decision(decision, boot_id=state["bootId"])
        _print_line("decided" if number == 0 else "", f"{when}  {text}")
    if not decisions:
        _print_line("decided", "nothing yet")
    if request is None or (request["ageSeconds"] or 0.0) <= _MAX_UNDECIDED_S:
        return
    if all(decision.get("request") != request["id"] for decision in decisions):
        units = "vitald-recover.path vitald-recover.service"
        _print_line("", f"nobody has decided on the request: systemctl status {units}")


def _describe_unconfirmed(found: UnconfirmedFinding) -> str:
    """What has to happen before recovery acts on it."""
    name = f"#{found['id']} {found['code']} of {found['component']}"
    written = " (a process wrote it)" if found["writtenByProcess"] else ""
    witnesses = ", ".join(found["witnesses"])
    if not witnesses:
        witnesses = "no other source can see it, a person must decide"
    return f"for a second witness of {name}{written}: {witnesses}"


def _print_line(name: str, text: object) -> None:
    render.print_line(f"  {name:<10} {text}")
