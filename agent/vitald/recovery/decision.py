"""
Whether a request is granted: facts in, a decision out, and every check that failed with its reason
in words.

    refused   a check failed: nothing is done
    drain     nothing stands against it: new work must be kept away first
    wait      drained, but something still runs here: asked again later. Work is never ended for it
    act       reboot, or have it marked for replacement

Owns     the checks, and their order.
Refuses  reading anything: clocks, files, the daemon and the scheduler come in as facts. What is not
         known counts against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from vitald.model import Action, FindingState
from vitald.recovery.action_log import ActionLog, BootClock
from vitald.recovery.request import Kind, Request, choose_kind
from vitald.text import join_first

MAX_AGE_S = 300.0
_MAX_LISTED = 3


class Step(Enum):
    REFUSED = "refused"
    DRAIN = "drain"
    WAIT = "wait"
    ACT = "act"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFinding:
    """One open finding, in the daemon's own words over its socket."""

    component: str
    code: str
    action: str
    state: str
    simulated: bool
    deferred: bool = False  # accepted by a person, or left to the next maintenance
    # By a second source, or the one that saw it: not by the text of a log alone
    confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """What the daemon says now. `simulated`: what it reads is not real. `released`: who has the
    devices, and why.
    """

    findings: Mapping[int, OpenFinding] = field(default_factory=dict)
    reboot_required: bool = False
    replacement_required: bool = False
    reboot_confirmed: bool = False
    replacement_confirmed: bool = False
    simulated: bool = False
    released: str = ""
    jobs: tuple[str, ...] = ()
    boot_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What its scheduler says. `held`: somebody else has taken it out of service. `busy`: what
    still runs. `trouble`: why nothing is known.
    """

    drained: bool = False
    held: str = ""
    busy: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that counts. Where something is None or in trouble, the text beside it says why."""

    now: BootClock
    automatic: bool
    kill_switch: str  # why it stops everything; empty where it does not
    maintenance: str
    request: Request | None
    request_trouble: str = ""
    action_log: ActionLog | None
    action_log_trouble: str = ""
    daemon: DaemonState | None
    daemon_trouble: str = ""
    scheduler: SchedulerState
    reboots_per_day: int
    replacements_per_day: int
    device_reset: bool = False  # the site resets devices itself
    replaceable: bool = False  # somebody is configured to be told
    other_rebooter: str = ""  # who reboots this node instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`reasons`: the failed checks by name, or what it waits for."""

    step: Step
    kind: Kind | None
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def why(self) -> str:
        return "; ".join(said for _, said in self.reasons)


def decide(facts: Facts) -> Decision:
    """Every check is asked, so that a person sees all that stands in the way."""
    kind = facts.request.kind if facts.request is not None else None
    failed = tuple((name, said) for name, check in CHECKS.items() if (said := check(facts)))
    if failed or kind is None:
        return Decision(step=Step.REFUSED, kind=kind, reasons=failed)
    if not facts.scheduler.drained:
        return Decision(step=Step.DRAIN, kind=kind)
    if busy := _describe_running_work(facts):
        return Decision(step=Step.WAIT, kind=kind, reasons=(("work", busy),))
    return Decision(step=Step.ACT, kind=kind)


def _check_mode(facts: Facts) -> str:
    return "" if facts.automatic else '[recovery] mode is "none": say, do not act'


def _check_kill_switch(facts: Facts) -> str:
    return facts.kill_switch


def _check_maintenance(facts: Facts) -> str:
    return facts.maintenance


def _check_request(facts: Facts) -> str:
    if facts.request is not None:
        return ""
    return facts.request_trouble or "there is no request"


def _check_boot(facts: Facts) -> str:
    request = facts.request
    if request is None or request.boot_id == facts.now.boot_id:
        return ""
    return f"it was made in another boot ({request.boot_id})"


def _check_age(facts: Facts) -> str:
    """By the clock that counts from the boot: setting the wall clock makes no request young."""
    request = facts.request
    if request is None:
        return ""
    age = facts.now.uptime - request.uptime
    if age < 0:
        return "it was made after this moment"
    return (
        f"it is {age:.0f} s old, and more than {MAX_AGE_S:.0f} s is too old"
        if age > MAX_AGE_S
        else ""
    )


def _check_daemon(facts: Facts) -> str:
    """Its own answer, not the file, says what stands now."""
    standing, request = facts.daemon, facts.request
    if standing is None:
        return (
            "the daemon cannot be asked whether it still holds:"
            f" {facts.daemon_trouble or 'no answer'}"
        )
    if standing.boot_id != facts.now.boot_id:
        return "the daemon speaks of another boot"
    if standing.simulated:
        return "what is read on this node is simulated"
    if request is None:
        return ""
    replace = request.kind is Kind.REPLACE
    word = "replacement" if replace else "reboot"
    if not (standing.replacement_required if replace else standing.reboot_required):
        return f"the daemon does not say {word}Required any more"
    confirmed = standing.replacement_confirmed if replace else standing.reboot_confirmed
    return (
        ""
        if confirmed
        else f"the daemon does not say {word}Confirmed: only the text of a log asks for it"
    )


