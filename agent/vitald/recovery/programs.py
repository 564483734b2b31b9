"""
Running a program as root: by its own arguments, with a clean environment, and not for ever.

Owns     what programs are given, and that one that does not end is ended with all that it started.
Refuses  shells, and deciding what is run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitald.programs import RECOVERY_PATH
from vitald.recovery import files
from vitald.text import replace_unprintable

_KEPT_VARIABLES = ("SLURM_CONF",)  # what only the unit can know: where Slurm's configuration is
_MAX_MESSAGE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How it went. `trouble` is empty where it ended with 0; `output` is what it printed, cut."""

    exit_code: int | None
    output: bytes = b""
    trouble: str = ""


def clean_environment(given: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": RECOVERY_PATH,
        "LC_ALL": "C.UTF-8",
        "HOME": "/",
        **{name: given[name] for name in _KEPT_VARIABLES if name in given},
    }


def run_program(
    argv: Sequence[str], seconds: float, more: Mapping[str, str] | None = None, most: int = 4096
) -> ProgramResult:
    """Its exit code and what it printed. `more`: what it is told in its environment."""
    environment = clean_environment(os.environ)
    program = shutil.which(argv[0], path=environment["PATH"])
    if program is None:
        return ProgramResult(exit_code=None, trouble=f"{argv[0]}: there is no such program")
    try:
        files.check_program(Path(program))
    except files.Untrusted as error:
        return ProgramResult(exit_code=None, trouble=f"not run: {error}")
    # A file in memory and not a pipe: what the program leaves running would hold a pipe open.
    out = os.memfd_create("out", os.MFD_CLOEXEC)
    try:
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                env={**environment, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return ProgramResult(
                exit_code=None, trouble=f"{program} cannot be run: {error.strerror}"
            )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            return ProgramResult(
                exit_code=None, trouble=f"{program} did not end within {seconds:g} s"
            )
        size = os.fstat(out).st_size
        told = os.pread(out, most, 0 if most >= size else size - most)
    finally:
        os.close(out)
    if code == 0:
        return ProgramResult(exit_code=0, output=told)
    lines = told.decode("utf-8", "replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"exit {code}"
    last = replace_unprintable(lines[-1][:_MAX_MESSAGE]) if lines else ""
    return ProgramResult(
        exit_code=code, output=told, trouble=f"{program} failed: {how}{f': {last}' if last else ''}"
    )
