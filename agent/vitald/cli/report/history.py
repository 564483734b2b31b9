"""
What has happened, for `vitald report`: from the daemon, or without an answer from its ledger
(agent/vitald/cli/report/ledger_history.py). Both give the same JSON.

Owns     querying the daemon until it is found not to answer, and no more after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from vitald.cli import CommandFailed
from vitald.cli.client import NoAnswer

if TYPE_CHECKING:
    from vitald.server import schema

MAX_PAGE = 1000


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

    def __init__(self, call_api: Callable[..., Any]) -> None:
        self._call_api = call_api
        self._silent = ""

    def call_api(self, path: str, **query: object) -> Any:
        if self._silent:
            raise CommandFailed(f"not asked: {self._silent}")
        try:
            return self._call_api(path, **query)
        except NoAnswer as error:
            self._silent = str(error)
            raise
        except RecursionError:
            raise CommandFailed(f"{path}: an answer that nobody can read") from None

    def read_status(self) -> schema.NodeStatus:
        answer: schema.NodeStatus = self.call_api("/v1/status")
        return answer

    def list_open(self) -> list[schema.ApiFinding]:
        return _read_list(self.call_api("/v1/findings", limit=MAX_PAGE), "findings")

    def list_cleared(self) -> list[schema.ApiFinding]:
        return _read_list(
            self.call_api("/v1/findings", state="cleared", limit=MAX_PAGE), "findings"
        )

    def list_incidents(self) -> list[schema.ApiIncident]:
        return _read_list(self.call_api("/v1/incidents", limit=MAX_PAGE), "incidents")

    def explain_finding(self, finding: object) -> schema.Why:
        answer: schema.Why = self.call_api(f"/v1/findings/{finding}/why")
        return answer

    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[schema.ApiEvent]:
        begin = str(after) if after is not None else f"{max(0, time.time() - since):.0f}s"
        return _read_list(
            self.call_api(
                "/v1/events", since=begin, limit=limit, newest="true" if newest else None
            ),
            "events",
        )

    def list_runs(self) -> list[schema.DiagnosticRun]:
        return _read_list(self.call_api("/v1/diagnostics/runs", limit=MAX_PAGE), "runs")

    def read_run(self, id_: str) -> schema.DiagnosticRunInFull:
        answer: schema.DiagnosticRunInFull = self.call_api(
            f"/v1/diagnostics/runs/{quote(id_, safe='')}"
        )
        return answer


def _read_list(answer: Mapping[str, Any], key: str) -> list[Any]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"no list of {key} in the answer")
    return found
