"""
`vitald tell step=5210 loss=2.31`: a job reports its progress from a shell.

Each call is a connection of its own. The daemon keeps the rank for an hour after it, so that the
next call continues; `phase=end` ends it. Without a daemon nothing is reported, and that is no
error: a job script must not fail because of it.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable

from vitald import tomlfile
from vitald.cli import UsageError, job_connection
from vitald.cli.job_connection import JobConnection, cut_error_text
from vitald.model.job_page import CheckpointState, CheckpointTier, ErrorKind, Phase

Value = object

HOLD_S = 3600
MAX_SECONDS, MAX_BYTES, MAX_COUNT = 86400.0, 2.0**60, 2**31 - 1
MAX_STEP = 2**53 - 1  # what JSON holds exactly
# The word that says what is reported, the strongest first: `checkpoint=end step=5200` is a
# checkpoint.
KINDS = ("error", "checkpoint", "phase", "step")
WHO = ("rank", "job")
ALLOWED = {
    "error": {"error", "text"},
    "checkpoint": {"checkpoint", "step", "tier", "seconds", "bytes"},
    "phase": {"phase", "limit"},
    "step": {"step", "loss", "seconds", "busy"},
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="+",
        metavar="KEY=VALUE",
        help="step=N [loss=X] [seconds=X] [busy=X], phase=init|train|eval|checkpoint|wait|end"
        " [limit=30m], checkpoint=begin|end|failed [step=N] [tier=memory|local|global]"
        " [seconds=X] [bytes=N], or error=nccl|cuda|nan|oom|neuron|other [text=TEXT];"
        " with each: [rank=N] [job=NAME], by default from torchrun, Slurm or MPI",
    )


def run(arguments: argparse.Namespace) -> int:
    values = parse_words(arguments.words)
    kind = next((kind for kind in KINDS if kind in values), "")
    if not kind:
        raise UsageError("expected one of " + ", ".join(f"{kind}=" for kind in KINDS))
    for key in values:
        if key not in ALLOWED[kind] and key not in WHO:
            raise UsageError(f"{key}= does not go with {kind}=")
    who = {key: values.pop(key) for key in WHO if key in values}
    role = {"role": "observer"} if kind == "error" else {"hold_s": HOLD_S}
    path = job_connection.find_socket(os.environ)
    connection = JobConnection(path, {**job_connection.read_identity(os.environ), **who, **role})
    if not connection.send(make_packet(kind, values)):
        print(f"vitald: not reported: {job_connection.describe_absence(path)}", file=sys.stderr)
    connection.close()
    return 0


def make_packet(kind: str, values: dict[str, Value]) -> dict[str, Value]:
    """The packet of the job socket, from the words of the command line."""
    if kind == "error":
        return {"kind": kind, "what": values["error"], "text": values.get("text", "")}
    if kind == "phase":
        return {"kind": kind, "phase": values["phase"], "limit_s": values.get("limit", 0)}
    if kind == "checkpoint":
        state = {"state": values.pop("checkpoint")}
        return {"kind": kind, **state, **values}
    loss = values.pop("loss", None)
    if isinstance(loss, float) and not math.isfinite(loss):
        return {"kind": kind, **values, "finite": False}
    return {"kind": kind, **values, **({} if loss is None else {"loss": loss})}


def parse_words(words: list[str]) -> dict[str, Value]:
    """The values by key. Raises UsageError."""
    values: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in _PARSERS:
            known = ", ".join(_PARSERS)
            hint = tomlfile.suggest_word(key, _PARSERS)
            raise UsageError(f"{word[:64]!r}: expected KEY=VALUE with a key of {known}{hint}")
        if key in values:
            raise UsageError(f"{key}=: given twice")
        try:
            values[key] = _PARSERS[key](text)
        except (ValueError, OverflowError):
            raise UsageError(f"{key}={text[:64]}: expected {_EXPECTED[key]}") from None
    return values


def _choose(words: list[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return parse


def _count(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise ValueError
        return int(text)

    return parse


def _seconds(text: str) -> float:
    seconds = tomlfile.parse_duration(text) if text[-1:].isalpha() else float(text)
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError
    return seconds


def _bytes(text: str) -> float:
    number = float(text)
    if not 0 <= number <= MAX_BYTES:
        raise ValueError
    return number


_PHASES = [phase.word for phase in Phase]
_STATES = [state.value for state in CheckpointState]
_TIERS = [tier.value for tier in CheckpointTier]
_ERRORS = [kind.value for kind in ErrorKind]
_PARSERS: dict[str, Callable[[str], Value]] = {
    "step": _count(MAX_STEP),
    "loss": float,
    "seconds": _seconds,
    "busy": _seconds,
    "phase": _choose(_PHASES),
    "limit": _seconds,
    "checkpoint": _choose(_STATES),
    "tier": _choose(_TIERS),
    "bytes": _bytes,
    "error": _choose(_ERRORS),
    "text": cut_error_text,
    "rank": _count(MAX_COUNT),
    "job": lambda text: text[: job_connection.MAX_JOB],
}
_DURATION = "seconds, or a time such as 90s or 30m, up to 24h"
_EXPECTED = {
    **dict.fromkeys(("step", "rank"), "a whole number"),
    **dict.fromkeys(("loss", "bytes"), "a number"),
    **dict.fromkeys(("seconds", "busy", "limit"), _DURATION),
    "phase": "one of " + ", ".join(_PHASES),
    "checkpoint": "one of " + ", ".join(_STATES),
    "tier": "one of " + ", ".join(_TIERS),
    "error": "one of " + ", ".join(_ERRORS),
}
