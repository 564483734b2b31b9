"""
A request of the daemon: root is to have this node rebooted or replaced, for the findings it names.

Owns     what can be requested, which findings require it, and the file's format: written here, read
         back strictly.
Refuses  files, clocks, and deciding whether it is granted.

Source of trust: none. Anyone who can write the file can make a request; it is checked against the
daemon's own answers and root's action log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vitald.checking import Unexpected, read_line, read_list, read_number, read_whole
from vitald.model.finding import Finding, FindingState
from vitald.model.words import Repair

T = TypeVar("T")

VERSION = 1
MAX_BYTES = 128 * 1024  # more than is ever written
FILE = "recovery/request.json"  # in the runtime folder
_MAX_FINDINGS, _MAX_REASONS = 16, 8
_MAX_TEXT, _MAX_RAW = 256, 512
_MAX_NUMBER = 2**53


class InvalidRequest(Exception):
    """The file is not a request; the text says why."""


Cause = tuple[str, str]  # component and code: the same for every new finding of one fault


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRef:
    """One finding that requires the action. `id`: its number in the ledger."""

    id: int
    component: str
    code: str
    since: float
    action: str
    count: int
    raw: str

    @property
    def cause(self) -> Cause:
        return self.component, self.code

    @property
    def label(self) -> str:
        return f"#{self.id} {self.code} of {self.component}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`uptime`: when it was written, in seconds since the boot, by a clock that cannot be set;
    `time`: the same as Unix time, for people.
    """

    id: str
    boot_id: str
    time: float
    uptime: float
    kind: Repair
    host: str
    requester: str
    status: str
    reasons: tuple[str, ...]
    findings: tuple[FindingRef, ...]

    @property
    def causes(self) -> tuple[Cause, ...]:
        return tuple(dict.fromkeys(finding.cause for finding in self.findings))


def select_action(
    findings: Sequence[Finding], settled: Callable[[Finding], bool], *, device_reset: bool
) -> tuple[Repair, tuple[Finding, ...]] | None:
    """What the confirmed real findings require, and which of them do. A replacement outranks a
    reboot, which therefore waits until the replacement is `settled`.

    None while work on one of them is under way.
    """
    requiring = [
        (kind, finding)
        for finding in findings
        if not (finding.is_simulated or finding.is_deferred)
        and (kind := finding.action.choose_repair(device_reset=device_reset))
    ]
    if any(finding.state is not FindingState.OPEN for _, finding in requiring):
        return None
    requiring = [(kind, finding) for kind, finding in requiring if finding.is_confirmed]
    kinds = {kind for kind, _ in requiring}
    strongest = Repair.REPLACE if Repair.REPLACE in kinds else Repair.REBOOT
    ready = tuple(finding for kind, finding in requiring if kind is strongest and settled(finding))
    return (strongest, ready[:_MAX_FINDINGS]) if ready else None


def make_finding_ref(finding: Finding, sanitize: Callable[[str], str]) -> FindingRef:
    """`sanitize` makes text printable: any user may have written a line of the log."""
    return FindingRef(
        id=finding.id,
        component=sanitize(finding.component.name)[:_MAX_TEXT],
        code=sanitize(finding.code)[:_MAX_TEXT],
        since=finding.since,
        action=finding.action.value,
        count=finding.count,
        raw=sanitize(finding.raw)[:_MAX_RAW],
    )


