"""
The last lines of a kernel that crashed, out of /sys/fs/pstore or from where systemd-pstore moved
them.

A file `dmesg-BACKEND-ID` is one chunk of one dump: a header `Panic#1 Part2`, then rendered lines
`<6>[  517.250000] text`. Part 1 is the newest chunk. Sources: Linux fs/pstore/platform.c
(pstore_dump), fs/pstore/inode.c (pstore_mkfile); systemd src/pstore/pstore.c, whose archive is
/var/lib/systemd/pstore/[TIME/[COUNT/]] with the files under their old names, their times kept, and
a joined `dmesg.txt` beside them. A record with a newline in it is several lines with the same time
stamp here, which cannot be distinguished from several records. All functions block.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitald.collectors.kernel_log.record import escape
from vitald.text import count_noun

FOLDERS = (Path("/sys/fs/pstore"), Path("/var/lib/systemd/pstore"))
_MAX_BYTES = 8 << 20  # of all files together; a crash leaves some tens of KiB
_NAME = re.compile(r"dmesg-(?P<backend>.+?)-(?P<id>\d{1,20})")
_PACKED = ".enc.z"
_HEADER = re.compile(rb"^([A-Z][a-z]{2,15})#(\d{1,9}) Part(\d{1,9})\n", re.M)
_RENDERED = re.compile(rb"<\d{1,3}>")
# Lines added by ramoops with ECC, and in the dmesg.txt of an older systemd
_NOTICE = re.compile(rb"No errors detected|dmesg-\S+:|")


@dataclass(frozen=True, slots=True)
class CrashLog:
    """One dump. `name` does not change when it is archived or after further boots."""

    name: str  # the file of the newest chunk, and a digest of its lines
    # Of the crash, in seconds since the epoch; ERST stores none and gives that of the next boot
    time: float
    reason: str  # the kernel's word: Panic, Oops, Emergency, Shutdown, ...
    lines: tuple[bytes, ...]  # oldest first, rendered, escaped as /dev/kmsg does
    # For each line, the digest of the chunk in which it begins; independent of file name and date
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Chunk:
    file: str
    # Backend, record id, time: later chunks of a dump have higher ids
    order: tuple[str, int, float]
    reason: str
    number: int
    part: int
    text: bytes

    @property
    def digest(self) -> str:
        """Of the kernel's lines only: the notice about ECC may differ between boots."""
        lines = [line for line in self.text.split(b"\n") if _RENDERED.match(line)]
        return hashlib.sha256(self.reason.encode() + b"".join(lines)).hexdigest()[:16]

    @property
    def key(self) -> str:
        """Names the chunk."""
        return f"{self.file}:{self.digest}"


def read_crash_logs(folders: Iterable[Path] = FOLDERS) -> tuple[list[CrashLog], list[str]]:
    """The crash logs, oldest first, and messages about what could not be read. A folder that does
    not exist is not reported.
    """
    problems: list[str] = []
    chunks: dict[str, _Chunk] = {}
    left, left_out = _MAX_BYTES, 0
    for path, size, mtime in sorted(_list_files(folders, problems), key=lambda found: -found[2]):
        if path.name.endswith(_PACKED):
            problems.append(f"{path}: compressed, and the kernel could not unpack it")
            continue
        if size > left:
            left_out += 1
            continue
        try:
            with path.open("rb") as file:
                data = file.read(left)
        except FileNotFoundError:
            continue  # moved to the archive meanwhile, and read from there at the next start
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        left -= len(data)
        for chunk in _read_chunks(path.name, data, mtime):
            chunks.setdefault(chunk.key, chunk)
    if left_out:
        problems.append(
            f"{count_noun(left_out, 'file')} left out: there is more than {_MAX_BYTES >> 20} MiB of"
            " crash logs, of which the newest are read"
        )
    logs = [_join_chunks(parts, problems) for parts in _group_dumps(chunks.values())]
    return sorted(logs, key=lambda log: log.time), problems


