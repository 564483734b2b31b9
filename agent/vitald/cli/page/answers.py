"""What the status page is made of: the daemon's answers, read with the rights of the caller."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitald.cli import CommandFailed, client
from vitald.server import endpoints
from vitald.server.endpoint import Get
from vitald.text import count_noun

if TYPE_CHECKING:
    from vitald.server import schema

MAX_INCIDENTS = 8  # in full; the others have a line each
MAX_JOBS = 8
_MAX_CLEARED, _MAX_CHANGES = 50, 20


@dataclass(frozen=True, slots=True)
class Answers:
    """None: it could not be read. `missing`: what could not be read, or is damaged."""

    status: schema.NodeStatus
    chains: dict[int, schema.Why] = field(default_factory=dict)  # by the finding's number
    cleared: schema.Findings | None = None  # the newest first
    changes: schema.Transitions | None = None  # the newest ones, the oldest of them first
    jobs: schema.ApiJobs | None = None
    missing: tuple[str, ...] = ()


def read_answers(arguments: argparse.Namespace) -> Answers:
    """Query the daemon on `arguments.socket`, with `arguments.timeout` seconds for each answer.

    Raises CommandFailed where there is no verdict. After another answer that does not come at all,
    the rest is not queried.
    """
    status = client.read_status(arguments)
    missing: list[str] = []
    is_silent = False

    def read_part(name: str, endpoint: Get[Any], **values: object) -> Any:
        nonlocal is_silent
        if is_silent:
            missing.append(name)
            return None
        try:
            answer = client.get(arguments, endpoint, **values)
        except CommandFailed as error:
            is_silent = isinstance(error, client.NoAnswer)
            missing.append(f"{name}: {error}")
            return None
        if damaged := answer.get("damaged"):
            missing.append(f"{name}: {count_noun(damaged, 'row')} damaged in the ledger")
        return answer

    heads = [incident["findings"][0] for incident in status["incidents"] if incident["findings"]]
    chains = {
        number: read_part(f"how #{number} came to be", endpoints.WHY, id=int(number))
        for number in heads[:MAX_INCIDENTS]
    }
    return Answers(
        status,
        {number: chain for number, chain in chains.items() if chain is not None},
        read_part("findings that ended", endpoints.FINDINGS, state="cleared", limit=_MAX_CLEARED),
        read_part("changes", endpoints.TRANSITIONS, newest="true", limit=_MAX_CHANGES),
        read_part("jobs", endpoints.JOBS, limit=MAX_JOBS),
        tuple(missing),
    )
