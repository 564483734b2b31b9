"""What the status page is made of: the daemon's answers, read with the rights of the caller."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from vitald.cli import CommandFailed, client
from vitald.cli.report.history import DaemonHistory

if TYPE_CHECKING:
    from vitald.server import schema

T = TypeVar("T")

MAX_INCIDENTS = 8  # in full; the others have a line each
_MAX_CHAINS, _MAX_CLEARED, _MAX_CHANGES, _MAX_JOBS = 5, 50, 20, 8


@dataclass(frozen=True, slots=True)
class Answers:
    """`missing`: the parts that could not be read, and why. These are None."""

    status: schema.NodeStatus
    chains: dict[int, schema.Why] = field(default_factory=dict)  # by the finding's number
    cleared: tuple[schema.ApiFinding, ...] | None = ()  # the newest first
    changes: tuple[schema.ApiTransition, ...] | None = ()  # the newest first
    jobs: tuple[schema.ApiJob, ...] | None = ()  # those that run first
    missing: tuple[str, ...] = ()


def read_answers(arguments: argparse.Namespace) -> Answers:
    """Query the daemon on `arguments.socket`, with `arguments.timeout` seconds for each answer.

    Raises CommandFailed where there is no verdict. Any other answer that fails is named in
    `missing`; after one that does not come at all, the rest is not queried.
    """
    status = client.read_status(arguments)
    daemon = DaemonHistory(partial(client.call_api, arguments))
    missing: list[str] = []

    def read_part(name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (CommandFailed, LookupError, TypeError, ValueError) as error:
            missing.append(f"{name}: {error}")
            return None

    heads = [incident["findings"][0] for incident in status["incidents"] if incident["findings"]]
    chains = {
        number: chain
        for number in heads[:_MAX_CHAINS]
        if (
            chain := read_part(f"how #{number} came to be", partial(daemon.explain_finding, number))
        )
    }
    return Answers(
        status,
        chains,
        read_part("findings that ended", partial(_list_cleared, daemon)),
        read_part("changes", partial(_list_changes, daemon)),
        read_part("jobs", partial(_list_jobs, daemon)),
        tuple(missing),
    )


def _list_cleared(daemon: DaemonHistory) -> tuple[schema.ApiFinding, ...]:
    answer: schema.Findings = daemon.call_api("/v1/findings", state="cleared", limit=_MAX_CLEARED)
    return tuple(answer["findings"])


def _list_changes(daemon: DaemonHistory) -> tuple[schema.ApiTransition, ...]:
    answer: schema.Transitions = daemon.call_api(
        "/v1/transitions", newest="true", limit=_MAX_CHANGES
    )
    return tuple(sorted(answer["transitions"], key=lambda change: change["id"], reverse=True))


def _list_jobs(daemon: DaemonHistory) -> tuple[schema.ApiJob, ...]:
    answer: schema.ApiJobs = daemon.call_api("/v1/jobs", limit=_MAX_JOBS)
    return (*answer["running"], *answer["recent"])[:_MAX_JOBS]
