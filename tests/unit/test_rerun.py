"""`--rerun-core`: a core system test may fail once; any other failure fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.builders import ROOT
from tests.waiting import WAIT_S

ONCE = (
    "assert Path(__file__).with_name('tried').exists() or Path(__file__).with_name('tried').touch()"
)
TEXT = """
from pathlib import Path
import pytest

{marker}
def test_it(): {body}

def test_another(): {other}
"""


@pytest.mark.parametrize(
    ("marker", "body", "other", "code", "summary"),
    [
        ("@pytest.mark.core", ONCE, "pass", 0, "1 flaky"),
        ("@pytest.mark.core", "assert False", "pass", 1, "1 failed, 1 passed"),
        ("@pytest.mark.core", ONCE, "assert False", 1, "2 failed"),
        ("", ONCE, "pass", 1, "1 failed, 1 passed"),
    ],
    ids=["passes", "fails again", "another test fails", "not core"],
)
def test_only_core_tests_are_run_again(
    tmp_path: Path, marker: str, body: str, other: str, code: int, summary: str
) -> None:
    file = tmp_path / "test_file.py"
    file.write_text(TEXT.format(marker=marker, body=body, other=other))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "--rerun-core", f"--rootdir={tmp_path}", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, summary in done.stdout) == (code, True), done.stdout + done.stderr
    assert ("FLAKY test_file.py::test_it" in done.stdout) == (code == 0)
