"""Observations about the ledger itself, reported to the pipeline as events of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vitald.ledger.restore import RestoredState
from vitald.model import Fields

# Code, fields and raw text of an event; it never waits.
Report: TypeAlias = Callable[[str, Fields, str], None]


class LedgerReports:
    """Makes the event of each state of the ledger, and hands it to `report`."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def report_failed(self, error: str) -> None:
        self._report(
            "vitald/ledger_failed", {"error": error}, f"the ledger cannot be written: {error}"
        )

    def report_recovered(self) -> None:
        self._report("vitald/ledger_failed", {"recovered": True}, "the ledger can be written again")

    def report_unread(self, error: str) -> None:
        """What was open before the start is unknown: no open finding is then no sign of health."""
        text = f"what the ledger remembers cannot be read: {error}"
        self._report("vitald/ledger_unread", {"error": error}, text)

    def report_read(self) -> None:
        text = "what the ledger remembers has been read"
        self._report("vitald/ledger_unread", {"recovered": True}, text)

    def report_replaced(self, error: str, aside: str, rescued: int) -> None:
        """A new ledger has all the open findings; `aside` is the path of the old one, or empty."""
        fields: Fields = {"error": error, "aside": aside, "rescued": rescued}
        text = f"{error}; the old ledger is {aside or 'gone'}"
        self._report("vitald/ledger_replaced", fields, text)

    def report_lost(self, error: str, aside: str, rescued: RestoredState | None) -> None:
        """Open findings are lost: those in `rescued` are what could be read of the old ledger."""
        kept = len(rescued.memory.findings) if rescued is not None else 0
        fields: Fields = {"error": error, "aside": aside, "rescued": kept}
        old = f"the old ledger is {aside or 'gone'}"
        text = f"{error}; {kept} open findings could be read; {old}"
        self._report("vitald/ledger_lost", fields, text)
