"""Problems that are logged once, until they are over."""

from __future__ import annotations

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")


class ProblemLog:
    """Logs a problem when it begins. It is logged again only after `clear_problem`."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report_problem(self, event: str, error: BaseException, effect: str) -> None:
        """`effect`: what works differently while the problem lasts."""
        if event not in self._reported:
            self._reported.add(event)
            log.error(event, error=f"{type(error).__name__}: {error}", effect=effect)

    def clear_problem(self, event: str) -> None:
        self._reported.discard(event)
