"""
What two answers of NCCL RAS, some time apart, say of a job that seems to make no progress.

Owns     which ranks are dead, behind or frozen, and the text about them.
Refuses  asking, and what becomes of the text.

Counts that differ are normal while a job works (NCCL user guide, "RAS", "Sample Output"), so a
communicator is suspected only if both answers are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from vitald.nccl_ras.document import Communicator, CountedRank, Rank
from vitald.text import join_first

_MAX_NAMED = 4  # ranks in a text


class Kind(Enum):
    """What is wrong with a communicator. The members' order is the order of strength."""

    DEAD = "dead"  # processes that RAS cannot reach for good
    UNRESPONSIVE = "unresponsive"  # processes that did not answer, both times
    BEHIND = "behind"  # ranks have launched fewer operations than the others
    FROZEN = "frozen"  # all have launched the same operation, and it does not end


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`ranks`: the suspected ones, none if all are frozen alike."""

    kind: Kind
    ranks: tuple[Rank, ...]
    text: str


def find_suspicion(
    former: Sequence[Communicator], latest: Sequence[Communicator]
) -> Suspicion | None:
    """The strongest suspicion that both answers give; None if the job has made progress, or the
    answers show nothing.

    A job whose answers are equal has not launched an operation in between. That it has is progress,
    whatever else the answers show: only dead processes are reported then.
    """
    before = {communicator.name: communicator for communicator in former}
    pairs = [
        (before[communicator.name], communicator)
        for communicator in latest
        if communicator.name in before
    ]
    found = [
        suspicion
        for suspicion in (_find_dead(latest), *(_compare(*pair) for pair in pairs))
        if suspicion is not None
    ]
    if any(_has_moved(*pair) for pair in pairs):
        found = [suspicion for suspicion in found if suspicion.kind is Kind.DEAD]
    order = list(Kind)
    return min(found, key=lambda suspicion: order.index(suspicion.kind), default=None)


def _find_dead(communicators: Iterable[Communicator]) -> Suspicion | None:
    dead = {
        missing.rank: communicator.size
        for communicator in communicators
        for missing in communicator.missing
        if missing.is_dead
    }
    if not dead:
        return None
    return Suspicion(
        Kind.DEAD, tuple(dead), f"{_name_ranks(tuple(dead))} cannot be reached any more"
    )


def _compare(former: Communicator, latest: Communicator) -> Suspicion | None:
    silent = _find_silent(former, latest)
    if silent:
        text = f"{_name_ranks(silent)} did not answer, {len(latest.ranks)} others did"
        return Suspicion(Kind.UNRESPONSIVE, silent, text)
    if former.ranks != latest.ranks or not latest.ranks:
        return None
    return _find_behind(latest.ranks) or _find_frozen(latest.ranks)


def _find_silent(former: Communicator, latest: Communicator) -> tuple[Rank, ...]:
    before = {missing.rank for missing in former.missing if missing.is_unresponsive}
    return tuple(
        missing.rank
        for missing in latest.missing
        if missing.is_unresponsive and missing.rank in before
    )


def _find_behind(ranks: Sequence[CountedRank]) -> Suspicion | None:
    """Ranks that have launched fewer operations of a kind than most have."""
    for operation in sorted({name for each in ranks for name in each.counts}):
        counts = Counter(each.counts.get(operation, 0) for each in ranks)
        most = max(counts)
        behind = tuple(each.rank for each in ranks if each.counts.get(operation, 0) < most)
        if not behind:
            continue
        at = ", ".join(str(count) for count in sorted(counts) if count != most)
        text = (
            f"{_name_ranks(behind)} at {operation} {at}, {counts[most]} others at {most}: they wait"
            " for each other"
        )
        return Suspicion(Kind.BEHIND, behind, text)
    return None


def _find_frozen(ranks: Sequence[CountedRank]) -> Suspicion | None:
    launched = _describe_counts(ranks[0].counts)
    if not launched:
        return None  # operations within one node are not counted (NCCL issue 2021)
    text = (
        f"all {len(ranks)} ranks have launched the same operations ({launched}) and none ends: a"
        " kernel, a link or a host is stuck"
    )
    return Suspicion(Kind.FROZEN, (), text)


def _has_moved(former: Communicator, latest: Communicator) -> bool:
    """Whether a rank has launched an operation in between."""
    before = {each.rank.number: each.counts for each in former.ranks}
    return any(before.get(each.rank.number, each.counts) != each.counts for each in latest.ranks)


def _describe_counts(counts: Mapping[str, int]) -> str:
    used = [f"{name} {count}" for name, count in sorted(counts.items()) if count]
    return join_first(used, _MAX_NAMED)


def _name_ranks(ranks: Sequence[Rank]) -> str:
    """`rank 12 (GPU 4 of 10.0.0.7) and 3 more`."""
    named = [f"{each.number} ({_name_gpu(each)}{each.host})" for each in ranks]
    return f"rank{'s' if len(ranks) > 1 else ''} {join_first(named, _MAX_NAMED)}"


def _name_gpu(rank: Rank) -> str:
    return f"GPU {rank.gpu} of " if rank.gpu >= 0 else ""
