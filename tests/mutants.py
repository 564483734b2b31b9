"""
Whether the tests notice mistakes: applies each small wrong change of `mutants.toml` to the code, one
at a time, and looks for a test of the gate that fails.

    .venv/bin/python -m tests.mutants [WORD]   those whose file or text contains WORD

The test that noticed a change the last time (`caught_by`) is run first. If it is gone or passes, all
others are tried, which takes minutes; the one that is found is printed, for `mutants.toml`. Files of
this checkout are changed meanwhile: use a clone, and `tests/run` to make its environment. The exit
status is 1 if a change was not noticed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli

from tests.harness import ROOT

CODE = ROOT / "agent/vitald"
_PYTEST = (sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider")
_PARALLEL = ("-n", "4", "--dist", "loadgroup")


def main(word: str = "") -> int:
    missed = 0
    for mutant in load_mutants():
        if word not in f"{mutant['file']} {mutant['was']}":
            continue
        with apply_change(CODE / mutant["file"], mutant["was"], mutant["now"]):
            failed = find_failing_test(mutant["file"], mutant.get("caught_by", ""))
        missed += not failed
        print(f"{mutant['file']}: {mutant['was']}\n    {failed or 'MISSED'}", flush=True)
    print(f"{missed} missed")
    return bool(missed)


def load_mutants() -> list[dict[str, str]]:
    mutants: list[dict[str, str]] = tomli.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    return mutants


@contextmanager
def apply_change(path: Path, was: str, now: str) -> Iterator[None]:
    """The change is in the file within this block. ValueError: it does not fit exactly once."""
    text, times = path.read_text(), path.stat()
    if text.count(was) != 1:
        raise ValueError(f"{path}: {text.count(was)} times: {was}")
    path.write_text(text.replace(was, now))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # its compiled form fits again


def find_failing_test(file: str, caught_by: str) -> str:
    """The first test that fails: the known one, one of a file that names the module, one of the
    gate.
    """
    module = "vitald." + file.removesuffix(".py").replace("/", ".")
    near = ["git", "grep", "-lwF", module, "--", "tests/unit/test_*.py"]
    found = subprocess.run(near, cwd=ROOT, capture_output=True, text=True).stdout.split()
    return (
        (caught_by and run_tests([caught_by]))
        or (found and run_tests(found))
        or run_tests([*_PARALLEL, "tests/scenarios", "tests/unit"])
        or run_tests([*_PARALLEL, "tests/system", "-m", "core"])
    )


def run_tests(arguments: Iterable[str]) -> str:
    """The first test that failed, and why; or nothing. RuntimeError: pytest could not run."""
    command = [*_PYTEST, *arguments]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED ", "ERROR ")) and not line.startswith("ERROR: "):
            return line.partition(" ")[2]
    if done.returncode and "ERROR: not found:" not in done.stdout + done.stderr:
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
