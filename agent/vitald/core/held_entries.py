"""Entries that the ledger does not have yet, kept in memory while it cannot be written."""

from __future__ import annotations

from dataclasses import replace

from vitald.ledger.store import LedgerEntry, count_events

MAX_HELD_EVENTS = 50_000


class HeldEntries:
    """The entries to be committed, in their order."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []

    def count_events(self) -> int:
        """The number of events in these entries."""
        return count_events(self.entries)

    def drop_excess(self) -> int:
        """Drop the oldest events beyond `MAX_HELD_EVENTS`, and return how many these were.

        The decisions are kept, and findings stand in memory: only the records of old events are
        lost.
        """
        excess = dropped = self.count_events() - MAX_HELD_EVENTS
        if dropped <= 0:
            return 0
        for index, entry in enumerate(self.entries):
            if excess <= 0:
                break
            excess -= len(entry.events)
            decisions = tuple(transition for transition in entry.transitions if transition.cause)
            self.entries[index] = replace(entry, events=(), transitions=decisions)
        self.entries = [entry for entry in self.entries if entry != LedgerEntry()]
        return dropped - min(0, excess)  # events are dropped with their whole entry
