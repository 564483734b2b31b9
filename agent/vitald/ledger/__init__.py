"""The ledger: events, findings, transitions, positions and the audit log, in one SQLite file."""
