"""
What has happened, for `vitald report`: from the daemon, or without an answer from its ledger
(agent/vitald/cli/report/ledger_history.py). Both give the same JSON.

Owns     querying the daemon until it is found not to answer, and no more after that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from vitald.cli import CommandFailed, client
from vitald.cli.client import NoAnswer
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, Answer, Get

if TYPE_CHECKING:
    from vitald.server import schema


class HistorySource(Protocol):
    """Where findings, events and runs come from. All raise."""

    @property
    def origin(self) -> str: ...
    def read_status(self) -> Mapping[str, object]: ...
    def list_open(self) -> list[schema.ApiFinding]: ...
    def list_cleared(self) -> list[schema.ApiFinding]: ...
    def list_incidents(self) -> list[schema.ApiIncident]: ...
    def explain_finding(self, finding: object) -> schema.Why: ...
    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[schema.ApiEvent]: ...
    def list_runs(self) -> list[schema.DiagnosticRun]: ...
    def read_run(self, id_: str) -> schema.DiagnosticRunInFull: ...


class DaemonHistory:
    """Queries the daemon, until it has not answered once."""

    origin = "the daemon"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._silent = ""

    def get(self, endpoint: Get[Answer], **values: object) -> Answer:
        if self._silent:
            raise CommandFailed(f"not asked: {self._silent}")
        try:
            return client.get(self._arguments, endpoint, **values)
        except NoAnswer as error:
            self._silent = str(error)
            raise
        except RecursionError:
            target = endpoint.make_target(values)
            raise CommandFailed(f"{target}: an answer that nobody can read") from None

    def read_status(self) -> schema.NodeStatus:
        return self.get(endpoints.STATUS)

    def list_open(self) -> list[schema.ApiFinding]:
        return _read_list(self.get(endpoints.FINDINGS, limit=MAX_PAGE), "findings")

    def list_cleared(self) -> list[schema.ApiFinding]:
        return _read_list(self.get(endpoints.FINDINGS, state="cleared", limit=MAX_PAGE), "findings")

    def list_incidents(self) -> list[schema.ApiIncident]:
        return _read_list(self.get(endpoints.INCIDENTS, limit=MAX_PAGE), "incidents")

    def explain_finding(self, finding: object) -> schema.Why:
        return self.get(endpoints.WHY, id=finding)

    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[schema.ApiEvent]:
        begin = str(after) if after is not None else f"{max(0, time.time() - since):.0f}s"
        return _read_list(
            self.get(endpoints.EVENTS, since=begin, limit=limit, newest="true" if newest else None),
            "events",
        )

    def list_runs(self) -> list[schema.DiagnosticRun]:
        return _read_list(self.get(endpoints.DIAGNOSTIC_RUNS, limit=MAX_PAGE), "runs")

    def read_run(self, id_: str) -> schema.DiagnosticRunInFull:
        return self.get(endpoints.DIAGNOSTIC_RUN, id=id_)


def _read_list(answer: Mapping[str, Any], key: str) -> list[Any]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"no list of {key} in the answer")
    return found
