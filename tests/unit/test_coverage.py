"""Which GPUs a run must have tested to be a pass: those of the node, whatever its program lists."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests import dcgmi
from tests.trees import NVIDIA, Tree
from tests.unit import dcgm_made
from tests.unit.builders import catalogue, finding, gpu
from tests.unit.checking import config, printed
from tests.unit.diagnostics_house import House, Tested, ask, quick, told
from vitald.core.node_state import NodeState
from vitald.diagnostics.check import Check, Command, Output
from vitald.diagnostics.checks.dcgm import DcgmCheck
from vitald.diagnostics.checks.dcgm_health import DcgmHealthCheck
from vitald.diagnostics.checks.nccl import NcclCheck
from vitald.diagnostics.coverage import require_coverage
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.run_events import PASSED
from vitald.diagnostics.source import RunInterpreter
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import Report, Run, RunRequest, Test
from vitald.model.finding import Finding, Requirement
from vitald.model.source import Readings, Sample
from vitald.model.words import Action, Outcome, Remedy, When
from vitald.topology.pci_inventory import PciInventory

__all__ = ["quick"]
GPUS = 8


class Station:
    """A node with eight GPUs, and a check whose programs answer as told."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.folder = Tree(folder), folder
        for number in range(GPUS):
            self.add_pci(number)
        self.state = NodeState("boot-a", 0.0, device_reset=False)
        self.inventory = PciInventory(folder)
        self.view = NodeView(self.state, self.inventory, folder / "ledger.db", lambda: "")
        self.interpreter = RunInterpreter("diagnostics", "boot-a", self.view, catalogue())
        self.read({number: {} for number in range(GPUS)})

    def add_pci(self, number: int, driver: str = "nvidia") -> None:
        self.tree.pci(gpu(number).id, NVIDIA, 0x2330, 0x030200, driver)

    def read(self, values: Mapping[int, Mapping[str, Sample]]) -> None:
        """What NVML says of each GPU, once PCI was read."""
        self.inventory.scan_bus()
        self.state.replace_readings(
            "nvml",
            [
                Readings(
                    component=gpu(number),
                    identity=gpu(number).id,
                    time=time.time(),
                    polled_at=time.monotonic(),
                    values=read,
                    fresh=frozenset(read),
                )
                for number, read in values.items()
            ],
        )

    def verify(
        self, check: Check, answers: Mapping[str, str], level: int = 0, gpus: Sequence[int] = ()
    ) -> Run:
        """A run of the check as the runner performs it. `answers`: by the first word of the command."""

        async def execute(command: Command) -> Output:
            return printed(next(text for word, text in answers.items() if word in command.argv))

        request = RunRequest(check=check.name, level=level, gpus=tuple(gpus))

        async def run_check() -> Report:
            report = await check.run_check(request, execute)
            return require_coverage(request, report, self.view, await self.view.read_pci())

        report = asyncio.run(run_check())
        return Run(id="1", request=request, began=time.time(), ended=time.time(), report=report)

    def run_dcgm(
        self, document: str, level: int = 1, gpus: Sequence[int] = (), engine: int = GPUS
    ) -> Run:
        """A run of DCGM's diagnostic. `engine`: how many GPUs its host engine lists."""
        answers = {"diag": document, "discovery": list_gpus(engine), "--version": ""}
        return self.verify(DcgmCheck(config(self.folder), catalogue), answers, level, gpus)

    def run_health(self, answer: str, engine: int) -> Run:
        """A run of the background watches, a while after they were set."""
        clock = iter((0.0, 600.0))
        check = DcgmHealthCheck(config(self.folder), now=lambda: next(clock))
        answers = {"-s": "", "-c": answer, "discovery": list_gpus(engine)}
        self.verify(check, answers)
        return self.verify(check, answers)

    def passed(self, run: Run) -> set[Component]:
        """The components that the run says have passed."""
        events = self.interpreter.make_events(run, cut=False)
        return {event.component for event in events if event.code == PASSED}


def list_gpus(many: int) -> str:
    addresses = [f"0000{gpu(number).id}".upper() for number in range(many)]
    return dcgmi.discovery(many, addresses=addresses)


