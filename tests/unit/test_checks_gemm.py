"""Matrix multiplications: the input, the vote among equal GPUs, the library, and what is no
document.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import NVIDIA, Tree
from tests.unit.builders import FUZZ, catalogue
from tests.unit.checking import asked, config, cuts, hung, perform, printed
from vitald.cli.diag.views import format_value
from vitald.diagnostics.checks.gemm import GemmCheck
from vitald.diagnostics.gemm.comparison import Suspicion, compare_results
from vitald.diagnostics.gemm.document import GpuResult, Result, read_document
from vitald.diagnostics.gemm.libraries import find_libraries
from vitald.diagnostics.gemm.program import choose_library, count_different, make_tile
from vitald.diagnostics_sections import Gemm
from vitald.model import Action
from vitald.model.diagnostic import Outcome


def gpu(number: int, *digests: str, kind: str = "H100", different: int = 0) -> GpuResult:
    return GpuResult(
        number=number,
        address=f"0000:{0x18 + number:02x}:00.0",
        name=kind,
        results=tuple(Result(digest, 3, different) for digest in digests),
    )


def document(*digests: str) -> str:
    gpus = [
        {
            "address": f"0000:{0x18 + number:02x}:00.0",
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "GPU-00000000-0000-0000-0000-000000000000",
            "architecture": "9.0",
            "processors": 132,
            "results": [{"digest": digest, "count": 8, "different_bytes": 0}],
            "rates": {"alone": 7e14, "together": 6e14},
            "error": None,
        }
        for number, digest in enumerate(digests)
    ]
    return "testing all\n" + json.dumps({"error": None, "driver": 13000, "gpus": gpus}) + "\n"


@pytest.fixture
def check(tmp_path: Path) -> GemmCheck:
    tree = Tree(tmp_path / "sys")
    for bus in ("18", "19", "1a"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    (tmp_path / "libcublas.so.13").touch()
    section = Gemm(library=tmp_path / "libcublas.so.13", together_s=40.0, deadline_s=60.0)
    return GemmCheck(config(tmp_path / "sys", gemm=section))


def test_the_program_is_ours_and_the_gpus_are_numbered_as_nvml_does(check: GemmCheck) -> None:
    (command,) = asked(check, printed(document("a", "a", "a")))
    assert command.deadline_s == 100.0
    assert command.environment == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    task = json.loads(command.argv[-1])
    assert task["products"] % 2 == 1 and task["together_s"] == 40.0
    (some,) = asked(check, printed(document("a")), gpus=(2,))
    assert some.environment["CUDA_VISIBLE_DEVICES"] == "2"


def test_a_run_of_one_gpu_blames_it_by_its_own_number(check: GemmCheck) -> None:
    report = perform(check, printed(document("a")), gpus=(2,))
    assert report.outcome is Outcome.PASS and report.measures[0].device == "GPU 2"


@pytest.mark.parametrize("bf16", [True, False])
def test_the_input_is_the_same_each_time_and_its_values_are_from_a_half_to_two(bf16: bool) -> None:
    tile = make_tile(b"left", bf16=bf16)
    assert tile == make_tile(b"left", bf16=bf16) != make_tile(b"right", bf16=bf16)
    words = struct.unpack(f"<{len(tile) // 2}H", tile)
    values = (
        [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words[:5000]]
        if bf16
        else list(struct.unpack("<5000e", tile[:10000]))
    )
    assert all(math.isfinite(value) and 0.5 <= abs(value) < 2.0 for value in values)
    assert 2000 < sum(value < 0.0 for value in values) < 3000


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=300))
def test_the_bytes_that_differ_are_counted(left: bytes, right: bytes) -> None:
    size = min(len(left), len(right))
    left, right = left[:size], right[:size]
    assert count_different(left, right) == sum(one != other for one, other in zip(left, right))


@given(st.lists(st.sampled_from("aab"), min_size=1, max_size=9))
def test_a_gpu_is_named_only_against_a_majority(digests: list[str]) -> None:
    found = compare_results(gpu(number, digest) for number, digest in enumerate(digests))
    votes = {digest: digests.count(digest) for digest in digests}
    fewest = min(votes, key=lambda digest: votes[digest])
    named = [mismatch.gpus[0].number for mismatch in found]
    if len(votes) == 1:
        assert found == []
    elif len(set(votes.values())) == 1:
        assert [mismatch.suspicion for mismatch in found] == [Suspicion.DISPUTED]
        assert len(found[0].gpus) == len(digests)
    else:
        assert {mismatch.suspicion for mismatch in found} == {Suspicion.DEVIATING}
        assert named == [number for number, one in enumerate(digests) if one == fewest]


def test_an_unstable_gpu_has_no_vote_and_other_models_none_either() -> None:
    found = compare_results([gpu(0, "a"), gpu(1, "b", "a"), gpu(2, "a"), gpu(3, "c", kind="A100")])
    assert [(one.suspicion, one.gpus[0].number) for one in found] == [(Suspicion.UNSTABLE, 1)]
    assert (found[0].batches, found[0].of_batches) == (3, 6)


def test_the_number_of_bytes_is_given_only_where_it_is_known() -> None:
    first = gpu(0, "a", different=0), gpu(1, "b", different=12), gpu(2, "a", different=0)
    assert [one.different_bytes for one in compare_results(first)] == [12]
    # The first result of all was a third one, with which neither can be compared
    third = gpu(0, "b", different=9), gpu(1, "a", different=7), gpu(2, "a", different=7)
    assert [one.different_bytes for one in compare_results(third)] == [None]


def test_the_newest_library_that_the_driver_supports(tmp_path: Path) -> None:
    for name in ("cuda-11.8/libcublas.so.11", "cuda-13/libcublas.so.13", "pip/libcublas.so.12"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "pip/libcublas.so.12.8.4.1").touch()
    folders = [f"{tmp_path}/cuda-*", f"{tmp_path}/pip"]
    found = find_libraries(None, folders)
    assert [path.rpartition(".")[2] for path in found] == ["13", "12", "11"]
    assert choose_library(found, 13) == found[0] and choose_library(found, 12) == found[1]
    with pytest.raises(OSError, match="supports CUDA 10"):
        choose_library(found, 10)
    assert find_libraries(Path("/nonexistent/libcublas.so.12"), folders) == ()


def test_without_the_library_the_next_step_is_named(tmp_path: Path) -> None:
    absent = GemmCheck(config(tmp_path, gemm=Gemm(library=Path("/nonexistent/libcublas.so.12"))))
    assert absent.find_obstacle() == "/nonexistent/libcublas.so.12 of [gemm] library is not there"


def test_nothing_that_is_not_whole_is_a_pass(check: GemmCheck) -> None:
    text = document("a", "a", "a")
    assert perform(check, printed(text)).outcome is Outcome.PASS
    for part in cuts(text[:-2]):
        report = perform(check, printed(part))
        assert report.outcome is Outcome.ERROR and report.reason and not report.faults
    assert perform(check, printed(text, dropped=1)).outcome is Outcome.ERROR
    assert perform(check, hung()).outcome is Outcome.ERROR, "it did not even begin"
    trace = "Traceback (most recent call last):\nMemoryError\n"
    assert "MemoryError" in perform(check, printed("", 1, stderr=trace)).reason


@FUZZ
@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_no_document_raises(value: object) -> None:
    for key in ("gpus", "error", "driver"):
        read_document(json.dumps({"gpus": [], key: value}))
    whole = json.loads(document("a").partition("\n")[2])
    for key in whole["gpus"][0]:
        read_document(json.dumps({"gpus": [{**whole["gpus"][0], key: value}]}))


def test_wrong_results_ask_for_a_person_and_for_level_3_never_for_a_replacement() -> None:
    for code in ("unstable", "deviating", "disputed"):
        rule = catalogue().find_rule(f"gemm/{code}")
        assert rule.apply_to({"confirmed": True}).action is Action.INSPECT
        assert rule.clears.diagnostic == 3 and not rule.clears.reboot


def test_throughput_is_shown_in_teraflops() -> None:
    assert format_value("alone_flop_per_second", 7.213e14) == "721.3 TFLOP/s"
