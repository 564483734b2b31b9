"""EFA loopback: which adapters, the command, the table of fi_pingpong, and whose fault a failure
is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.network_tree import EFA, MLX5, NetworkTree
from tests.trees import AMAZON
from tests.unit.builders import catalogue
from tests.unit.checking import asked, config, cuts, hung, install, perform, printed
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.diagnostics.checks import efa_loopback
from vitald.diagnostics.checks.efa_loopback import EfaLoopbackCheck, build_check, read_table
from vitald.diagnostics.settings import EfaLoopbackSettings as Settings
from vitald.model.component import Component
from vitald.model.words import Action, ComponentKind, Outcome, Remedy

# As libfabric's fi_pingpong prints it; the figures are ours.
TABLE = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      1k      =1k      125k        0.08s      1.62       39.60       0.03
256     1k      =1k      500k        0.04s     11.91       21.50       0.05
1k      1k      =1k      1.9m        0.04s     46.55       22.00       0.05
4k      1k      =1k      7.8m        0.05s    163.84       25.00       0.04
64k     1k      =1k      125m        0.12s   1092.27       60.00       0.02
1m      1k      =1k      1.9g        0.52s   4032.98      260.00       0.00
"""
FABTESTS = """\
bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec
64      20k     1.2m        0.03s     42.74       1.50       0.67
1m      200     200m        0.03s   6892.86     152.12       0.01
"""


def node(tmp_path: Path, adapters: int = 2) -> list[str]:
    tree = NetworkTree(tmp_path)
    tree.mlx5(MLX5[0], "ib0")
    return [tree.efa(address) for address in EFA[:adapters]]


def check(tmp_path: Path, **settings: float) -> EfaLoopbackCheck:
    return EfaLoopbackCheck(config(tmp_path, Settings(**settings)))


def test_each_adapter_of_the_driver_efa_sends_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = node(tmp_path)
    folder = install(tmp_path / "bin", monkeypatch, "fi_pingpong")
    commands = asked(check(tmp_path, deadline_s=33.0), printed(TABLE))
    assert [command.argv[command.argv.index("-d") + 1] for command in commands] == [
        f"{name}-rdm" for name in names
    ]
    for command in commands:
        # Without this, libfabric goes through shared memory, and the adapter is not tested at all.
        assert command.environment == {"FI_EFA_ENABLE_SHM_TRANSFER": "0"}
        assert command.argv[6:11] == (f"{folder}/fi_pingpong", "-e", "rdm", "-p", "efa")
        assert int(command.argv[4], 16) == int(command.argv[5]) > 1024
        assert command.deadline_s == 33.0


def test_a_good_run_says_what_hyperpod_says(tmp_path: Path) -> None:
    names = node(tmp_path)
    report = perform(check(tmp_path), printed(TABLE))
    assert (report.outcome, report.reason, report.faults) == (Outcome.PASS, "", ())
    measures = {(measure.device, measure.name): measure.value for measure in report.measures}
    assert len(measures) == 12
    assert measures[names[0], "bandwidth_bytes_per_second"] == pytest.approx(4032.98e6)  # MaxBw
    assert measures[names[0], "bandwidth_average_bytes_per_second"] == pytest.approx(
        891.53e6, rel=1e-3
    )  # AvgBw
    assert measures[names[1], "latency_seconds"] == pytest.approx(
        23.5e-6
    )  # the first row pays for the set-up: a median
    assert measures[names[1], "latency_max_typical_seconds"] == pytest.approx(39.6e-6)
    assert measures[names[1], "latency_min_typical_seconds"] == pytest.approx(21.5e-6)
    assert measures[names[1], "latency_average_seconds"] == pytest.approx(27.025e-6)
    assert [test.status for test in report.tests] == ["Pass", "Pass"]


