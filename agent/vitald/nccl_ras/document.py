"""
The JSON document that NCCL RAS answers with (NCCL 2.28.7 and later: src/ras/client_support.cc,
jsonWriteHeader and what follows it; NCCL user guide, "RAS", "JSON Output").

It comes from a process of a job: every value is checked, and sizes are limited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from vitald.checking import Unexpected, is_deep, read_flag, read_line, read_list, read_whole

T = TypeVar("T")

MAX_ANSWER_BYTES = 16 << 20
MAX_COMMUNICATORS = 4096
MAX_RANKS = 1 << 20
_MAX_DEPTH = 8
_MAX_OPERATIONS = 64
_MAX_COUNT = 2**64 - 1
# NCCL 2.28.7 and 2.28.9 write no comma between these two keys of a missing rank.
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)\n(\s*"status")')


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank of a communicator, and on which GPU of which host it is. `gpu`: NVML's index."""

    number: int
    host: str
    gpu: int


@dataclass(frozen=True, slots=True)
class CountedRank:
    """How many operations of each kind a rank has launched, by their names."""

    rank: Rank
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank that gave no data. `is_dead`: RAS has not reached its process for a minute."""

    rank: Rank
    is_unresponsive: bool
    is_dead: bool


@dataclass(frozen=True, slots=True)
class Communicator:
    """`name`: its two hashes, which are unique together."""

    name: str
    size: int
    ranks: tuple[CountedRank, ...]
    missing: tuple[MissingRank, ...]


def parse_answer(answer: bytes) -> tuple[Communicator, ...]:
    """The communicators of the job. Raises ValueError that names the place."""
    document = _parse_json(answer)
    if is_deep(document, _MAX_DEPTH):
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    table = _read_table(document, "the answer")
    listed = _read(table, "communicators", "", partial(read_list, least=0, most=MAX_COMMUNICATORS))
    return tuple(
        _read_communicator(value, f"communicators[{place}]") for place, value in enumerate(listed)
    )


def _parse_json(answer: bytes) -> object:
    if len(answer) > MAX_ANSWER_BYTES:
        raise ValueError(f"longer than {MAX_ANSWER_BYTES} bytes")
    try:
        return json.loads(_NO_COMMA.sub(rb"\1,\n\2", answer))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {str(error)[:200]}") from None


def _read_communicator(value: object, place: str) -> Communicator:
    table, at = _read_table(value, place), f"{place}."
    read_hash = partial(read_line, least=1, most=64, ascii_only=True)
    read_ranks = partial(read_list, least=0, most=MAX_RANKS)
    ranks = _read(table, "ranks", at, read_ranks)
    missing = _read(table, "missing_ranks", at, read_ranks)
    first, second = (_read(table, key, at, read_hash) for key in ("hash", "secondary_hash"))
    return Communicator(
        name=f"{first}:{second}",
        size=_read(table, "size", at, partial(read_whole, least=0, most=MAX_RANKS)),
        ranks=tuple(_read_counted(each, f"{at}ranks[{n}]") for n, each in enumerate(ranks)),
        missing=tuple(
            _read_missing(each, f"{at}missing_ranks[{n}]") for n, each in enumerate(missing)
        ),
    )


def _read_counted(value: object, place: str) -> CountedRank:
    table = _read_table(value, place)
    counts = _read_table(table.get("collective_counts"), f"{place}.collective_counts")
    if len(counts) > _MAX_OPERATIONS:
        raise ValueError(f"{place}.collective_counts: more than {_MAX_OPERATIONS} operations")
    read_count = partial(read_whole, least=0, most=_MAX_COUNT)
    return CountedRank(
        rank=_read_rank(table, f"{place}."),
        counts={
            read_line(name, 1, 32, ascii_only=True): _read(
                counts, name, f"{place}.collective_counts.", read_count
            )
            for name in counts
        },
    )


def _read_missing(value: object, place: str) -> MissingRank:
    table = _read_table(value, place)
    status, at = _read_table(table.get("status"), f"{place}.status"), f"{place}.status."
    return MissingRank(
        rank=_read_rank(table, f"{place}."),
        is_unresponsive=_read(status, "unresponsive", at, read_flag),
        is_dead=_read(status, "considered_dead", at, read_flag),
    )


def _read_rank(table: Mapping[str, object], at: str) -> Rank:
    return Rank(
        number=_read(table, "rank", at, partial(read_whole, least=0, most=MAX_RANKS)),
        host=_read(table, "host", at, partial(read_line, least=0, most=64, ascii_only=True)),
        gpu=_read(table, "nvml_dev", at, partial(read_whole, least=-1, most=1023)),
    )


def _read_table(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected an object")
    return value


def _read(table: Mapping[str, object], key: str, at: str, read_value: Callable[[object], T]) -> T:
    if key not in table:
        raise ValueError(f"{at}{key}: it is missing")
    try:
        return read_value(table[key])
    except Unexpected as error:  # without the value, which may be long
        raise ValueError(f"{at}{key}: expected {error.expected}") from None
