"""
The commands that the documents show, so that tests can run them all.

A fenced block says in its first line where its commands belong:

    ```sh              a node with vitald running, as root; run by
                       tests/system/test_docs_commands.py
    ```sh booted       a machine that systemd booted, as root, with vitald's package installed; run
                       by tests/booted
    ```sh cluster      kubectl and helm, with a cluster; run by tests/system/test_docs_cluster.py
    ```sh elsewhere    where none of these is: a registry, pods that run, another distribution. Not
                       run, but its syntax and its files are checked

Each line is a command of its own, which must exit with 0, or as its comment says: `vitald check   #
exit 20: not fit`. Words in capitals (ID, FILE) stand for what a reader puts there; whoever runs the
commands says what.

    for command in commands("docs/operations.md", Where.BOOTED):
        failed += failures(command, shell, {"ID": "1"})
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"\s*```(.*)")
_EXITS = re.compile(r"#.*?\bexit ((?:\d+)(?:(?:, or |, | or )\d+)*)")
_SPAN = re.compile(r"`(vitald [^`]+)`")
_PLACEHOLDER = re.compile(r"(?<![\w$/.-])[A-Z]{2,}\b(?![/.])")

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


class Where(Enum):
    """What a block needs, by the word after `sh`."""

    NODE = ""
    BOOTED = "booted"
    CLUSTER = "cluster"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a document."""

    document: str
    line: int
    where: Where
    text: str
    exits: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.text}"

    @property
    def placeholders(self) -> set[str]:
        return set(
            _PLACEHOLDER.findall(re.sub(r"\"[^\"]*\"|'[^']*'", "", self.text.partition(" #")[0]))
        )

    def with_values(self, values: Mapping[str, str]) -> str:
        """What to run. Raises KeyError for a placeholder that has no value."""
        text = self.text
        for name in sorted(self.placeholders, key=len, reverse=True):
            text = re.sub(rf"(?<![\w$/.-]){name}\b(?![/.])", values[name], text)
        return text


def commands(document: str, *wanted: Where) -> list[Command]:
    """Those of a document's blocks, in order; all of them, or those that belong to the places
    named. Raises ValueError for a shell block whose place nobody knows.
    """
    return [command for command in _blocks(document) if not wanted or command.where in wanted]


def _blocks(document: str) -> Iterator[Command]:
    inside: Where | None = None
    fenced = False
    pending, begun = "", 0
    for number, line in enumerate((ROOT / document).read_text("utf-8").splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if fence is not None:
            language, _, place = fence[1].strip().partition(" ")
            fenced = not fenced
            inside = None
            if fenced and language in ("sh", "shell", "bash", "console"):
                if language != "sh" or place not in [one.value for one in Where]:
                    raise ValueError(
                        f"{document}:{number}: ```{fence[1]}: a block of commands is one of sh, sh"
                        " booted, sh cluster, sh elsewhere"
                    )
                inside = Where(place)
            continue
        if inside is None or (not pending and (not line.strip() or line.lstrip().startswith("#"))):
            continue
        begun = begun if pending else number
        pending += line.strip() if not pending else f" {line.strip()}"
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip()
            continue
        said = _EXITS.search(pending)
        exits = (
            tuple(int(code) for code in re.findall(r"\d+", said[1])) if said is not None else (0,)
        )
        yield Command(document, begun, inside, pending, exits)
        pending = ""


def spans(document: str) -> list[Command]:
    """`vitald ...` in the running text. What is not a whole command (a synopsis with brackets and
    bars) comes as the commands that it stands for.
    """
    found, fenced = [], False
    for number, line in enumerate((ROOT / document).read_text("utf-8").splitlines(), 1):
        if _FENCE.fullmatch(line) is not None:
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            for text in _SPAN.findall(line.replace("\\|", "|")):
                found += [Command(document, number, Where.NODE, one) for one in expand(text)]
    return found


def expand(synopsis: str) -> list[str]:
    """`vitald check [--for prolog|epilog] [--strict]`: without the options, and with each
    alternative of each once.
    """
    parts = re.findall(r"\[[^\]]*\]|'[^']*'|\"[^\"]*\"|\S+", synopsis)
    choices = [
        ["", *_alternatives(part[1:-1])] if part[0] == "[" else _alternatives(part)
        for part in parts
    ]
    shortest = [options[0] for options in choices]
    forms = [shortest]
    for place, options in enumerate(choices):
        forms += [[*shortest[:place], option, *shortest[place + 1 :]] for option in options[1:]]
    return [" ".join(part for part in form if part) for form in forms]


def _alternatives(part: str) -> list[str]:
    if part[:1] in "'\"":
        return [part]
    return [" ".join(words) for words in product(*(word.split("|") for word in part.split()))]


def failures(command: Command, shell: Shell, values: Mapping[str, str]) -> list[str]:
    """What went wrong with it, for a person: nothing, or one text."""
    try:
        text = command.with_values(values)
    except KeyError as error:
        return [f"{command}\n    nobody says what {error} stands for"]
    done = shell(text)
    if done.returncode in command.exits:
        return []
    wanted = " or ".join(map(str, command.exits))
    said = "".join(f"    {line}\n" for line in (done.stdout + done.stderr).splitlines()[-12:])
    return [f"{command}\n    exited with {done.returncode}, and should with {wanted}\n{said}"]


def unsound(command: Command) -> list[str]:
    """What can be told of a command without running it: its syntax, and the files of this
    repository that it names.
    """
    done = subprocess.run(["sh", "-n", "-c", command.text], capture_output=True, text=True)
    found = [f"{command}\n    {done.stderr.strip()}"] if done.returncode else []
    for path in re.findall(
        r"(?<![\w/.-])(?:packaging|systemd|docs|tests|agent)/[\w./-]+", command.text
    ):
        if not (ROOT / path).exists():
            found.append(f"{command}\n    there is no {path}")
    return found
