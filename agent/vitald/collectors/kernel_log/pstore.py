"""
The last lines of a kernel that crashed, out of /sys/fs/pstore or from where systemd-pstore moved
them.

A file `dmesg-BACKEND-ID` is one chunk of one dump: a header `Panic#1 Part2`, then rendered lines
`<6>[  517.250000] text`. Part 1 is the newest chunk. Sources: Linux fs/pstore/platform.c
(pstore_dump), fs/pstore/inode.c (pstore_mkfile); systemd src/pstore/pstore.c, whose archive is
/var/lib/systemd/pstore/[TIME/[COUNT/]] with the files under their old names, their times kept, and
a joined `dmesg.txt` beside them. A record with a newline in it is several lines with the same stamp
here, and nothing tells them from several records. Everything here blocks.
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

FOLDERS = (Path("/sys/fs/pstore"), Path("/var/lib/systemd/pstore"))
_MOST = 8 << 20  # bytes, of all files together; a crash leaves some tens of KiB
_NAME = re.compile(r"dmesg-(?P<backend>.+?)-(?P<id>\d{1,20})")
_PACKED = ".enc.z"
_HEADER = re.compile(rb"^([A-Z][a-z]{2,15})#(\d{1,9}) Part(\d{1,9})\n", re.M)
_RENDERED = re.compile(rb"<\d{1,3}>")
# Of ramoops with ECC; of an older systemd's dmesg.txt
_NOTICE = re.compile(rb"No errors detected|dmesg-\S+:|")


@dataclass(frozen=True, slots=True)
class CrashLog:
    """One dump. `name` is the same in pstore, in the archive, and after further boots."""

    name: str  # the file of the newest chunk, and a digest of its lines
    # Of the crash, seconds since the epoch; ERST keeps none and gives that of the next boot
    time: float
    reason: str  # the kernel's word: Panic, Oops, Emergency, Shutdown, ...
    lines: tuple[bytes, ...]  # oldest first, rendered, escaped as /dev/kmsg does
    # In which each line begins, as a digest: whatever its file is called and how it is dated
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
        """Of what the kernel logged: the notice about ECC may differ from boot to boot."""
        lines = [line for line in self.text.split(b"\n") if _RENDERED.match(line)]
        return hashlib.sha256(self.reason.encode() + b"".join(lines)).hexdigest()[:16]

    @property
    def key(self) -> str:
        """Names the chunk."""
        return f"{self.file}:{self.digest}"


def read_crash_logs(folders: Iterable[Path] = FOLDERS) -> tuple[list[CrashLog], list[str]]:
    """The crash logs, oldest first, and what could not be read, in words. A folder that is not
    there is no news.
    """
    said: list[str] = []
    chunks: dict[str, _Chunk] = {}
    left, left_out = _MOST, 0
    for path, size, mtime in sorted(_list_files(folders, said), key=lambda found: -found[2]):
        if path.name.endswith(_PACKED):
            said.append(f"{path}: compressed, and the kernel could not unpack it")
            continue
        if size > left:
            left_out += 1
            continue
        try:
            with path.open("rb") as file:
                data = file.read(left)
        except FileNotFoundError:
            continue  # moved meanwhile; it is found in the archive the next time
        except OSError as error:
            said.append(f"{path}: {error.strerror}")
            continue
        left -= len(data)
        for chunk in _read_chunks(path.name, data, mtime):
            chunks.setdefault(chunk.key, chunk)
    if left_out:
        said.append(
            f"{left_out} files left out: there is more than {_MOST >> 20} MiB of crash logs, of"
            " which the newest are read"
        )
    logs = [_join_chunks(parts, said) for parts in _group_dumps(chunks.values())]
    return sorted(logs, key=lambda log: log.time), said


def _list_files(folders: Iterable[Path], said: list[str]) -> Iterator[tuple[Path, int, float]]:
    """Path, size and mtime of the chunks, and of a `dmesg.txt` that has none beside it."""

    def report_refusal(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            said.append(f"{error.filename}: {error.strerror}")

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
    """One of a chunk's file, several of a `dmesg.txt`."""
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
    done: list[list[_Chunk]] = []
    growing: dict[tuple[str, str, int], list[_Chunk]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.order, chunk.part)):
        what = (chunk.order[0], chunk.reason, chunk.number)
        # The numbers begin again with each boot: a part that does not go on is another dump's.
        if what not in growing or chunk.part <= growing[what][-1].part:
            growing[what] = []
            done.append(growing[what])
        growing[what].append(chunk)
    return done


def _join_chunks(parts: list[_Chunk], said: list[str]) -> CrashLog:
    newest, name = parts[0], parts[0].key
    missing = sorted(set(range(1, parts[-1].part)) - {chunk.part for chunk in parts})
    if missing:
        said.append(
            f"{name}: {newest.reason}#{newest.number} lacks part {', '.join(map(str, missing[:9]))}"
        )
    lines = [
        (line, digest) for line, digest in _join_lines(parts) if _NOTICE.fullmatch(line) is None
    ]
    whole = [(escape(line), digest) for line, digest in lines if _RENDERED.match(line)]
    if len(whole) < len(lines):
        left_out = len(lines) - len(whole)
        said.append(f"{name}: {left_out} lines left out that do not begin as the kernel's do")
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
