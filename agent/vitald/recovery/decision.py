"""
Whether a request is granted: facts in, a decision out, with the reason of every check that failed.

    refused   a check failed: no action
    drain     every check passed: the node must be drained first
    wait      drained, but the node is in use: the request is repeated later. Work is never ended
    act       reboot the node, or mark it for replacement

Owns     the checks, and their order.
Refuses  reading anything: clocks, files, the daemon and the scheduler come in as facts. An unknown
         fact counts against the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from vitald.model.finding import FindingState
from vitald.model.words import Action, Repair
from vitald.recovery.action_log import ActionLog, BootClock
from vitald.recovery.recovery_request import FindingRef, Request
from vitald.text import join_first

MAX_AGE_S = 300.0
SAME_BOOT = "and the node is still in the same boot"
UNCHANGED = "effect"  # the name of the check for a reboot that did not happen
_MAX_LISTED = 3


class Step(Enum):
    REFUSED = "refused"
    DRAIN = "drain"
    WAIT = "wait"
    ACT = "act"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFinding:
    """One open finding, as the daemon reports it over its socket."""

    component: str
    code: str
    action: str
    state: str
    simulated: bool
    deferred: bool = False  # accepted by a person, or left to the next maintenance
    confirmed: bool = False  # not known from the text of a log alone


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """What the daemon reports now. `findings`: by their number in the ledger. `simulated`: the
    devices it reads are not real. `released`: who holds the devices, and why; empty if it reads
    them. `jobs`: what runs here. `diagnostic`: the run in progress, in words; empty if there is
    none. `pid`: of the daemon, 0 if it is not known.
    """

    findings: Mapping[int, OpenFinding] = field(default_factory=dict)
    reboot_required: bool = False
    replacement_required: bool = False
    reboot_confirmed: bool = False
    replacement_confirmed: bool = False
    simulated: bool = False
    released: str = ""
    jobs: tuple[str, ...] = ()
    diagnostic: str = ""
    boot_id: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the scheduler reports of the node. `held`: who else has taken it out of service. `busy`:
    what still runs. `trouble`: why nothing is known. Each is empty if it does not apply.
    """

    drained: bool = False
    held: str = ""
    busy: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Who may be at work on the node, its jobs aside. `device_users`: processes that use the
    devices, as root sees them.
    """

    now: BootClock
    min_uptime_s: float = 0.0
    daemon: DaemonState | None
    device_users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Presence):
    """Everything that the checks use. If a fact is None, the text `..._trouble` beside it says
    why.
    """

    automatic: bool
    kill_switch: str  # why it stops recovery; empty if it does not
    maintenance: str  # likewise
    request: Request | None
    request_trouble: str = ""
    action_log: ActionLog | None
    action_log_trouble: str = ""
    daemon_trouble: str = ""
    scheduler: SchedulerState
    reboots_per_day: int
    replacements_per_day: int
    device_reset: bool = False  # the site resets devices itself
    method_trouble: str = ""  # why the action cannot be taken as configured
    brake: str = ""  # why not now, beside other nodes; asked only if nothing else is in the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`reasons`: the failed checks with their texts, or what it waits for."""

    step: Step
    kind: Repair | None
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.reasons)

    @property
    def why(self) -> str:
        return "; ".join(text for _, text in self.reasons)


def decide(facts: Facts) -> Decision:
    """Runs every check, so that a person sees all reasons against the request."""
    kind = facts.request.kind if facts.request is not None else None
    failed = tuple((name, text) for name, check in CHECKS.items() if (text := check(facts)))
    if failed or kind is None:
        return Decision(step=Step.REFUSED, kind=kind, reasons=failed)
    if not facts.scheduler.drained:
        return Decision(step=Step.DRAIN, kind=kind)
    in_use = tuple((name, text) for name, find in USES.items() if (text := find(facts)))
    return Decision(step=Step.WAIT if in_use else Step.ACT, kind=kind, reasons=in_use)


