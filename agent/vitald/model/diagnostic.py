"""
The data model of diagnostics: outcomes, remedies, faults, measures, runs.

Refuses  I/O, and the meaning of error ids, which is in the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from vitald.model.words import Outcome, Remedy

MONITOR, TRIAGE = 1, 4  # DCGM's error severities


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault that a check reports."""

    code: str  # the catalogue's: `dcgm/58`
    test: str
    text: str
    gpu: int | None = None  # as the tool numbers it; None where it names none
    device: str = ""  # another device by its name: `rdmap0s6`, `cpu/0`
    error_id: int | None = None
    category: int | None = None
    severity: int | None = None  # DCGM's, which the checks of the site use, too
    remedy: Remedy = Remedy.INVESTIGATE
    confirm: bool = False  # counts only if it is found twice
    confirmed: bool = False  # an earlier run found it, too
    by_text: bool = False  # the GPU's number is in its text only
    # Not printed, but concluded from a status without a reason, or from an exit code
    implied: bool = False

    @property
    def is_certain(self) -> bool:
        return self.confirmed or not self.confirm


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test of a run, with its statuses as they were printed (empty if none were)."""

    __test__ = False  # no test case of pytest's

    name: str
    category: str = ""
    status: str = ""
    gpus: Mapping[str, str] = field(default_factory=dict)  # by index
    cpus: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measured value, in base units, and the limits that apply to it."""

    name: str  # `busbw_bytes_per_second`, `latency_seconds`
    value: float
    device: str = ""
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run."""

    outcome: Outcome
    reason: str = ""  # one line for operators; empty if everything passed
    remedy: Remedy = Remedy.NONE
    reboot_required: bool = False
    replacement_required: bool = False
    tests: tuple[Test, ...] = ()
    faults: tuple[Fault, ...] = ()
    culprits: tuple[int, ...] = ()  # GPUs to blame, by index, sorted
    measures: tuple[Measure, ...] = ()
    dcgm_version: str = ""
    driver_version: str = ""
    device_ids: tuple[str, ...] = ()  # PCI device ids, one for each GPU
    # Serial numbers of GPUs by index, if the output has them
    serials: Mapping[int, str] = field(default_factory=dict)
    # PCI addresses of GPUs by index, if the program prints them. Not stored: they identify the
    # GPUs while the run is interpreted.
    addresses: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A request for a run. `gpus`: indexes of the GPUs to test; empty for all."""

    check: str
    level: int = 0  # DCGM's run level; 0 for checks that have none
    gpus: tuple[int, ...] = ()
    by: str = "schedule"  # the requester: `schedule`, `finding #12`, `root, pid 4711`, `job 1234`
    reason: str = ""
    busy: bool = False  # a person allowed it to run beside other work

    @property
    def label(self) -> str:
        """Name for operators: `dcgm level 2`."""
        return f"{self.check} level {self.level}" if self.level else self.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run. `id` is unique on the node, and contains the time at which it began."""

    id: str
    request: RunRequest
    began: float
    ended: float
    report: Report
    # None if no program was started, or its end is not known; negative: the signal that ended it
    exit_code: int | None = None
    command: str = ""
    preempted: str = ""  # the work that it made room for
    raw: str = ""  # the output, as far as it was kept


class Refusal(Exception):
    """A request for a run is refused. `hint` says what to do instead."""

    def __init__(self, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.hint = hint


class Stage(Enum):
    """Stage of a requested run."""

    WAITING = "waiting"  # for idle devices, or for the one before it
    RUNNING = "running"
    ENDING = "ending"  # it is being terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    """A requested run that has not ended. Times in seconds since the epoch."""

    id: str
    request: RunRequest
    requested_at: float
    stage: Stage = Stage.WAITING
    began: float | None = None
    expected_s: float = 0.0
    waits_for: str = ""  # in words
    test: str = ""  # the current test, if the program reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedRun:
    """A requested run without a verdict so far. Times in seconds since the epoch."""

    id: str  # of its next run
    request: RunRequest
    since: float
    attempts: int = 0  # that were stopped, or could not run for a temporary reason
    not_before: float = 0.0  # when the next one may start
    why: str = ""  # why the last one came to nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """When the schedule runs a check next."""

    check: str
    level: int
    at: float
    waits_for: str = ""  # what prevented it when it was last due