def test_worse_than_expected_is_a_finding_of_that_adapter(tmp_path: Path) -> None:
    names = node(tmp_path)
    slow = TABLE.replace("4032.98", " 900.00").replace("1092.27", " 300.00")
    report = perform(
        check(tmp_path, min_gbps=20.0, max_latency_us=30.0), printed(TABLE), printed(slow)
    )
    assert (report.outcome, report.remedy) == (Outcome.FAIL, Remedy.INVESTIGATE)
    fault = report.faults[0]
    assert [(fault.code, fault.confirm) for fault in report.faults] == [("efa_loopback/slow", True)]
    assert Component.parse_name(fault.device) == Component(ComponentKind.NIC, EFA[1])
    assert names[1] in fault.text and "7.2 Gbit/s" in fault.text and "20 Gbit/s" in fault.text
    assert {
        measure.minimum
        for measure in report.measures
        if measure.name == "bandwidth_bytes_per_second"
    } == {2.5e9}
    late = perform(check(tmp_path, max_latency_us=23.0), printed(TABLE))
    assert [fault.code for fault in late.faults] == ["efa_loopback/slow"] * 2
    assert "23.5 us" in late.reason
    assert perform(check(tmp_path), printed(slow)).outcome is Outcome.PASS  # 0: only reported


def test_what_is_found_once_is_observed_and_twice_inspected() -> None:
    for code in (
        "efa_loopback/slow",
        "efa_loopback/failed",
        "nccom/failed",
        "nccom/slow",
        "nccl/failed",
        "nccl/slow",
    ):
        rule = catalogue().find_rule(code)
        assert rule.is_known and rule.state
        assert [rule.apply_to({"confirmed": known}).action for known in (False, True)] == [
            Action.OBSERVE,
            Action.INSPECT,
        ]
        assert rule.apply_to({"recovered": True}).action is Action.NONE


def test_whose_fault_a_failure_is(tmp_path: Path) -> None:
    node(tmp_path, 1)
    alone = "[error] ctrl/read: no data or remote connection closed\n"
    words = {
        "fi_getinfo(): util/pingpong.c:1470, ret=-61 (No data available)": Outcome.CONFIG,
        "fi_domain(): util/pingpong.c:1372, ret=-12 (Cannot allocate memory)": Outcome.CONFIG,
        "[error] util/pingpong.c:380 : failed to connect: Connection refused": Outcome.ERROR,
        "bind(): util/pingpong.c:420 , ret=-98 (Address already in use)": Outcome.ERROR,
        "[error] util/pingpong.c:700 : cq_readerr: Unreachable remote": Outcome.FAIL,
        "Error at iteration=12 size=4096 byte=1033": Outcome.FAIL,
        "": Outcome.FAIL,
    }
    for said, outcome in words.items():
        report = perform(check(tmp_path), printed(f"{TABLE[:160]}\n{said}\n", 1, stderr=alone))
        assert report.outcome is outcome, said
        assert said in report.reason
        assert [fault.code for fault in report.faults] == (
            ["efa_loopback/failed"] if outcome is Outcome.FAIL else []
        )


def test_a_server_that_does_not_come_up(tmp_path: Path) -> None:
    node(tmp_path, 1)
    report = perform(check(tmp_path), printed("", 75, stderr="the server does not listen\n"))
    assert report.outcome is Outcome.FAIL and "does not listen" in report.reason
    missing = printed("", 127, stderr="sh: fi_pingpong: not found\n")
    assert perform(check(tmp_path), missing).outcome is Outcome.CONFIG


def test_the_cause_is_told_and_not_that_the_other_side_went_away(tmp_path: Path) -> None:
    """As libfabric 1.17 prints it on a machine without EFA: the server knows why, the client only
    that it is alone.
    """
    node(tmp_path, 1)
    client = "[error] util/pingpong.c:568 : ctrl/read: no data or remote connection closed\n"
    report = perform(
        check(tmp_path),
        printed(
            client, 103, stderr="fi_getinfo(): util/pingpong.c:1489, ret=-61 (No data available)\n"
        ),
    )
    assert report.outcome is Outcome.CONFIG and "ret=-61 (No data available)" in report.reason


def test_what_works_for_the_others_is_no_matter_of_settings(tmp_path: Path) -> None:
    names = node(tmp_path)
    no_domain = printed("fi_getinfo(): util/pingpong.c:1470, ret=-61 (No data available)\n", 61)
    report = perform(check(tmp_path), printed(TABLE), no_domain)
    assert report.outcome is Outcome.FAIL
    assert [(fault.code, names[1] in fault.text) for fault in report.faults] == [
        ("efa_loopback/failed", True)
    ]
    assert perform(check(tmp_path), no_domain).outcome is Outcome.CONFIG


