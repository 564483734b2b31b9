"""dcgmi health: setting the watches, waiting for answers that count, reading them, and what is set
aside.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import NVIDIA, Tree
from tests.unit.builders import DCGM_SAMPLES, catalogue
from tests.unit.checking import asked, config, cuts, hung, install, perform, printed
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.diagnostics.checks.dcgm_health import (
    BoardTraits,
    DcgmHealthCheck,
    build_check,
    judge_answer,
    read_answer,
)
from vitald.diagnostics.run.held_processes import Process
from vitald.diagnostics.settings import DcgmHealthSettings as Settings
from vitald.diagnostics.settings import DcgmSettings
from vitald.model.diagnostic import Fault, Report
from vitald.model.event import Fields
from vitald.model.words import Action, Outcome, Remedy

HEALTHY = '{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}'
NOT_ENABLED = "Error: Health watches not enabled. Please enable watches. \n"
NO_ENGINE = (
    "Error: unable to establish a connection to the specified host: localhost\n"
    "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n"
)
DONE = printed("Health monitor systems set successfully.\n")


def answer(said: dict[str, dict[str, dict[str, tuple[str, str]]]], overall: str = "Failure") -> str:
    """A document of DCGM's: `{"GPU": {"3": {"Memory system": ("Failure", "words")}}}`, its texts
    cut into pieces.
    """

    def errors(systems: dict[str, tuple[str, str]]) -> dict[str, object]:
        return {
            system: {
                "value": value,
                "overflow": [text[at : at + 44] for at in range(0, len(text), 44)],
            }
            for system, (value, text) in systems.items()
        }

    groups: dict[str, object] = {
        group: {
            "children": {
                entity: {
                    "children": {"Errors": {"children": errors(systems)}},
                    "value": max((value for value, _ in systems.values()), default="Healthy"),
                }
                for entity, systems in entities.items()
            }
        }
        for group, entities in said.items()
    }
    body = {"Overall Health": {"value": overall}, **groups}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]}, indent="\t")


BAD_MEMORY = answer(
    {"GPU": {"3": {"Memory system": ("Failure", "A DBE has been detected on GPU 3.")}}}
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def check(tmp_path: Path, clock: Clock | None = None, machine: str = "x86_64") -> DcgmHealthCheck:
    return DcgmHealthCheck(config(tmp_path), clock or Clock(), machine)


def settled(
    tmp_path: Path, *outputs: Output, gpus: tuple[int, ...] = (), machine: str = "x86_64"
) -> Report:
    """A run of a check whose watches have been set for long."""
    clock = Clock()
    one = check(tmp_path, clock, machine)
    perform(one, DONE)
    clock.now += 600.0
    return perform(one, *outputs, gpus=gpus)


# --- the watches


def test_the_watches_are_set_once_and_the_answers_count_a_minute_later(
    tmp_path: Path, clock: Clock
) -> None:
    one = check(tmp_path, clock)
    programs = asked(one, DONE)
    assert [command.argv[1:] for command in programs] == [("health", "-g", "0", "-s", "a")]
    clock.now += 59.0
    early = perform(one, printed(HEALTHY))
    assert early.outcome is Outcome.INCONCLUSIVE and "59 s ago" in early.reason
    assert perform(one, printed(BAD_MEMORY)).faults == ()
    clock.now += 1.0
    assert [command.argv[1:] for command in asked(one, printed(HEALTHY))] == [
        ("discovery", "-l"),
        ("health", "-g", "0", "-c", "-j"),
    ]
    assert perform(one, printed(HEALTHY)).outcome is Outcome.PASS


def test_the_first_run_sets_the_watches_and_says_so(tmp_path: Path) -> None:
    report = perform(check(tmp_path), DONE)
    assert report.outcome is Outcome.INCONCLUSIVE and "60 s" in report.reason and not report.faults


def test_an_engine_that_was_restarted_gets_its_watches_again(tmp_path: Path, clock: Clock) -> None:
    one = check(tmp_path, clock)
    perform(one, DONE)
    clock.now += 600.0
    commands = asked(one, printed("8 GPUs found.\n"), printed(NOT_ENABLED, 253), DONE)
    assert [command.argv[-2:] for command in commands[1:]] == [("-c", "-j"), ("-s", "a")]
    assert perform(one, printed(HEALTHY)).outcome is Outcome.INCONCLUSIVE
    clock.now += 60.0
    assert perform(one, printed(HEALTHY)).outcome is Outcome.PASS


def test_watches_that_cannot_be_set_are_asked_for_again(tmp_path: Path, clock: Clock) -> None:
    one = check(tmp_path, clock)
    report = perform(one, printed("Error: insufficient rights\n", 227))
    assert report.outcome is Outcome.ERROR and "insufficient rights" in report.reason
    clock.now += 600.0
    assert asked(one, DONE)[0].argv[-2:] == ("-s", "a")


def test_an_engine_that_is_down_is_a_finding_with_the_command_that_starts_it(
    tmp_path: Path,
) -> None:
    for settled_before in (False, True):
        clock = Clock()
        one = check(tmp_path, clock)
        if settled_before:
            perform(one, DONE)
            clock.now += 600.0
        report = perform(one, printed(NO_ENGINE, 235))
        assert report.outcome is Outcome.ERROR
        assert [fault.code for fault in report.faults] == ["dcgm/engine_down"]
        assert "systemctl start nvidia-dcgm" in report.reason
        assert asked(one, DONE)[0].argv[-2:] == ("-s", "a")  # its watches ended with it


def test_a_stall_is_a_finding(tmp_path: Path) -> None:
    for report in (
        perform(check(tmp_path), hung()),
        settled(tmp_path, hung(HEALTHY, left=(Process(4711, "dcgmi"),))),
    ):
        assert report.outcome is Outcome.ERROR  # it says nothing of the hardware by itself
        assert [(fault.code, fault.confirm) for fault in report.faults] == [
            ("dcgm_health/stalled", False)
        ]
        assert "60 s" in report.reason
    assert "dcgmi (pid 4711)" in report.reason


def test_a_run_that_was_ended_blames_nobody(tmp_path: Path) -> None:
    for ended in (ProgramEnd.CANCELLED, ProgramEnd.SIGNALLED, ProgramEnd.NOT_STARTED):
        report = settled(tmp_path, Output(ended=ended, stdout=BAD_MEMORY, why="so"))
        assert (report.outcome, report.faults) == (Outcome.ERROR, ())


# --- answers


def test_answers_as_dcgm_prints_them(tmp_path: Path) -> None:
    def said(case: str) -> Report:
        text = (DCGM_SAMPLES / f"{case}.stdout").read_text(encoding="utf-8")
        return settled(tmp_path, printed(text))

    healthy, ill = said("health-healthy"), said("health-nvlink-gpu1")
    assert (healthy.outcome, healthy.culprits) == (Outcome.PASS, ())
    assert (ill.outcome, ill.culprits) == (Outcome.FAIL, (1,))
    assert {report.measures[0].name for report in (healthy, ill)} == {"answer_seconds"}
    (fault, *_) = ill.faults
    assert (fault.code, fault.gpu, fault.test) == ("dcgm_health/nvlink", 1, "NVLINK system")
    # Put together from its pieces.
    assert "link 2 is currently down Check DCGM and system logs for errors. Reset" in fault.text


def rulings(report: Report) -> dict[tuple[str, int | None], Action]:
    def fields(fault: Fault) -> Fields:
        return {"severity": fault.severity, "confirmed": not fault.confirm}

    return {
        (fault.code, fault.gpu): catalogue().find_rule(fault.code).apply_to(fields(fault)).action
        for fault in report.faults
    }


def test_every_device_and_system_is_told_and_a_warning_weighs_less(tmp_path: Path) -> None:
    text = answer(
        {
            "GPU": {
                "0": {"Memory system": ("Failure", "x"), "Thermal system": ("Warning", "y")},
                "5": {
                    "PCIe system": ("Warning", "z"),
                    "InfoROM system": ("Failure", "i"),
                    "SM": ("Healthy", ""),
                },
            },
            "CPU": {"1": {"Thermal system": ("Failure", "hot")}},
            "NvSwitch": {"2": {"NVSwitch fatal errors": ("Failure", "link")}},
        }
    )
    report = settled(tmp_path, printed(text))
    assert (report.outcome, report.culprits, report.remedy) == (
        Outcome.FAIL,
        (0, 5),
        Remedy.INVESTIGATE,
    )
    assert rulings(report) == {
        ("dcgm_health/memory", 0): Action.INSPECT,
        ("dcgm_health/thermal", 0): Action.OBSERVE,
        ("dcgm_health/pcie", 5): Action.OBSERVE,
        ("dcgm_health/inforom", 5): Action.INSPECT,
        ("dcgm_health/thermal", None): Action.OBSERVE,
        ("dcgm_health/nvswitch_fatal_errors", None): Action.INSPECT,
    }
    assert {fault.device for fault in report.faults} == {"", "cpu/1", "NvSwitch 2"}
    assert {test.name: dict(test.gpus) for test in report.tests}["Memory system"] == {
        "0": "Failure"
    }


def test_only_the_gpus_that_were_asked_for(tmp_path: Path) -> None:
    assert settled(tmp_path, printed(BAD_MEMORY), gpus=(3,)).outcome is Outcome.FAIL
    report = settled(tmp_path, printed(BAD_MEMORY), gpus=(0, 1))
    assert (report.outcome, report.faults, report.culprits) == (Outcome.PASS, (), ())
    assert "GPU 3" in report.reason


def test_what_is_not_understood_is_no_pass(tmp_path: Path) -> None:
    for text in (
        answer({"GPU": {"0": {"Memory system": ("Peachy", "")}}}, "Healthy"),
        answer({}, "Excellent"),
        '{"body": {}}',
        '{"body": {"Overall Health": {"value": null}}}',
        '{"body": {"Overall Health": {"value": "Healthy"}, "GPU": "gone"}}',
        '{"body": []}',
        "{}",
        "",
        "Segmentation fault",
        *cuts(BAD_MEMORY),
        *cuts(HEALTHY),
    ):
        report = settled(tmp_path, printed(text))
        assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ()), text
        assert report.reason


def test_trouble_that_names_nobody_is_trouble(tmp_path: Path) -> None:
    report = settled(tmp_path, printed(answer({}, "Failure")))
    assert [(fault.code, fault.gpu) for fault in report.faults] == [("dcgm_health/other", None)]
    nameless = (
        '{"body": {"Overall Health": {"value": "Healthy"}, "GPU": {"children": {"2": {"value":'
        ' "Failure"}}}}}'
    )
    assert settled(tmp_path, printed(nameless)).culprits == (2,)


def test_a_good_answer_with_a_bad_ending_is_no_pass(tmp_path: Path) -> None:
    assert settled(tmp_path, printed(HEALTHY, 1)).outcome is Outcome.INCONCLUSIVE
    assert settled(tmp_path, printed(BAD_MEMORY, 1)).outcome is Outcome.FAIL
    assert settled(tmp_path, printed("Error: GPU is lost.\n", 238)).outcome is Outcome.ERROR
    assert settled(tmp_path, printed(HEALTHY, dropped=1)).outcome is Outcome.INCONCLUSIVE


WORDS = st.text(max_size=20) | st.sampled_from(
    ["Healthy", "Warning", "Failure", "GPU", "0", "Errors", "Overall Health", "children", "value"]
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(WORDS, DOCUMENTS, max_size=5), st.booleans())
def test_any_document_is_read_and_only_a_healthy_one_passes(
    body: dict[str, object], linked: bool
) -> None:
    found = read_answer(json.dumps({"body": body}))
    assert found is not None
    report = judge_answer(found, BoardTraits(has_nvlink=linked, shares_nvlink=False))
    if report.outcome is Outcome.PASS:
        assert found.overall == "Healthy" or (found.complaints and not linked)
    assert (report.outcome is Outcome.FAIL) == bool(report.faults)
    assert report.reason.isprintable()


# --- what is set aside


def gpus(tmp_path: Path, device: int, *, switch: bool = False) -> Tree:
    tree = Tree(tmp_path)
    for bus in ("18", "2a"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, device, 0x030200, "nvidia")
    if switch:
        tree.pci("0000:c1:00.0", NVIDIA, 0x22A3, 0x068000, "nvidia-nvswitch")
    return tree


DOWN = ("Failure", "GPU 0's NvLink link 2 is currently down. Reset the GPU.")
LINK_DOWN = answer({"GPU": {"0": {"NVLINK system": DOWN}}})
IMEX = answer({"GPU": {"0": {"NVLINK system": ("Failure", "IMEX domain status is DOWN here.")}}})
UNREAD = answer(
    {"GPU": {"1": {"Power system": ("Warning", "Cannot reliably read the power usage.")}}},
    "Warning",
)


def test_nvlink_that_is_down_means_nothing_where_there_is_none(tmp_path: Path) -> None:
    a10g, h100, unknown = (tmp_path / name for name in ("a10g", "h100", "unknown"))
    gpus(a10g, 0x2237)
    report = settled(a10g, printed(LINK_DOWN))
    assert (report.outcome, report.faults) == (Outcome.PASS, ())
    assert "no NVLink" in report.reason
    assert {test.name: dict(test.gpus) for test in report.tests}["NVLINK system"] == {
        "0": "Failure"
    }
    gpus(h100, 0x2330, switch=True)
    assert settled(h100, printed(LINK_DOWN)).culprits == (0,)
    gpus(unknown, 0x9999)
    assert settled(unknown, printed(LINK_DOWN)).culprits == (0,)


def test_imex_means_nothing_on_a_node_by_itself(tmp_path: Path) -> None:
    gpus(tmp_path, 0x2330, switch=True)
    assert settled(tmp_path, printed(IMEX)).outcome is Outcome.PASS
    assert settled(tmp_path, printed(IMEX), machine="aarch64").culprits == (0,)


def test_a_reading_that_failed_is_neither_well_nor_ill(tmp_path: Path) -> None:
    report = settled(tmp_path, printed(UNREAD))
    assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ())
    assert "a reading that failed" in report.reason


def test_what_is_set_aside_hides_nothing_else(tmp_path: Path) -> None:
    gpus(tmp_path, 0x2237)
    both = json.loads(LINK_DOWN)
    both["body"]["GPU"]["children"]["1"] = json.loads(BAD_MEMORY)["body"]["GPU"]["children"]["3"]
    report = settled(tmp_path, printed(json.dumps(both)))
    assert [(fault.code, fault.gpu) for fault in report.faults] == [("dcgm_health/memory", 1)]
    assert "set aside" in report.reason


# --- whether it can run


def test_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "dcgmi is not installed" in check(tmp_path).find_obstacle()
    install(tmp_path / "bin", monkeypatch, "dcgmi")
    assert "no NVIDIA GPU" in check(tmp_path).find_obstacle()
    gpus(tmp_path, 0x2330)
    assert check(tmp_path).find_obstacle() == ""
    assert "enabled" in DcgmHealthCheck(config(tmp_path, Settings(enabled=False))).find_obstacle()
    assert (
        "/opt/x/dcgmi"
        in DcgmHealthCheck(config(tmp_path, DcgmSettings(program="/opt/x/dcgmi"))).find_obstacle()
    )


def test_its_place_among_the_checks(tmp_path: Path) -> None:
    one = build_check(config(tmp_path, Settings(every_s=300.0, deadline_s=7.0)))
    place = (one.name, one.levels, one.every_s(0), one.needs_idle(0))
    assert place == ("dcgm_health", (0,), 300.0, False)
    assert asked(one, DONE)[0].deadline_s == 7.0
