"""The daemon's API as functions with the types of its contract. `connection` has the requests."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload
from urllib.parse import quote

from vitald.cli import words
from vitald.cli.connection import (
    DAEMON_USER,
    AnswerTable,
    DaemonRefused,
    Json,
    NoAnswer,
    Response,
    default_socket,
    find_owners,
    send_request,
)

if TYPE_CHECKING:
    from vitald.server import schema

# A caller needs this module only.
__all__ = [
    "DAEMON_USER",
    "STATUSES",
    "AnswerTable",
    "DaemonRefused",
    "Json",
    "NoAnswer",
    "add_connection_options",
    "call_api",
    "default_socket",
    "find_owners",
    "follow_changes",
    "read_status",
    "read_summary",
]
STATUSES = ("healthy", "degraded", "unhealthy", "unknown")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        type=Path,
        default=None,
        metavar="PATH",
        help="the daemon's socket (default: its usual place)",
    )
    parser.add_argument(
        "--timeout",
        type=words.parse_seconds(3600),
        default=2.0,
        metavar="SECONDS",
        help="give up after this long (default: 2)",
    )


@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/components"],
    body: None = None,
    **query: object,
) -> schema.Components: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/diagnostics"],
    body: None = None,
    **query: object,
) -> schema.ApiDiagnostics: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/diagnostics/runs"],
    body: None = None,
    **query: object,
) -> schema.DiagnosticRuns: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/diagnostics/runs/{id}"],
    body: None = None,
    **query: object,
) -> schema.DiagnosticRunInFull: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/events"], body: None = None, **query: object
) -> schema.Events: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/expect"], body: None = None, **query: object
) -> schema.ApiExpected: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/findings"], body: None = None, **query: object
) -> schema.Findings: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/findings/{id}/why"],
    body: None = None,
    **query: object,
) -> schema.Why: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/gpus"], body: None = None, **query: object
) -> schema.Gpus: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/incidents"],
    body: None = None,
    **query: object,
) -> schema.Incidents: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/injections/{id}"],
    body: None = None,
    **query: object,
) -> schema.Drill: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/jobs"], body: None = None, **query: object
) -> schema.ApiJobs: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/status"], body: None = None, **query: object
) -> schema.NodeStatus: ...
@overload
def call_api(
    arguments: argparse.Namespace, path: Literal["/v1/summary"], body: None = None, **query: object
) -> schema.NodeSummary: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/advice"],
    body: schema.AdviseRequest,
    **query: object,
) -> schema.Advised: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/diagnostics/cancel"],
    body: schema.CancelDiagnosticRequest,
    **query: object,
) -> schema.OneGoing: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/diagnostics/run"],
    body: schema.RunDiagnosticRequest,
    **query: object,
) -> schema.OneGoing: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/expect/confirm"],
    body: schema.ConfirmRequest,
    **query: object,
) -> schema.Confirmed: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/findings/{id}/accept"],
    body: schema.AcceptRequest,
    **query: object,
) -> schema.OneFinding: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/findings/{id}/clear"],
    body: schema.ClearRequest,
    **query: object,
) -> schema.OneFinding: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/findings/{id}/remedy"],
    body: schema.RemedyRequest,
    **query: object,
) -> schema.OneFinding: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/injections"],
    body: schema.AnnounceRequest,
    **query: object,
) -> schema.AnnouncedDrill: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/jobs"],
    body: schema.TellJobRequest,
    **query: object,
) -> schema.JobTold: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/scheduler"],
    body: schema.ReportSchedulerRequest,
    **query: object,
) -> schema.SchedulerReported: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/release"],
    body: schema.ReleaseRequest,
    **query: object,
) -> schema.Released: ...
@overload
def call_api(
    arguments: argparse.Namespace,
    path: Literal["/v1/release/end"],
    body: schema.EndReleaseRequest,
    **query: object,
) -> schema.ReleaseEnded: ...
@overload  # a path that is not known until run time
def call_api(
    arguments: argparse.Namespace,
    path: str,
    body: Mapping[str, object] | None = None,
    **query: object,
) -> Any: ...
def call_api(
    arguments: argparse.Namespace,
    path: str,
    body: Mapping[str, object] | None = None,
    **query: object,
) -> Any:
    """The JSON answer to a GET, or with a body to a POST. `path` is as in the contract: its `{id}`
    is given by that name.

    Raises NoAnswer or RequestRefused.
    """
    if "{id}" in path:
        path = path.replace("{id}", quote(str(query.pop("id")), safe=""))
    deadline = time.monotonic() + arguments.timeout
    with _send_request(arguments, path, body, query, deadline) as response:
        return response.read_json()


def read_status(arguments: argparse.Namespace, work: str | None = None) -> schema.NodeStatus:
    """The answer of /v1/status, with at least what a verdict needs. Raises NoAnswer for anything
    else, and RequestRefused.
    """
    answer = call_api(
        arguments, "/v1/status", None, **({"for": work} if work not in (None, "running") else {})
    )
    _check_verdict(arguments, answer)
    return answer


def read_summary(arguments: argparse.Namespace) -> schema.NodeSummary:
    """The answer of /v1/summary, with at least what says which repair is due. Raises NoAnswer for
    anything else, and DaemonRefused.
    """
    answer = call_api(arguments, "/v1/summary")
    _check_verdict(arguments, answer)
    for word in (answer["rebootDue"], answer["replacementDue"]):
        if word is not None and not (isinstance(word, str) and word.isalnum()):
            raise NoAnswer(f"the daemon names no reason for a repair: {word!r:.80}")
    return answer


def _check_verdict(arguments: argparse.Namespace, answer: Mapping[str, object]) -> None:
    """Raises NoAnswer where it has no status and reasons."""
    reasons = answer.get("reasons")
    sound = isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons)
    if answer.get("status") not in STATUSES or not sound:
        raise NoAnswer(
            f"no verdict from {arguments.socket or default_socket()}: is that vitald's socket, and"
            " of this version?"
        )


def follow_changes(
    arguments: argparse.Namespace, deadline: float | None = None, silence_s: float | None = None
) -> Iterator[schema.WatchLine]:
    """The changes from /v1/watch, as they arrive. Raises NoAnswer at `deadline`, on the monotonic
    clock, and after `silence_s` without a byte, where these are given.
    """
    place: Path = arguments.socket or default_socket()
    with send_request(place, "/v1/watch", None, {}, deadline, silence_s) as response:
        for line in response.read_lines():
            yield cast("schema.WatchLine", line)


def _send_request(
    arguments: argparse.Namespace,
    path: str,
    body: Mapping[str, object] | None,
    query: dict[str, object],
    deadline: float | None,
) -> Response:
    place: Path = arguments.socket or default_socket()
    return send_request(place, path, body, query, deadline)
