"""
What a job left behind in a folder: dumps of PyTorch's flight recorder, and torchelastic's files of
errors.

The files are a user's and may be hostile; root may be the one who reads them. They are parsed and
written anew as text and JSON, so that the archive holds no pickle for its reader to load.

Owns     which files are read, and the limits of all of them together.
Refuses  links, pipes and devices, also where a folder is exchanged meanwhile.

Sources: PyTorch torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (keys of a dump), and
torch/distributed/elastic/multiprocessing/errors/error_handler.py (of an error file).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitald.cli.report.plain_pickle import read_plain_pickle

MAX_FILES, MAX_FILE_BYTES, MAX_ERROR_BYTES = 1024, 16 * 1024 * 1024, 1024 * 1024
_MAX_S = 60.0  # for all files
_MAX_DEPTH = 8  # of folders
_MAX_PROBLEMS = 32  # that are named
_MAX_ENTRIES, _MAX_GROUPS = 64, 64  # of a dump: the newest collectives, the process groups
_MAX_TEXT, _MAX_STACK = 512, 8192
# Of the entries of all dumps together, as JSON: a small pickle may hold one text many times
MAX_KEPT_BYTES = 64 * 1024 * 1024
_ERROR_FILE = "error.json"
_RANK = re.compile(r"(\d{1,7})\Z")
_STATES = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
_ENTRY_KEYS = (
    *("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "is_p2p"),
    *("profiling_name", "state", "retired", "input_sizes", "timeout_ms"),
    *("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"),
)


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What a rank has done in a process group: the numbers of its last collectives."""

    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """One rank's dump. `rank`: -1 where the name of the file does not end with it. `groups`: by
    the number of the process group. `waiting`: the first collective that has not completed.
    """

    file: str
    rank: int
    version: str
    groups: Mapping[str, GroupStatus]
    names: Mapping[str, str]  # of the groups
    waiting: Mapping[str, str]
    entries: list[dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFile:
    """What torchelastic stored of a rank that died."""

    file: str
    message: str
    time: float | None  # seconds since the epoch
    stack: str


@dataclass(slots=True)
class FlightEvidence:
    """What was read of a folder. `problems`: file and reason, of what could not be read."""

    dumps: list[FlightDump] = field(default_factory=list)
    errors: list[ErrorFile] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    more_problems: int = 0
    kept_bytes: int = 0  # of the entries

    def note_problem(self, file: str, why: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append((file, why))
        else:
            self.more_problems += 1


def read_flight(folder: Path) -> FlightEvidence:
    """Every file in the folder and those below it, within the limits. Raises OSError for the folder
    itself.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a symbolic link", str(folder))
    os.listdir(folder)  # noqa: PTH208 - os.fwalk would pass over an error
    evidence = FlightEvidence()
    until = time.monotonic() + _MAX_S
    for number, (name, parent) in enumerate(_walk(folder, evidence)):
        if number >= MAX_FILES or time.monotonic() > until:
            limit = f"{MAX_FILES} files" if number >= MAX_FILES else f"{_MAX_S:g} s"
            evidence.note_problem("all further files", f"not read: the limit is {limit}")
            break
        try:
            _read_file(name, parent, evidence)
        except (OSError, ValueError, RecursionError) as error:
            evidence.note_problem(name, getattr(error, "strerror", None) or str(error))
    evidence.dumps.sort(key=lambda dump: (dump.rank, dump.file))
    evidence.errors.sort(key=lambda error: error.file)
    return evidence


def _walk(folder: Path, evidence: FlightEvidence) -> Iterator[tuple[str, int]]:
    """The files by their names in the folder, each with the descriptor of the folder it is in. No
    link is followed.
    """

    def note_error(error: OSError) -> None:
        evidence.note_problem(str(error.filename), error.strerror or str(error))

    for path, folders, files, fd in os.fwalk(folder, onerror=note_error, follow_symlinks=False):
        inner = os.path.relpath(path, folder)
        if inner.count(os.sep) + 1 >= _MAX_DEPTH:
            folders.clear()
        folders.sort()
        for name in sorted(files):
            yield os.path.normpath(os.path.join(inner, name)), fd


def _read_file(name: str, parent: int, evidence: FlightEvidence) -> None:
    """Raises OSError, ValueError."""
    last = os.path.basename(name)  # noqa: PTH119 - a name below a descriptor
    if last == _ERROR_FILE:
        evidence.errors.append(_parse_error(name, _read_bytes(last, parent, MAX_ERROR_BYTES)))
    else:
        data = _read_bytes(last, parent, MAX_FILE_BYTES)
        dump = _parse_dump(name, read_plain_pickle(data))
        evidence.dumps.append(_limit_entries(dump, evidence))


def _read_bytes(name: str, parent: int, most: int) -> bytes:
    if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise ValueError("no regular file: a link, a pipe or a device is not opened")
    # Exchanged for a pipe meanwhile, it does not block.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"larger than {most // (1024 * 1024)} MiB")
    if not data:
        raise ValueError("empty")
    return data


# Of a dump


def _limit_entries(dump: FlightDump, evidence: FlightEvidence) -> FlightDump:
    """Without its entries where those of all dumps would take too much."""
    size = len(json.dumps(dump.entries))
    if evidence.kept_bytes + size > MAX_KEPT_BYTES:
        limit = f"{MAX_KEPT_BYTES // (1024 * 1024)} MiB of all dumps"
        evidence.note_problem(dump.file, f"its collectives are left out: the limit is {limit}")
        return replace(dump, entries=[])
    evidence.kept_bytes += size
    return dump


def _parse_dump(name: str, value: object) -> FlightDump:
    """Raises ValueError."""
    status = value.get("pg_status") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(status, dict):
        raise ValueError("no dump of a flight recorder: it has no pg_status")
    found = _RANK.search(os.path.splitext(name)[0])  # noqa: PTH122
    listed = value.get("entries")
    entries = [each for each in listed if isinstance(each, dict)] if type(listed) is list else []
    groups = {
        _shorten(number): parsed
        for number, each in list(status.items())[:_MAX_GROUPS]
        if (parsed := _parse_status(each)) is not None
    }
    return FlightDump(
        file=name,
        rank=int(found[1]) if found is not None else -1,
        version=_shorten(value.get("version", "")),
        groups=groups,
        names=_find_names(entries, groups),
        waiting=_find_waiting(entries, groups),
        entries=[_select_entry(entry) for entry in entries[-_MAX_ENTRIES:]],
    )


def _parse_status(value: object) -> GroupStatus | None:
    numbers = [value.get(key) for key in _STATES] if isinstance(value, dict) else [None]
    if not all(isinstance(number, int) for number in numbers):
        return None
    enqueued, started, completed = (int(str(number)) for number in numbers)
    return GroupStatus(enqueued, started, completed)


def _find_names(
    entries: list[dict[object, object]], groups: Mapping[str, GroupStatus]
) -> dict[str, str]:
    """The description of each group, which its entries have with its name."""
    names: dict[str, str] = {}
    for entry in entries:
        group, number = entry.get("process_group"), _shorten(entry.get("pg_id"))
        if number in groups and isinstance(group, (tuple, list)) and len(group) == 2:
            names.setdefault(number, _shorten(group[1] or group[0]))
    return names


def _find_waiting(
    entries: list[dict[object, object]], groups: Mapping[str, GroupStatus]
) -> dict[str, str]:
    """The first collective of each group after the last that completed."""
    waiting: dict[str, str] = {}
    for entry in entries:
        number, sequence = _shorten(entry.get("pg_id")), entry.get("collective_seq_id")
        group = groups.get(number)
        is_next = group is not None and sequence == group.completed + 1
        if is_next and entry.get("is_p2p") is not True:
            waiting.setdefault(number, f"{_shorten(entry.get('profiling_name'))} {sequence}")
    return waiting


def _select_entry(entry: dict[object, object]) -> dict[str, object]:
    return {key: _simplify(entry[key]) for key in _ENTRY_KEYS if key in entry}


def _simplify(value: object) -> object:
    """A value for JSON: a number, a text, or the sizes of tensors."""
    if isinstance(value, (list, tuple)):
        return [_simplify_sizes(each, 1) for each in value[:16]]
    return value if value is None or isinstance(value, (int, float)) else _shorten(value)


def _simplify_sizes(value: object, depth: int) -> object:
    """Numbers only, and not nested deeply: a text in many lists would be written each time."""
    if isinstance(value, (list, tuple)) and depth:
        return [_simplify_sizes(each, depth - 1) for each in value[:16]]
    return value if value is None or isinstance(value, (int, float)) else "?"


def _shorten(value: object) -> str:
    """Only of a text or a number: that of a nested value may be of any length."""
    return str(value)[:_MAX_TEXT] if isinstance(value, (str, int)) else "?"


# Of an error file


def _parse_error(name: str, data: bytes) -> ErrorFile:
    """Raises ValueError."""
    value = json.loads(data)
    content: object = value.get("message") if isinstance(value, dict) else None
    message, extra = content, None
    if isinstance(content, dict):
        message, extra = content.get("message"), content.get("extraInfo")
    if not isinstance(message, str):
        raise ValueError("no error file of torchelastic: it has no message")
    details: dict[str, object] = extra if isinstance(extra, dict) else {}
    stack, moment = details.get("py_callstack"), details.get("timestamp")
    is_time = isinstance(moment, (str, int)) and re.fullmatch(r"[0-9]{1,11}", str(moment))
    return ErrorFile(
        file=name,
        message=message[:_MAX_TEXT],
        time=float(moment) if is_time and isinstance(moment, (str, int)) else None,
        stack=stack[:_MAX_STACK] if isinstance(stack, str) else "",
    )
