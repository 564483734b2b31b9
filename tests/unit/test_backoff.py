"""How long to wait before what failed is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vitald.backoff import Backoff


def test_each_delay_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(5.0, 60.0)
    assert [backoff.delay_s(failures) for failures in range(6)] == [
        5.0,
        10.0,
        20.0,
        40.0,
        60.0,
        60.0,
    ]


def test_the_first_is_no_longer_than_the_longest() -> None:
    assert Backoff(600.0, 60.0).delay_s(0) == 60.0


@given(st.floats(0, 1e6), st.floats(0, 1e9), st.integers(0, 10**30))
def test_it_never_ends_nor_shrinks(first_s: float, longest_s: float, failures: int) -> None:
    backoff = Backoff(first_s, longest_s)
    assert 0 <= backoff.delay_s(failures) <= backoff.delay_s(failures + 1) <= longest_s
