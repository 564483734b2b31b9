"""
A request: the daemon asks root to have this node rebooted or replaced, and says for which findings.

Owns     what may be asked for, which findings ask for it, and the file's form: written here, read
         back strictly.
Refuses  files, clocks, and whether it is granted.

Source of trust: none. Whoever can write the file can ask; what is asked is held against the
daemon's own answers and root's book.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from vitald.checking import Unexpected, read_line, read_list, read_number, read_whole
from vitald.model import Action, Finding, FindingState

T = TypeVar("T")

VERSION = 1
MAX_BYTES = 128 * 1024  # what is written is never so long
FILE = "recovery/request.json"  # in the runtime folder
_MAX_FINDINGS, _MAX_REASONS = 16, 8
_MAX_TEXT, _MAX_RAW = 256, 512
_MAX_NUMBER = 2**53


class InvalidRequest(Exception):
    """Not a request; the text says why."""


class Kind(Enum):
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def description(self) -> str:
        return "reboot the node" if self is Kind.REBOOT else "have the node replaced"


Cause = tuple[str, str]  # component and code: what is counted for, however often it is opened anew


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRef:
    """One finding that asks for it, by its number in the ledger."""

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
    """`uptime` is when it was written, on the clock that counts from the boot and that nobody can
    set; `time` is for people.
    """

    id: str
    boot_id: str
    time: float
    uptime: float
    kind: Kind
    host: str
    requester: str
    status: str
    reasons: tuple[str, ...]
    findings: tuple[FindingRef, ...]

    @property
    def causes(self) -> tuple[Cause, ...]:
        return tuple(dict.fromkeys(ground.cause for ground in self.findings))


def choose_kind(action: Action, *, device_reset: bool) -> Kind | None:
    """As the verdict's flags have it: a reset that the site does not do itself needs a reboot."""
    if action is Action.REPLACE_NODE:
        return Kind.REPLACE
    wanted = {Action.REBOOT_NODE} if device_reset else {Action.REBOOT_NODE, Action.RESET_DEVICE}
    return Kind.REBOOT if action in wanted else None


def select_action(
    findings: Sequence[Finding], settled: Callable[[Finding], bool], *, device_reset: bool
) -> tuple[Kind, tuple[Finding, ...]] | None:
    """What real findings ask for that a second source confirmed, and which. Replacing outranks
    rebooting, and is waited for where it is not settled yet.

    Nothing while somebody is at work on one of them.
    """
    asking = [
        (kind, one)
        for one in findings
        if not (one.is_simulated or one.on_trial or one.is_deferred)
        and (kind := choose_kind(one.action, device_reset=device_reset))
    ]
    if any(one.state is not FindingState.OPEN for _, one in asking):
        return None
    asking = [(kind, one) for kind, one in asking if one.is_confirmed]
    kinds = {kind for kind, _ in asking}
    strongest = Kind.REPLACE if Kind.REPLACE in kinds else Kind.REBOOT
    ready = tuple(one for kind, one in asking if kind is strongest and settled(one))
    return (strongest, ready[:_MAX_FINDINGS]) if ready else None


def make_finding_ref(found: Finding, plain: Callable[[str], str]) -> FindingRef:
    """`plain` makes text presentable: lines of the log are anybody's."""
    return FindingRef(
        id=found.id,
        component=plain(found.component.name)[:_MAX_TEXT],
        code=plain(found.code)[:_MAX_TEXT],
        since=found.since,
        action=found.action.value,
        count=found.count,
        raw=plain(found.raw)[:_MAX_RAW],
    )


def render_request(request: Request) -> bytes:
    told = {
        "version": VERSION,
        "id": request.id,
        "bootId": request.boot_id,
        "time": request.time,
        "uptime": request.uptime,
        "action": request.kind.value,
        "host": request.host[:_MAX_TEXT],
        "who": request.requester,
        "status": request.status,
        "reasons": [reason[:_MAX_RAW] for reason in request.reasons[:_MAX_REASONS]],
        "findings": [
            {
                "id": one.id,
                "component": one.component,
                "code": one.code,
                "since": one.since,
                "action": one.action,
                "count": one.count,
                "raw": one.raw,
            }
            for one in request.findings
        ],
    }
    return json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n"


