"""The version that packaging/build gives to a commit, in a repository of its own, and how pip, dpkg
and rpm order it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.version import Version

from tests.conftest import require
from tests.harness import ROOT

BUILD = "packaging/build"
INIT = "agent/vitald/__init__.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With as much as decides its version, and one commit."""
    require(shutil.which("git"), "git")
    made = tmp_path / "checkout"
    for name in (BUILD, INIT):
        (made / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, made / name)
    git(made, "init", "--quiet")
    commit(made)
    return made


def git(checkout: Path, *arguments: str) -> None:
    author = {
        f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    subprocess.run(
        ["git", "-C", str(checkout), *arguments], check=True, env={**os.environ, **author}
    )


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=change")


def raise_version(checkout: Path, version: str) -> None:
    file = checkout / INIT
    file.write_text(f'__version__ = "{version}"\n')


def build(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / BUILD), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def find_version(checkout: Path) -> str:
    done = build(checkout, "--print-version")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def is_lower_for_dpkg(version: str, other: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", version, "lt", other]).returncode == 0


def is_lower_for_rpm(version: str, other: str) -> bool:
    command = f'%{{lua: print(rpm.vercmp("{version}", "{other}"))}}'
    return subprocess.check_output(["rpm", "--eval", command], text=True).strip() == "-1"


@pytest.mark.core
def test_later_builds_are_newer(checkout: Path) -> None:
    raise_version(checkout, "1.2")
    commit(checkout)
    git(checkout, "tag", "v1.2")
    versions = [find_version(checkout)]
    for _ in range(8):
        commit(checkout)
    versions.append(find_version(checkout))  # the 10th commit is newer than the 9th
    commit(checkout)
    versions.append(find_version(checkout))
    (checkout / "new").write_text("")
    versions.append(find_version(checkout))
    commit(checkout)
    versions.append(find_version(checkout))
    raise_version(checkout, "1.10")
    commit(checkout)
    git(checkout, "tag", "v1.10")
    versions.append(find_version(checkout))

    (release, tenth, eleventh, changed, _, next_release) = versions
    assert (release, next_release) == ("1.2", "1.10")
    assert tenth.startswith("1.2+10.g")
    assert changed.startswith(f"{eleventh}.dirty.20")
    for lower, higher in pairwise(versions):
        assert Version(lower) < Version(higher)
        assert str(Version(higher)) == higher
        assert is_lower_for_dpkg(lower, higher), (lower, higher)
        assert is_lower_for_rpm(lower, higher), (lower, higher)


def test_an_archive_of_the_sources_is_older_than_any_commit(checkout: Path) -> None:
    """And its builds have one version, which is reported."""
    commit_version = find_version(checkout)
    shutil.rmtree(checkout / ".git")
    done = build(checkout, "--print-version")
    assert is_lower_for_dpkg(done.stdout.strip(), commit_version)
    assert "--version" in done.stderr


def test_a_history_that_is_cut_is_reported(checkout: Path) -> None:
    commit(checkout)
    shallow = checkout.with_name("shallow")
    git(checkout, "clone", "--quiet", "--depth=1", f"file://{checkout}", str(shallow))
    done = build(shallow, "--print-version")
    assert done.returncode == 0
    assert "git fetch --unshallow" in done.stderr


def test_a_version_of_ones_own(checkout: Path) -> None:
    assert build(checkout, "--print-version", "--version", "1.2+site.3").stdout == "1.2+site.3\n"


@pytest.mark.parametrize("version", ["1.2-3", "1.2rc1", "v1.2", "1.2+", "1.2_3", "1.2+A", ""])
def test_what_package_managers_order_differently_is_refused(checkout: Path, version: str) -> None:
    done = build(checkout, "--print-version", f"--version={version}")
    assert done.returncode == 2
    assert "expected a version such as" in done.stderr