def _list_files(folders: Iterable[Path], problems: list[str]) -> Iterator[tuple[Path, int, float]]:
    """Path, size and mtime of the chunks, and of each `dmesg.txt` without chunks beside it."""

    def report_refusal(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{error.filename}: {error.strerror}")

    for folder in folders:
        for root, _, names in os.walk(folder, onerror=report_refusal):
            chunks = [name for name in names if name.startswith("dmesg-")]
            if "dmesg.txt" in names and all(name.endswith(_PACKED) for name in chunks):
                chunks.append("dmesg.txt")
            for name in chunks:
                path = Path(root, name)
                try:
                    found = path.lstat()
                except OSError as error:
                    report_refusal(error)
                    continue
                if stat.S_ISREG(found.st_mode):
                    yield path, found.st_size, found.st_mtime


def _read_chunks(file: str, data: bytes, mtime: float) -> Iterator[_Chunk]:
    """A file has one chunk, a `dmesg.txt` several."""
    named = _NAME.fullmatch(file)
    order = (named["backend"], int(named["id"]), mtime) if named else (file, 0, mtime)
    headers = list(_HEADER.finditer(data))
    if not headers and data:
        yield _Chunk(file, order, "Unknown", 0, 1, data)
    for at, header in enumerate(headers):
        end = headers[at + 1].start() if at + 1 < len(headers) else len(data)
        yield _Chunk(
            file,
            order,
            header[1].decode(),
            int(header[2]),
            int(header[3]),
            data[header.end() : end],
        )


def _group_dumps(chunks: Iterable[_Chunk]) -> list[list[_Chunk]]:
    """The chunks of each dump, newest first. Those of two dumps may alternate: an oops and the
    panic that follows it.
    """
    dumps: list[list[_Chunk]] = []
    growing: dict[tuple[str, str, int], list[_Chunk]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.order, chunk.part)):
        key = (chunk.order[0], chunk.reason, chunk.number)
        # The numbers start again with each boot: a part out of sequence belongs to another dump
        if key not in growing or chunk.part <= growing[key][-1].part:
            growing[key] = []
            dumps.append(growing[key])
        growing[key].append(chunk)
    return dumps


def _join_chunks(parts: list[_Chunk], problems: list[str]) -> CrashLog:
    newest, name = parts[0], parts[0].key
    missing = sorted(set(range(1, parts[-1].part)) - {chunk.part for chunk in parts})
    if missing:
        problems.append(
            f"{name}: {newest.reason}#{newest.number} lacks part {', '.join(map(str, missing[:9]))}"
        )
    lines = [
        (line, digest) for line, digest in _join_lines(parts) if _NOTICE.fullmatch(line) is None
    ]
    whole = [(escape(line), digest) for line, digest in lines if _RENDERED.match(line)]
    if len(whole) < len(lines):
        left_out = len(lines) - len(whole)
        lines_out = count_noun(left_out, "line")
        problems.append(f"{name}: {lines_out} left out: not beginning as the kernel's do")
    return CrashLog(
        name=name,
        time=newest.order[2],
        reason=newest.reason,
        lines=tuple(line for line, _ in whole),
        chunks=tuple(digest for _, digest in whole),
    )


def _join_lines(parts: list[_Chunk]) -> list[tuple[bytes, str]]:
    """Oldest first, each with the digest of the chunk in which it begins. A chunk may end in the
    middle of a line.
    """
    lines: list[tuple[bytes, str]] = []
    last = 0
    for chunk in reversed(parts):
        digest = chunk.digest
        first, *others = chunk.text.split(b"\n")
        goes_on = last == chunk.part + 1 and _RENDERED.match(chunk.text) is None
        if goes_on and lines and lines[-1][0]:
            torn, begun = lines.pop()
            lines.append((torn + first, begun))
        else:
            lines.append((first, digest))
        lines += [(line, digest) for line in others]
        last = chunk.part
    return lines