def describe_presence(presence: Presence) -> str:
    """Who is at work, where another program reboots the node once its jobs have ended; "" if nobody
    is.
    """
    return "; ".join(text for find in _PRESENCE if (text := find(presence)))


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
    """By the clock that counts from the boot: setting the wall clock does not change the age."""
    request = facts.request
    if request is None:
        return ""
    age = facts.now.uptime - request.uptime
    if age < 0:
        return "it was made after this moment"
    if age > MAX_AGE_S:
        return f"it is {age:.0f} s old, and more than {MAX_AGE_S:.0f} s is too old"
    return ""


def _check_daemon(facts: Facts) -> str:
    """Its own answer says what holds now, not the file."""
    daemon, request = facts.daemon, facts.request
    if daemon is None:
        trouble = facts.daemon_trouble or "no answer"
        return f"the daemon cannot be asked whether it still holds: {trouble}"
    if daemon.boot_id != facts.now.boot_id:
        return "the daemon speaks of another boot"
    if daemon.simulated:
        return "what is read on this node is simulated"
    if request is None:
        return ""
    if request.kind is Repair.REPLACE:
        flag, required, confirmed = (
            "replacement",
            daemon.replacement_required,
            daemon.replacement_confirmed,
        )
    else:
        flag, required, confirmed = "reboot", daemon.reboot_required, daemon.reboot_confirmed
    if not required:
        return f"the daemon does not say {flag}Required any more"
    if not confirmed:
        return f"the daemon does not say {flag}Confirmed: only the text of a log asks for it"
    return ""


def _check_findings(facts: Facts) -> str:
    """Each finding that the request names must be open and real, and require what is requested."""
    request, daemon = facts.request, facts.daemon
    if request is None or daemon is None:
        return ""
    problems = []
    for finding in request.findings:
        found = daemon.findings.get(finding.id)
        problem = _describe_finding_problem(facts, request, finding, found)
        if problem:
            problems.append(problem)
    return join_first(problems, _MAX_LISTED, before=", and ")


def _describe_finding_problem(
    facts: Facts, request: Request, finding: FindingRef, found: OpenFinding | None
) -> str:
    """`finding`: from the request; `found`: as the daemon reports it. Empty if nothing is wrong."""
    if found is None:
        return f"finding {finding.label} is not open"
    if (found.component, found.code) != finding.cause:
        return (
            f"finding #{finding.id} is {found.code} of {found.component}, not {finding.code} of"
            f" {finding.component}"
        )
    if found.simulated:
        return f"finding {finding.label} is a drill's"
    if found.deferred:
        return f"finding {finding.label} is accepted, or waits for maintenance"
    if _find_kind(found.action, device_reset=facts.device_reset) is not request.kind:
        return f"finding {finding.label} asks for {found.action}"
    if not found.confirmed:
        return f"finding {finding.label} is not confirmed by a second source"
    return ""


def _check_remedy(facts: Presence) -> str:
    """Whichever finding is being remedied: a reboot would interrupt the work on it."""
    if facts.daemon is None:
        return ""
    begun = [
        f"#{number} {found.code} of {found.component}"
        for number, found in facts.daemon.findings.items()
        if found.state != FindingState.OPEN.value and not found.simulated
    ]
    return f"a remedy is under way: {join_first(begun, _MAX_LISTED)}" if begun else ""


def _check_released(facts: Presence) -> str:
    if facts.daemon is None or not facts.daemon.released:
        return ""
    return f"somebody has the devices: {facts.daemon.released}"


def _check_uptime(facts: Presence) -> str:
    """An administrator who has just booted the node may be at work on it, and needs time to stop
    recovery.
    """
    if facts.now.uptime >= facts.min_uptime_s:
        return ""
    booted, least = _format_age(facts.now.uptime), _format_age(facts.min_uptime_s)
    return f"the node was booted {booted} ago, and [recovery] min_uptime is {least}"


def _check_action_log(facts: Facts) -> str:
    if facts.action_log is None:
        return f"what was done before is not known: {facts.action_log_trouble or 'no action log'}"
    future = facts.action_log.find_future_entry(facts.now)
    if future is None:
        return ""
    return (
        f"the action log has a {future.kind.value} that lies in the future: the clock was set back,"
        " or the action log is wrong"
    )


