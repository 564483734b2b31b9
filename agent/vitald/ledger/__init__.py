"""What has happened, durably: events, findings, transitions, positions, and who changed what."""

from __future__ import annotations

from vitald.ledger.errors import LedgerDamaged, LedgerError, LedgerNewer
from vitald.ledger.queries import (
    Listed,
    Past,
    Query,
    Stored,
    StoredEvent,
    is_ledger,
    read_events,
    read_findings,
    read_last_runs,
    read_past,
    read_run,
    read_runs,
    reading,
)
from vitald.ledger.restore import Remembered
from vitald.ledger.schema import MIGRATIONS
from vitald.ledger.store import FILE, Audit, Entry, Ledger, unsaved

__all__ = [
    "FILE",
    "MIGRATIONS",
    "Audit",
    "Entry",
    "Ledger",
    "LedgerDamaged",
    "LedgerError",
    "LedgerNewer",
    "Listed",
    "Past",
    "Query",
    "Remembered",
    "Stored",
    "StoredEvent",
    "is_ledger",
    "read_events",
    "read_findings",
    "read_last_runs",
    "read_past",
    "read_run",
    "read_runs",
    "reading",
    "unsaved",
]
