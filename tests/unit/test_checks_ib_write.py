"""perftest: which adapter writes to which, its tables, and whose fault a failure is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.network_tree import NetworkTree
from tests.perftest_program import FAILED, NO_DEVICE, print_bandwidth, print_latency
from tests.unit.builders import FUZZ, catalogue
from tests.unit.checking import Programs, asked, config, cuts, hung, install, perform, printed
from vitald.diagnostics.check import Command, Output, ProgramEnd
from vitald.diagnostics.checks import ib_write
from vitald.diagnostics.checks.ib_write import IbWriteCheck, list_adapters, plan_routes
from vitald.diagnostics_sections import IbWrite as Settings
from vitald.model import Action
from vitald.model.diagnostic import Outcome, Report, RunRequest

BUSES = ("0000:9a:00.0", "0000:ba:00.0", "0000:da:00.0")
GOOD = (printed(print_bandwidth(389.5)), printed(print_latency(1.25)))


def node(
    tmp_path: Path, count: int = 2, *, roce: bool = False, subnet: str = "fe80"
) -> NetworkTree:
    tree = NetworkTree(tmp_path / "sys")
    for number, bus in enumerate(BUSES[:count]):
        name = tree.mlx5(bus, f"ib{number}", roce=roce)
        tree.port(name, **{"gids/0": f"{subnet}:0000:0000:0000:0002:c903:0031:00{number:02}"})
    return tree


def check(tree: NetworkTree, **settings: float) -> IbWriteCheck:
    return IbWriteCheck(config(tree.root, ib_write=Settings(**settings)))  # type: ignore[arg-type]


def routes(tree: NetworkTree) -> list[str]:
    return [route.name for route in plan_routes(list_adapters(tree.root / "class/infiniband"))]


class Answers(Programs):
    """Answers by program, so that every route prints the same."""

    def __init__(self, **by_client: Output) -> None:
        super().__init__()
        self.by_client = by_client

    async def execute(self, command: Command) -> Output:
        self.asked.append(command)
        words = command.argv[-1].split()
        for name, output in self.by_client.items():
            if words[words.index("-d") + 1] == name:
                return output
        return GOOD["ib_write_lat" in words[0]]


def run(checked: IbWriteCheck, answers: Answers) -> Report:
    return asyncio.run(checked.run_check(RunRequest(check="ib_write"), answers.execute))


def test_each_writes_to_itself_and_on_infiniband_to_the_next_and_back(tmp_path: Path) -> None:
    assert routes(node(tmp_path / "1", 1)) == ["mlx5_0"]
    assert routes(node(tmp_path / "2", 2)) == [
        *("mlx5_0", "mlx5_1"),
        *("mlx5_1 to mlx5_0", "mlx5_0 to mlx5_1"),
    ]
    assert len(routes(node(tmp_path / "3", 3))) == 3 + 6
    assert routes(node(tmp_path / "roce", 2, roce=True)) == ["mlx5_0", "mlx5_1"]


def test_adapters_of_two_subnets_do_not_write_to_each_other(tmp_path: Path) -> None:
    tree = node(tmp_path, 2)
    tree.port("mlx5_1", **{"gids/0": "fec0:0000:0000:0001:0002:c903:0031:0001"})
    assert routes(tree) == ["mlx5_0", "mlx5_1"]


def test_no_port_that_is_down_no_efa_and_none_that_is_excluded(tmp_path: Path) -> None:
    tree = node(tmp_path, 3)
    tree.efa("0000:10:00.0")
    tree.down("mlx5_0")
    classes = tree.root / "class/infiniband"
    assert [one.name for one in list_adapters(classes)] == ["mlx5_1", "mlx5_2"]
    assert [one.name for one in list_adapters(classes, ["*_1"])] == ["mlx5_2"]
    assert [one.name for one in list_adapters(classes, [BUSES[2]])] == ["mlx5_1"]


def test_server_and_client_are_on_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "bin", monkeypatch, "ib_write_bw", "ib_write_lat")
    commands = asked(check(node(tmp_path, 1), deadline_s=33.0), *GOOD)
    assert len(commands) == 2
    for command, program, options in zip(
        commands,
        ("ib_write_bw", "ib_write_lat"),
        ("-F --report_gbits -s 1048576 -n 5000", "-F -s 8 -n 10000"),
    ):
        port = int(command.argv[4], 16)
        both = f"{folder}/{program} -d mlx5_0 -i 1 -p {port} {options}"
        assert command.argv[5:] == (both, f"{both} 127.0.0.1")
        assert command.deadline_s == 33.0


def test_a_good_run(tmp_path: Path) -> None:
    report = run(check(node(tmp_path), least_gbps=380.0, most_latency_us=2.0), Answers())
    assert (report.outcome, report.reason, report.faults) == (Outcome.PASS, "", ())
    assert [test.name for test in report.tests][-1] == "write mlx5_0 to mlx5_1"
    first = [(one.name, one.value, one.least, one.most) for one in report.measures[:2]]
    assert first == [
        ("bandwidth_bytes_per_second", pytest.approx(389.5e9 / 8), 47.5e9, None),
        ("latency_seconds", pytest.approx(1.25e-6), None, pytest.approx(2e-6)),
    ]
    assert len(report.measures) == 8


def test_the_adapter_that_is_slow_is_named(tmp_path: Path) -> None:
    slow = printed(print_bandwidth(97.5))
    report = perform(check(node(tmp_path, 1), least_gbps=380.0), slow, GOOD[1])
    assert [(one.code, one.device, one.confirm) for one in report.faults] == [
        ("ib_write/slow", f"nic/{BUSES[0]}", True)
    ]
    assert report.reason == "mlx5_0: 97.5 Gbit/s, below the 380 Gbit/s that are expected"
    late = perform(check(node(tmp_path / "late", 1), most_latency_us=1.0), *GOOD)
    assert [one.code for one in late.faults] == ["ib_write/slow"] and "1.25 us" in late.reason


def test_a_failed_loopback_blames_the_adapter_and_its_routes_are_left_out(tmp_path: Path) -> None:
    answers = Answers(mlx5_1=printed("", 1, stderr=FAILED))
    report = run(check(node(tmp_path)), answers)
    assert [(one.code, one.device) for one in report.faults] == [
        ("ib_write/failed", f"nic/{BUSES[1]}")
    ]
    assert "transport retry counter exceeded" in report.reason
    assert len(report.tests) == 2 and len(answers.asked) == 3


def test_between_two_that_are_well_the_fault_is_on_the_way(tmp_path: Path) -> None:
    class OneWay(Answers):
        async def execute(self, command: Command) -> Output:
            if "mlx5_0" in command.argv[-1] and "mlx5_1" in command.argv[-2]:
                return printed("", 1, stderr=FAILED)
            return await super().execute(command)

    report = run(check(node(tmp_path)), OneWay())
    assert [(one.code, one.device) for one in report.faults] == [
        ("ib_write/failed", "mlx5_0 to mlx5_1")
    ]


@pytest.mark.parametrize(
    ("stderr", "code", "outcome"),
    [
        (NO_DEVICE, 1, Outcome.CONFIG),
        ("Couldn't allocate MR\n failed to create mr\n", 1, Outcome.CONFIG),
        ("ib_write_bw: unrecognized option '--x'\n Invalid Command or flag.\n", 1, Outcome.CONFIG),
        ("Couldn't connect to 127.0.0.1:18515\n", 1, Outcome.ERROR),
        ("the server does not listen\n", 75, Outcome.ERROR),
        ("something new\n", 1, Outcome.ERROR),
    ],
)
def test_what_says_nothing_about_the_adapter(
    tmp_path: Path, stderr: str, code: int, outcome: Outcome
) -> None:
    report = perform(check(node(tmp_path, 1)), printed("", code, stderr=stderr))
    assert (report.outcome, report.faults) == (outcome, ())


def test_other_ends(tmp_path: Path) -> None:
    tree = node(tmp_path)
    assert [one.code for one in perform(check(tree), hung()).faults] == ["ib_write/failed"] * 2
    over = Output(ended=ProgramEnd.CANCELLED, why="a job needs the node")
    assert len(asked(check(tree), over)) == 1, "nothing starts after that"
    dropped = printed(print_bandwidth(389.5), dropped=3)
    assert perform(check(node(tmp_path / "1", 1)), dropped, GOOD[1]).outcome is Outcome.INCONCLUSIVE
    assert perform(check(NetworkTree(tmp_path / "no"))).outcome is Outcome.NOT_APPLICABLE


def test_no_beginning_of_a_table_passes(tmp_path: Path) -> None:
    checked = check(node(tmp_path, 1))
    assert perform(checked, *GOOD).outcome is Outcome.PASS
    for beginning in cuts(print_bandwidth(389.5).partition("0.046")[0]):
        assert perform(checked, printed(beginning), GOOD[1]).outcome is Outcome.INCONCLUSIVE
    for beginning in cuts(print_latency(1.25).rpartition("6.25")[0]):
        assert perform(checked, GOOD[0], printed(beginning)).outcome is Outcome.INCONCLUSIVE


@FUZZ
@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    assert ib_write.read_figure(text, "BW average[Gb/sec]", 5, 3) is None


def test_it_never_starts_without_an_active_rdma_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = NetworkTree(tmp_path / "sys")
    assert "ib_write_bw is not installed" in check(tree).find_obstacle()
    install(tmp_path / "bin", monkeypatch, "ib_write_bw", "ib_write_lat")
    assert "no RDMA device with an active port" in check(tree).find_obstacle()
    tree = node(tmp_path, 1)
    assert check(tree).find_obstacle() == ""
    tree.down("mlx5_0")
    assert "no RDMA device with an active port" in check(tree).find_obstacle()


def test_the_catalogue_knows_its_codes() -> None:
    for code in (ib_write.FAILED, ib_write.SLOW):
        rule = catalogue().find_rule(code)
        assert (rule.action, rule.state) == (Action.INSPECT, True)
