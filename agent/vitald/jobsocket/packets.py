"""
The packets of a job: one JSON object each, as `vitald.model.job_page` lists them.

Owns     the check of every value. Unknown keys are ignored, so that a newer client is understood.
Refuses  the connection, its rate limit, and what a report means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Union

from vitald.checking import Unexpected, read_member, read_number, read_whole
from vitald.model.job_page import (
    MAX_ERROR_TEXT,
    MAX_HOLD_S,
    MAX_PACKET_BYTES,
    OBSERVER,
    VERSION,
    CheckpointState,
    CheckpointTier,
    ErrorKind,
    PacketKind,
    Phase,
)
from vitald.text import replace_unprintable

MAX_STEP = 2**53 - 1  # what JSON holds exactly
MAX_SECONDS = 86400.0
MAX_BYTES = 2.0**60
_MAX_RANK = 2**31 - 1
_MAX_JOB = 64  # characters
_PHASES = {phase.word: phase for phase in Phase}


class WrongPacket(ValueError):
    """A packet that breaks the protocol; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who a rank claims to be. `step_limit_s`: a longer step is a stall; 0 for the default.

    `is_observer`: it is no rank, but reports errors of the job. `hold_s`: the rank goes on for so
    long after its connection ended, for a client that connects for each report.
    """

    rank: int
    local_rank: int
    world: int
    job: str
    attempt: int
    step_limit_s: float
    is_observer: bool = False
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Listen:
    """A client that is no rank, and wants the advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last step of a rank, by its page or by packets. None: not reported, or absurd."""

    step: int
    seconds: float | None = None
    busy: float | None = None
    loss: float | None = None
    is_finite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """What a rank does from now on; `limit_s` is 0 if that has no limit."""

    phase: Phase
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    state: CheckpointState
    step: int
    bytes: int
    seconds: float
    tier: CheckpointTier


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    what: ErrorKind
    text: str


Packet = Union[Hello, Listen, Progress, PhaseReport, CheckpointReport, ErrorReport]


def parse_packet(data: bytes) -> Packet:
    """Raises WrongPacket."""
    if len(data) > MAX_PACKET_BYTES:
        raise WrongPacket(f"it is longer than {MAX_PACKET_BYTES} bytes")
    try:
        packet = json.loads(data)
    except (ValueError, RecursionError):
        raise WrongPacket("it is no JSON in UTF-8") from None
    if not isinstance(packet, dict):
        raise WrongPacket("it is no JSON object")
    kind = packet.get("kind")
    parse = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parse is None:
        raise WrongPacket("kind: it is none of " + ", ".join(_PARSERS))
    try:
        return parse(packet)
    except Unexpected as error:  # without the value, which may be long
        raise WrongPacket(f"{kind}: expected {error.expected}") from None
    except ValueError:
        raise WrongPacket(f"{kind}: an unknown word") from None


def read_seconds(value: object) -> float | None:
    """A claimed time; None if it is missing or absurd."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0.0 <= value <= MAX_SECONDS else None


def read_limit(value: object) -> float:
    """A claimed limit in seconds, a day at most; 0 if it is missing or absurd."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0.0:
        return 0.0
    return float(min(value, MAX_SECONDS))


def _parse_listen(packet: Mapping[str, object]) -> Listen:
    read_whole(packet.get("v", VERSION), VERSION, VERSION, f"v = {VERSION}")
    return Listen()


def _parse_hello(packet: Mapping[str, object]) -> Hello:
    read_whole(packet.get("v", VERSION), VERSION, VERSION, f"v = {VERSION}")
    job = packet.get("job", "")
    if not isinstance(job, str):
        raise Unexpected("job as text", job)
    rank = _read_count(packet, "rank", _MAX_RANK)
    return Hello(
        rank=rank,
        local_rank=_read_count(packet, "local_rank", _MAX_RANK, rank),
        world=_read_count(packet, "world", _MAX_RANK, 1),
        job=replace_unprintable(job[:_MAX_JOB]).strip(),
        attempt=_read_count(packet, "attempt", _MAX_RANK, 0),
        step_limit_s=read_limit(packet.get("step_limit_s")),
        is_observer=packet.get("role") == OBSERVER,
        hold_s=min(read_limit(packet.get("hold_s")), MAX_HOLD_S),
    )


def _parse_step(packet: Mapping[str, object]) -> Progress:
    loss, finite = packet.get("loss"), packet.get("finite", True)
    number = None
    if isinstance(loss, (int, float)) and not isinstance(loss, bool) and abs(loss) <= 1e300:
        number = float(loss)
    is_nan = isinstance(loss, float) and not math.isfinite(loss)
    return Progress(
        step=_read_count(packet, "step", MAX_STEP),
        seconds=read_seconds(packet.get("seconds")),
        busy=read_seconds(packet.get("busy")),
        loss=number,
        is_finite=finite is not False and not is_nan,
    )


def _parse_phase(packet: Mapping[str, object]) -> PhaseReport:
    phase = packet.get("phase")
    if not isinstance(phase, str) or phase not in _PHASES:
        raise Unexpected("phase: one of " + ", ".join(_PHASES), phase)
    return PhaseReport(phase=_PHASES[phase], limit_s=read_limit(packet.get("limit_s")))


def _parse_checkpoint(packet: Mapping[str, object]) -> CheckpointReport:
    return CheckpointReport(
        state=read_member(packet.get("state"), CheckpointState),
        step=_read_count(packet, "step", MAX_STEP, 0),
        bytes=int(read_number(packet.get("bytes") or 0, 0, MAX_BYTES, "bytes")),
        seconds=read_seconds(packet.get("seconds")) or 0.0,
        tier=read_member(packet.get("tier", CheckpointTier.GLOBAL.value), CheckpointTier),
    )


def _parse_error(packet: Mapping[str, object]) -> ErrorReport:
    text = packet.get("text", "")
    if not isinstance(text, str):
        raise Unexpected("text as text", text)
    known = {kind.value: kind for kind in ErrorKind}
    return ErrorReport(
        what=known.get(str(packet.get("what")), ErrorKind.OTHER),
        text=replace_unprintable(text[:MAX_ERROR_TEXT]).strip(),
    )


_PARSERS: Mapping[str, Callable[[Mapping[str, object]], Packet]] = {
    PacketKind.HELLO.value: _parse_hello,
    PacketKind.LISTEN.value: _parse_listen,
    PacketKind.STEP.value: _parse_step,
    PacketKind.PHASE.value: _parse_phase,
    PacketKind.CHECKPOINT.value: _parse_checkpoint,
    PacketKind.ERROR.value: _parse_error,
}


def _read_count(
    packet: Mapping[str, object], key: str, most: int, default: int | None = None
) -> int:
    value = packet.get(key, default)
    return read_whole(value, 0, most, f"{key}: a whole number from 0", from_json=True)
