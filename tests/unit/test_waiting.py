"""Whether GPUs only wait: hangs are found, what looks like one is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import FUZZ
from vitald.core.waiting import GpuLook, NodeLook, Waiting, advance_waiting

LIMIT = 700.0
EVERY = 10.0
Scene = Callable[[int, float], GpuLook]  # GPU number, seconds
WAITS, IDLE = 128.0, 72.0


def gpu(
    number: int,
    utilization: float | None = 1.0,
    watts: float | None = WAITS,
    moved: float | None = 0.0,
    *,
    processes: bool = True,
    counts: bool = True,
    excluded: bool = False,
) -> GpuLook:
    return GpuLook(
        name=f"gpu/{number}",
        processes=processes,
        utilization=utilization,
        watts=watts,
        limit_watts=LIMIT,
        moved=moved,
        counts=counts,
        excluded=excluded,
    )


def looks(
    scene: Scene, seconds: float, *, gpus: int = 8, network: float = 0.0
) -> Iterator[NodeLook]:
    """A look every ten seconds; counters are read every minute."""
    for number in range(int(seconds / EVERY) + 1):
        at = number * EVERY
        found = [scene(each, at) for each in range(gpus)]
        if number % 6:
            found = [replace(each, moved=None) for each in found]
        yield NodeLook(time=at, gpus=tuple(found), moved=0.0 if number % 3 else network)


def fold(trace: Iterable[NodeLook], known: Waiting | None = None) -> Waiting:
    waiting = known or Waiting()
    for look in trace:
        waiting = advance_waiting(waiting, look)
    return waiting


def longest(trace: Iterable[NodeLook]) -> float:
    waiting, most = Waiting(), 0.0
    for look in trace:
        waiting = advance_waiting(waiting, look)
        most = max(most, waiting.seconds)
    return most


def noisy(seed: int, watts: float, share: float) -> float:
    return watts * (1 + random.Random(seed).gauss(0, share))


def train(number: int, at: float) -> GpuLook:
    return gpu(number, 0.99, noisy(number + int(at), 620.0, 0.05), 4e9)


def hang(number: int, at: float) -> GpuLook:
    return gpu(number, 1.0, noisy(number + int(at), WAITS, 0.005), 2e4)


def test_a_hang_after_training_is_found() -> None:
    """Within the time and one look at the counters."""
    trace = list(looks(lambda number, at: (train if at < 600 else hang)(number, at), 1600.0))
    assert longest(trace[:60]) == 0
    found = fold(trace)
    assert 1000 - 60 <= found.seconds <= 1000
    assert (len(found.gpus), found.odd, found.is_certain) == (8, (), True)
    assert found.mean_watts == pytest.approx(WAITS, rel=0.01)


def test_the_gpu_that_does_not_take_part_is_named() -> None:
    """Seven wait for one whose process did not come."""

    def scene(number: int, at: float) -> GpuLook:
        return gpu(number, 0.0, 75.0, 0.0) if number == 3 else hang(number, at)

    found = fold(looks(scene, 980.0))
    assert found.odd == ("gpu/3",)
    assert len(found.gpus) == 7
    assert found.seconds == 980.0


def power_capped(number: int, at: float) -> GpuLook:
    return gpu(number, 1.0, noisy(int(at) + number, 350.0, 0.01), 4e9)


def launch_bound(number: int, at: float) -> GpuLook:
    return gpu(number, 0.98, noisy(int(at) + number, 210.0, 0.08), 3e7)


def nothing(number: int, at: float) -> GpuLook:
    return gpu(number, 0.0, IDLE, 0.0, processes=False)


def evaluation(number: int, at: float) -> GpuLook:
    """Rank 0 evaluates for 12 minutes, the others wait for it."""
    return gpu(0, 0.9, noisy(int(at), 480.0, 0.1), 4e7) if number == 0 else hang(number, at)


def compile_(number: int, at: float) -> GpuLook:
    """The processor compiles; the GPUs have processes and no kernel."""
    return gpu(number, 0.0, 78.0, 0.0)


def inference(number: int, at: float) -> GpuLook:
    """Requests in between: the power is uneven."""
    return gpu(number, 1.0, 140.0 if int(at / 30) % 2 else 260.0, 2e6)


@pytest.mark.parametrize(
    "scene",
    [train, power_capped, launch_bound, nothing, evaluation, compile_, inference],
)
def test_what_looks_like_it_is_none(scene: Scene) -> None:
    assert longest(looks(scene, 1200.0)) == 0


def test_a_checkpoint_by_rank_0_stays_below_any_sensible_limit() -> None:
    def scene(number: int, at: float) -> GpuLook:
        if not 600 <= at < 710:
            return train(number, at)
        return gpu(0, 0.0, 90.0, 2e9) if number == 0 else hang(number, at)

    assert 0 < longest(looks(scene, 1200.0)) <= 110


def test_the_network_moves() -> None:
    """Of RDMA traffic the GPUs' own counters show nothing where it goes around them."""
    assert longest(looks(hang, 1200.0, network=5e8)) <= 60
    assert longest(looks(hang, 1200.0, network=1e4)) == 1200


def test_gpus_without_counters_count_as_still_and_not_certain() -> None:
    """T4, V100: no NVLink fields, and a PCIe counter of 32 bits."""
    found = fold(looks(lambda number, at: gpu(number, moved=None, counts=False), 700.0))
    assert (found.seconds, found.is_certain) == (700.0, False)


