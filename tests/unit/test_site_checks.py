"""The site's own checks: what their exit codes mean, what becomes of it, and what a reload does."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from tests.unit.builders import catalogue, event, finding
from tests.unit.checking import asked, hung, perform, printed
from tests.unit.diagnostics_house import House, told
from tests.unit.test_config import mistakes, read
from tests.unit.test_diagnostic_events import Story
from tests.waiting import until_async
from vitald.catalog import load_catalog
from vitald.collectors.event_factory import EventFactory
from vitald.config.section import TakesEffect
from vitald.core.config_reload import compare_configs, merge_reloaded
from vitald.diagnostics.check import Command, Output, ProgramEnd
from vitald.diagnostics.check_set import SiteCheck
from vitald.diagnostics.run.held_processes import Process, list_processes
from vitald.diagnostics.run_events import NOT_RUN, make_removed_events
from vitald.diagnostics.schedule import SCHEDULE
from vitald.diagnostics.settings import SiteCheckSettings
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import Fault, Report, RunRequest
from vitald.model.event import BOOT, Trust
from vitald.model.finding import Finding
from vitald.model.words import Action, ComponentKind, Outcome

LATE = "past the deadline"


def check(text: str = "", name: str = "scratch") -> SiteCheck:
    """A check with these further keys."""
    config = read(f'[checks.{name}]\nrun = ["/usr/bin/mountpoint", "/scratch"]\n{text}\n')
    return SiteCheck(name, config.get_group(SiteCheckSettings)[name])


def meaning(report: Report) -> str:
    """The word of the configuration for a report."""
    if report.outcome is Outcome.PASS:
        return "pass"
    if report.outcome is Outcome.ERROR:
        assert report.faults == ()
        return "unknown"
    assert report.outcome is Outcome.FAIL
    return {1: "warning", 4: "fail"}[report.faults[0].severity or 0]


# --- exit codes


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("", {0: "pass", 1: "fail", 2: "fail", 77: "fail", 126: "unknown", 127: "unknown"}),
        ('exit_codes = "nhc"', {0: "pass", 2: "fail", LATE: "fail"}),
        (
            'exit_codes = "nagios"',
            {0: "pass", 1: "warning", 2: "fail", 3: "unknown", 4: "unknown", LATE: "fail"},
        ),
        (
            'exit_codes = { 1 = "warning", other = "unknown", deadline = "warning" }',
            {0: "pass", 1: "warning", 2: "unknown", 127: "unknown", LATE: "warning"},
        ),
        ('exit_codes = { 0 = "fail", 127 = "pass" }', {0: "fail", 1: "fail", 127: "pass"}),
    ],
)
def test_what_an_exit_code_means(codes: str, expected: dict[int | str, str]) -> None:
    for code, word in expected.items():
        output = hung() if code == LATE else printed("", int(code))
        assert meaning(perform(check(codes), output)) == word, code


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (Output(ended=ProgramEnd.NOT_STARTED, why="/opt/x is not there"), "/opt/x is not there"),
        (Output(ended=ProgramEnd.SIGNALLED, exit_code=-11, why="ended by SIGSEGV"), "SIGSEGV"),
        (Output(ended=ProgramEnd.EXITED, why="its exit code is not known"), "exit code is not"),
    ],
)
def test_a_program_without_an_exit_code_says_nothing_of_the_node(
    output: Output, reason: str
) -> None:
    report = perform(check(), output)
    assert meaning(report) == "unknown" and reason in report.reason


def test_the_last_lines_are_the_evidence() -> None:
    """Of both streams, printable, and of a length that a line of the log can have."""
    report = perform(check(), printed("1\n2\n3\n\n4\x1b[2J\n", 1, stderr=f"why\n{'x' * 5000}\n"))
    assert report.reason == f"exit code 1; 2; 3; 4?[2J; why; {'x' * 200}"
    assert report.faults[0].text == report.reason


def test_the_program_is_the_configured_one() -> None:
    (command,) = asked(check('deadline = "7s"'), printed(""))
    assert (command.argv, command.deadline_s) == (("/usr/bin/mountpoint", "/scratch"), 7.0)
    assert command.max_bytes < 1 << 16  # a failure is stored at each period


def test_a_program_that_hangs_for_ever_is_not_joined_by_another() -> None:
    """As one that waits for a server in the kernel, where no signal reaches it."""
    site = check()
    with subprocess.Popen(["sleep", "600"]) as sleep:
        process = next(one for one in list_processes(Path("/proc")) if one.pid == sleep.pid)
        first = perform(site, hung(left=(process,)))
        second = perform(site, printed(""))
        sleep.kill()
    assert (meaning(first), meaning(second)) == ("fail", "fail")
    assert f"(pid {process.pid}) of the last run hangs" in second.reason
    assert meaning(perform(site, printed(""))) == "pass"


def test_another_process_with_the_number_of_one_that_hung_is_not_taken_for_it() -> None:
    site = check()
    perform(site, hung(left=(Process(os.getpid(), "stat", started=1),)))
    assert meaning(perform(site, printed(""))) == "pass"


# --- findings


def fault(severity: int, text: str = "exit code 2") -> Fault:
    return Fault(code="check/scratch", test="scratch", text=text, severity=severity)


def test_a_failure_makes_the_node_unfit_until_the_check_passes() -> None:
    story = Story().run(fault(4, "exit code 1; not mounted"), check="scratch", level=0)
    (found,) = story.judge.open_findings
    assert (found.code, found.component, found.raw) == (
        "check/scratch",
        NODE,
        "scratch: exit code 1; not mounted",
    )
    assert (found.action.value, found.unusable) == ("inspect", True)
    story.run(check="other", level=0)
    assert story.judge.open_findings
    story.run(check="scratch", level=0)
    assert not story.judge.open_findings


def test_a_reboot_alone_ends_no_failure() -> None:
    """Else a node would be fit from the boot to the first run."""
    story = Story().run(fault(4), check="scratch", level=0)
    story.judge.apply_event(
        event(BOOT, NODE, time=story.now + 60.0, boot="boot-b", trust=Trust.DAEMON)
    )
    assert [one.code for one in story.judge.open_findings] == ["check/scratch"]


def test_a_warning_leaves_the_node_fit() -> None:
    story = Story().run(fault(1), check="scratch", level=0)
    (found,) = story.judge.open_findings
    assert (found.action.value, found.unusable) == ("observe", False)


def test_a_check_that_fails_more_or_less_is_followed() -> None:
    story = Story().run(fault(1), check="scratch", level=0)
    (warning,) = story.judge.open_findings
    (failure,) = story.run(fault(4), check="scratch", level=0).judge.open_findings
    assert (failure.id, failure.unusable) == (warning.id, True)
    (again,) = story.run(fault(1), check="scratch", level=0).judge.open_findings
    assert (again.id, again.unusable, again.action.value) == (warning.id, False, "observe")


def test_a_run_without_a_verdict_ends_nothing() -> None:
    story = Story().run(fault(4), check="scratch", level=0)
    for _ in range(3):
        story.run(check="scratch", level=0, outcome=Outcome.ERROR)
    codes = {(one.component.name, one.code) for one in story.judge.open_findings}
    assert codes == {("node", "check/scratch"), ("node/scratch", NOT_RUN)}


def test_the_site_changes_what_one_of_its_checks_requires() -> None:
    """With the keys that it changes alone; the check still ends what it found."""
    catalog = load_catalog("nvidia", {"check/scratch": {"action": "reboot_node"}})
    rule, other = catalog.find_rule("check/scratch"), catalog.find_rule("check/other")
    assert (rule.action, other.action) == (Action.REBOOT_NODE, Action.INSPECT)
    assert (rule.title, rule.state, rule.clears.recovers) == (
        "Site check scratch failed",
        True,
        True,
    )
    warned = rule.apply_to({"severity": 1})
    assert (warned.requirement.action, warned.unusable) == (Action.OBSERVE, False)
    assert rule.apply_to({"recovered": True}).requirement.action is Action.NONE


def test_a_check_confirms_nothing_that_others_found() -> None:
    """Else a text that anybody can write, and a mount that is missing, would reboot a node."""
    assert not catalogue().find_rule("check/scratch").may_confirm_others


def test_a_check_with_the_name_of_a_kind_ends_no_others_findings() -> None:
    story = Story()
    lasting = next(rule.code for rule in catalogue().rules.values() if rule.state)
    kind = lasting.partition("/")[0]
    story.judge.apply_event(event(lasting, component=NODE))
    assert story.judge.open_findings
    story.run(check=kind, level=0)
    assert [one.code for one in story.judge.open_findings] == [lasting]


# --- configuration


def test_the_keys_of_a_check() -> None:
    config = read(
        '[checks.a]\nrun = ["true"]\n'
        '[checks.b2_c]\nrun = ["/bin/x", ""]\nevery = "off"\ndeadline = "3m"\nidle = true\n'
    )
    assert [*config.get_group(SiteCheckSettings)] == ["a", "b2_c"]
    a, b = config.get_group(SiteCheckSettings).values()
    assert (a.run, a.every_s, a.deadline_s, a.idle) == (("true",), 300.0, 30.0, False)
    assert (b.run, b.every_s, b.deadline_s, b.idle) == (("/bin/x", ""), 0.0, 180.0, True)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[checks.a]\nevery = "5m"\n', "c.toml:1: [checks.a]: run is missing"),
        ("[checks.a]\nrun = []\n", "c.toml:2: [checks.a] run: expected a program and its"),
        ('[checks.a]\nrun = "true"\n', "c.toml:2: [checks.a] run: expected a program and its"),
        ('[checks.a]\nrun = ["a/b"]\n', "c.toml:2: [checks.a] run: expected an absolute path"),
        ('[checks.a]\nrun = ["a", 1]\n', "c.toml:2: [checks.a] run: expected a program and its"),
        ('\n[checks.a]\nrnu = ["true"]\nrun = ["true"]\n', "c.toml:3: [checks.a] rnu: unknown key"),
        (
            '[checks.a]\nrun = ["true"]\nevery = "10s"\n',
            "c.toml:3: [checks.a] every: expected at least 60 s",
        ),
        (
            '[checks.a]\nrun = ["true"]\nexit_codes = "nagois"\n',
            "c.toml:3: [checks.a] exit_codes: must be one of nhc, nagios, not 'nagois', did you mean nagios",
        ),
        (
            '[checks.a]\nrun = ["true"]\nexit_codes = { 0 = "ok" }\n',
            "c.toml:3: [checks.a] exit_codes: 0: must be one of pass, warning, fail, unknown, not ",
        ),
        (
            '[checks.a]\nrun = ["true"]\nexit_codes = { 256 = "fail" }\n',
            "c.toml:3: [checks.a] exit_codes: expected exit codes from 0 to 255, other or deadline",
        ),
        ('[checks.dcgm]\nrun = ["true"]\n', "c.toml:1: [checks.dcgm]: expected a name of"),
        ('[checks."A b"]\nrun = ["true"]\n', "c.toml:1: [checks.A b]: expected a name of"),
        ("checks = 5\n", "c.toml:1: [checks]: expected tables such as [checks.scratch]"),
        ("[checks]\nrun = 5\n", "c.toml:1: [checks]: expected tables such as [checks.scratch]"),
        ("[check.a]\nrun = 5\n", "c.toml:1: [check]: unknown section, did you mean checks?"),
    ],
)
def test_a_mistake_in_a_check(text: str, error: str) -> None:
    (found,) = mistakes(text)
    assert found.startswith(error)


def test_a_reload_takes_the_checks() -> None:
    old = read('[checks.a]\nrun = ["a"]\n[checks.b]\nrun = ["b"]\n[checks.c]\nrun = ["c"]\n')
    new = read(
        '[checks.a]\nrun = ["a"]\n[checks.b]\nrun = ["b"]\nidle = true\n[checks.d]\nrun = ["d"]\n'
    )
    assert compare_configs(old, new)[TakesEffect.RELOAD] == [
        "[checks.b]",
        "[checks.c]",
        "[checks.d]",
    ]
    assert merge_reloaded(old, new) == new


# --- in the manager


def settings(*names: str, every: str = "1m") -> dict[str, SiteCheckSettings]:
    text = "".join(f'[checks.{name}]\nrun = ["{name}"]\nevery = "{every}"\n' for name in names)
    return dict(read(text).get_group(SiteCheckSettings))


def found_by(name: str) -> Finding:
    return finding(Action.INSPECT, code=f"check/{name}", component=NODE, fields={"check": name})


def configure(house: House, **site: SiteCheckSettings) -> None:
    house.reload(checks=site)


def test_a_check_that_did_not_change_remembers_what_hangs() -> None:
    async def work() -> None:
        async with House().open() as house:
            configure(house, **settings("a", "b"))
            before = dict(house.manager.checks)
            assert [*before] == ["a", "b", "dcgm"]
            configure(house, **settings("a", "c"), **settings("b", every="2m"))
            after = house.manager.checks
            assert [*after] == ["a", "b", "c", "dcgm"]
            assert (after["a"] is before["a"], after["b"] is before["b"]) == (True, False)

    told(work)


def test_a_check_that_was_removed_runs_no_more_and_its_findings_end() -> None:
    async def work() -> None:
        async with House(enabled=False).open() as house:
            configure(house, **settings("a", "b"))
            house.programs.ends = False
            first = house.manager.request_run(RunRequest(check="a", by="root", reason="test"))
            await until_async(lambda: house.programs.runs, "the first program")
            second = house.manager.request_run(RunRequest(check="b", by="root", reason="test"))
            house.node.open = [found_by("b")]
            configure(house)
            assert (await house.ended(second)).report.reason.startswith("the check was removed")
            await until_async(lambda: "check/b" in house.codes, "the end of its finding")
            house.node.open = []
            assert house.told[-1].fields["recovered"] is True
            house.programs.end()  # a run that began goes on
            assert (await house.ended(first)).report.outcome is Outcome.PASS
            assert house.manager.last_runs == {}

    told(work)


def test_only_what_no_check_resolves_any_more_ends() -> None:
    def not_run(name: str) -> Finding:
        return replace(found_by(name), component=Component(ComponentKind.NODE, name), code=NOT_RUN)

    opened = [
        found_by("a"),
        found_by("b"),
        not_run("a"),
        not_run("b"),
        not_run("dcgm-2"),
        finding(),
    ]
    ended = make_removed_events({"a", "dcgm"}, EventFactory("diagnostics", "boot-a"), opened)
    assert [(one.component.name, one.code) for one in ended] == [
        ("node", "check/b"),
        ("node/b", NOT_RUN),
    ]


def test_a_pass_of_the_schedule_is_stored_only_where_it_ends_something() -> None:
    async def work() -> None:
        async with House(enabled=False).open() as house:
            configure(house, **settings("a"))
            scheduled = RunRequest(check="a", by=SCHEDULE)
            await house.ended(house.manager.request_run(scheduled))
            assert (house.runs, house.codes) == ([], [])
            assert ("a", 0) in house.manager.last_runs
            house.node.open = [found_by("a")]
            await house.ended(house.manager.request_run(scheduled))
            assert house.codes == ["diagnostic/ran", "check/a"]
            house.node.open = []
            asked_for = RunRequest(check="a", by="root, pid 1")
            await house.ended(house.manager.request_run(asked_for))
            assert [run.request.by for run in house.runs] == [SCHEDULE, "root, pid 1"]

    told(work)


async def run_on_schedule(house: House, *codes: int) -> None:
    """Runs of the check `a` that end with these exit codes."""
    left = iter(codes)

    async def execute(_: Command) -> Output:
        return Output(ended=ProgramEnd.EXITED, exit_code=next(left))

    house.programs.execute = execute  # type: ignore[method-assign]
    configure(house, **settings("a"))
    for _ in codes:
        await house.ended(house.manager.request_run(RunRequest(check="a", by=SCHEDULE)))


def test_a_failure_again_is_stored_and_an_unknown_result_only_once() -> None:
    """The first counts in its finding. The second changes nothing, until the third opens one."""

    async def work() -> None:
        async with House(enabled=False).open() as house:
            await run_on_schedule(house, 1, 1, 127, 127, 127)
            assert [run.report.outcome.value for run in house.runs] == [
                "fail",
                "fail",
                "error",
                "error",
            ]
            assert house.codes[-1] == NOT_RUN

    told(work)


def test_checks_that_do_not_run_by_themselves_are_named() -> None:
    site = {**settings("a"), **settings("b", every="off")}

    async def work(*, enabled: bool) -> str:
        async with House(enabled=enabled).open() as house:
            configure(house, **site)
            await until_async(lambda: "a" in house.manager.unavailable, "the checks to be examined")
            before = len(house.batches)
            configure(house, **site)  # it wakes the source
            await until_async(lambda: len(house.batches) > before, "a batch since then")
            return house.batches[-1].detail

    detail = asyncio.run(work(enabled=False))
    assert detail == "[diagnostics] enabled = false: run on request only: a"
    assert asyncio.run(work(enabled=True)) == ""


def test_the_same_result_again_is_no_news() -> None:
    """A check that fails every minute has one warning in the log, beside that of its finding."""

    async def work() -> None:
        async with House(enabled=False).open() as house:
            await run_on_schedule(house, 0, 0, 1, 1, 0)

    with structlog.testing.capture_logs() as lines:
        told(work)
    ended = [line["log_level"] for line in lines if line["event"] == "diagnostic_ended"]
    assert ended == ["debug", "debug", "warning", "debug", "debug"]
    began = {line["log_level"] for line in lines if line["event"] == "diagnostic_began"}
    assert began == {"debug"}
