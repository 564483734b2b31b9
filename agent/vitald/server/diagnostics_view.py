"""
The state of diagnostics: what the API and the metrics read of it, and checks, runs and the
validation as JSON.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from vitald.diagnostics.check import Check
from vitald.model.diagnostic import (
    ActiveRun,
    Fault,
    Measure,
    PassRecord,
    Run,
    RunRequest,
    ScheduledRun,
    Test,
)
from vitald.model.validation import MissedValidation, Validation
from vitald.server import serialize

if TYPE_CHECKING:
    from vitald.server import schema


class DiagnosticsView(Protocol):
    """The state of diagnostics, for the API and the metrics."""

    @property
    def checks(self) -> Mapping[str, Check]: ...
    @property
    def unavailable(self) -> Mapping[str, str]: ...
    @property
    def active(self) -> Sequence[ActiveRun]: ...
    @property
    def scheduled(self) -> Sequence[ScheduledRun]: ...
    @property
    def last_runs(self) -> Mapping[tuple[str, int], Run]: ...
    @property
    def passes(self) -> Sequence[PassRecord]: ...
    @property
    def blocked(self) -> str: ...
    @property
    def validation(self) -> Validation: ...


def serialize_outline(shown: DiagnosticsView) -> schema.DiagnosticOutline:
    """Active and queued runs, the last run of each check, and the age of the last passes: also part
    of `/v1/status`.
    """
    now = time.time()
    return {
        "going": [serialize_active(run) for run in shown.active],
        "last": [serialize_run(run) for _, run in sorted(shown.last_runs.items())],
        "passes": [serialize_pass(record, now) for record in shown.passes],
        "validation": serialize_validation(shown.validation),
    }


def serialize_validation(shown: Validation) -> schema.Validation:
    """Also part of the summary."""
    return {
        "stage": shown.stage.value,
        "level": shown.level,
        "after": shown.after,
        "since": serialize.format_moment(shown.since),
        "detail": shown.detail,
        "missed": _serialize_missed(shown.missed) if shown.missed is not None else None,
    }


def _serialize_missed(missed: MissedValidation) -> schema.MissedValidation:
    return {
        "level": missed.level,
        "after": missed.after.value,
        "because": missed.because,
        "since": serialize.format_moment(missed.since),
        "reason": missed.reason,
    }


def serialize_check(check: Check, missing: str) -> schema.DiagnosticCheck:
    """By level, where it has levels; else all is under `0`. A period of 0: on request only.
    `unavailable`: determined elsewhere, as that blocks.
    """
    return {
        "name": check.name,
        "title": check.title,
        "levels": list(check.levels),
        "missing": missing,
        "every": {str(level): check.every_s(level) for level in check.levels},
        "expected": {str(level): check.expected_s(level) for level in check.levels},
        "needsIdle": {str(level): check.needs_idle(level) for level in check.levels},
    }


def serialize_scheduled(scheduled: ScheduledRun) -> schema.DiagnosticDue:
    return {
        "check": scheduled.check,
        "level": scheduled.level,
        "at": serialize.format_moment(scheduled.at),
        "waitsFor": scheduled.waits_for,
    }


def serialize_pass(record: PassRecord, now: float) -> schema.DiagnosticPass:
    return {
        "check": record.check,
        "level": record.level,
        "every": record.every_s,
        "passed": serialize.format_moment(record.passed_at),
        "since": serialize.format_moment(record.since),
        "old": record.is_old(now),
    }


def serialize_active(run: ActiveRun) -> schema.DiagnosticGoing:
    """`elapsed` is 0 while it waits."""
    return {
        **_serialize_request(run.id, run.ask),
        "stage": run.stage.value,
        "askedAt": serialize.format_moment(run.asked_at),
        "began": serialize.format_moment(run.began),
        "elapsed": round(max(0.0, time.time() - run.began), 3) if run.began is not None else 0.0,
        "expected": run.expected_s,
        "waitsFor": run.waits_for,
        "test": run.test,
    }


def serialize_run(run: Run) -> schema.DiagnosticRun:
    report = run.report
    return {
        **_serialize_request(run.id, run.ask),
        "began": serialize.format_moment(run.began),
        "ended": serialize.format_moment(run.ended),
        "seconds": round(max(0.0, run.ended - run.began), 3),
        "outcome": report.outcome.value,
        "why": report.reason,
        "action": report.remedy.value,
        "rebootRequired": report.reboot_required,
        "replacementRequired": report.replacement_required,
        "exitCode": run.exit_code,
        "culprits": list(report.culprits),
        "preempted": run.preempted,
        "dcgmVersion": report.dcgm_version,
        "driverVersion": report.driver_version,
        "deviceIds": list(report.device_ids),
    }


def serialize_full_run(run: Run) -> schema.DiagnosticRunInFull:
    """A run with its output, and everything that was read from it."""
    report = run.report
    return {
        **serialize_run(run),
        "command": run.command,
        "tests": [_serialize_test(test) for test in report.tests],
        "faults": [_serialize_fault(fault) for fault in report.faults],
        "measures": [_serialize_measure(measure) for measure in report.measures],
        "raw": run.raw,
    }


def _serialize_request(id_: str, ask: RunRequest) -> schema.DiagnosticAsk:
    return {
        "id": id_,
        "check": ask.check,
        "level": ask.level,
        "gpus": list(ask.gpus),
        "by": ask.by,
        "reason": ask.reason,
    }


def _serialize_test(test: Test) -> schema.DiagnosticTest:
    return {
        "name": test.name,
        "category": test.category,
        "status": test.status,
        "gpus": {str(gpu): status for gpu, status in test.gpus.items()},
        "cpus": {str(cpu): status for cpu, status in test.cpus.items()},
    }


def _serialize_fault(fault: Fault) -> schema.DiagnosticFault:
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


def _serialize_measure(measure: Measure) -> schema.DiagnosticMeasure:
    return {
        "name": measure.name,
        "device": measure.device,
        "value": _drop_infinity(measure.value),
        "least": _drop_infinity(measure.least),
        "most": _drop_infinity(measure.most),
        "learned": measure.learned,
    }


def _drop_infinity(value: float | None) -> float | None:
    """JSON knows no infinity, and programs print what they like."""
    return value if value is not None and math.isfinite(value) else None
