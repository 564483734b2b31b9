"""
Whether the tests notice mistakes: applies each small wrong change of `mutants.toml` to the code, one
at a time, and runs the gate's tests until one fails.

    .venv/bin/python -m tests.mutants [WORD]   those whose file or text contains WORD

It changes files in this checkout: run it in a clone of its own (`tests/run` makes its environment).
The exit status is 1 if a change was not noticed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli

from tests.harness import ROOT

_CODE = ROOT / "agent/vitald"
_PYTEST = (sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider")
_SLOW = ("_golden.py", "_upgrade.py", "_properties.py")  # half a minute each
_REST = (
    ("-n", "4", "--dist", "loadgroup", "tests/scenarios", "tests/unit"),
    ("-n", "4", "--dist", "loadgroup", "tests/system", "-m", "core"),
)


def main(word: str = "") -> int:
    listed = tomli.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    missed = 0
    for mutant in listed:
        if word not in f"{mutant['file']} {mutant['was']}":
            continue
        begun = time.monotonic()
        with apply_change(_CODE / mutant["file"], mutant["was"], mutant["now"]):
            failed = find_failing_test(mutant["file"])
        missed += not failed
        took = time.monotonic() - begun
        print(
            f"{mutant['file']}: {mutant['was']}\n    {failed or 'MISSED'} ({took:.0f} s)",
            flush=True,
        )
    print(f"{missed} missed")
    return bool(missed)


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


def find_failing_test(file: str) -> str:
    """The first test that fails, of the unit tests that name the module or its package, then of all
    others of the gate. RuntimeError: pytest could not run.
    """
    module = "vitald." + file.removesuffix(".py").replace("/", ".")
    near = [*list_tests_naming(module), *list_tests_naming(module.rpartition(".")[0])]
    first = [file for file in dict.fromkeys(near) if not file.endswith(_SLOW)]
    for tests in (first, *_REST):
        command = [*_PYTEST, *tests]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        failed = [
            line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))
        ]
        if failed:
            return failed[0].split(" ")[1]
        if done.returncode:
            raise RuntimeError(f"{command}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return ""


def list_tests_naming(module: str) -> list[str]:
    command = ["git", "grep", "-lwF", module, "--", "tests/unit/test_*.py"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
