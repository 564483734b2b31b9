"""
Deletes what is too old for the ledger, or too much.
"""

from __future__ import annotations

import sqlite3

_MAX_TRIM_ROWS = 5000  # per call, so that no commit waits for long
_MARKS_S = 90 * 86400.0  # longer than the window of any escalation policy and of the lemon score


def delete_old_rows(db: sqlite3.Connection, now: float, keep_s: float, max_bytes: int) -> int:
    """Delete events that are older than `keep_s`, else the oldest ones while the ledger is larger
    than `max_bytes`; and the closed findings, incidents, marks and runs of that time.

    Deletes a few thousand events per call. Returns their number.
    """
    oldest = now - keep_s
    dropped = db.execute(
        "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)",
        (oldest, _MAX_TRIM_ROWS),
    ).rowcount
    if not dropped and _measure_used_bytes(db) > max_bytes:
        dropped = _delete_oldest_events(db)
        if dropped:
            row = db.execute("SELECT time FROM events ORDER BY id LIMIT 1").fetchone()
            oldest = max(oldest, row[0])
    if dropped:
        db.execute(
            "DELETE FROM transitions WHERE time < ? AND finding IN (SELECT id FROM findings"
            " WHERE state = 'cleared')",
            (oldest,),
        )
        db.execute("DELETE FROM findings WHERE state = 'cleared' AND cleared_at < ?", (oldest,))
        db.execute("DELETE FROM incidents WHERE closed_at < ?", (oldest,))
        db.execute("DELETE FROM marks WHERE time < ?", (now - _MARKS_S,))
        db.execute("DELETE FROM runs WHERE ended < ?", (oldest,))
        # execute() would step once and free one page
        db.executescript(f"PRAGMA incremental_vacuum({_MAX_TRIM_ROWS})")
    return dropped


def _delete_oldest_events(db: sqlite3.Connection) -> int:
    """Delete up to a quarter of the events, and never the last one."""
    first, last = db.execute("SELECT min(id), max(id) FROM events").fetchone()
    if first is None or first >= last:
        return 0
    end = first + min(_MAX_TRIM_ROWS, (last - first) // 4 + 1)
    return db.execute("DELETE FROM events WHERE id < ?", (end,)).rowcount


def _measure_used_bytes(db: sqlite3.Connection) -> int:
    pages: int = (
        db.execute("PRAGMA page_count").fetchone()[0]
        - db.execute("PRAGMA freelist_count").fetchone()[0]
    )
    size: int = db.execute("PRAGMA page_size").fetchone()[0]
    return pages * size