def parse_request(data: bytes) -> Request:
    """Exactly what `render_request` writes, and nothing else. Raises RequestBroken."""
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"longer than {MAX_BYTES} bytes")
    told = read_object(parse_strict_json(data), "the request", _REQUEST_KEYS)
    if get_whole_number(told, "version") != VERSION:
        raise InvalidRequest(f"version {told['version']}, not {VERSION}")
    findings = get_items(told, "findings", 1, _MAX_FINDINGS)
    try:
        kind = Kind(told["action"])
    except ValueError:
        raise InvalidRequest(
            f"action: {str(told['action'])[:80]!r} is none of reboot, replace"
        ) from None
    return Request(
        id=get_text(told, "id", 64, least=8),
        boot_id=get_text(told, "bootId", 64, least=1),
        time=get_number(told, "time"),
        uptime=get_number(told, "uptime"),
        kind=kind,
        host=get_text(told, "host", _MAX_TEXT),
        requester=get_text(told, "who", _MAX_TEXT),
        status=get_text(told, "status", _MAX_TEXT),
        reasons=_read_texts(told, "reasons"),
        findings=tuple(_read_finding(one) for one in findings),
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
        "who",
        "status",
        "reasons",
        "findings",
    }
)
_FINDING_KEYS = frozenset({"id", "component", "code", "since", "action", "count", "raw"})


def _read_finding(value: object) -> FindingRef:
    told = read_object(value, "a finding", _FINDING_KEYS)
    return FindingRef(
        id=get_whole_number(told, "id"),
        component=get_text(told, "component", _MAX_TEXT, least=1),
        code=get_text(told, "code", _MAX_TEXT, least=1),
        since=get_number(told, "since"),
        action=get_text(told, "action", _MAX_TEXT, least=1),
        count=get_whole_number(told, "count"),
        raw=get_text(told, "raw", _MAX_RAW),
    )


def _read_texts(told: Mapping[str, object], key: str) -> tuple[str, ...]:
    return tuple(
        get_text({key: member}, key, _MAX_RAW) for member in get_items(told, key, 0, _MAX_REASONS)
    )


# What the book's reader needs, too.


def parse_strict_json(data: bytes) -> object:
    """One JSON document without what JSON does not know, and no key twice. Raises RequestBroken."""

    def once(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{key[:80]!r} twice")
            found[key] = value
        return found

    def never(word: str) -> object:
        raise ValueError(f"{word} is no number")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_constant=never)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {str(error)[:120]}") from None


def read_object(value: object, what: str, keys: frozenset[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} is not a JSON object")
    if unknown := sorted(set(value) - keys):
        raise InvalidRequest(f"{what}: unknown key {unknown[0][:80]!r}")
    if missing := sorted(keys - set(value)):
        raise InvalidRequest(f"{what}: no {missing[0]!r}")
    return value


def get_text(told: Mapping[str, object], key: str, most: int, least: int = 0) -> str:
    expected = f"{least} to {most} printable characters"
    return _get_checked(told, key, lambda value: read_line(value, least, most, expected))


def get_number(told: Mapping[str, object], key: str) -> float:
    expected = "a number from 0 to 2^53"
    return _get_checked(told, key, lambda value: read_number(value, 0, _MAX_NUMBER, expected))


def get_whole_number(told: Mapping[str, object], key: str) -> int:
    expected = "a whole number from 0 to 2^53"
    return _get_checked(told, key, lambda value: read_whole(value, 0, _MAX_NUMBER, expected))


def get_items(told: Mapping[str, object], key: str, least: int, most: int) -> list[object]:
    return _get_checked(told, key, lambda value: read_list(value, least, most))


def _get_checked(told: Mapping[str, object], key: str, read: Callable[[object], T]) -> T:
    """Does not repeat the value: whoever wrote the file may be anybody."""
    try:
        return read(told[key])
    except Unexpected as error:
        raise InvalidRequest(f"{key}: expected {error.expected}") from None
