"""
A run as SageMaker HyperPod's agents write it, for those who search logs for that.

Owns     the DCGM summary line, and the lines of the deep health check's log with the file that they
         go to.
Refuses  anything of its own: what these lines cannot say is in the ledger and the metrics.

A run without a verdict has no summary: the line knows only flags, and two flags that are false read
as a pass.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from vitald.model.diagnostic import Measure, Run
from vitald.model.words import Outcome
from vitald.text import replace_unprintable
from vitald.timestamps import format_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_UNKNOWN = "unknown"
_MAX_LENGTH = 2000  # characters of a line
_WORD = re.compile(r"[^0-9A-Za-z._:+-]")
_GBIT, _MICROSECONDS = 8e-9, 1e6
# Checks whose measures are compared with what the site expects.
_LINKS = ("efa_loopback", "nccom", "nccl")
# Name in the line -> (the measure, what it is multiplied by). Bandwidth in Gbit/s, latency in
# microseconds.
_LOOPBACK = {
    "MaxBw": ("bandwidth_bytes_per_second", _GBIT),
    "AvgBw": ("bandwidth_average_bytes_per_second", _GBIT),
    "MaxTypicalLat": ("latency_max_typical_seconds", _MICROSECONDS),
    "MinTypicalLat": ("latency_min_typical_seconds", _MICROSECONDS),
    "AvgLat": ("latency_average_seconds", _MICROSECONDS),
}


def format_summary(run: Run) -> str:
    """The DCGM summary line; empty for other checks, and for a run without a verdict."""
    report = run.report
    if run.request.check != "dcgm" or not report.outcome.is_verdict:
        return ""
    devices = " ".join(map(_clean_word, report.device_ids))
    version, driver = _clean_word(report.dcgm_version), _clean_word(report.driver_version)
    replacement = _format_flag(report.replacement_required)
    return (
        f"DCGM diagnostic health summary: dcgmCheckLevel: {run.request.level} dcgmVersion:"
        f" {version} gpuDriverVersion: {driver},"
        f" gpuDeviceIds: [{devices}] replacementRequired: {replacement}"
        f" rebootRequired:{_format_flag(report.reboot_required)}"
    )


def format_deep_lines(run: Run, region: str = "", instance_type: str = "") -> tuple[str, ...]:
    """What a run adds to the deep health check's log, without newlines: the moment, the level and
    the text, with tabs between.

    The record of a faulty instance alone is a JSON object with `level`, `ts` and `msg`, as AWS
    documents both.
    """
    lines = []
    if summary := format_summary(run):
        lines.append(_format_record(run, "info", summary))
    lines += [_format_record(run, level, text) for level, text in _list_loopback(run)]
    if not run.report.outcome.is_verdict:
        lines.append(
            _format_record(run, "warn", f"{_get_title(run)} has no result: {_get_reason(run)}")
        )
    elif run.report.outcome is Outcome.FAIL:
        if _is_faulty(run):
            where = f"Region: {_clean_word(region)}, InstanceType: {_clean_word(instance_type)}."
            lines.append(
                _format_failure(
                    run,
                    f"Encountered FaultyInstance. Replace the Instance. {where}"
                    f" ERROR:{_describe_failure(run)}",
                )
            )
        else:
            waits = "" if _is_certain(run) else " (to be confirmed by a second run)"
            lines.append(
                _format_record(
                    run, "error", f"{_get_title(run)} failed: {_describe_failure(run)}{waits}"
                )
            )
    elif run.report.outcome is Outcome.CONFIG:
        lines.append(
            _format_record(
                run, "warn", f"{_get_title(run)} found settings that are wrong: {_get_reason(run)}"
            )
        )
    elif not lines:
        lines.append(_format_record(run, "info", f"{_get_title(run)} success"))
    return tuple(lines)


class DeepLog:
    """The file of the deep health check's log. Others rotate it, so it is opened for each run.
    Blocks: call it in a worker thread.
    """

    def __init__(self, path: Path, region: str = "", instance_type: str = "") -> None:
        self.path = path
        self.region = region
        self.instance_type = instance_type
        self._failed = ""

    def add_run(self, run: Run) -> None:
        self.append_lines(format_deep_lines(run, self.region, self.instance_type))

    def append_lines(self, lines: Iterable[str]) -> None:
        """Never raises: a write error is logged once, and again only after a write succeeded or for
        another reason.
        """
        try:
            self._write_data("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._failed:
                log.error(
                    "deep_log_not_written",
                    path=str(self.path),
                    error=reason,
                    effect="the runs are in the ledger all the same",
                )
            self._failed = reason
        else:
            self._failed = ""

    def _write_data(self, data: bytes) -> None:
        # Non-blocking: the path may be a FIFO without a reader.
        fd = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640
        )
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "not a regular file")
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)


def _list_loopback(run: Run) -> Iterable[tuple[str, str]]:
    """An adapter each, by its name: with its figures, or where there are none with what was
    found.
    """
    if run.request.check != "efa_loopback":
        return
    by_device: dict[str, dict[str, Measure]] = {}
    for measure in run.report.measures:
        by_device.setdefault(measure.device, {})[measure.name] = measure
    failed = {
        test.name.rpartition(" ")[2] for test in run.report.tests if test.status.lower() == "fail"
    }
    for device in sorted({*by_device, *failed}):
        measures = by_device.get(device, {})
        bad = device in failed or any(map(_is_missed, measures.values()))
        figures = ", ".join(
            f"{name}: {_scale_measure(measures, *place):.6f}" for name, place in _LOOPBACK.items()
        )
        found = f"Output summary is {figures}" if measures else _get_reason(run)
        verdict, name = "failed" if bad else "passed", _clean_word(device)
        text = f"EFA Loopback check {verdict} for device: {name} . {found}"
        yield "error" if bad else "info", text


def _scale_measure(measures: Mapping[str, Measure], name: str, factor: float) -> float:
    """Zero where it was not measured: the line has a place for all five."""
    value = measures[name].value * factor if name in measures else 0.0
    return value if math.isfinite(value) else 0.0


def _is_faulty(run: Run) -> bool:
    """What that log calls faulty: the node is to be replaced, or a link is slower than the site
    expects. What must be found twice was.
    """
    report = run.report
    slow = run.request.check in _LINKS and any(map(_is_missed, report.measures))
    return report.replacement_required or (slow and _is_certain(run))


def _is_certain(run: Run) -> bool:
    """Whether something that it found needs no second run any more."""
    return not run.report.faults or any(fault.is_certain for fault in run.report.faults)


def _is_missed(measure: Measure) -> bool:
    too_little = measure.minimum is not None and measure.value < measure.minimum
    return too_little or (measure.maximum is not None and measure.value > measure.maximum)


def _describe_failure(run: Run) -> str:
    missed = [_describe_miss(measure) for measure in run.report.measures if _is_missed(measure)]
    return "; ".join(missed[:8]) if missed else _get_reason(run)


def _describe_miss(measure: Measure) -> str:
    where = f" of {_clean_word(measure.device)}" if measure.device else ""
    if measure.minimum is not None and measure.value < measure.minimum:
        return (
            f"{measure.name}{where}: expected at least {_format_value(measure.minimum)}, measured"
            f" {_format_value(measure.value)}"
        )
    return (
        f"{measure.name}{where}: expected at most {_format_value(measure.maximum or 0.0)}, measured"
        f" {_format_value(measure.value)}"
    )


def _format_value(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1e6 else f"{value:.6g}"


def _get_title(run: Run) -> str:
    return f"{run.request.label} check"


def _get_reason(run: Run) -> str:
    return (
        run.report.reason
        or next((fault.text for fault in run.report.faults), "")
        or run.report.outcome.value
    )


def _format_record(run: Run, level: str, text: str) -> str:
    return f"{_format_time(run)}\t{level}\t{_to_ascii(text)}"


def _format_failure(run: Run, text: str) -> str:
    return json.dumps(
        {"level": "error", "ts": _format_time(run), "msg": _to_ascii(text)}, separators=(",", ":")
    )


def _format_time(run: Run) -> str:
    return format_rfc3339(run.ended, "seconds")


def _to_ascii(text: str) -> str:
    plain = replace_unprintable(text[:_MAX_LENGTH], " ")
    return plain.encode("ascii", "backslashreplace").decode()


def _clean_word(text: str) -> str:
    """One that cannot end its field: versions and names are printed by programs."""
    return _WORD.sub("", text.strip())[:64] or _UNKNOWN


def _format_flag(value: bool) -> str:
    return "true" if value else "false"
