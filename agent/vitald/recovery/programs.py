"""
Runs a program as root: without a shell, with a clean environment and a time limit.

Owns     what programs are given, and that one that exceeds its time limit is killed with all
         processes that it started.
Refuses  shells, and deciding what is run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vitald.config.paths import RECOVERY_PATH
from vitald.recovery import files
from vitald.text import replace_unprintable

_KEPT_VARIABLES = ("SLURM_CONF",)  # the path of Slurm's configuration, which only the unit knows
_MAX_MESSAGE = 300


class NotStarted(Exception):
    """A program was not started, so it has done nothing. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended. `exit_code`: None if it did not run or was killed for its time limit.
    `output`: the end of what it printed. `trouble`: why it failed; empty for exit code 0.
    """

    exit_code: int | None
    output: bytes = b""
    trouble: str = ""
    started: bool = True

    def require_start(self) -> str:
        """Its trouble. Raises NotStarted."""
        if not self.started:
            raise NotStarted(self.trouble)
        return self.trouble


def clean_environment(given: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": RECOVERY_PATH,
        "LC_ALL": "C.UTF-8",
        "HOME": "/",
        **{name: given[name] for name in _KEPT_VARIABLES if name in given},
    }


def find_program(name: str) -> str:
    """Its path. Raises NotStarted if there is none, or if others than root may write it."""
    program = shutil.which(name, path=RECOVERY_PATH)
    if program is None:
        raise NotStarted(f"{name}: there is no such program")
    try:
        files.check_program(Path(program))
    except files.Untrusted as error:
        raise NotStarted(f"not run: {error}") from None
    return program


def run_program(
    argv: Sequence[str],
    timeout_s: float,
    variables: Mapping[str, str] | None = None,
    max_output: int = 4096,
    given: bytes = b"",
) -> ProgramResult:
    """Runs it until it ends. `variables`: added to its environment; `max_output`: bytes that are
    kept of what it prints, the last ones; `given`: its standard input.
    """
    try:
        program = find_program(argv[0])
    except NotStarted as error:
        return ProgramResult(exit_code=None, started=False, trouble=str(error))
    with _open_memory_file(given) as stdin, _open_memory_file() as out:
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                env={**clean_environment(os.environ), **(variables or {})},
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            trouble = f"{program} cannot be run: {error.strerror}"
            return ProgramResult(exit_code=None, started=False, trouble=trouble)
        code = _wait_or_kill(process, timeout_s)
        if code is None:
            return ProgramResult(
                exit_code=None, trouble=f"{program} did not end within {timeout_s:g} s"
            )
        size = os.fstat(out).st_size
        output = os.pread(out, max_output, 0 if max_output >= size else size - max_output)
    trouble = _describe_failure(program, code, output) if code != 0 else ""
    return ProgramResult(exit_code=code, output=output, trouble=trouble)


@contextmanager
def _open_memory_file(content: bytes = b"") -> Iterator[int]:
    """A file in memory and not a pipe: processes that the program leaves would hold a pipe open."""
    fd = os.memfd_create("vitald", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _describe_failure(program: str, code: int, output: bytes) -> str:
    """How it ended, and the last line that it printed."""
    trouble = f"{program} failed: " + (f"signal {-code}" if code < 0 else f"exit {code}")
    lines = output.decode("utf-8", "replace").strip().splitlines()
    last = replace_unprintable(lines[-1][:_MAX_MESSAGE]) if lines else ""
    return f"{trouble}: {last}" if last else trouble


def _wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit code, negative for a signal; None if the process group was killed after the time
    limit.
    """
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        return None
