"""
What the tools of all checks have in common: where they are installed, how a run ended, and how
their output is parsed.

Owns     finding programs, the report on a run without a verdict, figures, tables with a heading,
         a JSON document within other text.
Refuses  the meaning of a tool's output: each check interprets its own.

What a program prints is not trusted: a figure is read only where it is one, and text is made
presentable before it is shown.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from vitald.config.paths import is_root
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.model.diagnostic import Report
from vitald.model.words import ComponentKind, Outcome, Remedy
from vitald.small_files import describe_error
from vitald.text import clean_line
from vitald.topology.pci_inventory import PciInventory

GIGA, GIBI, MICRO = 1e9, float(1 << 30), 1e-6
NO_GPU = "there is no NVIDIA GPU on PCI"
_FIGURE = re.compile(
    r"[+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,4})?", re.ASCII
)
_MAX_LINES = 20_000  # more than any of the tools prints
_MAX_WIDTH = 1000
_MAX_BEGINNINGS = 64  # positions at which a JSON document is searched
# The first group of people; those below are the system's, such as Debian's staff, which may write
# to /usr/local
_FIRST_USER_GROUP = 1000
_MAX_LINKS = 40  # followed on one way, as the kernel does


def find_program(program: str, folders: Sequence[str] = ()) -> str:
    """The path of a program: a path is taken as it is, a name is searched on PATH, then in these
    folders. Empty if it is not installed.

    Root runs nothing that an ordinary user could have put there, or can change: the PATH of a
    daemon started by hand may contain such a folder.
    """
    return next(
        (place for place in _list_candidates(program, folders) if not find_tampering(place)), ""
    )


def explain_absence(program: str, folders: Sequence[str] = ()) -> str:
    """Says that the program is not installed, and where it was searched."""
    if refused := next(_list_candidates(program, folders), ""):
        return f"{clean_line(refused)} is not run as root: {clean_line(find_tampering(refused))}"
    if "/" in program:
        return f"{clean_line(program)} is not there, or may not be executed"
    beside = f", nor in {', '.join(folders)}" if folders else ""
    return f"{clean_line(program)} is not installed: it is not on PATH{beside}"


def _list_candidates(program: str, folders: Sequence[str]) -> Iterator[str]:
    """The executable files that the name may mean. The working directory (a dot or an empty entry
    in PATH) is not searched.
    """
    path = (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    for place in (
        [program]
        if "/" in program
        else [
            os.path.join(folder, program) for folder in (*path, *folders) if folder.startswith("/")
        ]
    ):
        if os.access(place, os.X_OK) and Path(place).is_file():
            yield place


def find_tampering(program: str) -> str:
    """Which user or group other than root could have replaced the program; empty if none could, or
    if the daemon does not run as root.
    """
    if not is_root():
        return ""
    try:
        for place, found in _walk_path(str(Path(program).absolute())):
            if found.st_uid:
                return f"{place} belongs to uid {found.st_uid}"
            if found.st_mode & stat.S_IWOTH and not (
                stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            ):
                return f"everybody may write to {place}"
            if found.st_mode & stat.S_IWGRP and found.st_gid >= _FIRST_USER_GROUP:
                return f"the group {found.st_gid} may write to {place}"
    except OSError as error:
        return describe_error(error)
    return ""


def _walk_path(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Each folder and file that is passed in looking up a path, links followed. Raises OSError."""
    left, here, links = path.split("/")[::-1], "/", 0
    yield here, os.lstat(here)
    while left:
        there = os.path.normpath(os.path.join(here, left.pop()))
        found = os.lstat(there)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = str(Path(there).readlink())
            here = "/" if target.startswith("/") else here
            left += target.split("/")[::-1]
        else:
            here = there
            yield here, found


def scan_pci(sysfs: Path) -> PciInventory:
    """What is on PCI now. Its `error` says why that cannot be read."""
    inventory = PciInventory(sysfs)
    inventory.scan_bus()
    return inventory


def count_gpus(sysfs: Path) -> tuple[int, str]:
    """How many GPUs on PCI the NVIDIA driver has or should have, and why not all of them may be
    known; empty where they are.
    """
    inventory = scan_pci(sysfs)
    return len(inventory.list_accelerators(ComponentKind.GPU)), inventory.error


def report_not_run(what: str, output: Output) -> Report | None:
    """The report on a program that yields no result because it did not end by itself. None if it
    did, or ran too long.
    """
    if output.ended in (ProgramEnd.EXITED, ProgramEnd.DEADLINE):
        return None
    because = clean_line(output.why) or _describe_end(output)
    reason = {
        ProgramEnd.NOT_STARTED: f"{what} could not be started: {because}",
        ProgramEnd.CANCELLED: f"{what} was ended: {because}",
        ProgramEnd.SIGNALLED: f"{what} was ended from outside, or crashed: {because}",
    }[output.ended]
    return report_error(reason)


def report_error(reason: str) -> Report:
    """The report on a run without a verdict, which is worth another attempt."""
    return Report(outcome=Outcome.ERROR, reason=reason, remedy=Remedy.RETRY)


def report_misconfigured(reason: str) -> Report:
    """The report on a run that wrong settings or a broken installation prevented."""
    return Report(outcome=Outcome.CONFIG, reason=reason, remedy=Remedy.FIX_CONFIG)


def _describe_end(output: Output) -> str:
    return (
        f"signal {-output.exit_code}"
        if output.exit_code is not None and output.exit_code < 0
        else "no reason given"
    )


def split_lines(text: str) -> Iterator[str]:
    """Line by line, each of a length that can be matched against patterns."""
    for line in text.splitlines()[:_MAX_LINES]:
        yield line[:_MAX_WIDTH].rstrip()


def find_last_line(*texts: str) -> str:
    """The last words of the first of these texts that has any, for people."""
    for text in texts:
        for line in reversed(text[-8 * _MAX_WIDTH :].splitlines()):
            if line.strip():
                return clean_line(line.strip())
    return ""


def parse_figure(text: str) -> float | None:
    """A finite figure that is not below 0, or None: `nan`, `inf` and `1_000` are none."""
    if not _FIGURE.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) and value >= 0.0 else None


def parse_number(value: object) -> float | None:
    """The same of what a JSON document holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return parse_figure(value) if isinstance(value, str) else None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if math.isfinite(made) and made >= 0.0 else None


def find_document(text: str) -> Mapping[str, object] | None:
    """The first JSON object that begins a line, regardless of the text around it. None if there is
    no complete one.
    """
    decoder = json.JSONDecoder()
    for begin in _list_beginnings(text):
        try:
            found, _ = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _list_beginnings(text: str) -> Iterable[int]:
    return (
        match.end() for match in islice(re.finditer(r"(?m)^[ \t]*(?=\{)", text), _MAX_BEGINNINGS)
    )