def _check_findings(facts: Facts) -> str:
    """Each finding that it names must be open, real, and ask for what is requested."""
    request, standing = facts.request, facts.daemon
    if request is None or standing is None:
        return ""
    wrong = []
    for ground in request.findings:
        told = standing.findings.get(ground.id)
        if told is None:
            wrong.append(f"finding {ground.label} is not open")
        elif (told.component, told.code) != ground.cause:
            wrong.append(
                f"finding #{ground.id} is {told.code} of {told.component}, not {ground.code} of"
                f" {ground.component}"
            )
        elif told.simulated:
            wrong.append(f"finding {ground.label} is a drill's")
        elif told.state != FindingState.OPEN.value:
            wrong.append(f"somebody is at work on finding {ground.label}")
        elif told.deferred:
            wrong.append(f"finding {ground.label} is accepted, or waits for maintenance")
        elif _find_kind(told.action, device_reset=facts.device_reset) is not request.kind:
            wrong.append(f"finding {ground.label} asks for {told.action}")
        elif not told.confirmed:
            wrong.append(f"finding {ground.label} is not confirmed by a second source")
    return join_first(wrong, _MAX_LISTED, before=", and ")


def _check_released(facts: Facts) -> str:
    return (
        f"somebody has the devices: {facts.daemon.released}"
        if facts.daemon is not None and facts.daemon.released
        else ""
    )


def _check_action_log(facts: Facts) -> str:
    if facts.action_log is None:
        return f"what was done before is not known: {facts.action_log_trouble or 'no book'}"
    ahead = facts.action_log.find_future_entry(facts.now)
    return (
        f"the book has a {ahead.kind.value} that lies in the future: the clock was set back, or the"
        " book is wrong"
        if ahead
        else ""
    )


def _check_cause(facts: Facts) -> str:
    """Once a day for one cause. What it did not help with it will not help with now, whatever else
    has come to it.
    """
    request, book = facts.request, facts.action_log
    if request is None or book is None:
        return ""
    for entry in reversed(book.list_recent(request.kind, facts.now)):
        again = [cause for cause in request.causes if cause in entry.causes]
        if again:
            component, code = again[0]
            done = (
                "it was rebooted" if entry.kind is Kind.REBOOT else "it was marked for replacement"
            )
            age = _format_age(entry.measure_age(facts.now))
            return f"{done} for {code} of {component} {age} ago, and that is done once a day"
    return ""


def _check_budget(facts: Facts) -> str:
    request, book = facts.request, facts.action_log
    if request is None or book is None:
        return ""
    reboot = request.kind is Kind.REBOOT
    most = facts.reboots_per_day if reboot else facts.replacements_per_day
    used = len(book.list_recent(request.kind, facts.now))
    what = "reboots" if reboot else "replacements"
    return (
        f"{used} {what} within a day, and [recovery] {what}_per_day is {most}"
        if used >= most
        else ""
    )


def _check_method(facts: Facts) -> str:
    if facts.request is None:
        return ""
    if facts.request.kind is Kind.REPLACE:
        return (
            ""
            if facts.replaceable
            else '[recovery] replace is "none": nobody is configured to be told'
        )
    return facts.other_rebooter


def _check_scheduler(facts: Facts) -> str:
    if facts.scheduler.trouble:
        return f"what runs on the node is not known: {facts.scheduler.trouble}"
    return facts.scheduler.held


CHECKS: Mapping[str, Callable[[Facts], str]] = {
    "mode": _check_mode,
    "kill_switch": _check_kill_switch,
    "maintenance": _check_maintenance,
    "request": _check_request,
    "boot": _check_boot,
    "age": _check_age,
    "daemon": _check_daemon,
    "findings": _check_findings,
    "released": _check_released,
    "book": _check_action_log,
    "cause": _check_cause,
    "budget": _check_budget,
    "means": _check_method,
    "node": _check_scheduler,
}


def _describe_running_work(facts: Facts) -> str:
    jobs = facts.daemon.jobs if facts.daemon is not None else ()
    told = f"{join_first(jobs, _MAX_LISTED)} still run here" if jobs else ""
    return "; ".join(filter(None, [facts.scheduler.busy, told]))


def _find_kind(action: str, *, device_reset: bool) -> Kind | None:
    try:
        return choose_kind(Action(action), device_reset=device_reset)
    except ValueError:
        return None


def _format_age(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
