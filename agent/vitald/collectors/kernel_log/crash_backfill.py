"""Events of the lines that a crashed kernel left in pstore.

A crash log stays there for many boots, and some firmware (ERST) dates it by the boot in which it is
read. Therefore the logs that have been read are remembered by digest, in a position of their own
that is stored with their events: each is evaluated in one boot only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import structlog

from vitald.collectors.kernel_log.interpret import NAME, Interpreter
from vitald.collectors.kernel_log.lines import ContinuationDetector, strip_prefix
from vitald.collectors.kernel_log.log_position import LogPosition
from vitald.collectors.kernel_log.pstore import CrashLog, read_crash_logs
from vitald.model import Batch, Event, Position
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("kernel_log")

CRASH_LOGS = "crash_logs"  # the position that names the crash logs that have been read
_TIMEOUT_S = 30.0
_MAX_CHUNKS = 512  # remembered; firmware has room for some tens
_NO_CRASH = ("Shutdown", "Restart", "Halt", "Poweroff")
_LINE = re.compile(rb"<(?P<prio>\d{1,3})>\[ *(?P<seconds>\d{1,10})\.(?P<micros>\d{6})\]")


class CrashLogBackfill:
    """Reads the crash logs that have not been read before."""

    def __init__(
        self,
        folders: tuple[Path, ...],
        interpreter: Interpreter,
        boot_id: str,
        thread: WorkerThread,
    ) -> None:
        self._folders = folders
        self._interpreter = interpreter
        self._boot_id = boot_id
        self._thread = thread

    async def read_batches(
        self, last: Position | None, read_before: Position | None
    ) -> AsyncIterator[Batch]:
        """One batch, so that the logs are remembered together with all of their events; none if
        there are no crash logs.

        `last`: the last record before the crash; None if no boot has ended, so that all logs are
        old. `read_before`: which crash logs have been read.
        """
        try:
            logs, problems = await self._thread.call(
                partial(read_crash_logs, self._folders), _TIMEOUT_S
            )
        except ThreadStuck as error:
            log.warning("pstore_not_read", error=str(error))
            return
        for problem in problems:
            log.warning("pstore", said=problem)
        known = read_before.cursor.split() if read_before is not None else []
        events: tuple[Event, ...] = ()
        if last is not None:
            events = tuple(self._build_new_events(logs, last, frozenset(known)))
        newest_first = [digest for crash in reversed(logs) for digest in reversed(crash.chunks)]
        digests = list(dict.fromkeys([*newest_first, *known]))[:_MAX_CHUNKS]
        if digests:
            reached = Position(CRASH_LOGS, self._boot_id, " ".join(digests))
            yield Batch(NAME, events, reached, again=True)

    def _build_new_events(
        self, logs: list[CrashLog], last: Position, known: frozenset[str]
    ) -> Iterator[Event]:
        """Events of these crash logs, oldest first. The log of a panic repeats that of the oops
        before it: such a line is one record.
        """
        position = LogPosition.parse(last.cursor)
        reported: set[tuple[int | None, bytes]] = set()
        for crash in logs:
            if crash.time <= position.time or crash.reason in _NO_CRASH:
                continue
            newest = max(
                (usec for usec in map(_read_usec, crash.lines) if usec is not None), default=0
            )
            # A crash of a boot that left no other record, early in it: all its lines are new
            after_usec = -1 if newest < (position.usec or 0) else position.usec or 0
            known_lines = frozenset(reported)
            yield from self._build_events(crash, last.boot_id, after_usec, known, known_lines)
            reported |= {(_read_usec(text), text) for text in crash.lines}

    def _build_events(
        self,
        crash: CrashLog,
        boot_id: str,
        after_usec: int,
        known_chunks: frozenset[str],
        known_lines: frozenset[tuple[int | None, bytes]],
    ) -> Iterator[Event]:
        sequel = ContinuationDetector()
        # If some of its chunks are known, a line's number may differ from that of the first read
        is_partial = not known_chunks.isdisjoint(crash.chunks)
        for number, (text, chunk) in enumerate(zip(crash.lines, crash.chunks)):
            usec, line = _read_usec(text), strip_prefix(text)
            if usec is None or line is None:
                continue
            doubt = sequel.find_doubt(line)
            if usec <= after_usec or chunk in known_chunks or (usec, text) in known_lines:
                continue
            sighting = self._interpreter.parse_record(line.message)
            if sighting is None:
                continue
            yield self._interpreter.make_event(
                sighting,
                line.message,
                line.facility,
                identity=f"pstore:{chunk if is_partial else crash.name}:{number}",
                time=crash.time,
                boot_id=boot_id,
                usec=usec,
                approximate=True,
                doubt=doubt,
            )


def _read_usec(line: bytes) -> int | None:
    """The time stamp of a rendered line: microseconds on the kernel's clock."""
    stamp = _LINE.match(line)
    return int(stamp["seconds"]) * 1_000_000 + int(stamp["micros"]) if stamp is not None else None
