"""
What a ledger has stored, for `vitald report`, if the daemon does not answer.

The ledger is read with the rights of its owner, also by root: the folder is the daemon's, and a
link in it must not lead root anywhere else.

Owns     reading a ledger that nothing writes.
Refuses  changing anything. A ledger that a newer vitald wrote is not read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.judge.settings import PolicySettings
from vitald.ledger.errors import LedgerError
from vitald.ledger.queries import PastQuery, StoredEvent
from vitald.ledger.store import FILE
from vitald.model.component import Device
from vitald.model.finding import Finding
from vitald.server.endpoint import MAX_PAGE

if TYPE_CHECKING:
    from vitald.core.device_directory import DeviceDirectory
    from vitald.server import schema

_MAX_COPY_BYTES = 2 * 1024 * 1024 * 1024  # a larger ledger is not copied


class LedgerHistory:
    """What a ledger remembers; `close` leaves nothing behind."""

    def __init__(self, config: Config) -> None:
        """Raises LedgerError, OSError or ConfigError where there is none that can be read."""
        from vitald.catalog.settings import load_configured_catalog

        self._folder = config[Paths].state
        self._path = self._folder / FILE
        self._device_reset = config[PolicySettings].device_reset
        self._catalog = load_configured_catalog(config)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self.origin = f"the ledger {self._path}"
        with run_as_owner(self._folder):
            self._path = self._find_readable_file()

    def _find_readable_file(self) -> Path:
        """The ledger itself or, where its folder cannot be written, a copy that can be read."""
        from vitald.ledger import schema as tables

        with self._path.open("rb"):
            pass  # SQLite does not say why it cannot
        try:
            version = _read_schema_version(self._path)
        except sqlite3.Error:
            version = None
        if version is not None and version > tables.VERSION:
            raise LedgerError(
                f"{self._path}: written by a newer vitald (schema {version}, this one knows"
                f" {tables.VERSION}): --ledger puts it in as it is"
            )
        if version is not None:
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
        try:
            _read_schema_version(copy)
        except sqlite3.Error as error:
            self.close()
            raise LedgerError(f"{self._path}: {error}: --ledger puts it in as it is") from error
        return copy

    def close(self) -> None:
        if self._copy is not None:
            with run_as_owner(self._folder):
                self._copy.cleanup()
            self._copy = None

    def _read_findings(self) -> tuple[tuple[Finding, ...], float]:
        """The open findings, and when the last of all happened."""
        from vitald.ledger.queries import open_snapshot

        with run_as_owner(self._folder), open_snapshot(self._path) as stored:
            return stored.opened, stored.until

    def read_status(self) -> Mapping[str, object]:
        """The verdict that the ledger has stored; the present status is unknown."""
        from vitald.judge.verdict import compute_verdict
        from vitald.server import serialize

        opened, until = self._read_findings()
        describe = self._directory.describe_component
        judged = compute_verdict(
            opened, [], 0.0, device_reset=self._device_reset, describe=describe
        )
        known = {
            "remembered": judged.status.value,
            "until": serialize.format_moment(until),
            "openFindings": len(opened),
        }
        return {**serialize.format_verdict(judged), "status": "unknown", **known}

    def list_open(self) -> list[schema.ApiFinding]:
        from vitald.judge.verdict import sort_by_strength
        from vitald.server import serialize

        devices = self._directory
        return [
            serialize.format_finding(finding, self._catalog, devices.find_names_of(finding))
            for finding in sort_by_strength(self._read_findings()[0])
        ]

    def list_cleared(self) -> list[schema.ApiFinding]:
        from vitald.ledger.queries import read_findings
        from vitald.server import serialize

        devices = self._directory
        with run_as_owner(self._folder):
            return [
                serialize.format_finding(finding, self._catalog, devices.find_names_of(finding))
                for finding in read_findings(self._path, MAX_PAGE)
            ]

    def list_incidents(self) -> list[schema.ApiIncident]:
        """The incidents of the stored findings."""
        incidents: dict[int, schema.ApiIncident] = {}
        for finding in [*self.list_open(), *self.list_cleared()]:
            if finding["incident"] and finding["incident"] not in incidents:
                incident = self.explain_finding(finding["id"])["incident"]
                if incident is not None:
                    incidents[finding["incident"]] = incident
        return list(incidents.values())

    @cached_property
    def _devices(self) -> Sequence[Device]:
        """The devices by slot."""
        from vitald.ledger.store import Ledger

        with run_as_owner(self._folder):
            remembered = Ledger(self._path.parent).rescue()
        return remembered.memory.devices if remembered is not None else ()

    @cached_property
    def _directory(self) -> DeviceDirectory:
        """Their names."""
        from vitald.core.device_directory import DeviceDirectory
        from vitald.judge.devices import SlotRegistry

        directory = DeviceDirectory()
        directory.set_slots(SlotRegistry(self._devices))
        return directory

    def list_devices(self) -> dict[str, object]:
        """The device of each slot, and the serial numbers by GPU number that a diagnostic read
        last.
        """
        from vitald.ledger.queries import read_runs

        with run_as_owner(self._folder):
            runs = read_runs(self._path, MAX_PAGE)
        return {
            "devices": [
                {"component": device.component.name, "uuid": device.uuid, "serial": device.serial}
                for device in self._devices
            ],
            "serials": next(
                (
                    {str(gpu): serial for gpu, serial in run.report.serials.items()}
                    for run in runs
                    if run.report.serials
                ),
                {},
            ),
        }

    def explain_finding(self, finding: object) -> schema.Why:
        from vitald.judge.verdict import compute_verdict
        from vitald.ledger.queries import read_finding_history
        from vitald.server import serialize

        opened = self._read_findings()[0]
        with run_as_owner(self._folder):
            past = read_finding_history(self._path, int(str(finding)))
        if past is None:
            raise LedgerError(f"{self._path}: no finding {finding}")
        devices, incident = self._directory, None
        if past.incident is not None:
            own = [other for other in opened if other.incident == past.incident.id]
            describe = devices.describe_component
            incident = serialize.format_incident(past.incident, own, self._catalog, (), describe)
        judged = compute_verdict(
            [past.finding] if past.finding.is_open else [], [], 0.0, device_reset=self._device_reset
        )
        names = devices.find_names_of(past.finding)
        flags = serialize.format_flags(judged)
        return serialize.format_history(past, incident, self._catalog, flags, names)

    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[schema.ApiEvent]:
        from vitald.ledger.queries import read_events
        from vitald.server import serialize

        begin = None if after is not None else since
        with run_as_owner(self._folder):
            stored: Sequence[StoredEvent] = read_events(
                self._path, PastQuery(after=after or 0, since=begin, newest=newest, limit=limit)
            )
        return [serialize.format_event(event) for event in stored]

    def list_runs(self) -> list[schema.DiagnosticRun]:
        from vitald.ledger.queries import read_runs

        # Imports the server's library, which is not needed if the daemon answers.
        from vitald.server.routes import diagnostics

        with run_as_owner(self._folder):
            return [diagnostics.serialize_run(run) for run in read_runs(self._path, MAX_PAGE)]

    def read_run(self, id_: str) -> schema.DiagnosticRunInFull:
        from vitald.ledger.queries import read_run
        from vitald.server.routes import diagnostics

        with run_as_owner(self._folder):
            found = read_run(self._path, id_)
        if found is None:
            raise LedgerError(f"{self._path}: no run {id_}")
        return diagnostics.serialize_full_run(found)


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


def _read_schema_version(path: Path) -> int:
    with closing(
        sqlite3.connect(_build_uri(path), uri=True, timeout=1.0, isolation_level=None)
    ) as db:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


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
                db = stack.enter_context(
                    closing(
                        sqlite3.connect(
                            _build_uri(folder / FILE), uri=True, timeout=1.0, isolation_level=None
                        )
                    )
                )
                db.execute("BEGIN")
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield [(name, os.fstat(file.fileno()).st_size, file) for name, file in files]


def _build_uri(path: Path) -> str:
    return f"file:{quote(str(path))}?mode=ro"
