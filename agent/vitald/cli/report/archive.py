"""
The file of `vitald report`: a compressed tar archive with a limit on its size, published complete
or not at all.

Owns     the format, the limit, and publishing: written under another name in the same folder, for
         its owner only, and renamed when complete. An existing file is not overwritten, and a link
         not followed, unless requested. That each part is redacted and does not stop the others;
         the text of README.txt.
Refuses  knowledge of the contents. Names of members come from the caller, never from the data.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from vitald.cli.report.redact import Redactor
from vitald.text import escape_unprintable

_BLOCK_BYTES = 512
_END_BYTES = 2 * _BLOCK_BYTES
_LEVEL = 6
# For what the compressor still holds, and for the last member, the list of what is missing.
_RESERVE_BYTES = 1024 * 1024
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
README = """\
What is in this archive, written by `vitald report` on one node. Nothing here needs vitald: texts
and JSON only. All times are UTC. Findings, incidents, events and runs are read from the ledger.

Begin with summary.txt, and with errors.txt, which names what is missing and why.

  summary.txt       what is wrong and what to do, what was wrong, and how each open finding came
                    to be
  status.json       the daemon's answer: the verdict, the sources with their last reads, open
                    findings and incidents; without an answer what the ledger remembers
  findings.json     open and cleared findings in full: the raw line, what it means, what to do,
                    what clears it
  why.json          for each open finding: its events with their raw lines, its rule, who required
                    which action, its history
  incidents.json    which findings and events belong together, the root first; jobs that ran near
                    them
  events.jsonl      what has happened, one JSON object a line, the oldest first; `raw` is the line
                    as it was logged
  inventory/        components.json, gpus.json (serial numbers, VBIOS, driver), expected.json
                    (what should be here), pci.json (from sysfs, by vendor and device number),
                    devices.json (the device in each slot, as last seen)
  diagnostics/      runs.json, the newest first, with tests, faults and figures; run-NNN.txt, what
                    its program printed; checks.json
  recovery/         what the recovery unit decided and why, one JSON object a line
  metrics.txt       one scrape in the Prometheus text format
  config.json       the configuration as JSON, without comments and without what may be a secret;
                    what was taken out, and what is wrong in the file
  versions.json     vitald, its libraries, kernel, drivers, distribution
  service.txt       the state of the service, from systemd
  vitald.log        its own log; kernel.log: the newest messages of the kernel, of all programs
                    that caused one
  ledger/           only on request: the ledger as it is (SQLite)

An event marked `simulated` belongs to a drill. `untrusted`, or USER SPACE in kernel.log: a process
wrote the line, perhaps a forged one.

