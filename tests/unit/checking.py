"""How the unit tests of the checks run one: with what a program would have printed instead of the
program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.check import Check, Command, Output, ProgramEnd
from vitald.diagnostics.run.held_processes import Process
from vitald.model.diagnostic import Report, RunRequest


class Programs:
    """Answers one command after the other, and remembers what was asked. The last answer stands for
    all further ones.
    """

    def __init__(self, *outputs: Output) -> None:
        self.outputs = list(outputs)
        self.asked: list[Command] = []

    async def execute(self, command: Command) -> Output:
        self.asked.append(command)
        return self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]


def printed(
    stdout: str, exit_code: int = 0, *, stderr: str = "", dropped: int = 0, seconds: float = 1.0
) -> Output:
    return Output(
        ended=ProgramEnd.EXITED,
        stdout=stdout,
        stderr=stderr,
        exit_code=exit_code,
        dropped=dropped,
        seconds=seconds,
    )


def hung(stdout: str = "", left: tuple[Process, ...] = ()) -> Output:
    return Output(
        ended=ProgramEnd.DEADLINE,
        stdout=stdout,
        exit_code=-9,
        why="the deadline of 60 s is over",
        left=left,
    )


def perform(check: Check, *outputs: Output, gpus: tuple[int, ...] = ()) -> Report:
    return asyncio.run(
        check.run_check(RunRequest(check=check.name, gpus=gpus), Programs(*outputs).execute)
    )


def asked(check: Check, *outputs: Output, gpus: tuple[int, ...] = ()) -> list[Command]:
    """The commands of a run."""
    programs = Programs(*outputs)
    asyncio.run(check.run_check(RunRequest(check=check.name, gpus=gpus), programs.execute))
    return programs.asked


def config(sysfs: Path, *settings: object) -> Config:
    return Config(Paths(sysfs=sysfs), *settings)


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, script: str = "#!/bin/sh\n"
) -> Path:
    """Programs of these names, on PATH by themselves."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def cuts(text: str, most: int = 60) -> Sequence[str]:
    """Beginnings of a text, from nothing to all but its last character."""
    step = max(1, len(text) // most)
    return [text[:end] for end in range(0, len(text), step)]
