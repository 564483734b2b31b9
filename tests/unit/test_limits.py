"""The limits of what checks measure: configured, published for the machine, learned from passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import FUZZ
from tests.unit.checking import config
from vitald.config import Config
from vitald.diagnostics import checks
from vitald.diagnostics.limits import LearningCheck, Limits, load_references, make_measure
from vitald.diagnostics.node import MAX_PAST_RUNS
from vitald.diagnostics_sections import Diagnostics
from vitald.model.diagnostic import Measure, Outcome, Report, Run, RunRequest

BUS = "busbw_bytes_per_second"
H100 = "Standard_ND96isr_H100_v5"


def passes(*values: float, device: str = "", name: str = BUS) -> Sequence[Run]:
    return [
        Run(
            id=str(number),
            ask=RunRequest(check="nccl"),
            began=number,
            ended=number,
            report=Report(
                outcome=Outcome.PASS, measures=(Measure(name=name, value=value, device=device),)
            ),
        )
        for number, value in enumerate(values)
    ]


class Runs:
    """The passes of a check, each with the limits that it had, as the ledger keeps the last 10."""

    def __init__(self, known: Limits, device: str = "") -> None:
        self.known, self.device, self.identity = known, device, "GPU-a"
        self.kept: deque[Run] = deque(maxlen=MAX_PAST_RUNS)
        known.use_passes(lambda: tuple(self.kept), lambda device: self.identity)

    def add(self, value: float) -> bool:
        """True if it passed."""
        least = self.known.find_least(BUS, 0.0, self.device)
        if least is not None and value < least.value:
            return False
        measure = make_measure(BUS, value, self.device, least=least)
        (run,) = passes(value, device=self.device)
        report = replace(run.report, measures=(replace(measure, identity=self.identity),))
        self.kept.append(replace(run, report=report))
        return True


def limits(tmp_path: Path, check: str = "nccl", **settings: object) -> Limits:
    section = Diagnostics(**settings)  # type: ignore[arg-type]
    return Limits(check, config(tmp_path, diagnostics=section))


def test_the_configured_limit_precedes_the_published_one_and_that_the_learned_one(
    tmp_path: Path,
) -> None:
    known = limits(tmp_path, machine=H100)
    known.use_passes(lambda: passes(*[400e9] * 5))
    configured, published = known.find_least(BUS, 300e9), known.find_least(BUS, 0.0)
    assert configured is not None and published is not None
    assert (configured.value, configured.origin) == (300e9, "that are expected")
    assert published.value == 460e9
    assert "azurehpc-health-checks" in published.origin and H100 in published.origin
    unknown = limits(tmp_path)
    assert unknown.find_least(BUS, 0.0) is None
    unknown.use_passes(lambda: passes(*[400e9] * 5))
    learned = unknown.find_least(BUS, 0.0)
    assert learned is not None
    assert learned.value == pytest.approx(340e9)
    assert learned.origin == "that follow from 5 passes of this node"


def test_the_machine_is_the_firmwares_product_unless_it_is_configured(tmp_path: Path) -> None:
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/product_name").write_text(f"{H100}\n")
    assert limits(tmp_path).find_least(BUS, 0.0) is not None
    assert limits(tmp_path, machine="none").find_least(BUS, 0.0) is None


def test_a_limit_is_the_median_of_enough_passes_of_the_same_device(tmp_path: Path) -> None:
    known = limits(tmp_path, "ib_write", learn_after=3, learn_percent=50.0)
    name = "latency_seconds"
    known.use_passes(
        lambda: [
            *passes(1.0, 9.0, 2.0, device="mlx5_0", name=name),
            *passes(1.0, 1.0, device="mlx5_1", name=name),
        ]
    )
    most = known.find_most(name, 0.0, "mlx5_0")
    assert most is not None and most.value == pytest.approx(3.0)
    assert known.find_most(name, 0.0, "mlx5_1") is None, "two are too few"
    assert known.find_least(name, 0.0, "mlx5_0") is None, "it may fall"


@FUZZ
@given(
    loss=st.floats(0.005, 0.05),
    noise=st.lists(st.floats(-0.004, 0.004), min_size=60, max_size=60),
)
@example(loss=0.025, noise=[0.0] * 60)
def test_a_device_that_becomes_slower_with_each_run_is_found(
    tmp_path_factory: pytest.TempPathFactory, loss: float, noise: list[float]
) -> None:
    """Also where each run differs little from those before it."""
    runs = Runs(limits(tmp_path_factory.getbasetemp()))
    values = [400e9 * (1.0 - loss) ** number * (1 + more) for number, more in enumerate(noise)]
    first = next(number for number, value in enumerate(values) if not runs.add(value))
    assert values[first] > 0.72 * values[0], "soon after the deviation of 15 %"


@FUZZ
@given(st.lists(st.floats(0.93, 1.07), min_size=12, max_size=40))
def test_noise_is_not_found(tmp_path_factory: pytest.TempPathFactory, noise: list[float]) -> None:
    runs = Runs(limits(tmp_path_factory.getbasetemp()))
    assert all(runs.add(400e9 * one) for one in noise)


def test_a_limit_begins_anew_with_another_device_and_with_a_day(tmp_path: Path) -> None:
    runs = Runs(limits(tmp_path), "GPU 3")
    assert all(runs.add(400e9) for _ in range(6)) and not runs.add(300e9)
    runs.identity = ""  # not known now: nothing is forgotten
    assert not runs.add(300e9)
    runs.identity = "GPU-b"
    assert all(runs.add(300e9) for _ in range(6)) and not runs.add(250e9)
    later = limits(tmp_path, learn_since="2026-11-23")
    later.use_passes(lambda: tuple(runs.kept))
    assert later.find_least(BUS, 0.0, "GPU 3") is None, "they are of 1970"


def test_the_origin_says_that_the_best_passes_are_not_the_last(tmp_path: Path) -> None:
    runs = Runs(limits(tmp_path))
    assert all(runs.add(value) for value in [400e9] * 5 + [360e9] * 8)
    least = runs.known.find_least(BUS, 0.0)
    assert least is not None and least.value == pytest.approx(340e9)
    assert least.origin == "that follow from earlier passes of this node"


def test_what_only_informs_is_not_learned_and_0_learns_nothing(tmp_path: Path) -> None:
    known = limits(tmp_path)
    known.use_passes(lambda: passes(*[1e9] * 9, name="algbw_bytes_per_second"))
    assert known.find_least("algbw_bytes_per_second", 0.0) is None
    off = limits(tmp_path, learn_after=0)
    off.use_passes(lambda: passes(*[1e9] * 9))
    assert off.find_least(BUS, 0.0) is None


def test_the_references_are_of_checks_and_measures_that_there_are() -> None:
    references = load_references()
    learning = {
        name
        for name, check in checks.build_checks(Config()).items()
        if isinstance(check, LearningCheck)
    }
    assert {check for check, _, _ in references.learned} == learning
    for machine in references.machines.values():
        assert machine.source and machine.limits
        assert {*machine.limits} <= references.learned
