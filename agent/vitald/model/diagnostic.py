"""
What a check found: the nouns.

Owns     outcomes, remedies, faults, measures, and a run as it is remembered.
Refuses  I/O, and meaning: what an error id stands for is in the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """Of a whole run. Only `pass` says that the hardware is well, and only `fail` that it
    is not.
    """

    PASS = "pass"  # noqa: S105 - every mandatory test of what was asked for passed
    FAIL = "fail"  # at least one finding of the hardware
    CONFIG = "config"  # only settings or the environment are wrong
    INCONCLUSIVE = (  # nothing failed, but a mandatory test was skipped or has no result
        "inconclusive"
    )
    ERROR = "error"  # no usable verdict: it did not run, or not to its end
    NOT_APPLICABLE = "not_applicable"  # the node cannot be tested in its present mode

    @property
    def conclusive(self) -> bool:
        return self in (Outcome.PASS, Outcome.FAIL)


class Remedy(Enum):
    """What a result asks for. The members' order is the order of strength."""

    NONE = "none"
    RETRY = "retry"
    MONITOR = "monitor"
    FIX_CONFIG = "fix_config"
    EXCLUSIVE_RERUN = "exclusive_rerun"  # again, with nobody else on the node
    INVESTIGATE = "investigate"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {remedy: rank for rank, remedy in enumerate(Remedy)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that a check complains of."""

    code: str  # the catalogue's: `dcgm/58`
    test: str
    text: str
    gpu: int | None = None  # as the tool numbers it; None where it names none
    device: str = ""  # another device by its name: `rdmap0s6`, `cpu/0`
    error_id: int | None = None
    category: int | None = None
    severity: int | None = None
    remedy: Remedy = Remedy.INVESTIGATE
    confirm: bool = False  # believed only when it is found twice
    confirmed: bool = False  # and an earlier run had found it
    by_text: bool = False  # the GPU's number stands in its text only
    implied: bool = (
        False  # not printed, but concluded: from a status without a reason, or an exit code
    )

    @property
    def certain(self) -> bool:
        return self.confirmed or not self.confirm


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test of a run: statuses as they were printed. Empty where nothing was."""

    __test__ = False  # no test case of pytest's

    name: str
    category: str = ""
    status: str = ""
    gpus: Mapping[str, str] = field(default_factory=dict)  # by index
    cpus: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure that was measured, in base units, and what it was held against."""

    name: str  # `busbw_bytes_per_second`, `latency_seconds`
    value: float
    device: str = ""
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run came to."""

    outcome: Outcome
    reason: str = ""  # one line for people; empty where all passed
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
    serials: Mapping[int, str] = field(
        default_factory=dict
    )  # of GPUs, by index, where the document has them


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run that somebody wants. `gpus`: only these, by index; none for all."""

    check: str
    level: int = 0  # DCGM's run level; 0 for checks that have none
    gpus: tuple[int, ...] = ()
    by: str = "schedule"  # who asks: `schedule`, `finding #12`, `root, pid 4711`, `job 1234`
    reason: str = ""
    busy: bool = False  # a person said that it may run beside other work

    @property
    def label(self) -> str:
        """`dcgm level 2`, for people."""
        return f"{self.check} level {self.level}" if self.level else self.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it is remembered. `id` is unique on the node, and tells when it began."""

    id: str
    ask: RunRequest
    began: float
    ended: float
    report: Report
    exit_code: int | None = (
        None  # None where no program was started; below 0 the signal that ended it
    )
    command: str = ""
    preempted: str = ""  # the work that it made room for
    raw: str = ""  # what was printed, as far as it was kept


class Refusal(Exception):
    """A run that cannot be asked for now. `hint` says what to do instead."""

    def __init__(self, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.hint = hint


class Stage(Enum):
    """Where a run that was asked for stands."""

    WAITING = "waiting"  # for idle devices, or for the one before it
    RUNNING = "running"
    ENDING = "ending"  # it was told to end


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    """A run that was asked for and has not ended. Times in seconds since the epoch."""

    id: str
    ask: RunRequest
    asked_at: float
    stage: Stage = Stage.WAITING
    began: float | None = None
    expected_s: float = 0.0
    waits_for: str = ""  # in words
    test: str = ""  # the test under way, where the program says it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """When the schedule runs a check next."""

    check: str
    level: int
    at: float
    waits_for: str = ""  # what it waited for when it was last due
