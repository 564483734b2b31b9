"""What the status page is made of: answers of the daemon, read with the rights of the caller."""

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

MAX_INCIDENTS = 8  # in full; of more there is a line each
_MAX_CHAINS, _MAX_CLEARED, _MAX_CHANGES = 5, 50, 20


@dataclass(frozen=True, slots=True)
class Answers:
    """`missing`: the parts that could not be read, and why."""

    status: schema.NodeStatus
    chains: dict[int, schema.Why] = field(default_factory=dict)  # by the finding's number
    cleared: tuple[schema.ApiFinding, ...] = ()  # the newest first
    changes: tuple[schema.ApiTransition, ...] = ()  # the newest first
    gpus: tuple[schema.Gpu, ...] = ()
    missing: tuple[str, ...] = ()


def read_answers(arguments: argparse.Namespace) -> Answers:
    """Ask the daemon on `arguments.socket`, at most `arguments.timeout` seconds for each answer.

    Raises CommandFailed where there is no verdict. Any other answer that fails is named in
    `missing`; after one that does not come at all, no more are asked for.
    """
    status = client.read_status(arguments)
    daemon = DaemonHistory(partial(client.call_api, arguments))
    missing: list[str] = []

    def read_part(name: str, read: Callable[[], T], empty: T) -> T:
        try:
            return read()
        except (CommandFailed, ValueError) as error:
            missing.append(f"{name}: {error}")
            return empty

    def read_changes() -> list[schema.ApiTransition]:
        answer: schema.Transitions = daemon.call_api(
            "/v1/transitions", newest="true", limit=_MAX_CHANGES
        )
        return sorted(answer["transitions"], key=lambda change: change["id"], reverse=True)

    def read_gpus() -> list[schema.Gpu]:
        answer: schema.Gpus = daemon.call_api("/v1/gpus")
        return answer["gpus"]

    heads = [incident["findings"][0] for incident in status["incidents"] if incident["findings"]]
    chains = {
        number: chain
        for number in heads[:_MAX_CHAINS]
        if (chain := read_part(f"how #{number} came to be", _explain(daemon, number), None))
    }
    none: list[schema.ApiFinding] = []
    cleared = read_part("findings that ended", daemon.list_cleared, none)
    return Answers(
        status,
        chains,
        tuple(cleared[:_MAX_CLEARED]),
        tuple(read_part("changes", read_changes, [])),
        tuple(read_part("GPUs", read_gpus, [])),
        tuple(missing),
    )


def _explain(daemon: DaemonHistory, number: int) -> Callable[[], schema.Why | None]:
    return lambda: daemon.explain_finding(number)
