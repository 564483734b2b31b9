"""What outputs of `dcgmi diag` come to: the traps of its documents and exit codes, one by one."""

from __future__ import annotations

import json

from tests.unit.dcgm_made import (
    DEPLOYMENT,
    a_test,
    an_old_test,
    level2,
    new,
    old,
    passing,
    read,
    refused,
    warning,
)
from vitald.diagnostics.dcgm.known_outputs import load_tables
from vitald.model.words import Outcome, Remedy

PASS, FAIL, CONFIG, INCONCLUSIVE, ERROR = (
    Outcome.PASS,
    Outcome.FAIL,
    Outcome.CONFIG,
    Outcome.INCONCLUSIVE,
    Outcome.ERROR,
)
LEVEL_3 = (
    "memory",
    "pcie",
    "diagnostic",
    "nvbandwidth",
    "nccl_tests",
    "targeted_stress",
    "targeted_power",
)
FIXED_29 = "Persistence mode for GPU 1 is disabled."


def test_what_passes_passes_and_has_nothing_to_say() -> None:
    for output in (new(*passing("memory", "pcie")), old(*level2()), old(*level2(), version=None)):
        report = read(output)
        said = (report.outcome, report.remedy, report.reason, report.faults)
        assert said == (PASS, Remedy.NONE, "", ())


# --- exit codes


def test_no_code_but_0_lets_a_document_pass() -> None:
    codes = {
        205: Remedy.INVESTIGATE,
        226: Remedy.INVESTIGATE,
        203: Remedy.RETRY,
        245: Remedy.RETRY,
        -15: Remedy.RETRY,
        137: Remedy.RETRY,
    }
    reports = {code: read(new(*passing("memory", "pcie")), code) for code in codes}
    assert {code: report.remedy for code, report in reports.items()} == codes
    assert {report.outcome for report in reports.values()} == {ERROR}
    assert "code 205" in reports[205].reason and "code 226" in reports[226].reason
    assert {read(old(*level2()), code).outcome for code in codes} == {ERROR}


def test_an_isolating_code_with_findings_that_do_not_isolate_hides_one() -> None:
    setting = [warning(29, FIXED_29, severity=5, category=8)]
    output = new(a_test("software", {0: "Pass", 1: "Fail"}, {1: setting}))
    assert read(output, 226, 1).outcome is CONFIG
    assert read(output, 205, 1).outcome is ERROR
    # Before 3.3 the setting was of the isolating kind itself.
    before = old(
        deployment={"Persistence Mode": [{"status": "Fail", "warnings": FIXED_29, "error_id": 29}]},
        version="3.2.5",
    )
    assert read(before, 205, 1).outcome is CONFIG


def test_lost_gpus_without_a_document() -> None:
    for code, remedy in ((189, Remedy.REBOOT), (238, Remedy.REBOOT), (237, Remedy.RESET_GPU)):
        report = read("", code)
        assert (report.outcome, report.remedy) == (FAIL, remedy)
        assert (report.reboot_required, report.replacement_required) == (True, False)
        assert [(fault.implied, fault.gpu) for fault in report.faults] == [(True, None)]


def test_no_code_alone_is_a_pass() -> None:
    for code in load_tables().exits:
        report = read("", code)
        assert report.outcome in (ERROR, FAIL), code
        assert report.reason and report.remedy is not Remedy.NONE, code


def test_signals_are_told_as_such() -> None:
    assert "signal 11" in read("", 139).reason
    assert "signal 15" in read("", -15).reason


# --- what DCGM says instead of a document


