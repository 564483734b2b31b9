"""
The past, for `vitald report`: what a ledger has stored, as the API formats it.

The ledger is read with the rights of its owner, also by root: the folder is the daemon's, and a
link in it must not lead root anywhere else.

Owns     reading a ledger beside the daemon that writes it, or without one.
Refuses  changing anything. A ledger that a newer vitald wrote is not read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar
from urllib.parse import quote

from vitald.catalog.settings import load_configured_catalog
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.core.device_directory import DeviceDirectory
from vitald.core.jobs import Jobs
from vitald.judge.devices import SlotRegistry
from vitald.judge.settings import PolicySettings
from vitald.judge.verdict import compute_verdict, group_by_incident, sort_by_strength
from vitald.ledger.errors import LedgerError, refuse_newer
from vitald.ledger.queries import (
    PastQuery,
    RowList,
    StoredEvent,
    open_snapshot,
    read_events,
    read_finding_history,
    read_findings,
    read_incidents,
    read_run,
    read_runs,
)
from vitald.ledger.schema import read_version
from vitald.ledger.store import FILE, Ledger
from vitald.model.component import Device
from vitald.model.diagnostic import Run
from vitald.model.finding import Finding, Incident, make_single_incident
from vitald.server import serialize
from vitald.server.endpoint import MAX_PAGE
from vitald.server.routes.diagnostics import serialize_full_run, serialize_run
from vitald.server.routes.jobs import read_jobs

if TYPE_CHECKING:
    from vitald.server import schema

T = TypeVar("T")
_MAX_COPY_BYTES = 2 * 1024 * 1024 * 1024  # a larger ledger is not copied


class LedgerHistory:
    """What a ledger remembers. All methods raise LedgerError; `close` leaves nothing behind."""

    def __init__(self, config: Config) -> None:
        """Raises LedgerError or ConfigError where there is none that can be read."""
        self._folder = config[Paths].state
        self._path = self._folder / FILE
        self._device_reset = config[PolicySettings].device_reset
        self._catalog = load_configured_catalog(config)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self.origin = f"the ledger {self._path}"
        try:
            with run_as_owner(self._folder):
                self._path = self._find_readable_file()
        except OSError as error:
            self.close()
            step = "" if os.geteuid() == 0 else ": run it with sudo"
            raise LedgerError(f"{self._path}: {error.strerror or error}{step}") from error
        except (LedgerError, sqlite3.Error) as error:
            self.close()
            raise LedgerError(f"{error}: --ledger puts it in as it is") from error

    def _find_readable_file(self) -> Path:
        """The ledger itself or, where its folder cannot be written, a copy that can be read."""
        with self._path.open("rb"):
            pass  # SQLite does not say why it cannot
        with suppress(sqlite3.Error):
            refuse_newer(self._path, _read_version(self._path))
            return self._path
        if self._path.stat().st_size > _MAX_COPY_BYTES:
            raise LedgerError(
                f"{self._path}: too large to be copied, and it cannot be read where it is"
            )
        self._copy = tempfile.TemporaryDirectory(prefix="vitald-report-")
        copy = Path(self._copy.name) / FILE
        for suffix in ("", "-wal"):
            if (part := self._path.with_name(FILE + suffix)).exists():
                shutil.copyfile(part, copy.with_name(FILE + suffix))
        refuse_newer(self._path, _read_version(copy))
        return copy

    def close(self) -> None:
        if self._copy is not None:
            with run_as_owner(self._folder):
                self._copy.cleanup()

    def _read(self, query: Callable[[Path], T]) -> T:
        with run_as_owner(self._folder):
            return query(self._path)

    # --- findings and incidents

    def read_status(self) -> Mapping[str, object]:
        """The verdict that the ledger has stored; the present status is unknown."""
        opened, until = self._opened
        describe = self._directory.describe_component
        judged = compute_verdict(
            opened, [], 0.0, device_reset=self._device_reset, describe=describe
        )
        return {
            **serialize.format_verdict(judged),
            "status": "unknown",
            "remembered": judged.status.value,
            "until": serialize.format_moment(until),
            "openFindings": len(opened),
        }

    def list_open(self) -> list[schema.ApiFinding]:
        """The open findings, the strongest first."""
        return [self._format_finding(finding) for finding in sort_by_strength(self._opened[0])]

    def list_cleared(self, since: float) -> list[schema.ApiFinding]:
        """The findings that ended after `since`, the newest first; at most MAX_PAGE."""
        cleared = self._read(lambda path: read_findings(path, MAX_PAGE))
        return [
            self._format_finding(finding)
            for finding in cleared
            if finding.cleared_at is not None and finding.cleared_at >= since
        ]

    def list_incidents(self, since: float) -> list[schema.ApiIncident]:
        """The open ones, the strongest first, and then those that had an event after `since`; of
        these at most MAX_PAGE.
        """
        incidents = self._read(lambda path: read_incidents(path, since, MAX_PAGE))
        stored = {incident.id: incident for incident in incidents}
        opened = [
            (stored.get(head.incident) or make_single_incident(head), own)
            for head, own in group_by_incident(self._opened[0], stored)
        ]
        closed = [incident for incident in incidents if incident.closed_at is not None]
        return [
            self._format_incident(incident, own)
            for incident, own in (*opened, *((incident, []) for incident in closed))
        ]

    def explain_finding(self, finding: int) -> schema.Why:
        past = self._read(lambda path: read_finding_history(path, finding))
        if past is None:
            raise LedgerError(f"{self._path}: no finding {finding}")
        incident = None
        if past.incident is not None:
            own = [other for other in self._opened[0] if other.incident == past.incident.id]
            incident = self._format_incident(past.incident, own)
        counted = [past.finding] if past.finding.is_open else []
        judged = compute_verdict(counted, [], 0.0, device_reset=self._device_reset)
        flags, names = serialize.format_flags(judged), self._directory.find_names_of(past.finding)
        return serialize.format_history(past, incident, self._catalog, flags, names)

    @cached_property
    def _opened(self) -> tuple[tuple[Finding, ...], float]:
        """The open findings, and when the last of all happened."""
        with run_as_owner(self._folder), open_snapshot(self._path) as stored:
            return stored.opened, stored.until

    def _format_finding(self, finding: Finding) -> schema.ApiFinding:
        names = self._directory.find_names_of(finding)
        return serialize.format_finding(finding, self._catalog, names)

    def _format_incident(self, incident: Incident, own: Sequence[Finding]) -> schema.ApiIncident:
        """`own`: its open findings."""
        jobs, describe = self._jobs.list_near_incident(incident), self._directory.describe_component
        return serialize.format_incident(incident, own, self._catalog, jobs, describe)

    @cached_property
    def _jobs(self) -> Jobs:
        """The last jobs, as a daemon that starts restores them."""
        jobs, events = Jobs(), self._read(read_jobs)
        if events:
            jobs.restore_jobs(events, events[-1].boot_id, events[-1].time)
        return jobs

    # --- devices

    @cached_property
    def _devices(self) -> Sequence[Device]:
        """The devices by slot."""
        remembered = self._read(lambda path: Ledger(path.parent).rescue())
        return remembered.memory.devices if remembered is not None else ()

    @cached_property
    def _directory(self) -> DeviceDirectory:
        """Their names."""
        directory = DeviceDirectory()
        directory.set_slots(SlotRegistry(self._devices))
        return directory

    def list_devices(self) -> dict[str, object]:
        """The device of each slot, and the serial numbers by GPU number that a diagnostic read
        last.
        """
        serials = next((run.report.serials for run in self._runs if run.report.serials), {})
        return {
            "devices": [
                {"component": device.component.name, "uuid": device.uuid, "serial": device.serial}
                for device in self._devices
            ],
            "serials": {str(gpu): serial for gpu, serial in serials.items()},
        }

    # --- events and runs

    def read_events(self, since: float) -> Iterator[list[schema.ApiEvent]]:
        """The events after `since` in pages, the newest page first; each page is in the order in
        which they happened.
        """
        page = self._read_page(since, None)
        while page.last:
            if page:  # else all of its rows are damaged
                yield [serialize.format_event(event) for event in page]
            page = self._read_page(since, page.last)

    def _read_page(self, since: float, before: int | None) -> RowList[StoredEvent]:
        query = PastQuery(before=before, since=since, newest=True, limit=MAX_PAGE)
        return self._read(lambda path: read_events(path, query))

    @cached_property
    def _runs(self) -> Sequence[Run]:
        """The last runs of diagnostics, the newest first, without their output."""
        return self._read(lambda path: read_runs(path, MAX_PAGE))

    def list_runs(self, since: float) -> list[schema.DiagnosticRun]:
        """The runs that ended after `since`, the newest first."""
        return [serialize_run(run) for run in self._runs if run.ended >= since]

    def read_run(self, id_: str) -> schema.DiagnosticRunInFull:
        found = self._read(lambda path: read_run(path, id_))
        if found is None:
            raise LedgerError(f"{self._path}: no run {id_}")
        return serialize_full_run(found)


@contextmanager
def run_as_owner(folder: Path) -> Iterator[None]:
    """If run as root, drops to the rights of the folder's owner: a symbolic link in it then reaches
    only what the owner may read.
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


def _read_version(path: Path) -> int:
    """The version of the schema. Raises sqlite3.Error if the file cannot be read."""
    with closing(_connect(path)) as db:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return read_version(db)


@contextmanager
def open_raw_ledger(folder: Path) -> Iterator[list[tuple[str, int, IO[bytes]]]]:
    """The ledger's files as they lie there: name, size, and the open file. Raises OSError."""
    with ExitStack() as stack:
        files: list[tuple[str, IO[bytes]]] = []
        with run_as_owner(folder):
            for name in (FILE, f"{FILE}-wal"):
                with suppress(*((FileNotFoundError,) if files else ())):
                    fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    files.append((name, stack.enter_context(os.fdopen(fd, "rb"))))
            # During a read transaction the write-ahead log is not restarted: what is copied first
            # and what is copied later fit together.
            with suppress(sqlite3.Error):  # damaged: it is taken as it is
                db = stack.enter_context(closing(_connect(folder / FILE)))
                db.execute("BEGIN")
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield [(name, os.fstat(file.fileno()).st_size, file) for name, file in files]


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)