What is private in it: host names, names of users and jobs, process names, paths, serial numbers
and UUIDs of devices, addresses on the network. Of the configuration, whatever is named like a
secret or looks like one was removed, here and in all other parts but ledger/. Evidence is left as
it is: a secret that a program printed to a log, and that is not in the configuration, may be here.
"""


class ArchiveFull(Exception):
    """With this member the archive would exceed its limit; it is unchanged."""


class CannotWrite(Exception):
    """The archive itself cannot be written; the text says why."""


class Archive:
    """Members are added whole. One that does not fit is removed again; later ones may still fit."""

    def __init__(self, file: IO[bytes], folder: str, time: float, most: int) -> None:
        """`folder`: the prefix of all names. `most`: the size of the file in bytes."""
        self._file = file
        self._folder = folder
        self._time = int(time)
        self._most = max(_RESERVE_BYTES, most) - _RESERVE_BYTES
        self._crc, self._size = 0, 0
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        # gzip's header and trailer are written here: only a copy of the raw compressor allows a
        # member to be removed again.
        self._write_raw(struct.pack("<4sIBB", b"\x1f\x8b\x08\x00", self._time, 0, 3))

    def add_member(self, name: str, data: bytes) -> None:
        self.stream_member(name, len(data), (data,))

    def stream_member(self, name: str, size: int, parts: Iterable[bytes]) -> None:
        """Adds a member of `size` bytes in parts. Raises ArchiveFull."""
        before = self._compressor.copy(), self._crc, self._size, self._file.tell()
        try:
            self._compress(self._build_header(name, size))
            written = 0
            for part in parts:
                written += len(part)
                self._compress(part)
                if self._file.tell() > self._most:
                    raise ArchiveFull(
                        "with it the archive would be larger than"
                        f" {self._most + _RESERVE_BYTES >> 20} MiB"
                    )
            if written != size:
                raise ValueError(f"expected {size} bytes, got {written}")
            self._compress(bytes(-size % _BLOCK_BYTES))
        except BaseException:
            self._compressor, self._crc, self._size, place = before
            with _convert_errors():
                self._file.seek(place)
                self._file.truncate()
            raise

    def close(self, name: str, data: bytes) -> int:
        """Adds the last member, for which there always is room, and ends the archive. Returns its
        size in bytes.
        """
        self._compress(
            self._build_header(name, len(data))
            + data
            + bytes(-len(data) % _BLOCK_BYTES)
            + bytes(_END_BYTES)
        )
        self._write_raw(
            self._compressor.flush() + struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)
        )
        with _convert_errors():
            self._file.flush()
        return self._file.tell()

    def _build_header(self, name: str, size: int) -> bytes:
        member = tarfile.TarInfo(f"{self._folder}/{name}")
        member.size, member.mtime, member.mode = size, self._time, 0o600
        return member.tobuf(tarfile.USTAR_FORMAT)

    def _compress(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._write_raw(self._compressor.compress(data))

    def _write_raw(self, data: bytes) -> None:
        with _convert_errors():
            self._file.write(data)


@contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.strerror or str(error)) from error


@contextmanager
def create_file(path: Path, *, force: bool) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
    """A file to write, and a function that publishes it at `path`; without that call nothing is
    left of it. Raises CannotWrite.
    """
    _check_target(path, force=force)
    beside = path.with_name(f".{path.name[:80]}.{secrets.token_hex(6)}.part")

    def publish() -> None:
        with _convert_errors():
            file.flush()
            os.fsync(file.fileno())
            _publish(beside, path, force=force)

    with _convert_errors():
        fd = os.open(
            beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        file = os.fdopen(fd, "w+b")
    try:
        yield file, publish
    finally:
        with suppress(OSError):  # a failed write was reported before
            file.close()
        beside.unlink(missing_ok=True)


def _check_target(path: Path, *, force: bool) -> None:
    with _convert_errors():
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            raise CannotWrite("is a symbolic link")
        if not stat.S_ISREG(mode):
            raise CannotWrite("is no regular file")
        if not force:
            raise CannotWrite("file exists; --force replaces it")


def _publish(made: Path, path: Path, *, force: bool) -> None:
    _check_target(path, force=force)
    if not force:
        try:
            # Of all ways only a link never replaces a file that was created meanwhile.
            os.link(made, path, follow_symlinks=False)
        except FileExistsError:
            raise CannotWrite("file exists; --force replaces it") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
    made.replace(path)


class PartWriter:
    """Adds parts to an archive. `missing`: the parts that failed, and why. `part`: the current."""

    def __init__(self, archive: Archive, redactor: Redactor) -> None:
        self.missing: list[tuple[str, str]] = []
        self.part = "README.txt"
        self._archive = archive
        self._redactor = redactor

    @contextmanager
    def guard_part(self, name: str) -> Iterator[None]:
        """Notes the error of one part, so that the others are written: hence the one catch-all."""
        self.part = name
        try:
            yield
        except CannotWrite:
            raise
        except Exception as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self.note_missing(name, why)

    def note_missing(self, name: str, why: str) -> None:
        self.missing.append((name, self._redactor.redact_text(" ".join(why.split()))[:500]))

    def add_text(self, name: str, text: str) -> None:
        self._archive.add_member(name, self.encode_text(text))

    def encode_text(self, text: str) -> bytes:
        """Without secrets and control characters."""
        return self._redactor.remove_secrets(_escape_lines(text).encode(errors="replace"))

    def add_json(self, name: str, value: object) -> None:
        self._archive.add_member(
            name, self._redactor.remove_secrets(json.dumps(value, indent=1).encode() + b"\n")
        )

    def format_line(self, value: object) -> bytes:
        return self._redactor.remove_secrets(json.dumps(value).encode() + b"\n")


def _escape_lines(text: str) -> str:
    """The text with control characters escaped, but for tabs and newlines."""
    return escape_unprintable(text.replace("\r\n", "\n"), keep="\t\n")
