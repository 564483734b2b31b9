"""The ledger: events, findings, transitions, positions and the audit log, in one SQLite file."""

from __future__ import annotations

from vitald.ledger.errors import LedgerDamaged, LedgerError, LedgerNewer
from vitald.ledger.queries import (
    ChangePage,
    FindingChange,
    FindingHistory,
    LedgerSnapshot,
    PastQuery,
    RowList,
    StoredEvent,
    is_ledger,
    open_snapshot,
    read_changes,
    read_events,
    read_finding_history,
    read_findings,
    read_last_runs,
    read_run,
    read_runs,
)
from vitald.ledger.restore import RestoredState
from vitald.ledger.schema import AuditRecord, PastTransition
from vitald.ledger.store import FILE, Ledger, LedgerEntry, count_events

__all__ = [
    "FILE",
    "AuditRecord",
    "ChangePage",
    "FindingChange",
    "FindingHistory",
    "Ledger",
    "LedgerDamaged",
    "LedgerEntry",
    "LedgerError",
    "LedgerNewer",
    "LedgerSnapshot",
    "PastQuery",
    "PastTransition",
    "RestoredState",
    "RowList",
    "StoredEvent",
    "count_events",
    "is_ledger",
    "open_snapshot",
    "read_changes",
    "read_events",
    "read_finding_history",
    "read_findings",
    "read_last_runs",
    "read_run",
    "read_runs",
]
