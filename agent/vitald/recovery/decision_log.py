"""
What was decided, for people and programs: `decisions.jsonl`, one decision a line, the newest last.

A decision that is the same as the one before it is not told again: it is counted. What is counted
for a budget is not here but in the book: this file may be lost.

Owns     the file's form, and that it stays small.
Refuses  being read back as fact.
"""

from __future__ import annotations

import json
from pathlib import Path

from vitald.recovery import files
from vitald.recovery.decision import Decision
from vitald.recovery.request import Request
from vitald.timestamps import format_rfc3339

Json = dict[str, object]
FILE = "decisions.jsonl"
BEGUN = "begun"
_MAX_RECORDS, _MAX_BYTES, _MAX_FINDINGS = 500, 4 * 1024 * 1024, 8
# Not `why`: it tells how long ago
_COMPARED_KEYS = (
    "request",
    "bootId",
    "action",
    "step",
    "checks",
    "outcome",
    "findings",
)


def build_record(
    decision: Decision, request: Request | None, boot_id: str, now: float, outcome: str = ""
) -> Json:
    return {
        "time": format_rfc3339(now),
        "last": format_rfc3339(now),
        "times": 1,
        "bootId": boot_id,
        "request": request.id if request is not None else None,
        "action": decision.kind.value if decision.kind is not None else None,
        "step": decision.step.value,
        "checks": [name for name, _ in decision.reasons],
        "why": decision.why,
        "outcome": outcome,
        "findings": [
            {"id": one.id, "component": one.component, "code": one.code}
            for one in request.findings[:_MAX_FINDINGS]
        ]
        if request
        else [],
    }


def read_records(folder: Path) -> list[Json]:
    """The decisions; none where they cannot be read or are none."""
    try:
        data = files.read_owned_file(folder / FILE, {0}, _MAX_BYTES)
    except files.Untrusted:
        return []
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def append_record(folder: Path, decision: Json, group: int) -> None:
    """Raises OSError."""
    known = read_records(folder)
    if known and _is_repetition(known[-1], decision):
        times = known[-1].get("times")
        count = times + 1 if isinstance(times, int) and known[-1].get("outcome") != BEGUN else 1
        decision = {**decision, "time": known[-1].get("time"), "times": count}
        known.pop()
    kept = [*known, decision][-_MAX_RECORDS:]
    files.write_durably(
        folder / FILE, b"".join(json.dumps(one).encode() + b"\n" for one in kept), group
    )


def _is_repetition(one: Json, other: Json) -> bool:
    """What has begun and then ended is one, too."""
    ended = {**one, "outcome": other.get("outcome")} if one.get("outcome") == BEGUN else one
    return all(ended.get(key) == other.get(key) for key in _COMPARED_KEYS)
