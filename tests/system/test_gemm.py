"""The multiplication as the daemon runs it, over a library in place of libcuda and libcublas."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.pace import patient
from tests.simulated_cuda import ADDRESSES, SimulatedCuda
from tests.trees import NVIDIA, Tree
from vitald.config import Config, Paths
from vitald.diagnostics.check import Command, Output, ProgramEnd
from vitald.diagnostics.checks.gemm import GemmCheck, Product
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics_sections import Gemm
from vitald.model.diagnostic import Outcome, Report, RunRequest

SMALL = Product(rows=64, columns=64, shared=64, products=35)
NAMES = [f"gpu/{address}" for address in ADDRESSES]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCuda:
    return SimulatedCuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(built: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> SimulatedCuda:
    for name, value in built.environment.items():
        monkeypatch.setenv(name, value)
    built.answer()
    return built


def make_check(tmp_path: Path, cuda: SimulatedCuda, gpus: int = 4, **settings: float) -> GemmCheck:
    tree = Tree(tmp_path / "sys")
    for address in ADDRESSES[:gpus]:
        tree.pci(address, NVIDIA, 0x2330, 0x030200, "nvidia")
    section = Gemm(library=cuda.library, **{"together_s": 0.05, **settings})  # type: ignore[arg-type]
    config = Config(paths=Paths(sysfs=tmp_path / "sys"), gemm=section)
    return GemmCheck(config, SMALL, alone_s=0.05)


def perform(check: GemmCheck, *gpus: int) -> Report:
    assert check.find_obstacle() == ""

    async def run() -> Report:
        programs = Programs()
        try:
            return await check.run_check(RunRequest(check=check.name, gpus=gpus), programs.execute)
        finally:
            await programs.close()

    return asyncio.run(run())


def found(report: Report) -> list[tuple[str, str, int | None]]:
    return [(fault.code, fault.device, fault.gpu) for fault in report.faults]


def test_equal_gpus_pass_and_each_has_its_rates(tmp_path: Path, cuda: SimulatedCuda) -> None:
    report = perform(make_check(tmp_path, cuda))
    assert (report.outcome, report.reason) == (Outcome.PASS, "")
    assert [(one.name, one.device) for one in report.measures[:2]] == [
        ("alone_flop_per_second", "GPU 0"),
        ("together_flop_per_second", "GPU 0"),
    ]
    assert [one.value for one in report.measures] == pytest.approx([700e12] * 8, rel=1e-3)


def test_the_gpu_that_deviates_from_the_majority_is_named(
    tmp_path: Path, cuda: SimulatedCuda
) -> None:
    for gpu in (0, 2):  # also the one with which the others are compared
        cuda.answer(f"deviating {gpu} 1")
        report = perform(make_check(tmp_path / str(gpu), cuda))
        assert found(report) == [("gemm/deviating", NAMES[gpu], gpu)]
        assert report.culprits == (gpu,) and not report.faults[0].confirm
        assert f"GPU {gpu} ({ADDRESSES[gpu]}): its result" in report.reason
        assert "in up to " in report.reason and not report.replacement_required


def test_a_gpu_whose_results_differ_from_its_own_is_named_also_without_equals(
    tmp_path: Path, cuda: SimulatedCuda
) -> None:
    cuda.answer("unstable 1 100", "name 1 Another model")  # the third batch
    report = perform(make_check(tmp_path, cuda))
    assert found(report) == [("gemm/unstable", NAMES[1], 1)]
    assert ": 1 of its " in report.reason
    cuda.answer("unstable 0 100", gpus=1)
    assert found(perform(make_check(tmp_path / "1", cuda, 1))) == [("gemm/unstable", NAMES[0], 0)]


def test_of_two_that_differ_neither_is_named(tmp_path: Path, cuda: SimulatedCuda) -> None:
    cuda.answer("deviating 1 1", gpus=2)
    report = perform(make_check(tmp_path, cuda, 2))
    assert found(report) == [("gemm/disputed", "", None)] and report.culprits == ()
    assert all(address in report.reason for address in ADDRESSES[:2])


def test_gpus_of_other_models_are_not_compared(tmp_path: Path, cuda: SimulatedCuda) -> None:
    cuda.answer("deviating 3 1", "processors 3 108")
    assert perform(make_check(tmp_path, cuda)).outcome is Outcome.PASS


def test_a_slow_gpu_is_named(tmp_path: Path, cuda: SimulatedCuda) -> None:
    cuda.answer("speed 3 310")
    report = perform(make_check(tmp_path, cuda, least_tflops=600.0))
    assert {(fault.code, fault.device, fault.confirm) for fault in report.faults} == {
        ("gemm/slow", NAMES[3], True)
    }
    assert "310 TFLOP/s alone, below the 600 TFLOP/s that are expected" in report.reason


@pytest.mark.parametrize(
    ("line", "outcome", "text"),
    [
        ("error 2 cuMemcpyDtoH_v2 214", Outcome.FAIL, "uncorrectable ECC"),
        ("error 2 cuMemAlloc_v2 2", Outcome.CONFIG, "out of memory"),
        ("error 2 cublasCreate_v2 1", Outcome.CONFIG, "NOT_INITIALIZED"),
        ("error 2 cublasGemmEx 14", Outcome.ERROR, "INTERNAL_ERROR"),
        ("error -1 cuInit 802", Outcome.CONFIG, "system not yet initialized"),
        ("gpus 3", Outcome.INCONCLUSIVE, "3 of 4 GPUs"),
        ("name 0 NVIDIA H100 80GB HBM3 MIG 1g.10gb", Outcome.NOT_APPLICABLE, "MIG"),
    ],
)
def test_an_error_is_of_the_gpu_of_settings_or_unknown(
    tmp_path: Path, cuda: SimulatedCuda, line: str, outcome: Outcome, text: str
) -> None:
    cuda.answer(line)
    report = perform(make_check(tmp_path, cuda))
    assert report.outcome is outcome and text in report.reason
    expected = [("gemm/failed", NAMES[2], 2)] if outcome is Outcome.FAIL else []
    assert found(report) == expected


def test_a_gpu_that_hangs_is_named_at_the_deadline(tmp_path: Path, cuda: SimulatedCuda) -> None:
    cuda.answer("hang 1 cuEventSynchronize")
    report = perform(make_check(tmp_path, cuda, deadline_s=patient(3.0)))
    assert found(report) == [("gemm/failed", NAMES[1], None)]


def test_it_is_gone_within_a_second_when_work_needs_the_gpus(
    tmp_path: Path, cuda: SimulatedCuda
) -> None:
    cuda.answer("hang 0 cuEventSynchronize")
    check = make_check(tmp_path, cuda)

    async def run() -> tuple[Output, float]:
        programs = Programs()
        outputs: list[Output] = []

        async def execute(command: Command) -> Output:
            outputs.append(await programs.execute(command))
            return outputs[-1]

        task = asyncio.create_task(check.run_check(RunRequest(check="gemm"), execute))
        await asyncio.sleep(patient(1.0))
        began = time.monotonic()
        programs.cancel("a job", 1.0)
        await task
        await programs.close()
        return outputs[0], time.monotonic() - began

    output, seconds = asyncio.run(run())
    assert output.ended is ProgramEnd.CANCELLED and output.left == ()
    assert "testing 0000:19:00.0" in output.stdout
    assert seconds < patient(1.0)