def test_counters_that_were_not_read_yet_prove_nothing() -> None:
    trace = [NodeLook(time=number * EVERY, gpus=(gpu(0, moved=None),)) for number in range(3)]
    assert fold(trace).seconds == 0
    read = NodeLook(time=30.0, gpus=(gpu(0, moved=0.0),))
    assert fold([*trace, read]).seconds == 30.0


@pytest.mark.parametrize("share", [{"excluded": True}, {"processes": False}])
def test_mig_exclusion_and_gpus_without_work_take_no_part(share: dict[str, bool]) -> None:
    assert longest(looks(lambda number, at: gpu(number, **share), 900.0)) == 0


def test_an_excluded_server_does_not_hide_a_hang() -> None:
    def scene(number: int, at: float) -> GpuLook:
        return gpu(0, 1.0, 300.0, 1e9, excluded=True) if number == 0 else hang(number, at)

    assert fold(looks(scene, 900.0)).seconds == 900.0


def test_what_cannot_be_read_changes_nothing_until_the_gap_is_long() -> None:
    waiting = fold(looks(hang, 600.0))
    look = NodeLook(time=610.0, gpus=(*next(looks(hang, 0.0)).gpus, gpu(8, None, None, None)))
    assert advance_waiting(waiting, look).unread == ("gpu/8",)  # the others may wait for it
    assert advance_waiting(waiting, look).seconds == 610.0
    blind = advance_waiting(waiting, NodeLook(time=610.0, gpus=(gpu(0, None, None, None),)))
    assert blind == waiting
    assert advance_waiting(waiting, NodeLook(time=610.0, gpus=())) == waiting
    again = fold(looks(hang, 0.0), waiting)
    later = [replace(look, time=900.0) for look in looks(hang, 0.0)]
    assert fold(later, waiting).seconds == 0
    assert again.gpus == waiting.gpus


def test_idle_power_is_learned() -> None:
    """A board whose idle power is high: without it, 11 % of the limit are assumed."""
    known = fold(looks(lambda number, at: gpu(number, 0.0, 60.0, processes=False), 60.0))
    assert known.idle_watts == {f"gpu/{number}": 60.0 for number in range(8)}
    low = LIMIT * 0.35
    assert fold(looks(lambda number, at: gpu(number, 1.0, low), 300.0)).seconds == 300.0
    edge = 60.0 + 0.35 * (LIMIT - 60.0)
    assert fold(looks(lambda number, at: gpu(number, 1.0, edge + 1), 300.0), known).seconds == 0


powers = st.floats(min_value=0, max_value=1000)
rates = st.one_of(st.none(), st.floats(min_value=0, max_value=1e10))
gpu_looks = st.builds(
    GpuLook,
    name=st.sampled_from(["gpu/0", "gpu/1", "gpu/2"]),
    processes=st.booleans(),
    utilization=st.one_of(st.none(), st.sampled_from([0.0, 0.5, 0.98, 1.0])),
    watts=st.one_of(st.none(), powers, st.just(WAITS)),
    limit_watts=st.one_of(st.none(), st.just(LIMIT)),
    moved=rates,
    counts=st.booleans(),
    excluded=st.booleans(),
)
traces = st.lists(
    st.builds(
        NodeLook,
        time=st.just(0.0),
        gpus=st.lists(gpu_looks, max_size=3, unique_by=lambda each: each.name).map(tuple),
        moved=st.floats(min_value=0, max_value=1e10),
    ),
    max_size=12,
).map(lambda trace: [replace(look, time=EVERY * place) for place, look in enumerate(trace)])


@FUZZ
@given(traces)
def test_it_never_exceeds_what_was_seen(trace: list[NodeLook]) -> None:
    waiting = Waiting()
    for look in trace:
        waiting = advance_waiting(waiting, look)
        assert 0 <= waiting.seconds <= look.time
        assert math.isfinite(waiting.mean_watts)
        assert not set(waiting.gpus) & set(waiting.odd)


@FUZZ
@given(traces, st.randoms(use_true_random=False))
def test_the_order_of_the_gpus_does_not_matter(
    trace: list[NodeLook], chance: random.Random
) -> None:
    shuffled = [
        replace(look, gpus=tuple(chance.sample(look.gpus, len(look.gpus)))) for look in trace
    ]
    assert fold(trace).seconds == fold(shuffled).seconds


@FUZZ
@given(traces, st.integers(0, 2))
def test_a_gpu_that_computes_ends_it(trace: list[NodeLook], number: int) -> None:
    """Whatever was seen before: nothing that works may be shown as waiting."""
    last = NodeLook(
        time=trace[-1].time + EVERY if trace else 0.0,
        gpus=(hang(5, 0.0), gpu(number, 0.99, 0.9 * LIMIT, 1e9)),
    )
    assert fold([*trace, last]).seconds == 0


@FUZZ
@given(traces)
def test_gpus_that_take_no_part_change_nothing(trace: list[NodeLook]) -> None:
    """Neither those in MIG mode, nor those of excluded servers."""
    other = gpu(9, 1.0, 600.0, 1e9, excluded=True)
    wider = [replace(look, gpus=(*look.gpus, other)) for look in trace if look.gpus]
    assert fold(wider).seconds == fold(look for look in trace if look.gpus).seconds