def test_a_hang_or_lost_messages_are_a_finding(tmp_path: Path) -> None:
    node(tmp_path, 1)
    lost = printed(TABLE.replace("=1k      1.9g", "+12      1.9g"))
    for output, said in ((hung(TABLE[:200]), "120 s"), (lost, "lost")):
        report = perform(check(tmp_path), output)
        assert [fault.code for fault in report.faults] == ["efa_loopback/failed"]
        assert said in report.reason


def test_a_cancelled_run_ends_there_and_blames_nobody(tmp_path: Path) -> None:
    node(tmp_path, 4)
    cancelled = Output(ended=ProgramEnd.CANCELLED, stdout=TABLE, why="it made room for job 7")
    assert len(asked(check(tmp_path), printed(TABLE), cancelled)) == 2
    report = perform(check(tmp_path), printed(TABLE), cancelled)
    assert (report.outcome, report.faults) == (Outcome.ERROR, ())
    assert "job 7" in report.reason


def test_a_bus_that_cannot_be_read_hides_no_adapter(tmp_path: Path) -> None:
    node(tmp_path)
    (tmp_path / "bus/pci/devices").rename(tmp_path / "elsewhere")
    (tmp_path / "bus/pci/devices").touch()
    report = perform(check(tmp_path), printed(TABLE))
    assert report.outcome is Outcome.ERROR and "bus/pci/devices" in report.reason


def test_an_adapter_that_the_driver_does_not_show_was_not_tested(tmp_path: Path) -> None:
    names = node(tmp_path, 3)
    tree = NetworkTree(tmp_path)
    tree.pci(EFA[3], AMAZON, 0xEFA1, 0x020000, "vfio-pci")  # a virtual machine's
    assert perform(check(tmp_path), printed(TABLE)).outcome is Outcome.PASS
    tree.remove(f"class/infiniband/{names[1]}")
    report = perform(check(tmp_path), printed(TABLE))
    assert (report.outcome, report.remedy) == (Outcome.INCONCLUSIVE, Remedy.RETRY)
    assert report.reason == f"EFA {EFA[1]} not tested: the driver does not show it"
    assert [test.status for test in report.tests] == ["", "Pass", "Pass"]


def test_a_table_that_is_not_whole_is_no_pass(tmp_path: Path) -> None:
    node(tmp_path, 1)
    for text in [
        *cuts(TABLE[: TABLE.index("1m ")]),
        TABLE.replace("4032.98", "nan"),
        TABLE.replace("22.00", ""),
        TABLE.replace("bytes", "b"),
    ]:
        report = perform(check(tmp_path), printed(text))
        assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ()), text
        assert report.reason
    assert perform(check(tmp_path), printed(TABLE, dropped=5)).outcome is Outcome.INCONCLUSIVE


def test_the_table_of_fabtests_is_understood() -> None:
    table = read_table(f"Warning: huge pages\n{FABTESTS}")
    assert [(row.size, row.lost) for row in table.rows] == [(64, False), (1 << 20, False)]
    assert table.rows[1].bytes_per_second == pytest.approx(6892.86e6)


@given(
    st.lists(
        st.sampled_from([*TABLE.splitlines(), *FABTESTS.splitlines(), "64 nan", "1k inf =1k"])
        | st.text(max_size=40),
        max_size=12,
    )
)
def test_anything_printed_is_read(lines: list[str]) -> None:
    table = read_table("\n".join(lines))
    assert all(row.bytes_per_second >= 0.0 and row.seconds > 0.0 for row in table.rows)


def test_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(efa_loopback, "FOLDERS", ("/nowhere/efa/bin",))
    said = check(tmp_path).find_obstacle()
    assert "fi_pingpong is not installed" in said and "/nowhere/efa/bin" in said
    install(tmp_path / "bin", monkeypatch, "fi_pingpong")
    assert "no EFA adapter" in check(tmp_path).find_obstacle()
    assert perform(check(tmp_path), printed(TABLE)).outcome is Outcome.NOT_APPLICABLE
    NetworkTree(tmp_path).mlx5(MLX5[0], "ib0")
    assert "no EFA adapter" in check(tmp_path).find_obstacle()
    NetworkTree(tmp_path).efa(EFA[0])
    assert check(tmp_path).find_obstacle() == ""


def test_its_place_among_the_checks(tmp_path: Path) -> None:
    one = build_check(config(tmp_path, Settings(every_s=86400.0)))
    place = (one.name, one.levels, one.every_s(0), one.needs_idle(0))
    assert place == ("efa_loopback", (0,), 86400.0, True)
