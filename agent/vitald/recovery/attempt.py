"""
One attempt of `vitald recovery run`: gather the facts, decide, record, act, report.

Every check is in agent/vitald/recovery/decision.py. If the node is still in use, the daemon repeats
its request in a few minutes. An action is recorded durably before it is carried out: an
action that left no record could be repeated without limit. Only one whose program could not be
started is taken back.

A node that is about to be taken out of service waits for a random time first: if one mistake makes
all nodes ask at once, the first of them are seen by the brake of the others.

Owns     the order: delay, facts, brake, decision, record, action.
Refuses  commands from the environment or from anything but root's own configuration.
"""

from __future__ import annotations

import pwd
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.judge.settings import PolicySettings
from vitald.log.settings import LogSettings
from vitald.model.words import Repair
from vitald.recovery import action_log, cluster, decision_log, files, inputs, programs
from vitald.recovery.action_log import ActionLog, ActionRecord, BootClock, InvalidActionLog
from vitald.recovery.brake import Brake, create_brake
from vitald.recovery.decision import (
    UNCHANGED,
    DaemonState,
    Decision,
    Facts,
    SchedulerState,
    Step,
    decide,
)
from vitald.recovery.decision_log import emit_log_line, format_decision
from vitald.recovery.recovery_request import Request
from vitald.recovery.scheduler import (
    ActionContext,
    Scheduler,
    describe_missing_network,
    get_node_name,
)
from vitald.recovery.settings import RecoverySettings
from vitald.slurm.settings import SlurmSettings
from vitald.text import join_first

DONE, FAILED = 0, 69  # EX_UNAVAILABLE of sysexits.h
_MAX_LOGGED_FINDINGS = 8


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """What the daemon reports. `state`: None if it cannot be used, and `trouble` says why."""

    state: DaemonState | None
    trouble: str
    status: Mapping[str, object]  # the answer of GET /v1/status


def find_reader_group(user: str) -> int:
    """The group that may read the decision log: the daemon's; root's if there is no such user."""
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        return 0