def outcome_of(run: Run) -> tuple[Outcome, str, Remedy]:
    return run.report.outcome, run.report.reason, run.report.remedy


LEFT_OUT = (Outcome.INCONCLUSIVE, "GPU 4-7 not tested", Remedy.RETRY)
PASS = (Outcome.PASS, "", Remedy.NONE)


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(tmp_path)


@pytest.mark.parametrize("version", ["3.3.9", "4.2.3", "4.5.2"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_document_of_half_of_the_gpus_is_no_pass(
    station: Station, version: str, level: int
) -> None:
    run = station.run_dcgm(dcgmi.document(version, level, gpus=4), level)
    assert outcome_of(run) == LEFT_OUT
    assert station.passed(run) == set()
    run = station.run_dcgm(dcgmi.document(version, level), level)
    assert outcome_of(run) == PASS
    assert station.passed(run) == {NODE}


def test_a_document_without_any_gpu_is_of_those_of_the_host_engine(station: Station) -> None:
    old = json.dumps(dcgm_made.old(version=None))
    assert outcome_of(station.run_dcgm(old)) == PASS
    assert outcome_of(station.run_dcgm(old, engine=4)) == LEFT_OUT
    run = station.run_dcgm(old, engine=0)
    assert run.report.outcome is Outcome.INCONCLUSIVE
    assert run.report.reason == "its output does not name the GPUs that were tested"


def test_a_document_that_only_counts_its_gpus(station: Station) -> None:
    """Level 1 of some versions of 3.x has one device id for each GPU, and no number."""

    def count(many: int) -> str:
        document = json.loads(dcgmi.document("3.3.9", 1, gpus=many))
        del document["GPU Device Serials"]
        return json.dumps(document)

    run = station.run_dcgm(count(6), engine=0)
    assert outcome_of(run) == (Outcome.INCONCLUSIVE, "2 of 8 GPUs not tested", Remedy.RETRY)
    assert outcome_of(station.run_dcgm(count(8), engine=0)) == PASS
    assert outcome_of(station.run_dcgm(count(4), engine=4)) == LEFT_OUT


def test_some_gpus_were_requested(station: Station) -> None:
    assert outcome_of(station.run_dcgm(dcgmi.document(gpus=[2, 6]), gpus=[2, 6])) == PASS
    run = station.run_dcgm(dcgmi.document(gpus=[2]), gpus=[2, 6])
    assert run.report.outcome is Outcome.INCONCLUSIVE and "GPU 6" in run.report.reason
    run = station.run_dcgm(dcgmi.document(gpus=GPUS), gpus=[2])
    assert outcome_of(run) == PASS
    assert station.passed(run) == {gpu(2)}


def test_wrong_settings_do_not_hide_it(station: Station) -> None:
    faults = [dcgmi.Fault(29, gpu=0)]
    run = station.run_dcgm(dcgmi.document(gpus=4, faults=faults))
    assert run.report.outcome is Outcome.INCONCLUSIVE
    assert run.report.reason.startswith("GPU 4-7 not tested; GPU 0: ")
    assert run.report.remedy is Remedy.RETRY
    assert station.run_dcgm(dcgmi.document(faults=faults)).report.outcome is Outcome.CONFIG


UNUSABLE = Requirement(Action.INSPECT, When.NOW, unusable=True)
OUT_OF_USE: list[Callable[[Station], object]] = [
    lambda station: station.read(
        {number: {"excluded": 1.0} if number == 3 else {} for number in range(GPUS)}
    ),
    lambda station: set_findings(station, finding(Action.REBOOT_NODE, component=gpu(3))),
    lambda station: set_findings(station, finding(component=gpu(3), base=UNUSABLE)),
]


def set_findings(station: Station, *findings: Finding) -> None:
    station.state.findings = findings


@pytest.mark.parametrize("take_out", OUT_OF_USE)
def test_a_gpu_that_is_out_of_use_need_not_be_tested_and_has_not_passed(
    station: Station, take_out: Callable[[Station], object]
) -> None:
    without = dcgmi.document("4.5.2", 2, gpus=[0, 1, 2, 4, 5, 6, 7])
    run = station.run_dcgm(without, 2)
    assert outcome_of(run)[:2] == (Outcome.INCONCLUSIVE, "GPU 3 not tested")
    take_out(station)
    run = station.run_dcgm(without, 2)
    assert (
        run.report.outcome is Outcome.PASS
        and "not tested: out of use or excluded" in run.report.reason
    )
    assert station.passed(run) == {gpu(number) for number in range(GPUS) if number != 3}


def test_what_is_not_certain_or_can_wait_takes_nothing_out_of_use(station: Station) -> None:
    for suspicion in (
        finding(Action.INSPECT, component=gpu(3)),
        finding(Action.RESET_DEVICE, When.MAINTENANCE, component=gpu(3)),
        finding(component=gpu(3), simulated_until=time.time() + 60.0),
        finding(component=gpu(3), confirmed_by=""),  # a line of the kernel log alone
    ):
        set_findings(station, suspicion)
        run = station.run_dcgm(dcgmi.document(gpus=[0, 1, 2, 4, 5, 6, 7]))
        assert run.report.outcome is Outcome.INCONCLUSIVE


def test_a_gpu_that_is_not_here_any_more_cannot_be_tested(station: Station) -> None:
    set_findings(station, finding(Action.OBSERVE, component=gpu(20)))
    run = station.run_dcgm(dcgmi.document())
    assert run.report.outcome is Outcome.PASS
    assert station.passed(run) == {gpu(number) for number in range(GPUS)}


def test_gpus_of_another_driver_and_virtual_functions_are_not_the_nodes(
    station: Station, tmp_path: Path
) -> None:
    station.add_pci(8, "vfio-pci")
    station.add_pci(9)
    folder = (tmp_path / "bus/pci/devices" / gpu(9).id).resolve()
    (folder / "physfn").symlink_to(folder)
    station.read({number: {} for number in range(GPUS)})
    assert outcome_of(station.run_dcgm(dcgmi.document())) == PASS
    station.add_pci(10)
    station.read({number: {} for number in range(GPUS)})
    run = station.run_dcgm(dcgmi.document())
    assert outcome_of(run)[1] == f"{gpu(10).name} not tested"  # the driver has no number for it


def test_a_bus_that_cannot_be_read_hides_no_gpu(station: Station, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "bus/pci/devices")
    (tmp_path / "bus/pci/devices").touch()
    run = station.run_dcgm(dcgmi.document())
    assert run.report.outcome is Outcome.INCONCLUSIVE
    assert run.report.reason.startswith("the GPUs of this node are not known: ")
    assert "bus/pci/devices" in run.report.reason


def test_a_gpu_that_is_configured_to_be_left_alone(station: Station, tmp_path: Path) -> None:
    """Such as one for a display, which DCGM does not support."""
    station.add_pci(10)
    station.read({number: {} for number in (*range(GPUS), 10)})
    assert outcome_of(station.run_dcgm(dcgmi.document()))[1] == "GPU 8 not tested"
    station.view = NodeView(
        station.state, station.inventory, tmp_path / "ledger.db", lambda: "", None, ["0000:0a:*"]
    )
    station.interpreter = RunInterpreter("diagnostics", "boot-a", station.view, catalogue())
    run = station.run_dcgm(dcgmi.document())
    assert outcome_of(run) == (
        Outcome.PASS,
        "GPU 8 not tested: out of use or excluded",
        Remedy.NONE,
    )


def test_the_address_tells_which_gpu_is_meant(station: Station) -> None:
    """DCGM does not number a GPU that the driver could not bring up."""
    station.read(
        {number: {"not_initialised": 1.0} if number == 3 else {} for number in range(GPUS)}
    )
    assert station.view.find_gpu(3) == gpu(4)
    assert station.view.find_number(gpu(3)) is None
    assert station.view.find_gpu(3, "", gpu(6).id) == gpu(6)
    assert station.view.find_gpu(3, "", gpu(30).id) == gpu(4)  # not a GPU of this node


HEALTHY = dcgmi.health()


def test_the_background_watches_are_of_the_gpus_that_the_engine_lists(station: Station) -> None:
    run = station.run_health
    assert outcome_of(run(HEALTHY, GPUS)) == PASS
    assert outcome_of(run(HEALTHY, 4)) == LEFT_OUT
    assert run(HEALTHY, 0).report.outcome is Outcome.INCONCLUSIVE
    # One complaint is not the only GPU that is watched.
    aside = dcgmi.health({3: {"Power system": ("Warning", "Cannot reliably read the power")}})
    complained = run(aside, GPUS).report
    assert "not tested" not in complained.reason
    assert {gpu for test in complained.tests for gpu in test.gpus} == set(map(str, range(GPUS)))


def test_a_fault_ends_no_finding_of_a_gpu_that_was_not_tested(station: Station) -> None:
    open_one = finding(
        Action.INSPECT,
        component=gpu(5),
        code="dcgm_health/memory",
        kind="dcgm_health",
        fields={"check": "dcgm_health"},
    )
    set_findings(station, open_one)
    answer = dcgmi.health({1: {"Memory system": ("Failure", "A DBE on GPU 1.")}})

    def list_ended(engine: int) -> set[Component]:
        run = station.run_health(answer, engine)
        assert run.report.outcome is Outcome.FAIL
        events = station.interpreter.make_events(run, cut=False)
        return {event.component for event in events if event.fields.get("recovered")}

    assert list_ended(engine=4) == set()
    assert list_ended(engine=GPUS) == {gpu(5)}


def print_all_reduce(ranks: Sequence[tuple[int, str]]) -> str:
    devices = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid  31337 on      node7 device {device:2} [{bus}] NVIDIA H100"
        for rank, (device, bus) in enumerate(ranks)
    )
    return f"""# Using devices
{devices}
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
  8589934592    2147483648     float     sum      -1    27715  309.94  464.91      0    27689  310.23  465.35      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 465.13
"""


def run_nccl(station: Station, ranks: Sequence[tuple[int, str]], gpus: Sequence[int] = ()) -> Run:
    answers = {"-b": print_all_reduce(ranks)}
    return station.verify(NcclCheck(config(station.folder)), answers, gpus=gpus)


@pytest.mark.parametrize("form", ["0000:{:02x}:00", "0x{:02x}"])
def test_an_all_reduce_of_half_of_the_gpus_is_no_pass(station: Station, form: str) -> None:
    ranks = [(number, form.format(number)) for number in range(GPUS)]
    assert outcome_of(run_nccl(station, ranks)) == PASS
    assert outcome_of(run_nccl(station, ranks[:4])) == LEFT_OUT
    assert run_nccl(station, []).report.outcome is Outcome.INCONCLUSIVE


def test_an_all_reduce_names_its_gpus_by_their_addresses(station: Station) -> None:
    """CUDA does not count a GPU that fell off the bus, whose number tools keep."""
    set_findings(station, finding(Action.REBOOT_NODE, component=gpu(3)))
    there = [number for number in range(GPUS) if number != 3]
    ranks = [(device, f"0000:{number:02x}:00") for device, number in enumerate(there)]
    run = run_nccl(station, ranks)
    assert outcome_of(run) == (
        Outcome.PASS,
        "GPU 3 not tested: out of use or excluded",
        Remedy.NONE,
    )
    some = [(0, "0000:02:00"), (1, "0000:06:00")]
    assert outcome_of(run_nccl(station, some, gpus=[2, 6])) == PASS
    assert outcome_of(run_nccl(station, some, gpus=[2, 7]))[1] == "GPU 7 not tested"


@pytest.mark.usefixtures("quick")
def test_the_recorded_run_is_the_verified_one() -> None:
    named = Report(
        outcome=Outcome.PASS,
        tests=(Test(name="memory", gpus={"0": "Pass", "1": "Pass"}),),
    )
    silent = Report(outcome=Outcome.PASS)
    for covers, report, unread, outcome in (
        (True, silent, "", Outcome.INCONCLUSIVE),
        (True, named, "", Outcome.PASS),
        (True, named, "EIO", Outcome.INCONCLUSIVE),
        (False, silent, "EIO", Outcome.PASS),
    ):

        async def perform(*_: object, report: Report = report) -> Report:
            return report

        house = House(Tested(how=perform, covers_gpus=covers))
        house.node.pci_unread = unread

        async def work(house: House = house) -> None:
            async with house.open():
                await house.ended(house.manager.request_run(ask()))

        told(work)
        assert [run.report.outcome for run in house.runs] == [outcome]
