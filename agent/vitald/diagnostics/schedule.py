"""
When each check is due.

    a day      |--------------------|--------------------|--------------------|      slots of one
    host, one check, one level
    runs           x                       x   (busy)  x        x
    next            first slot that is at least half a period later

Owns     slots, which runs fill them, what is made up for after an outage, and how soon something is
         tried again.
Refuses  clocks, randomness and I/O: `Moment` and the runs come in, so the same question has the
         same answer after a restart.

Every host has its own phase, made from its name, the check and the level: a fleet of a thousand
spreads over the whole period, and stays spread. A run fills the slot that it falls into; where it
was late by more than half a period it fills the next one too, so a run that waited all day for idle
devices is not followed by another within the hour. A slot that passed while the daemon was off is
made up for once. What needs no idle devices also runs after each boot.

Any run of all devices that came to a result fills a slot of the schedule, regardless of its
requester. A pass of a higher level fills those of the lower ones, since it contains them. One that
had to make room for work, or could not run for a temporary reason, is tried again after 10, 20 and
40 minutes, and then waits for the next slot: a node that is never free is not tried all day.

Why the periods are what they are: DCGM's level 1 takes seconds, starts no work on the GPUs and may
run beside any, so an hour is cheap and bounds for how long a broken installation goes unnoticed.
Level 2 takes minutes of GPU, memory and PCIe load and needs idle devices: once a day costs 0.2 % of
a node and finds what wears out. Levels 3 and 4 take up to hours at full power, so they only run on
request. Background watches are only read out: minutes. Loopback and collectives run only where they
are installed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from vitald.backoff import Backoff
from vitald.model.diagnostic import Run
from vitald.model.words import Outcome, Remedy

SCHEDULE = "schedule"  # the requester of scheduled runs
RETRY_S = 600.0  # then twice as long each time
MAX_RETRIES = 3
# After boot the fabric trains and the driver's daemons start: until then a result says little
SETTLE_S = 120.0
_BOOT_SPREAD_S = 30.0
_IDLE_SPREAD_S = (
    300.0  # those that load the devices and the power supply part ways after a common outage
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Now, three times: what the clock says may be stepped, and what has passed cannot."""

    now: float  # seconds since the epoch
    up_s: float  # since boot
    running_s: float  # since the daemon started

    @property
    def booted_at(self) -> float:
        """When the node booted, by the clock as it goes now."""
        return self.now - self.up_s

    @property
    def started_at(self) -> float:
        """The same of the daemon."""
        return self.now - self.running_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A check and a level, and how often."""

    check: str
    level: int
    every_s: float  # 0 or less: never
    needs_idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of one host. `host`: what it is called for as long as it exists, such as its
    machine id.
    """

    host: str

    def find_due_time(self, plan: Plan, runs: Iterable[Run], moment: Moment) -> float:
        """When it is due next; in the past where it should run now, and infinity where it never is.

        `runs`: of this check at least the last ten of each level, in any order. Others' do no harm.
        """
        if not 0.0 < plan.every_s < math.inf:
            return math.inf
        slots = self._make_slots(plan)
        since = -math.inf if plan.needs_idle else moment.booted_at
        # Later runs are from before the clock was set back, and would delay the schedule.
        until = moment.now + plan.every_s / 4
        known = [
            run
            for run in runs
            if run.request.check == plan.check
            and not run.request.gpus
            and since <= run.began <= until
        ]
        last = max(
            (run for run in known if fills_slot(run, plan.level)),
            key=lambda run: (run.began, run.ended),
            default=None,
        )
        tries = [
            run
            for run in known
            if run.request.level == plan.level
            and wants_retry(run)
            and (last is None or run.began > last.began)
        ]
        if tries:
            at = _next_try(tries, slots, until)
        elif last is not None:
            at = slots.find_first(max(last.began + plan.every_s / 2, _get_end(last, until)))
        else:
            at = -math.inf  # never in this boot, or never at all: as if it had been missed
        if at < moment.started_at:
            at = moment.started_at + self.get_spread_s(
                plan, _IDLE_SPREAD_S if plan.needs_idle else _BOOT_SPREAD_S
            )
        return max(at, moment.booted_at + SETTLE_S + self.get_spread_s(plan, _BOOT_SPREAD_S))

    def get_spread_s(self, plan: Plan, most_s: float) -> float:
        """This host's own part of a time over which a fleet is to spread."""
        return _hash_fraction(self.host, plan.check, plan.level, "spread") * most_s

    def _make_slots(self, plan: Plan) -> Slots:
        return Slots(
            every_s=plan.every_s,
            phase_s=_hash_fraction(self.host, plan.check, plan.level, "phase") * plan.every_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Points in time that are a period apart."""

    every_s: float
    phase_s: float

    def get_index(self, at: float) -> int:
        """In which slot a time lies."""
        return math.floor((at - self.phase_s) / self.every_s)

    def find_first(self, at: float) -> float:
        """The first slot that begins at a time or after it."""
        return self.phase_s + math.ceil((at - self.phase_s) / self.every_s) * self.every_s


def was_prevented(run: Run) -> bool:
    """Whether there was no result, for a temporary reason."""
    wants = run.report.outcome in (Outcome.ERROR, Outcome.INCONCLUSIVE) and run.report.remedy in (
        Remedy.RETRY,
        Remedy.EXCLUSIVE_RERUN,
    )
    return bool(run.preempted) or wants


def wants_retry(run: Run) -> bool:
    """Whether the schedule requested it and should retry soon."""
    return run.request.by == SCHEDULE and was_prevented(run)


def fills_slot(run: Run, level: int) -> bool:
    """Whether the run fills its slot of a level: repeating it before the next slot would give no
    new information.
    """
    if run.preempted:
        return False
    if run.request.level > level:
        return run.report.outcome is Outcome.PASS
    if run.request.level < level:
        return False
    return run.report.outcome.is_conclusive or (run.request.by == SCHEDULE and not wants_retry(run))


def _next_try(tries: list[Run], slots: Slots, until: float) -> float:
    """After a run that could not start. The count restarts with each slot."""
    newest = max(tries, key=lambda run: (run.began, run.ended))
    ended = _get_end(newest, until)
    count = sum(slots.get_index(run.began) == slots.get_index(newest.began) for run in tries)
    slot = slots.find_first(ended + min(RETRY_S, slots.every_s / 2))
    if count > MAX_RETRIES:
        return slot
    return min(ended + Backoff(RETRY_S, slots.every_s).delay_s(count - 1), slot)


def _get_end(run: Run, until: float) -> float:
    """When it ended; where the clock was stepped meanwhile, when it began."""
    return run.ended if run.began <= run.ended <= until else run.began


def _hash_fraction(*parts: object) -> float:
    """The same for the same parts on every machine and version, from 0 up to but not 1."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