class RecoveryAttempt:
    """Decides on the daemon's request once, and acts on it."""

    def __init__(
        self,
        config: Config,
        *,
        dry_run: bool,
        owners: Collection[int],
        reader_group: int,
        query_daemon: Callable[[Config], DaemonReport],
        find_device_users: Callable[[Config, int], Sequence[str]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`owners`: user ids that may make a request. `reader_group`: group id for what is
        recorded. `dry_run`: report what would be done, change nothing. `find_device_users`: the
        processes that use the devices, in words, without the daemon, whose id it is given.
        `sleep`: waits for so many seconds.
        """
        self._config = config
        self._settings = config[RecoverySettings]
        self._dry_run = dry_run
        self._owners = owners
        self._reader_group = reader_group
        self._query_daemon = query_daemon
        self._find_device_users = find_device_users
        self._sleep = sleep
        self._emit = partial(emit_log_line, config[LogSettings].format)
        self._scheduler: Scheduler = cluster.create_scheduler(
            config[RecoverySettings].drain, config
        )
        self._brake: Brake = create_brake(config)

    def run(self) -> int:
        """Returns the exit code: DONE, also for a refusal, or FAILED."""
        request, trouble = inputs.read_request(self._config, self._owners)
        if request is None and not trouble:
            self._report_idle()
            return DONE
        with ExitStack() as stack:
            if not self._dry_run:
                try:
                    files.prepare_folder(self._settings.state, self._reader_group)
                    stack.enter_context(files.hold_folder(self._settings.state))
                except files.Untrusted as error:
                    why = f"the directory of the action log cannot be used: {error}"
                    self._emit("error", "recovery_refused", why=why)
                    return FAILED
            return self._decide_and_act(request, trouble)

    def _report_idle(self) -> None:
        if not self._dry_run:
            self._emit("info", "recovery_idle", why="there is no request")
            return
        print("would do nothing: there is no request")
        for kind in Repair if self._settings.mode == "automatic" else ():
            trouble = self._find_method_trouble(kind)
            if trouble:
                refused = {"action": kind.value, "step": Step.REFUSED.value, "why": trouble}
                print(format_decision(refused, dry_run=True))

    def _decide_and_act(self, request: Request | None, trouble: str) -> int:
        if not self._dry_run and self._delay(request, trouble):
            request, trouble = inputs.read_request(self._config, self._owners)
        facts, context, decision = self._decide(request, trouble)
        if decision.step is Step.DRAIN and not self._dry_run:
            drain = str(self._settings.drain)
            self._emit("warning", "recovery_draining", **_describe_request(request), by=drain)
            # Draining may take long: the facts are gathered again, and the kill switch with them.
            drained = self._scheduler.drain_node(context)
            facts, context, decision = self._decide(request, trouble, drained)
            if "brake" in decision.checks:
                self._undo_drain(context)
        acts = decision.step is Step.ACT and not self._dry_run
        if not acts or request is None or facts.action_log is None:
            self._report_decision(decision, request, facts.now)
            return DONE
        return self._record_and_act(decision, request, facts.action_log, facts.now, context)

    def _delay(self, request: Request | None, trouble: str) -> bool:
        """Waits, if the node is about to be taken out of service. Whether it has waited: then
        nothing that was known before still holds.
        """
        most_s = self._settings.brake_delay_s
        if not most_s:
            return False
        facts = self._gather_facts(request, trouble)[0]
        step = decide(facts).step
        begins = step is Step.DRAIN or (step is Step.ACT and self._settings.drain.word == "none")
        if not begins:
            return False
        delay_s = random.SystemRandom().uniform(0, most_s)
        reason = (decision_log.DELAY, f"a random delay of {delay_s:.0f} s ([recovery] brake_delay)")
        kind = request.kind if request is not None else None
        waits = Decision(step=Step.WAIT, kind=kind, reasons=(reason,))
        self._report_decision(waits, request, facts.now)
        self._sleep(delay_s)
        return True

    def _undo_drain(self, context: ActionContext) -> None:
        trouble = self._scheduler.undo_drain(context)
        if trouble:
            self._emit("error", "recovery_not_undone", why=trouble)

    def _decide(
        self, request: Request | None, trouble: str, drained: SchedulerState | None = None
    ) -> tuple[Facts, ActionContext, Decision]:
        """Asks the brake last, and only if nothing else is in the way: it may grant something."""
        facts, context = self._gather_facts(request, trouble, drained)
        decision = decide(facts)
        if decision.step is not Step.REFUSED:
            facts = replace(facts, brake=self._brake.ask(context, take=not self._dry_run))
            return facts, context, decide(facts)
        if request is not None and facts.automatic and not self._dry_run:
            not_kept = self._brake.keep()
            if not_kept:
                self._emit("warning", "recovery_lease_not_kept", why=not_kept)
        return facts, context, decision

    # --- facts

    def _gather_facts(
        self, request: Request | None, trouble: str, drained: SchedulerState | None = None
    ) -> tuple[Facts, ActionContext]:
        settings = self._settings
        now, clock_trouble = self._read_clock()
        answer = self._query_daemon(self._config)
        context = ActionContext(
            action=request.kind.value if request is not None else "",
            request_id=request.id if request is not None else "",
            verdict=answer.status,
            boot_id=now.boot_id,
        )
        log, log_trouble = self._read_action_log()
        automatic = settings.mode == "automatic"
        scheduler, users = drained or SchedulerState(), tuple[str, ...]()
        if automatic and request is not None:  # else nothing will be done
            if drained is None:
                scheduler = self._read_scheduler(context)
            if answer.state is not None:
                users = tuple(self._find_device_users(self._config, answer.state.pid))
        kill_switch = inputs.describe_stop(settings.kill_switch, "kill switch")
        facts = Facts(
            now=now,
            automatic=automatic,
            kill_switch=clock_trouble or kill_switch,
            maintenance=inputs.describe_stop(settings.maintenance, "maintenance"),
            request=request,
            request_trouble=trouble,
            action_log=log,
            action_log_trouble=log_trouble,
            daemon=self._add_job_steps(answer.state),
            daemon_trouble=answer.trouble,
            scheduler=scheduler,
            device_users=users,
            min_uptime_s=settings.min_uptime_s,
            reboots_per_day=settings.reboots_per_day,
            replacements_per_day=settings.replacements_per_day,
            device_reset=self._config[PolicySettings].device_reset,
            method_trouble=self._find_method_trouble(request.kind) if request is not None else "",
        )
        return facts, context

    def _find_method_trouble(self, kind: Repair) -> str:
        """Why the action cannot be taken as configured; empty if nothing is known against it."""
        reboots = kind is Repair.REBOOT
        if reboots and self._config[SlurmSettings].hyperpod:
            return "[slurm] hyperpod = true: HyperPod reboots this node"
        method = self._settings.reboot if reboots else self._settings.replace
        if method.word == "none":
            return '[recovery] replace is "none": no method is configured'
        try:
            if method.argv:
                programs.find_program(method.argv[0])
        except programs.NotStarted as error:
            return f"[recovery] {kind.value}: {error}"
        return ""

    def _read_action_log(self) -> tuple[ActionLog | None, str]:
        log, trouble = inputs.read_action_log(self._settings.state)
        if log is not None:
            volatile = files.describe_volatility(inputs.find_existing_folder(self._settings.state))
            if volatile:
                return None, volatile
        return log, trouble

    def _add_job_steps(self, daemon: DaemonState | None) -> DaemonState | None:
        """Adds the job steps that run here, which the daemon may not have been notified of."""
        if daemon is None:
            return None
        steps = cluster.list_job_steps(self._config[Paths].procfs)
        return replace(daemon, jobs=tuple(dict.fromkeys((*daemon.jobs, *steps))))

    def _read_scheduler(self, context: ActionContext) -> SchedulerState:
        trouble = describe_missing_network(self._settings.drain, self._settings.replace)
        return SchedulerState(trouble=trouble) if trouble else self._scheduler.read_state(context)

    def _read_clock(self) -> tuple[BootClock, str]:
        try:
            return inputs.read_clock(self._config), ""
        except OSError as error:
            unknown = BootClock(wall=time.time(), uptime=0.0, boot_id="")
            return unknown, f"which boot this is cannot be told: {error.strerror}"

    # --- record and action

    def _record_and_act(
        self,
        decision: Decision,
        request: Request,
        log: ActionLog,
        now: BootClock,
        context: ActionContext,
    ) -> int:
        trouble = self._record_action(request, log, now)
        if trouble:
            reasons = (("action_log", f"the action log cannot be written: {trouble}"),)
            refused = replace(decision, step=Step.REFUSED, reasons=reasons)
            self._report_decision(refused, request, now)
            return FAILED
        self._report_decision(decision, request, now, decision_log.BEGUN)
        try:
            trouble = self._act(request.kind, context)
        except programs.NotStarted as error:
            trouble = str(error)
            counted = self._write_action_log(log)  # without it: nothing was done
            if counted:
                self._emit("error", "recovery_still_counted", why=counted)
        outcome = f"failed: {trouble}" if trouble else decision_log.ORDERED
        self._report_decision(decision, request, now, outcome)
        return FAILED if trouble else DONE

    def _act(self, kind: Repair, context: ActionContext) -> str:
        """Why it failed; empty if it did not. Raises NotStarted."""
        if kind is Repair.REPLACE:
            scheduler = cluster.create_scheduler(self._settings.replace, self._config)
            return scheduler.mark_for_replacement(context)
        environment = context.build_environment(get_node_name(self._config))
        reboot = self._settings.reboot.argv
        return programs.run_program(reboot, self._settings.deadline_s, environment).require_start()

    def _record_action(self, request: Request, log: ActionLog, now: BootClock) -> str:
        """Writes the action log with this action, durably. Why that failed; empty if it did not."""
        entry = ActionRecord(
            id=request.id,
            kind=request.kind,
            causes=request.causes,
            time=now.wall,
            uptime=now.uptime,
            boot_id=now.boot_id,
        )
        try:
            return self._write_action_log(log.with_entry(entry, now))
        except InvalidActionLog as error:
            return str(error)

    def _write_action_log(self, log: ActionLog) -> str:
        """Durably. Why that failed; empty if it did not."""
        path = self._settings.state / action_log.FILE
        try:
            files.write_durably(path, action_log.render_action_log(log), self._reader_group)
        except OSError as error:
            return str(error.strerror)
        return ""

    def _report_decision(
        self, decision: Decision, request: Request | None, now: BootClock, outcome: str = ""
    ) -> None:
        """To the journal, and to the decision log that `vitald recovery status` reads; a dry run
        prints it instead.
        """
        record = decision_log.build_record(decision, request, now.boot_id, now.wall, outcome)
        if self._dry_run:
            print(format_decision(record, dry_run=True))
            return
        level = _choose_log_level(decision, outcome)
        keys = ("action", "step", "why", "outcome", "checks", "request")
        pairs = {**{key: record[key] for key in keys}, **_describe_request(request)}
        labels = [finding.label for finding in request.findings] if request is not None else []
        message = format_decision(record) + (
            f" ({join_first(labels, _MAX_LOGGED_FINDINGS)})" if labels else ""
        )
        self._emit(level, "recovery_decided", message=message, **pairs)
        try:
            decision_log.append_record(self._settings.state, record, self._reader_group)
        except OSError as error:
            self._emit("error", "recovery_not_recorded", why=error.strerror)


def _choose_log_level(decision: Decision, outcome: str) -> str:
    if outcome.startswith("failed") or UNCHANGED in decision.checks:
        return "error"
    return "notice" if decision.step is Step.REFUSED else "warning"


def _describe_request(request: Request | None) -> dict[str, object]:
    if request is None:
        return {}
    findings = [finding.label for finding in request.findings[:_MAX_LOGGED_FINDINGS]]
    return {"findings": findings, "requester": request.requester}
