"""
Which GPUs computed something else: than they themselves did before, or than the majority of their
equals. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from vitald.diagnostics.gemm.document import GpuResult


class Suspicion(Enum):
    """What is wrong with the results."""

    UNSTABLE = "unstable"  # one GPU, same input, different results
    DEVIATING = "deviating"  # one GPU, against the majority of its equals
    DISPUTED = "disputed"  # equal GPUs differ, and no majority says which is right


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Results that differ. `different_bytes`: None if unknown."""

    suspicion: Suspicion
    gpus: tuple[GpuResult, ...]
    different_bytes: int | None
    batches: int  # that differ
    of_batches: int


def compare_results(gpus: Iterable[GpuResult]) -> list[Mismatch]:
    """All mismatches, those of single GPUs first."""
    tested = [gpu for gpu in gpus if gpu.results]
    found = [_describe_unstable(gpu) for gpu in tested if len(gpu.results) > 1]
    stable = sorted((gpu for gpu in tested if len(gpu.results) == 1), key=_get_kind)
    for _, equals in groupby(stable, key=_get_kind):
        found += _compare_equals([*equals])
    return found


def _get_kind(gpu: GpuResult) -> tuple[str, str, int]:
    return gpu.kind


def _describe_unstable(gpu: GpuResult) -> Mismatch:
    batches = sum(result.count for result in gpu.results)
    usual = max(gpu.results, key=lambda result: result.count)
    others = [result for result in gpu.results if result is not usual]
    # Both are compared with one reference, so the difference of the two is known only if one of
    # them equals it.
    pairs = [{usual.different_bytes, other.different_bytes} for other in others]
    known = [max(pair) for pair in pairs if 0 in pair]
    different = max(known) if known else None
    return Mismatch(Suspicion.UNSTABLE, (gpu,), different, batches - usual.count, batches)


def _compare_equals(equals: Sequence[GpuResult]) -> Iterator[Mismatch]:
    """Of GPUs each of which is stable by itself."""
    votes = Counter(gpu.results[0].digest for gpu in equals)
    if len(votes) < 2:
        return
    digest, count = votes.most_common(1)[0]
    if 2 * count <= len(equals):
        different = max(gpu.results[0].different_bytes for gpu in equals)
        batches = sum(gpu.results[0].count for gpu in equals)
        yield Mismatch(Suspicion.DISPUTED, tuple(equals), different or None, batches, batches)
        return
    usual = next(gpu.results[0] for gpu in equals if gpu.results[0].digest == digest)
    for gpu in equals:
        result = gpu.results[0]
        if result.digest != digest:
            pair = {usual.different_bytes, result.different_bytes}
            different_bytes = max(pair) if 0 in pair else None
            yield Mismatch(Suspicion.DEVIATING, (gpu,), different_bytes, result.count, result.count)