def render_request(request: Request) -> bytes:
    document = {
        "version": VERSION,
        "id": request.id,
        "bootId": request.boot_id,
        "time": request.time,
        "uptime": request.uptime,
        "action": request.kind.value,
        "host": request.host[:_MAX_TEXT],
        "requester": request.requester,
        "status": request.status,
        "reasons": [reason[:_MAX_RAW] for reason in request.reasons[:_MAX_REASONS]],
        "findings": [
            {
                "id": finding.id,
                "component": finding.component,
                "code": finding.code,
                "since": finding.since,
                "action": finding.action,
                "count": finding.count,
                "raw": finding.raw,
            }
            for finding in request.findings
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def parse_request(data: bytes) -> Request:
    """Read what `render_request` writes. Raises InvalidRequest for anything else."""
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"longer than {MAX_BYTES} bytes")
    members = read_object(parse_strict_json(data), "the request", _REQUEST_KEYS)
    if get_whole_number(members, "version") != VERSION:
        raise InvalidRequest(f"version {members['version']}, not {VERSION}")
    findings = get_items(members, "findings", 1, _MAX_FINDINGS)
    try:
        kind = Repair(members["action"])
    except ValueError:
        raise InvalidRequest(
            f"action: must be one of reboot, replace, not {str(members['action'])[:80]!r}"
        ) from None
    return Request(
        id=get_text(members, "id", 64, min_length=8),
        boot_id=get_text(members, "bootId", 64, min_length=1),
        time=get_number(members, "time"),
        uptime=get_number(members, "uptime"),
        kind=kind,
        host=get_text(members, "host", _MAX_TEXT),
        requester=get_text(members, "requester", _MAX_TEXT),
        status=get_text(members, "status", _MAX_TEXT),
        reasons=_read_texts(members, "reasons"),
        findings=tuple(_read_finding(finding) for finding in findings),
    )


_REQUEST_KEYS = frozenset(
    {
        "version",
        "id",
        "bootId",
        "time",
        "uptime",
        "action",
        "host",
        "requester",
        "status",
        "reasons",
        "findings",
    }
)
_FINDING_KEYS = frozenset({"id", "component", "code", "since", "action", "count", "raw"})


def _read_finding(value: object) -> FindingRef:
    members = read_object(value, "a finding", _FINDING_KEYS)
    return FindingRef(
        id=get_whole_number(members, "id"),
        component=get_text(members, "component", _MAX_TEXT, min_length=1),
        code=get_text(members, "code", _MAX_TEXT, min_length=1),
        since=get_number(members, "since"),
        action=get_text(members, "action", _MAX_TEXT, min_length=1),
        count=get_whole_number(members, "count"),
        raw=get_text(members, "raw", _MAX_RAW),
    )


def _read_texts(members: Mapping[str, object], key: str) -> tuple[str, ...]:
    return tuple(
        get_text({key: item}, key, _MAX_RAW) for item in get_items(members, key, 0, _MAX_REASONS)
    )


# --- checks of JSON, also for the action log


def parse_strict_json(data: bytes) -> object:
    """One JSON document, without the constants that Python adds to JSON and without duplicate keys.

    Raises InvalidRequest.
    """

    def reject_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, value in pairs:
            if key in members:
                raise ValueError(f"{key[:80]!r} twice")
            members[key] = value
        return members

    def reject_constant(word: str) -> object:
        raise ValueError(f"{word} is no number")

    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=reject_duplicates, parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {str(error)[:120]}") from None


def read_object(value: object, what: str, keys: frozenset[str]) -> dict[str, object]:
    """An object with exactly these keys. `what`: its name in errors. Raises InvalidRequest, as do
    the functions below.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} is not a JSON object")
    if unknown := sorted(set(value) - keys):
        raise InvalidRequest(f"{what}: unknown key {unknown[0][:80]!r}")
    if missing := sorted(keys - set(value)):
        raise InvalidRequest(f"{what}: no {missing[0]!r}")
    return value


def get_text(members: Mapping[str, object], key: str, max_length: int, min_length: int = 0) -> str:
    """One line of printable characters."""
    expected = f"{min_length} to {max_length} printable characters"
    return _get_checked(
        members, key, lambda value: read_line(value, min_length, max_length, expected)
    )


def get_number(members: Mapping[str, object], key: str) -> float:
    expected = "a number from 0 to 2^53"
    return _get_checked(members, key, lambda value: read_number(value, 0, _MAX_NUMBER, expected))


def get_whole_number(members: Mapping[str, object], key: str) -> int:
    expected = "a whole number from 0 to 2^53"
    return _get_checked(members, key, lambda value: read_whole(value, 0, _MAX_NUMBER, expected))


def get_items(
    members: Mapping[str, object], key: str, min_length: int, max_length: int
) -> list[object]:
    return _get_checked(members, key, lambda value: read_list(value, min_length, max_length))


def _get_checked(members: Mapping[str, object], key: str, read: Callable[[object], T]) -> T:
    """The error does not quote the value: any user may have written the file."""
    try:
        return read(members[key])
    except Unexpected as error:
        raise InvalidRequest(f"{key}: expected {error.expected}") from None
