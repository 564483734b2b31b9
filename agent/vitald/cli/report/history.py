"""
What has happened, for `vitald report`: from the daemon, or where that does not answer from its
ledger.

Both give the same JSON, so that whoever reads a report need not know which it was. The ledger is
read with its owner's rights even where root asks: the folder is the daemon's, and what lies there
must not lead root anywhere else.

Owns     asking until the daemon is found not to answer, and then no more; reading a ledger that
         nobody writes, or an older one.
Refuses  changing anything. A ledger that a newer vitald wrote is not read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from vitald.cli import Failed
from vitald.cli.client import NoAnswer
from vitald.config import Config
from vitald.ledger import FILE, LedgerError, Query, StoredEvent
from vitald.model import Finding

if TYPE_CHECKING:
    from vitald.server import schema

PAGE = 1000
_PRIVATE = 2 * 1024 * 1024 * 1024  # an older ledger is copied to be read; not a larger one


class History(Protocol):
    """Where findings, events and runs come from. All raise."""

    @property
    def origin(self) -> str: ...
    def status(self) -> Mapping[str, object]: ...
    def opened(self) -> list[schema.Finding]: ...
    def cleared(self) -> list[schema.Finding]: ...
    def incidents(self) -> list[schema.Incident]: ...
    def why(self, finding: object) -> schema.Why: ...
    def events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = PAGE
    ) -> list[schema.Event]: ...
    def runs(self) -> list[schema.DiagnosticRun]: ...
    def run(self, id_: str) -> schema.DiagnosticRunInFull: ...


class FromDaemon:
    """`ask(path, **query)` gives the JSON answer. Once there was none, it is not asked again."""

    origin = "the daemon"

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._asking = ask
        self._silent = ""

    def ask(self, path: str, **query: object) -> Any:
        if self._silent:
            raise Failed(f"not asked: {self._silent}")
        try:
            return self._asking(path, **query)
        except NoAnswer as error:
            self._silent = str(error)
            raise
        except RecursionError:
            raise Failed(f"{path}: an answer that nobody can read") from None

    def status(self) -> schema.NodeStatus:
        answer: schema.NodeStatus = self.ask("/v1/status")
        return answer

    def opened(self) -> list[schema.Finding]:
        return _listed(self.ask("/v1/findings", limit=PAGE), "findings")

    def cleared(self) -> list[schema.Finding]:
        return _listed(self.ask("/v1/findings", state="cleared", limit=PAGE), "findings")

    def incidents(self) -> list[schema.Incident]:
        return _listed(self.ask("/v1/incidents", limit=PAGE), "incidents")

    def why(self, finding: object) -> schema.Why:
        answer: schema.Why = self.ask(f"/v1/findings/{finding}/why")
        return answer

    def events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = PAGE
    ) -> list[schema.Event]:
        begin = str(after) if after is not None else f"{max(0, time.time() - since):.0f}s"
        return _listed(
            self.ask("/v1/events", since=begin, limit=limit, newest="true" if newest else None),
            "events",
        )

    def runs(self) -> list[schema.DiagnosticRun]:
        return _listed(self.ask("/v1/diagnostics/runs", limit=PAGE), "runs")

    def run(self, id_: str) -> schema.DiagnosticRunInFull:
        answer: schema.DiagnosticRunInFull = self.ask(f"/v1/diagnostics/runs/{quote(id_, safe='')}")
        return answer


def _listed(answer: Mapping[str, Any], key: str) -> list[Any]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"no list of {key} in the answer")
    return found


class FromLedger:
    """What a ledger remembers; `close` leaves nothing behind."""

    def __init__(self, config: Config) -> None:
        """Raises LedgerError, OSError or ConfigError where there is none that can be read."""
        from vitald import catalog as catalogs

        self._folder = config.paths.state
        self._path = self._folder / FILE
        self._device_reset = config.policy.device_reset
        self._catalog = catalogs.load(config.catalog.profile, config.catalog.overrides)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self.origin = f"the ledger {self._path}"
        with as_owner(self._folder):
            self._path = self._readable()

    def _readable(self) -> Path:
        """The ledger itself, or where it is an older one, or its folder cannot be written, a copy
        that can be read.
        """
        from vitald.ledger import schema as tables

        with self._path.open("rb"):
            pass  # SQLite does not say why it cannot
        try:
            version = _version(self._path)
        except sqlite3.Error:
            version = None
        if version is not None and version > tables.VERSION:
            raise LedgerError(
                f"{self._path}: written by a newer vitald (schema {version}, this one knows"
                f" {tables.VERSION}): --ledger puts it in as it is"
            )
        if version == tables.VERSION:
            return self._path
        if self._path.stat().st_size > _PRIVATE:
            raise LedgerError(
                f"{self._path}: too large to be copied, and it cannot be read where it is"
            )
        self._copy = tempfile.TemporaryDirectory(prefix="vitald-report-")
        copy = Path(self._copy.name) / FILE
        try:
            for suffix in ("", "-wal"):
                if (part := self._path.with_name(FILE + suffix)).exists():
                    shutil.copyfile(part, copy.with_name(FILE + suffix))
            with closing(sqlite3.connect(copy, isolation_level=None)) as db:
                tables.migrate(db)
        except sqlite3.Error as error:
            self.close()
            raise LedgerError(f"{self._path}: {error}: --ledger puts it in as it is") from error
        return copy

    def close(self) -> None:
        if self._copy is not None:
            with as_owner(self._folder):
                self._copy.cleanup()
            self._copy = None

    def _remembered(self) -> tuple[tuple[Finding, ...], float]:
        """The open findings, and when the last of all happened."""
        from vitald.ledger import reading

        with as_owner(self._folder), reading(self._path) as stored:
            return stored.opened, stored.until

    def status(self) -> Mapping[str, object]:
        """What is remembered to be wrong; how the node is now, nobody knows."""
        from vitald.judge.verdict import fold
        from vitald.server import serialize

        opened, until = self._remembered()
        judged = fold(opened, [], 0.0, device_reset=self._device_reset)
        known = {
            "remembered": judged.status.value,
            "until": serialize.format_moment(until),
            "openFindings": len(opened),
        }
        return {**serialize.format_verdict(judged), "status": "unknown", **known}

    def opened(self) -> list[schema.Finding]:
        from vitald.judge.verdict import by_strength
        from vitald.server import serialize

        return [
            serialize.format_finding(one, self._catalog)
            for one in by_strength(self._remembered()[0])
        ]

    def cleared(self) -> list[schema.Finding]:
        from vitald.ledger import read_findings
        from vitald.server import serialize

        with as_owner(self._folder):
            return [
                serialize.format_finding(one, self._catalog)
                for one in read_findings(self._path, PAGE)
            ]

    def incidents(self) -> list[schema.Incident]:
        """Those of the findings that are remembered."""
        told: dict[int, schema.Incident] = {}
        for one in [*self.opened(), *self.cleared()]:
            if one["incident"] and one["incident"] not in told:
                incident = self.why(one["id"])["incident"]
                if incident is not None:
                    told[one["incident"]] = incident
        return list(told.values())

    def devices(self) -> dict[str, object]:
        """Who was in which slot, and the serial numbers that a diagnostic read last, by the GPUs'
        numbers.
        """
        from vitald.ledger import Ledger, read_runs

        with as_owner(self._folder):
            remembered = Ledger(self._path.parent).rescue()
            runs = read_runs(self._path, PAGE)
        devices = remembered.memory.devices if remembered is not None else ()
        return {
            "devices": [
                {"component": one.component.name, "uuid": one.uuid, "serial": one.serial}
                for one in devices
            ],
            "serials": next(
                (
                    {str(gpu): serial for gpu, serial in one.report.serials.items()}
                    for one in runs
                    if one.report.serials
                ),
                {},
            ),
        }

    def why(self, finding: object) -> schema.Why:
        from vitald.judge.verdict import fold
        from vitald.ledger import read_past
        from vitald.server import serialize

        opened = self._remembered()[0]
        with as_owner(self._folder):
            past = read_past(self._path, int(str(finding)))
        if past is None:
            raise LedgerError(f"{self._path}: no finding {finding}")
        own = [
            one for one in opened if past.incident is not None and one.incident == past.incident.id
        ]
        judged = fold(
            [past.finding] if past.finding.open else [], [], 0.0, device_reset=self._device_reset
        )
        return serialize.format_history(
            past, past.incident, own, self._catalog, serialize.format_flags(judged)
        )

    def events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = PAGE
    ) -> list[schema.Event]:
        from vitald.ledger import read_events
        from vitald.server import serialize

        begin = None if after is not None else since
        with as_owner(self._folder):
            stored: Sequence[StoredEvent] = read_events(
                self._path, Query(after=after or 0, since=begin, newest=newest, limit=limit)
            )
        return [serialize.format_event(one) for one in stored]

    def runs(self) -> list[schema.DiagnosticRun]:
        from vitald.ledger import read_runs
        from vitald.server.routes import (
            diagnostics,
        )  # with the server's library: not where the daemon answers

        with as_owner(self._folder):
            return [diagnostics.run(one) for one in read_runs(self._path, PAGE)]

    def run(self, id_: str) -> schema.DiagnosticRunInFull:
        from vitald.ledger import read_run
        from vitald.server.routes import diagnostics

        with as_owner(self._folder):
            found = read_run(self._path, id_)
        if found is None:
            raise LedgerError(f"{self._path}: no run {id_}")
        return diagnostics.in_full(found)


class Pages:
    """Events in the order in which they happened, kept compressed; the newest are fetched first, so
    that these are there if not all fit.
    """

    def __init__(
        self,
        history: History,
        since: float,
        write: Callable[[Mapping[str, object]], bytes],
        *,
        most: int,
        until: float,
    ) -> None:
        """`most`: bytes, compressed. `until`: on the monotonic clock, no more are fetched
        after it.
        """
        self.cut = ""
        self._kept: list[
            tuple[int, bytes, object]
        ] = []  # length, compressed, time of the first: the newest first
        try:
            for page in _backwards(history, since):
                data = b"".join(map(write, page))
                self._kept.append((len(data), zlib.compress(data, 1), page[0]["time"]))
                if sum(len(one[1]) for one in self._kept) > most:
                    self._cut("there are too many")
                    break
                if time.monotonic() > until:
                    self._cut("it took too long")
                    break
        except Exception as error:
            if not self._kept:
                raise
            self._cut(
                str(error)
            )  # what was fetched is worth keeping, whatever it was that went wrong

    @property
    def size(self) -> int:
        return sum(length for length, _, _ in self._kept)

    def __iter__(self) -> Iterator[bytes]:
        return (zlib.decompress(data) for _, data, _ in reversed(self._kept))

    def halve(self) -> bool:
        """Let go of the older ones. False where there is nothing to let go of."""
        if len(self._kept) < 2:
            return False
        del self._kept[len(self._kept) // 2 :]
        self._cut("there are too many")
        return True

    def _cut(self, why: str) -> None:
        self.cut = f"those before {self._kept[-1][2]} are left out: {why}" if self._kept else why


def _backwards(history: History, since: float) -> Iterator[list[schema.Event]]:
    """Pages from the newest to the oldest, each in order. Only the way forward can be asked for, so
    each page is what follows a number.
    """
    first, last = history.events(since, limit=1), history.events(since, newest=True, limit=1)
    if not first or not last:
        return
    upper, bottom = _number(last[0]), _number(first[0])
    while upper >= bottom:
        lower = max(bottom, upper - PAGE + 1) - 1
        page = [one for one in history.events(since, after=lower) if _number(one) <= upper]
        if page:
            yield page
        upper = lower


def _number(event: schema.Event) -> int:
    return int(str(event["id"]))


@contextmanager
def as_owner(folder: Path) -> Iterator[None]:
    """With the rights of whoever owns the folder, where root asks: a link in it leads no further
    than they may go.
    """
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _version(path: Path) -> int:
    with closing(sqlite3.connect(_uri(path), uri=True, timeout=1.0, isolation_level=None)) as db:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


@contextmanager
def raw_ledger(folder: Path) -> Iterator[list[tuple[str, int, IO[bytes]]]]:
    """The ledger's files as they lie there: name, size, and the open file. Raises OSError."""
    with ExitStack() as stack:
        files: list[tuple[str, IO[bytes]]] = []
        with as_owner(folder):
            for name in (FILE, f"{FILE}-wal"):
                with suppress(*((FileNotFoundError,) if files else ())):
                    fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    files.append((name, stack.enter_context(os.fdopen(fd, "rb"))))
            # While somebody reads, the write-ahead log is not begun anew: what is copied first and
            # what is copied later fit together.
            with suppress(sqlite3.Error):  # damaged: it is taken as it is
                db = stack.enter_context(
                    closing(
                        sqlite3.connect(
                            _uri(folder / FILE), uri=True, timeout=1.0, isolation_level=None
                        )
                    )
                )
                db.execute("BEGIN")
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield [(name, os.fstat(file.fileno()).st_size, file) for name, file in files]


def _uri(path: Path) -> str:
    return f"file:{quote(str(path))}?mode=ro"