def _check_effect(facts: Facts) -> str:
    """A reboot that was begun in this boot has not happened: a second would not help either."""
    request, action_log = facts.request, facts.action_log
    if request is None or request.kind is not Repair.REBOOT or action_log is None:
        return ""
    for entry in action_log.list_recent(Repair.REBOOT, facts.now):
        if entry.boot_id == facts.now.boot_id:
            age = _format_age(entry.measure_age(facts.now))
            return f"a reboot was begun {age} ago, {SAME_BOOT}: reboot it by hand"
    return ""


def _check_cause(facts: Facts) -> str:
    """One action a day for one cause, whatever other causes there are: if the action did not help
    with it, it will not help now.
    """
    request, action_log = facts.request, facts.action_log
    if request is None or action_log is None:
        return ""
    for entry in reversed(action_log.list_recent(request.kind, facts.now)):
        again = [cause for cause in request.causes if cause in entry.causes]
        if again:
            component, code = again[0]
            is_reboot = entry.kind is Repair.REBOOT
            done = "a reboot was begun" if is_reboot else "it was marked for replacement"
            age = _format_age(entry.measure_age(facts.now))
            return f"{done} for {code} of {component} {age} ago, and that is done once a day"
    return ""


def _check_budget(facts: Facts) -> str:
    request, action_log = facts.request, facts.action_log
    if request is None or action_log is None:
        return ""
    if request.kind is Repair.REBOOT:
        actions, budget = "reboots", facts.reboots_per_day
    else:
        actions, budget = "replacements", facts.replacements_per_day
    used = len(action_log.list_recent(request.kind, facts.now))
    if used >= budget:
        return f"{used} {actions} within a day, and [recovery] {actions}_per_day is {budget}"
    return ""


def _check_method(facts: Facts) -> str:
    return facts.method_trouble


def _check_scheduler(facts: Facts) -> str:
    if facts.scheduler.trouble:
        return f"what runs on the node is not known: {facts.scheduler.trouble}"
    return facts.scheduler.held


def _check_brake(facts: Facts) -> str:
    return facts.brake


# A check returns the reason against the request, or an empty text. The names are in the decision
# log and the documentation.
CHECKS: Mapping[str, Callable[[Facts], str]] = {
    "mode": _check_mode,
    "kill_switch": _check_kill_switch,
    "maintenance": _check_maintenance,
    "request": _check_request,
    "boot": _check_boot,
    "age": _check_age,
    "daemon": _check_daemon,
    "findings": _check_findings,
    "remedy": _check_remedy,
    "released": _check_released,
    "uptime": _check_uptime,
    "action_log": _check_action_log,
    UNCHANGED: _check_effect,
    "cause": _check_cause,
    "budget": _check_budget,
    "means": _check_method,
    "node": _check_scheduler,
    "brake": _check_brake,
}


def _describe_work(facts: Facts) -> str:
    jobs = facts.daemon.jobs if facts.daemon is not None else ()
    running = f"{join_first(jobs, _MAX_LISTED)} still run here" if jobs else ""
    return "; ".join(filter(None, [facts.scheduler.busy, running]))


def _describe_diagnostic(facts: Presence) -> str:
    return facts.daemon.diagnostic if facts.daemon is not None else ""


def _describe_device_users(facts: Presence) -> str:
    return join_first(facts.device_users, _MAX_LISTED)


# Why a drained node is still in use, or an empty text. Named and documented as the checks are.
USES: Mapping[str, Callable[[Facts], str]] = {
    "work": _describe_work,
    "diagnostic": _describe_diagnostic,
    "devices": _describe_device_users,
}

_PRESENCE: tuple[Callable[[Presence], str], ...] = (
    _check_remedy,
    _check_released,
    _check_uptime,
    _describe_diagnostic,
    _describe_device_users,
)


def _find_kind(action: str, *, device_reset: bool) -> Repair | None:
    try:
        return Action(action).choose_repair(device_reset=device_reset)
    except ValueError:
        return None


def _format_age(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
