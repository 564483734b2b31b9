"""The man page and the completions: made of the command line's own parsers, complete, and
understood by those who read them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.unit.builders import ROOT
from tests.waiting import WAIT_S
from vitald.cli import VERBS, build_parser, main


def parsers(
    name: str, one: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """`check`, `diag run` and so on, each with its parser."""
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from parsers(f"{name} {word}".strip(), below)
            return
    yield name, one


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "packaging/docs-build", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": "86400"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def shown(built: Path) -> str:
    """The page as a reader sees it, on one line."""
    require(shutil.which("man"), "man (apt-get install man-db)")
    done = subprocess.run(
        ["man", "--warnings", "-l", str(built / "man/vitald.1")],
        env={**os.environ, "MANWIDTH": "500", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stderr == ""
    return re.sub(
        r"\s+",
        " ",
        re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)
        .replace("\u2010", "-")
        .replace("\u2019", "'"),
    )


def test_the_page_has_every_verb_and_every_option(built: Path) -> None:
    text = shown(built)
    for name, one in parsers("", build_parser()):
        assert f"vitald {name} " in text, name
        section = text[
            (
                text.index(f"vitald {name} [")
                if f"vitald {name} [" in text
                else text.index(f"vitald {name} ")
            ) :
        ]
        for action in one._actions:
            if action.dest != "help":
                assert all(option in section for option in action.option_strings), (name, action)
                words = re.sub(
                    r"\s+", " ", str(action.help) % {**vars(action), "prog": "vitald"}
                ).strip()
                assert words[1:] in section, (name, action)
    assert all(purpose in text for *_, purpose in VERBS.values())
    for code in ("0", "2", "10", "20", "30", "66", "69", "74", "78", "130", "141"):
        assert re.search(rf" {code} +[A-Z]", text[text.index("EXIT STATUS") :]), code
    assert "/etc/vitald/config.toml" in text and "1970-01-02" in text


def test_the_page_is_sound(built: Path) -> None:
    require(shutil.which("mandoc"), "mandoc (apt-get install mandoc)")
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", built / "man/vitald.1"],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `vitald` that has two findings and one run."""
    command = tmp_path / "bin/vitald"
    command.parent.mkdir()
    command.write_text(
        """#!/bin/sh
case "$*" in
"findings --ids") printf '12\\n17\\n' ;;
"diag list --ids") echo dcgm-1 ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
"""
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")


def completed(built: Path, *words: str) -> list[str]:
    """What bash offers after these words; the last is being written."""
    script = f"""
source {built}/completions/vitald.bash
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
[[ $(complete -p vitald) =~ -F\\ ([^ ]+) ]] \\
    && ${{BASH_REMATCH[1]}} vitald "{words[-1]}" "{words[-2]}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes(built: Path, tmp_path: Path) -> None:
    assert set(completed(built, "vitald", "")) >= set(VERBS)
    assert completed(built, "vitald", "chec") == ["check"]
    assert completed(built, "vitald", "diag", "sh") == ["show"]
    assert completed(built, "vitald", "check", "--for", "") == ["prolog", "epilog", "running"]
    assert completed(built, "vitald", "report", "--max") == ["--max-size"]
    (tmp_path / "kernel.log").touch()
    assert completed(built, "vitald", "replay", f"{tmp_path}/ker") == [f"{tmp_path}/kernel.log"]
    for name, one in parsers("", build_parser()):
        offered = completed(built, "vitald", *name.split(), "--")
        assert set(offered) >= {
            option
            for action in one._actions
            for option in action.option_strings
            if option.startswith("--")
        }, name


@pytest.mark.usefixtures("answering")
def test_bash_completes_ids(built: Path) -> None:
    for verb in ("clear", "accept", "remedy", "why"):
        assert completed(built, "vitald", verb, "") == ["12", "17"], verb
    assert completed(built, "vitald", "clear", "12", "--reason", "x", "1") == ["12", "17"]
    assert completed(built, "vitald", "clear", "12", "17") == ["17"]
    assert completed(built, "vitald", "diag", "show", "") == ["dcgm-1"]


@pytest.mark.usefixtures("answering")
def test_zsh_completes_ids(built: Path) -> None:
    """Read anew each time: the functions that its arguments name."""
    require(shutil.which("zsh"), "zsh (apt-get install zsh)")
    script = f"""
compadd() {{ print -- "$@" }}
compdef() {{ }}
eval "$(< {built}/completions/_vitald)"
_vitald_findings_ids
_vitald_diag_list_ids
print -l -- $_shtab_vitald_clear_options $_shtab_vitald_diag_show_options
"""
    done = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stderr == ""
    assert done.stdout.startswith("-- 12 17\n-- dcgm-1\n")
    assert (
        done.stdout.count(":_vitald_findings_ids"),
        ":_vitald_diag_list_ids" in done.stdout,
    ) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "vitald.bash"), ("zsh", "_vitald"), ("fish", "vitald.fish")]
)
def test_each_shell_can_read_its_file(built: Path, shell: str, name: str) -> None:
    require(shutil.which(shell), f"{shell} (apt-get install {shell})")
    done = subprocess.run(
        [shell, "-n", str(built / "completions" / name)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.usefixtures("answering")
def test_fish_completes(built: Path) -> None:
    require(shutil.which("fish"), "fish (apt-get install fish)")
    script = (
        f"source {built}/completions/vitald.fish; complete -C 'vitald chec'; complete -C 'vitald"
        " check --for '; complete -C 'vitald clear 12 '; complete -C 'vitald diag show '"
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], capture_output=True, text=True, timeout=WAIT_S
    )
    assert sorted(line.split("\t")[0] for line in done.stdout.splitlines()) == [
        "12",
        "17",
        "check",
        "dcgm-1",
        "epilog",
        "prolog",
        "running",
    ], done


def test_one_parser_for_both(capsys: pytest.CaptureFixture[str]) -> None:
    """What is documented is what is understood: the command builds its own verb's part of the same
    parser.
    """
    for name, one in parsers("", build_parser()):
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == one.format_help(), name
