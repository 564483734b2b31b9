"""What the bandwidth checks share."""

from __future__ import annotations

from vitald.diagnostics.bandwidth import AllReduce, BandwidthCheck, Figures
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.model.words import Outcome, Remedy

NODE = AllReduce(check="made", program="made_perf", unit=1e9, expected=100.0)
WHOLE = Figures(
    sizes=(8, 16), bus_bandwidths=(90.0, 120.5), algorithm_bandwidths=(50.0, 60.0), average=105.25
)


def test_it_runs_on_idle_devices_by_one_period() -> None:
    check = BandwidthCheck(every_s=3600.0, expected_s=15.0)
    assert check.levels == (0,)
    assert (check.every_s(0), check.expected_s(0), check.needs_idle(0)) == (3600.0, 15.0, True)


def test_what_can_be_no_pass() -> None:
    for figures, dropped, said in (
        (WHOLE, 1, "incomplete"),
        (Figures(broken="8 x"), 0, "8 x"),
        (Figures(), 0, "last"),
    ):
        output = Output(
            ended=ProgramEnd.EXITED, stdout="first\nlast\n", exit_code=0, dropped=dropped
        )
        assert said in NODE.find_incomplete_reason(figures, output)
    whole = Output(ended=ProgramEnd.EXITED, stdout="first\nlast\n", exit_code=0)
    assert NODE.find_incomplete_reason(WHOLE, whole) == ""


def test_the_best_size_is_held_against_what_is_expected() -> None:
    assert NODE.find_slow_reason(WHOLE) == ""
    slow = Figures(sizes=(8,), bus_bandwidths=(99.94,), algorithm_bandwidths=(50.0,), average=99.94)
    assert "99.94 GB/s" in NODE.find_slow_reason(slow)
    assert "100 GB/s" in NODE.find_slow_reason(slow)
    unlimited = AllReduce(check="made", program="made_perf", unit=1e9, expected=0.0)
    assert unlimited.find_slow_reason(slow) == ""


def test_a_pass_has_its_figures_in_bytes_per_second() -> None:
    report = NODE.report_pass(WHOLE)
    assert report.outcome is Outcome.PASS
    assert [(one.name, one.value, one.minimum) for one in report.measures] == [
        ("busbw_bytes_per_second", 120.5e9, 100e9),
        ("busbw_average_bytes_per_second", 105.25e9, None),
        ("algbw_bytes_per_second", 60e9, None),
    ]
    assert [(one.name, one.category, one.status) for one in report.tests] == [
        ("all-reduce", "made", "Pass")
    ]


def test_a_failure_names_its_gpus() -> None:
    report = NODE.report_failure("made/slow", "too slow\x1b", WHOLE, [3, 1, 3], confirm=True)
    assert (report.outcome, report.remedy) == (Outcome.FAIL, Remedy.INVESTIGATE)
    assert report.reason == "made_perf: too slow?"
    assert report.culprits == (1, 3)
    assert [fault.gpu for fault in report.faults] == [3, 1, 3]
    assert all(fault.confirm and fault.text == report.reason for fault in report.faults)
    assert report.measures


def test_a_run_that_ended_before_its_average_has_no_figures() -> None:
    half = Figures(sizes=(8,), bus_bandwidths=(90.0,), algorithm_bandwidths=(50.0,))
    report = NODE.report_failure("made/failed", "it hangs", half, confirm=False)
    assert report.measures == ()
    assert report.culprits == ()
    assert [fault.gpu for fault in report.faults] == [None]
