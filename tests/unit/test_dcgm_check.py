"""Running it: what is asked of dcgmi, and what comes of a run that does not go as it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checking import config, install
from tests.unit.dcgm_made import a_test, new, old, passing, refused, warning
from vitald.config.values import Config
from vitald.diagnostics import checks
from vitald.diagnostics.check import Command, Output, ProgramEnd
from vitald.diagnostics.checks.dcgm import GRACE_S, build_check
from vitald.diagnostics.run.held_processes import Process
from vitald.diagnostics.settings import DcgmSettings
from vitald.model.diagnostic import Report, RunRequest
from vitald.model.words import Outcome, Remedy

DOWN = Output(
    ended=ProgramEnd.EXITED,
    exit_code=235,
    stdout=(
        "Error: unable to establish a connection to the specified host: localhost\nError: Unable to"
        " connect to host engine. x\n"
    ),
)
WELL = Output(
    ended=ProgramEnd.EXITED, exit_code=0, stdout=json.dumps(new(*passing("memory", "pcie")))
)


class Engine:
    """Answers as dcgmi does, and remembers what was asked."""

    def __init__(
        self, diag: Output = WELL, discovery: Output | None = None, version: str = "4.5.2"
    ) -> None:
        self.asked: list[Command] = []
        self.diag, self.version = diag, version
        self.discovery = discovery or Output(
            ended=ProgramEnd.EXITED, exit_code=0, stdout="2 GPUs found (Active).\n"
        )

    async def execute(self, command: Command) -> Output:
        self.asked.append(command)
        answers: Mapping[str, Output] = {"diag": self.diag, "discovery": self.discovery}
        version = Output(
            ended=ProgramEnd.EXITED,
            exit_code=0,
            stdout=f"\ndcgmi  version: {self.version}\n\n" if self.version else "",
        )
        return answers.get(command.argv[1], version)

    def run(
        self, level: int = 2, gpus: tuple[int, ...] = (), settings: DcgmSettings | None = None
    ) -> Report:
        check = build_check(Config(settings or DcgmSettings()))
        return asyncio.run(
            check.run_check(RunRequest(check="dcgm", level=level, gpus=gpus), self.execute)
        )

    @property
    def command(self) -> Command:
        (command,) = (one for one in self.asked if one.argv[1] == "diag")
        return command


def test_a_run_that_passes() -> None:
    engine = Engine()
    report = engine.run()
    assert (report.outcome, report.faults, report.dcgm_version) == (Outcome.PASS, (), "4.5.2")
    assert engine.command.argv[1:5] == ("diag", "-r", "2", "-j")
    assert (engine.command.deadline_s, engine.command.grace_s) == (1800.0, GRACE_S)


def test_a_version_that_is_too_old_is_not_run() -> None:
    engine = Engine(version="3.0.4")
    report = engine.run()
    assert (report.outcome, report.remedy) == (Outcome.ERROR, Remedy.FIX_CONFIG)
    assert "3.0.4" in report.reason and report.dcgm_version == "3.0.4"
    assert [command.argv[1] for command in engine.asked] == ["--version"]


def test_options_that_only_some_versions_have() -> None:
    versions: dict[str, tuple[str, ...]] = {
        "3.3.7": (),
        "3.3.9": ("-t",),
        "4.4.1": ("-t",),
        "4.4.2": ("-t", "--enable-heartbeat"),
        "4.10.0": ("-t", "--enable-heartbeat"),
        "": (),
    }
    for version, options in versions.items():
        engine = Engine(version=version)
        engine.run()
        argv = engine.command.argv
        assert tuple(word for word in argv[5:] if word.startswith("-")) == options, version
        if "-t" in options:
            seconds = int(argv[argv.index("-t") + 1])
            assert 0.9 * engine.command.deadline_s < seconds < engine.command.deadline_s


def test_only_some_gpus_are_asked_for_and_must_be_there() -> None:
    engine = Engine()
    assert engine.run(gpus=(1, 0)).outcome is Outcome.PASS
    assert engine.command.argv[5:7] == ("-i", "0,1")
    assert Engine().run(gpus=(0, 7)).outcome is Outcome.INCONCLUSIVE


def test_an_engine_that_is_down_is_told_and_the_run_judged_as_any_other() -> None:
    report = Engine(discovery=DOWN).run()
    assert report.outcome is Outcome.PASS
    (fault,) = report.faults
    assert (fault.code, fault.remedy) == ("dcgm/engine_down", Remedy.FIX_CONFIG)
    assert "systemctl start nvidia-dcgm" in fault.text
    memory = a_test("memory", {0: "Fail", 1: "Pass"}, {0: [warning(52)]})
    printed = json.dumps(new(memory, *passing("pcie")))
    report = Engine(Output(ended=ProgramEnd.EXITED, exit_code=205, stdout=printed), DOWN).run()
    assert [fault.code for fault in report.faults] == ["dcgm/52", "dcgm/engine_down"]
    assert report.culprits == (0,)
    hung = Output(ended=ProgramEnd.DEADLINE, why="15 s are over", exit_code=-15)
    assert [fault.code for fault in Engine(discovery=hung).run().faults] == ["dcgm/engine_down"]


def test_a_version_that_the_document_does_not_have() -> None:
    document = json.dumps(old(a_test("PCIe", {}), version=None))
    output = Output(ended=ProgramEnd.EXITED, exit_code=0, stdout=document)
    assert Engine(output, version="2.4.7").run(1).dcgm_version == "2.4.7"


def test_the_version_is_asked_once_for_each_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "dcgmi")
    engine, check = Engine(), build_check(Config())
    ask = RunRequest(check="dcgm", level=1)

    async def runs() -> list[int]:
        counts = []
        for change in (None, None, "#!/bin/sh\n# another version\n"):
            if change is not None:
                (tmp_path / "dcgmi").write_text(change)
            await check.run_check(ask, engine.execute)
            counts.append(len([one for one in engine.asked if one.argv[1] == "--version"]))
        return counts

    assert asyncio.run(runs()) == [1, 1, 2]


def test_a_run_without_a_verdict() -> None:
    def ended(how: ProgramEnd, code: int | None = None, **more: Any) -> Output:
        return Output(ended=how, exit_code=code, **more)

    broken, busy = (
        json.dumps(refused(f"Error: x{text}")) for text in ("", " Return: (-34) in use")
    )
    part = f"{WELL.stdout[:400]}\n...\n{WELL.stdout[-300:]}"
    job = "a job began"
    for output, remedy, words in (
        (
            ended(ProgramEnd.NOT_STARTED, why="permission denied"),
            Remedy.FIX_CONFIG,
            "permission denied",
        ),
        (ended(ProgramEnd.DEADLINE, 203, why="1800 s", stdout=broken), Remedy.RETRY, "1800 s"),
        (ended(ProgramEnd.CANCELLED, 203, why=job), Remedy.RETRY, job),
        (ended(ProgramEnd.CANCELLED, 0, why=job, stdout=WELL.stdout), Remedy.RETRY, job),
        (ended(ProgramEnd.SIGNALLED, -11), Remedy.RETRY, "signal 11"),
        (ended(ProgramEnd.EXITED, 222, stdout=busy), Remedy.RETRY, "another diagnostic"),
        (ended(ProgramEnd.EXITED, 0, stdout=part, dropped=50_000_000), Remedy.RETRY, "50000000"),
        (ended(ProgramEnd.EXITED, 0), Remedy.RETRY, "nothing was printed"),
        (
            ended(ProgramEnd.DEADLINE, -9, why="late", left=(Process(4711, "nvvs"),)),
            Remedy.RETRY,
            "nvvs (pid 4711)",
        ),
    ):
        report = Engine(output).run()
        assert (report.outcome, report.remedy) == (Outcome.ERROR, remedy), output
        assert words in report.reason


def test_a_program_that_does_not_even_tell_its_version_is_not_run() -> None:
    asked: list[Command] = []

    async def execute(command: Command) -> Output:
        asked.append(command)
        return Output(ended=ended, why="gone")

    for ended in (ProgramEnd.NOT_STARTED, ProgramEnd.CANCELLED):
        asked.clear()
        ask = RunRequest(check="dcgm", level=1)
        report = asyncio.run(build_check(Config()).run_check(ask, execute))
        assert (report.outcome, len(asked)) == (Outcome.ERROR, 1), ended
        assert "gone" in report.reason


def gpu_on_pci(root: Path) -> Path:
    device = root / "bus" / "pci" / "devices" / "0000:65:00.0"
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        (device / name).write_text(f"{text}\n")
    return root


def test_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = gpu_on_pci(tmp_path / "sys")
    folder = install(tmp_path / "bin", monkeypatch)
    check = build_check(config(sysfs))
    assert "not installed" in check.find_obstacle()
    (folder / "dcgmi").write_text("#!/bin/sh\n")
    assert f"{folder}/dcgmi" in check.find_obstacle()
    (folder / "dcgmi").chmod(0o755)
    assert check.find_obstacle() == ""
    assert build_check(config(tmp_path / "none")).find_obstacle() != ""
    disabled, elsewhere = DcgmSettings(enabled=False), DcgmSettings(program="/no/such/dcgmi")
    assert build_check(config(sysfs, disabled)).find_obstacle() == "[dcgm] enabled = false"
    assert "/no/such/dcgmi" in build_check(config(sysfs, elsewhere)).find_obstacle()


def test_when_it_runs(tmp_path: Path) -> None:
    check = build_check(config(tmp_path, DcgmSettings(level_1_s=60.0, level_2_s=7200.0)))
    assert [check.every_s(level) for level in check.levels] == [60.0, 7200.0, 0.0, 0.0]
    assert [check.needs_idle(level) for level in check.levels] == [False, True, True, True]
    assert [check.expected_s(level) for level in check.levels] == [10.0, 180.0, 1200.0, 5400.0]
    assert build_check(config(tmp_path, DcgmSettings(max_level=1))).every_s(2) == 0.0


def test_every_file_of_the_folder_is_a_check() -> None:
    folder = Path(checks.__file__).parent
    built = checks.build_checks(Config())
    assert next(iter(built)) == "dcgm"
    assert len(built) == len([path for path in folder.glob("*.py") if path.stem != "__init__"])
    for name, check in built.items():
        assert check.name == name
        assert check.title and check.levels