def test_error_objects() -> None:
    """226 says nothing by itself: the text decides, and the number in it."""
    cannot = "Error: Unable to complete diagnostic for"
    texts = {
        "Error: GPU 2's MIG configuration is incompatible with the diagnostic": (
            Outcome.NOT_APPLICABLE,
            Remedy.FIX_CONFIG,
        ),
        f"{cannot} entities *,cpu:*. Return: (-34) : in use": (ERROR, Remedy.RETRY),
        f"{cannot} group 7. Return: (-29) root.": (ERROR, Remedy.FIX_CONFIG),
        f"{cannot} group 7. Return: (-67) : x\nAll 2 requested GPUs are detached.": (
            FAIL,
            Remedy.REBOOT,
        ),
        "Error: The test memory has been unresponsive for 600 seconds": (ERROR, Remedy.INVESTIGATE),
        "Error: something that nobody has seen before": (ERROR, Remedy.INVESTIGATE),
    }
    reports = {text: read(refused(text), 226) for text in texts}
    assert {text: (one.outcome, one.remedy) for text, one in reports.items()} == texts
    assert {one.dcgm_version for one in reports.values()} == {"4.4.2"}
    assert [one.reason for one in reports.values() if "Unable to complete" in one.reason] == []


def test_the_exit_code_decides_for_a_text_that_nobody_knows() -> None:
    assert read(refused("Error: hm"), 217).remedy is Remedy.RETRY


def test_one_run_of_two_that_did_not_run_is_no_pass() -> None:
    both = (
        json.dumps(refused("Error: Diagnostic could not be run while DCGM is paused."))
        + "\n"
        + json.dumps(new(*passing("memory", "pcie")))
    )
    assert (read(both).outcome, read(both).remedy) == (ERROR, Remedy.RETRY)


# --- iterations


def test_an_iteration_that_fails_is_told_with_all_that_came_before() -> None:
    failing = new(a_test("software", {0: "Pass", 1: "Fail"}, {1: [warning(80, "GPU 1 had ...")]}))
    report = read({"iterations": [new(), failing], "Overall Result": "Fail"}, 205, 1)
    assert (report.outcome, report.culprits, report.device_ids) == (FAIL, (1,), ("2330", "2330"))
    assert report.tests[0].gpus == {"0": "Pass", "1": "Fail"}


def test_iterations_that_did_not_all_run_are_no_pass() -> None:
    for rounds in ([], [None], [new(), None], [new(), {}], None, "x"):
        assert read({"iterations": rounds, "Overall Result": "Pass"}, 0, 1).outcome is ERROR


def test_iterations_whose_overall_result_is_worse_are_no_pass() -> None:
    assert read({"iterations": [new()], "Overall Result": "Pass"}, 0, 1).outcome is PASS
    assert read({"iterations": [new()], "Overall Result": "Fail"}, 0, 1).outcome is ERROR


def test_what_one_iteration_did_not_verify_another_does_not_either() -> None:
    whole = new(*passing("memory", "pcie"))
    partly = new(*passing("memory"), a_test("pcie", {0: "Pass"}))
    report = read({"iterations": [whole, partly], "Overall Result": "Pass"})
    assert report.outcome is INCONCLUSIVE
    assert report.reason.endswith("pcie has no result for GPU 1")


# --- mandatory tests


