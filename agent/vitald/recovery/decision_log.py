"""
The decision log, for people and programs: `decisions.jsonl`, one decision per line, the newest
last; and how `vitald recovery run` reports a decision: as a sentence, and in log lines.

A decision that equals the one before it is counted there instead of written again; one that only
delays is replaced by the next. Rate limits do not depend on this file but on the action log: it may
be lost.

Owns     the file's format, and that it stays small.
Refuses  to be an input of decisions.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from vitald.log.line_format import format_record, is_journal
from vitald.model.words import Repair
from vitald.recovery import files
from vitald.recovery.decision import SAME_BOOT, Decision, Step
from vitald.recovery.recovery_request import Request
from vitald.text import escape_unprintable
from vitald.timestamps import format_rfc3339

Json = dict[str, object]
FILE = "decisions.jsonl"
BEGUN = "begun"
ORDERED = "ordered"  # by its program, or in the scheduler; a reboot happens only after that
DELAY = "delay"  # the name of this reason for a wait
_MAX_RECORDS, _MAX_BYTES, _MAX_FINDINGS = 500, 4 * 1024 * 1024, 8
# Without `why`, which may contain an age
_COMPARED_KEYS = (
    "request",
    "bootId",
    "action",
    "step",
    "checks",
    "outcome",
    "findings",
)
_ACTIONS = {Repair.REBOOT.value: "reboot the node", Repair.REPLACE.value: "have the node replaced"}
_NO_ACTION = "act"  # the request cannot be read


def build_record(
    decision: Decision, request: Request | None, boot_id: str, now: float, outcome: str = ""
) -> Json:
    """A decision as the file has it. `now`: Unix time; `outcome`: empty if no action was taken."""
    findings = request.findings[:_MAX_FINDINGS] if request is not None else ()
    return {
        "time": format_rfc3339(now),
        "last": format_rfc3339(now),
        "times": 1,
        "bootId": boot_id,
        "request": request.id if request is not None else None,
        "action": decision.kind.value if decision.kind is not None else None,
        "step": decision.step.value,
        "checks": list(decision.checks),
        "why": decision.why,
        "outcome": outcome,
        "findings": [
            {"id": finding.id, "component": finding.component, "code": finding.code}
            for finding in findings
        ],
    }


def read_records(folder: Path) -> list[Json]:
    """The decisions, the newest last; none if the file is missing or rejected. Lines that are not
    JSON objects are left out.
    """
    records = map(_parse_line, _read_lines(folder))
    return [record for record in records if record is not None]


def read_last_record(folder: Path, request_id: str) -> Json | None:
    """The newest decision, if it is on this request. During the delay before the next, it is the
    one before the delay: what it was refused for still prevents it.
    """
    records = [record for line in _read_lines(folder)[-2:] if (record := _parse_line(line))]
    on_request = [record for record in records if record.get("request") == request_id]
    decided = [record for record in on_request if record.get("checks") != [DELAY]]
    if not on_request or on_request[-1] is not records[-1]:
        return None
    return (decided or on_request)[-1]


def _read_lines(folder: Path) -> list[str]:
    try:
        data = files.read_owned_file(folder / FILE, {0}, _MAX_BYTES)
    except files.Untrusted:
        return []
    return data.decode("utf-8", "replace").splitlines()


def _parse_line(line: str) -> Json | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def append_record(folder: Path, record: Json, group: int) -> None:
    """Adds a decision, or counts it if it equals the last one. Readable by `group`. Raises
    OSError.
    """
    records = read_records(folder)
    if records and records[-1].get("checks") == [DELAY]:
        records.pop()
    if records and _is_end(records[-1], record):
        record = {**record, "time": records.pop().get("time")}
    if records and _is_repetition(records[-1], record):
        last = records.pop()
        times = last.get("times")
        count = times + 1 if isinstance(times, int) else 1
        record = {**record, "time": last.get("time"), "times": count}
    kept = [*records, record][-_MAX_RECORDS:]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in kept)
    files.write_durably(folder / FILE, data, group)


def _is_end(last: Json, record: Json) -> bool:
    """Whether the last one is the action that has ended now."""
    ended = {**last, "outcome": record.get("outcome")}
    return last.get("outcome") == BEGUN and _is_repetition(ended, record)


def _is_repetition(last: Json, record: Json) -> bool:
    """Whether both are the same decision."""
    return all(last.get(key) == record.get(key) for key in _COMPARED_KEYS)


def format_decision(
    decision: Mapping[str, object], *, dry_run: bool = False, boot_id: str = ""
) -> str:
    """A decision, as the decision log has it, on one line. `dry_run`: it was not carried out.
    `boot_id`: of the current boot, which shows whether a reboot has happened.
    """
    what = _ACTIONS.get(str(decision.get("action")), _NO_ACTION)
    text = _format_step(decision, what, dry_run=dry_run) + _describe_effect(decision, boot_id)
    times = decision.get("times")
    if isinstance(times, int) and times > 1:
        text += f" ({times} times)"
    return escape_unprintable(text)


def _format_step(decision: Mapping[str, object], what: str, *, dry_run: bool) -> str:
    step, why = decision.get("step"), decision.get("why")
    if step == Step.ACT.value:
        return f"would {what}" if dry_run else f"{what}: {decision.get('outcome')}"
    if step == Step.DRAIN.value:
        if dry_run:
            return f"would keep new work away, and then {what} once nothing runs here"
        return f"drain, to {what}"
    if step == Step.WAIT.value:
        return f"{what}: waits: {why}"
    return f"{'would refuse' if dry_run else 'refused'} to {what}: {why}"


def _describe_effect(decision: Mapping[str, object], boot_id: str) -> str:
    is_reboot = decision.get("action") == Repair.REBOOT.value
    if not boot_id or not is_reboot or decision.get("outcome") not in (BEGUN, ORDERED):
        return ""
    same = decision.get("bootId") == boot_id
    return f", {SAME_BOOT}" if same else ", and the node has been booted since"


def emit_log_line(form: str, level: str, event: str, **fields: object) -> None:
    """Write a log line to standard error. `form`: "text" or "json". Without the daemon's logging
    library: what runs as root imports only our code and Python's.
    """
    record = {"event": event, **fields, "level": level, "timestamp": format_rfc3339(time.time())}
    line = format_record(record, form, to_journal=is_journal(sys.stderr))
    print(line, file=sys.stderr, flush=True)