def test_each_check_of_the_software_is_needed_up_to_3() -> None:
    for name in DEPLOYMENT:
        output = old(version="3.3.7")
        tests = output["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]
        tests[:] = [test for test in tests if test["name"] != name]
        expected = PASS if name == "Inforom" else INCONCLUSIVE
        assert read(output, 0, 1).outcome is expected, name


def test_each_test_of_a_level_is_needed() -> None:
    assert read(new(*passing(*LEVEL_3)), 0, 3).outcome is PASS
    for missing in LEVEL_3:
        report = read(new(*passing(*(name for name in LEVEL_3 if name != missing))), 0, 3)
        assert (report.outcome, missing in report.reason) == (INCONCLUSIVE, True), missing


def test_what_a_version_or_a_model_does_not_have_is_not_needed() -> None:
    without_nccl = passing(*(name for name in LEVEL_3 if name != "nccl_tests"))
    assert read(new(*without_nccl, version="4.4.2"), 0, 3).outcome is PASS
    assert read(new(*without_nccl, version="4.10.0"), 0, 3).outcome is INCONCLUSIVE
    alone = passing(*(name for name in LEVEL_3 if name != "nccl_tests"), gpus=1)
    assert read(new(*alone, gpus=1), 0, 3).outcome is PASS
    a10g = passing(*(name for name in LEVEL_3 if name != "nvbandwidth"))
    assert read(new(*a10g, model="2237"), 0, 3).outcome is PASS


def test_what_comes_in_packages_of_its_own_may_skip_or_be_missing() -> None:
    optional = [
        a_test(name, {0: "Skip", 1: "Skip"}) for name in ("eud", "memory_bandwidth", "pulse_test")
    ]
    assert read(new(*passing(*LEVEL_3, "memtest"), *optional), 0, 4).outcome is PASS
    assert read(new(*passing(*LEVEL_3, "memtest")), 0, 4).outcome is PASS
    assert read(new(*passing(*LEVEL_3)), 0, 4).outcome is INCONCLUSIVE


def test_an_optional_test_that_fails_is_a_failure() -> None:
    output = new(*passing(*LEVEL_3), a_test("eud", {0: "Pass", 1: "Fail"}, {1: [warning(95)]}))
    assert (read(output, 205, 3).outcome, read(output, 205, 3).culprits) == (FAIL, (1,))


def test_the_level_is_told_by_the_tests_where_nobody_says_it() -> None:
    assert read(new(), 0, None).outcome is PASS
    assert (
        read(new(*passing("memory")), 0, None).outcome is PASS
    )  # may have been asked for by its name
    assert read(new(a_test("memory", {0: "Skip", 1: "Pass"})), 0, None).outcome is INCONCLUSIVE
    assert read(new(), 0, 2).outcome is INCONCLUSIVE  # asked for level 2, verified nothing beyond 1


# --- skips


def test_a_skip_without_a_word_is_no_pass_and_no_failure() -> None:
    skipped = a_test("memory", {0: "Skip", 1: "Skip"})
    for tests, version, remedy in (
        ([skipped, *passing("pcie")], "4.2.3", Remedy.EXCLUSIVE_RERUN),
        ([skipped, *passing("pcie")], "4.1.0", Remedy.FIX_CONFIG),
        ([skipped, a_test("pcie", {0: "Skip", 1: "Skip"})], "4.5.2", Remedy.FIX_CONFIG),
        (
            [a_test("memory", {0: "Pass", 1: "Skip"}), *passing("pcie")],
            "4.5.2",
            Remedy.EXCLUSIVE_RERUN,
        ),
    ):
        report = read(new(*tests, version=version))
        assert (report.outcome, report.remedy, report.culprits, report.faults) == (
            INCONCLUSIVE,
            remedy,
            (),
            (),
        ), (tests, version)


def test_a_skip_that_says_why() -> None:
    texts = {
        "Skipping test Memory because ECC is not enabled on GPU 0 Enable ECC memory": (
            Remedy.FIX_CONFIG
        ),
        "ECC Memory is not turned on or is unsupported. Skipping test.": Remedy.NONE,
        "Skipping this test for a reason that is new": Remedy.INVESTIGATE,
    }
    for text, remedy in texts.items():
        skipped = a_test("memory", {0: "Skip", 1: "Pass"})
        skipped["results"][0]["info"] = [text]
        older = old(
            an_old_test("PCIe", {0: "Pass", 1: "Pass"}),
            an_old_test("GPU Memory", {0: "Skip", 1: "Pass"}, _0={"warnings": f"GPU 0 {text}"}),
        )
        for output in (new(skipped, *passing("pcie")), older):
            report = read(output)
            assert (report.outcome, report.remedy) == (INCONCLUSIVE, remedy), text


def test_settings_beside_a_skip_are_told_and_verify_nothing() -> None:
    setting = a_test("software", {0: "Fail", 1: "Fail"}, {0: [warning(29, severity=5)]})
    report = read(new(setting, a_test("memory", {0: "Skip", 1: "Skip"}), *passing("pcie")), 226)
    assert (report.outcome, report.remedy, report.culprits) == (
        INCONCLUSIVE,
        Remedy.EXCLUSIVE_RERUN,
        (0,),
    )


def test_a_gpu_that_is_listed_and_has_no_result_was_not_verified() -> None:
    hole = {"name": "GPU Memory", "results": [None, {"gpu_id": "2", "status": "Pass"}]}
    for output, level, said in (
        (new(a_test("software", {0: "Pass"})), 1, "software has no result for GPU 1"),
        (old(*level2(gpus=2), models=["2330"] * 3), 2, "2 of 3"),
        (
            old(an_old_test("PCIe", {0: "Pass", 2: "Pass"}), hole),
            2,
            "GPU Memory has no result for GPU 0",
        ),
    ):
        report = read(output, 0, level)
        assert (report.outcome, said in report.reason) == (INCONCLUSIVE, True), report.reason


def test_a_gpu_that_was_asked_for_must_be_there() -> None:
    output = new(*passing("memory", "pcie"))
    assert read(output, gpus=(0, 1)).outcome is PASS
    assert read(output, gpus=(0, 5)).outcome is INCONCLUSIVE


def test_statuses_are_compared_without_case_and_a_new_one_is_no_pass() -> None:
    statuses = {("PASS", "pass"): PASS, ("pass", "FAIL"): FAIL, ("Pass", "Doubtful"): ERROR}
    assert {
        both: read(new(a_test("software", dict(enumerate(both)))), 0, 1).outcome
        for both in statuses
    } == statuses


# --- findings


def test_a_gpu_that_says_pass_is_blamed_by_its_warning() -> None:
    memory = a_test("memory", {0: "Pass", 1: "Pass"}, {1: [warning(57)]}, status="Fail")
    report = read(new(memory, *passing("pcie")), 205)
    assert (report.outcome, report.culprits, report.replacement_required) == (FAIL, (1,), True)


def test_gpus_that_all_say_fail_are_not_all_blamed() -> None:
    one = a_test("software", {0: "Fail", 1: "Fail"}, {1: [warning(126)]})
    assert read(new(one), 205, 1).culprits == (1,)


def test_a_summary_repeats_what_its_gpus_say_and_adds_what_none_of_them_is() -> None:
    own, nobodys = (
        warning(85, "GPU 1 had memory errors"),
        warning(28, "Environment Variables: Found x", severity=5),
    )
    report = read(
        new(a_test("software", {0: "Pass", 1: "Fail"}, {1: [own]}, warnings=[own, nobodys])), 226, 1
    )
    assert [(fault.error_id, fault.gpu) for fault in report.faults] == [(85, 1), (28, None)]
    assert (report.outcome, report.remedy, report.reboot_required) == (FAIL, Remedy.RESET_GPU, True)


def test_a_lost_gpu_is_in_the_summary_only_which_passes() -> None:
    for words in ("GPU 6 is detached.", "GPU 6 is inaccessible."):
        tests = [
            a_test(name, dict.fromkeys(range(6), "Pass")) for name in ("software", "memory", "pcie")
        ]
        tests[0]["test_summary"]["warnings"] = [warning(44, words, severity=3, category=16)]
        report = read(new(*tests, gpus=7), 226)
        assert (report.outcome, report.remedy, report.culprits, report.reboot_required) == (
            FAIL,
            Remedy.REBOOT,
            (6,),
            True,
        )
        assert [(fault.code, fault.error_id, fault.by_text) for fault in report.faults] == [
            ("dcgm/gpu_lost", 44, True)
        ]


def test_the_same_number_with_other_words_is_an_internal_error() -> None:
    said = {0: [warning(44, "There was an internal error")]}
    report = read(new(a_test("software", {0: "Fail", 1: "Pass"}, said)), 226, 1)
    assert (report.outcome, report.remedy) == (FAIL, Remedy.INVESTIGATE)


def test_more_errors_than_fit_name_every_gpu_that_fails() -> None:
    eight = dict.fromkeys(range(8), "Fail")
    warnings = {
        gpu: [
            warning(30, f"Bandwidth of GPU {gpu} in direction {way}", severity=4)
            for way in range(5 if gpu < 6 else 2)
        ]
        for gpu in range(7)
    }
    report = read(new(*passing("memory", gpus=8), a_test("pcie", eight, warnings), gpus=8), 226)
    assert (report.outcome, report.remedy) == (FAIL, Remedy.EXCLUSIVE_RERUN)
    assert report.culprits == tuple(range(8))
    assert [fault.gpu for fault in report.faults if fault.implied] == [7]


def test_an_error_that_nobody_knows_goes_by_its_severity() -> None:
    """Whatever it says, it never asks for a replacement."""
    known: dict[int | None, tuple[Outcome, Remedy]] = {
        1: (FAIL, Remedy.MONITOR),
        5: (CONFIG, Remedy.FIX_CONFIG),
        6: (FAIL, Remedy.RESET_GPU),
    }
    text = "Replace this GPU now."
    for severity in (None, 0, 1, 2, 3, 4, 5, 6, 7, 9):
        expected = known.get(severity, (FAIL, Remedy.INVESTIGATE))
        for number, code in ((777, "dcgm/777"), (None, "dcgm/unclear")):
            said = {"warning": text, "error_id": number, "error_severity": severity}
            report = read(new(a_test("software", {0: "Pass", 1: "Fail"}, {1: [said]})), None, 1)
            (fault,) = report.faults
            assert (report.outcome, report.remedy) == expected, (severity, number)
            assert (report.culprits, report.replacement_required) == ((1,), False)
            assert (fault.code, fault.confirm) == (code, True), (severity, number)
            assert report.reason.startswith("GPU 1: ") and text in report.reason


def test_an_error_that_names_an_xid_is_judged_by_the_xid() -> None:
    """One that asks for less than a reset stays a failure of the test that somebody must
    look into.
    """
    xids = {
        79: ("xid/79", False, True),
        95: ("xid/95", False, True),
        45: ("dcgm/101", True, False),
        9999: ("dcgm/101", True, False),
    }
    found, remedies = {}, {}
    for number in xids:
        said = {6: [warning(101, f"Detected XID {number} for GPU 6")]}
        report = read(new(a_test("memory", {0: "Pass", 6: "Fail"}, said), gpus=7), 205)
        (fault,) = report.faults
        assert (report.outcome, fault.gpu) == (FAIL, 6)
        found[number] = (fault.code, fault.confirm, report.reboot_required)
        remedies[number] = fault.remedy
    assert found == xids
    assert (remedies[79], remedies[45], remedies[9999]) == (
        Remedy.REBOOT,
        Remedy.INVESTIGATE,
        Remedy.INVESTIGATE,
    )


def test_a_narrow_link_is_hardware() -> None:
    text = "GPU 1 is running at PCI link width 8X, which is below the minimum allowed link width"
    said = {1: [warning(46, f"{text} of 16X", severity=5, category=13)]}
    report = read(new(a_test("pcie", {0: "Pass", 1: "Fail"}, said)), 226)
    assert (report.outcome, report.remedy, report.culprits) == (FAIL, Remedy.INVESTIGATE, (1,))


def test_the_number_outranks_the_severity() -> None:
    for number, severity, expected in (
        (126, 2, (FAIL, Remedy.REBOOT)),
        (80, 6, (FAIL, Remedy.REPLACE)),
        (132, 4, (FAIL, Remedy.REPLACE)),
        (122, 2, (CONFIG, Remedy.FIX_CONFIG)),
    ):
        said = {0: [warning(number, severity=severity)]}
        report = read(new(a_test("software", {0: "Fail", 1: "Pass"}, said)), None, 1)
        assert (report.outcome, report.remedy) == expected, number


def test_a_test_that_was_stopped_is_no_failure() -> None:
    stopped = a_test(
        "memory",
        {0: "Fail", 1: "Fail"},
        warnings=[warning(47, "Test was aborted early due to user signal", severity=5)],
    )
    report = read(new(stopped, a_test("pcie", {0: "Skip", 1: "Skip"})), 226)
    assert (report.outcome, report.remedy, report.culprits) == (ERROR, Remedy.RETRY, ())
    both = read(new(stopped, a_test("pcie", {0: "Fail", 1: "Pass"}, {0: [warning(52)]})), 226)
    assert (both.outcome, both.remedy, both.culprits) == (FAIL, Remedy.REPLACE, (0,))


def test_cuda_that_is_busy_wants_the_node_to_itself() -> None:
    text = "Error using CUDA API cudaMalloc: 'all CUDA-capable devices are busy or unavailable'"
    said = {1: [warning(51, f"{text} for GPU 1", severity=1)]}
    report = read(new(*passing("memory"), a_test("pcie", {0: "Pass", 1: "Fail"}, said)), 226)
    assert report.remedy is Remedy.EXCLUSIVE_RERUN
    assert [(fault.code, fault.error_id) for fault in report.faults] == [("dcgm/busy", 51)]


def test_reset_and_replacement_are_two_flags() -> None:
    both = {0: [warning(85, "GPU 0 a")], 1: [warning(80, "GPU 1 b")]}
    report = read(new(a_test("software", {0: "Fail", 1: "Fail"}, both)), 205, 1)
    assert (report.reboot_required, report.replacement_required) == (True, True)
    assert (report.remedy, report.culprits) == (Remedy.REPLACE, (0, 1))


# --- up to 3.x: numbers in texts, words instead of error ids


def test_the_number_beside_a_check_of_the_software_means_nothing() -> None:
    text = "GPU 3 had uncorrectable memory errors and row remapping failed."
    warned = {"warnings": text, "error_id": 80, "error_severity": 2}
    said = {"gpu_id": 0, "status": "Fail", "warnings": [warned]}
    output = old(deployment={"Page Retirement/Row Remap": [said]}, models=["2330"] * 8)
    report = read(output, 205, 1)
    assert (report.outcome, report.culprits, report.faults[0].by_text) == (FAIL, (3,), True)
    assert {test.name: dict(test.gpus) for test in report.tests}["Page Retirement/Row Remap"] == {}


def test_gpus_are_named_by_the_text() -> None:
    texts = {
        "A corrupt InfoROM has been detected in GPU 0. Flash it.": (0,),
        "GPU 5's NvLink link 4 is currently down": (5,),
        "GPUs 0, 2 and 3 had uncorrectable memory errors": (0, 2, 3),
        "GPU 00000000:53:00.0 had uncorrectable memory errors": (),
        "All 8 requested GPUs are of no use": (),
        "GPU 12 GPU 12 had errors, 5 of them": (12,),
        "Row remap of GPU 4, 7 rows": (4,),
    }

    def blamed(text: str) -> tuple[int, ...]:
        said = [{"status": "Fail", "warnings": text, "error_id": 80, "error_severity": 2}]
        return read(old(deployment={"Page Retirement/Row Remap": said}), 205, 1).culprits

    assert {text: blamed(text) for text in texts} == texts


def test_several_entries_of_one_check_name_each_their_gpu() -> None:
    entry = {"error_id": 9, "error_severity": 4}
    said = [
        {**entry, "status": "Fail", "warnings": "A corrupt InfoROM has been detected in GPU 0."},
        {**entry, "warnings": "A corrupt InfoROM has been detected in GPU 1."},
    ]
    report = read(old(deployment={"Inforom": said}, version="3.3.1"), 226, 1)
    assert (report.outcome, report.remedy, report.culprits) == (FAIL, Remedy.REBOOT, (0, 1))
    assert {test.name: test.status for test in report.tests}["Inforom"] == "Fail"


def test_without_numbers_the_leading_words_decide() -> None:
    texts = {
        "GPU 1 GPU 1 Found 4 faulty memory elements on GPU 1": ("dcgm/52", Remedy.REPLACE),
        "GPU 1 Bandwidth of GPU 1 in direction GPU to Host of 9.0 did not exceed minimum": (
            "dcgm/30",
            Remedy.EXCLUSIVE_RERUN,
        ),
        "GPU 1 Detected 3 PCIe replays for GPU 1 which is above the threshold 2": (
            "dcgm/34",
            Remedy.INVESTIGATE,
        ),
        "GPU 1 A memory mismatch was detected on GPU 1, but no error was reported": (
            "dcgm/58",
            Remedy.REPLACE,
        ),
        "GPU 1 Couldn't allocate at least 75.0% of GPU memory on GPU 1": (
            "dcgm/56",
            Remedy.EXCLUSIVE_RERUN,
        ),
        "GPU 1 Something that nobody has seen before": ("dcgm/unclear", Remedy.INVESTIGATE),
    }
    for text, expected in texts.items():
        failed = an_old_test("PCIe", {0: "Pass", 1: "Fail"}, "gpu_ids", _1={"warnings": text})
        report = read(old(failed, level2()[1], version=None), 226)
        assert (report.outcome, report.culprits) == (FAIL, (1,)), text
        assert (report.faults[0].code, report.remedy) == expected, text


def test_a_check_of_the_software_that_fails_without_a_word() -> None:
    names = {
        "Persistence Mode": CONFIG,
        "Denylist": CONFIG,
        "Graphics Processes": CONFIG,
        "Page Retirement/Row Remap": FAIL,
        "Inforom": FAIL,
    }
    reports = {
        name: read(old(deployment={name: [{"status": "Fail"}]}, version=None), 0, 1)
        for name in names
    }
    assert {name: report.outcome for name, report in reports.items()} == names
    assert [[fault.implied for fault in one.faults] for one in reports.values()] == [[True]] * 5


def test_a_test_that_fails_without_a_word_is_a_failure() -> None:
    report = read(old(an_old_test("PCIe", {0: "Pass", 1: "Fail"}), level2()[1]), 226)
    assert (report.outcome, report.remedy, report.culprits) == (FAIL, Remedy.INVESTIGATE, (1,))
    # In 4.x all of them may carry the status of the last one: nobody knows which it is.
    report = read(new(*passing("memory"), a_test("pcie", {0: "Fail", 1: "Fail"})), 226)
    assert (report.outcome, report.remedy, report.culprits) == (FAIL, Remedy.INVESTIGATE, ())


def test_serial_numbers_go_to_the_gpus_that_were_tested() -> None:
    output = old(
        an_old_test("PCIe", {0: "Pass", 2: "Pass"}),
        an_old_test("GPU Memory", {0: "Pass", 2: "Pass"}),
    )
    output["GPU Device Serials"] = {"0": "111", "1": "333"}
    assert read(output, gpus=(0, 2)).serials == {0: "111", 2: "333"}
    assert read(new()).serials == {0: "165300", 1: "165301"}


def test_the_reason_is_one_line_whatever_the_text() -> None:
    rude = "GPU 0 \x1b[2J\nwas\there " + "x" * 5000
    report = read(
        new(a_test("software", {0: "Fail", 1: "Pass"}, {0: [warning(None, rude)]})), 226, 1
    )
    for text in (report.reason, report.faults[0].text):
        assert text.isprintable()
        assert len(text) < 700
