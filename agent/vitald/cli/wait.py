"""
`vitald wait --until save -- kill -USR1 $PID`: wait until the node's state is as named, then run a
command. Waits over restarts of the daemon.

    0 it came (or the exit code of the command)   124 time-out   30 no daemon

The stream of changes says when to look; what is compared is the answer of /v1/status.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitald.cli import UsageError, client, render, words
from vitald.cli.advice_stream import follow_advice
from vitald.cli.check import summarize_reasons
from vitald.cli.connection import UntrustedListener
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

T = TypeVar("T")

CAME, TIMED_OUT = 0, 124  # 124: as timeout(1)
_NOT_RUN, _NOT_FOUND = 126, 127  # of the command, as in sh(1)
_ANSWER_S = 5.0
# No daemon for so long is no restart. The daemon sends a heartbeat every 15 s.
_AWAY_S, _SILENCE_S = 60.0, 45.0
_RETRY_S = 1.0
# A daemon that was restarted has read all sources, and knows what root is requested to do, after
# so long; a source that takes longer is waited for.
_SETTLE_S, _START_S = 10.0, 60.0
_MAX_WAIT_S = 30 * words.DAY_S
_TOO_MANY = 503
_TELLING = frozenset({"verdict", "finding", "advice", "heartbeat"})  # lines after which to look
_STATUSES = {"fit": ("healthy", "degraded"), "unfit": ("unhealthy",), "unknown": ("unknown",)}
_CONDITIONS = (*_STATUSES, "save", "change")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--until",
        choices=_CONDITIONS,
        default="change",
        metavar="STATE",
        help="fit, unfit, unknown; save: jobs are advised to save; change: status, required action,"
        " flags or advice differ from those at the start (default)",
    )
    parser.add_argument(
        "--for",
        dest="work",
        choices=["prolog", "epilog", "running"],
        default=None,
        help="a job is about to begin, has ended, or runs (default), as for vitald check",
    )
    parser.add_argument(
        "--timeout",
        dest="limit_s",
        type=words.parse_duration(1.0, _MAX_WAIT_S, "1s to 30d"),
        default=None,
        metavar="TIME",
        help="exit 124 after this time, e.g. 10m (default: wait without a limit)",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        default=None,
        metavar="PATH",
        help="the daemon's socket (default: its usual place)",
    )
    parser.add_argument("--json", action="store_true", help="the answer of GET /v1/status")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="run this once it came; its exit code is that of vitald wait",
    )


def run(arguments: argparse.Namespace) -> int:
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if arguments.command and not command:
        raise UsageError("no command after --")
    end = time.monotonic() + arguments.limit_s if arguments.limit_s is not None else None
    try:
        line = _wait_for_status(arguments, end)
    except client.NoAnswer as error:
        is_denied = isinstance(error.__cause__, PermissionError)
        if not is_denied or arguments.until in _STATUSES or arguments.json:
            raise
        line = _wait_for_advice(arguments, end)
    if not line:
        print(f"vitald: not {arguments.until} within the time-out", file=sys.stderr)
        return TIMED_OUT
    if command:
        return _run_command(command)
    render.print_line(line)
    return CAME


def _choose_condition(until: str) -> Callable[[schema.NodeStatus], bool]:
    if until == "save":
        return _is_save_advised
    if until == "change":
        return _StatusChange().has_come
    statuses = _STATUSES[until]
    return lambda status: str(status["status"]) in statuses


def _is_save_advised(status: schema.NodeStatus) -> bool:
    advice = status.get("advice")
    if advice is None:
        raise client.NoAnswer("the daemon gives no advice to jobs: it is of an older version")
    return advice["save"]


class _StatusChange:
    """Compares each status with the first one."""

    def __init__(self) -> None:
        self._first: schema.NodeStatus | None = None

    def has_come(self, status: schema.NodeStatus) -> bool:
        """What a daemon says that was restarted counts once it has read the node again."""
        if self._first is None:
            self._first = status
        is_restarted = status["startedAt"] != self._first["startedAt"]
        if is_restarted and _is_starting(status):
            return False
        return _list_parts(status) != _list_parts(self._first)


def _is_starting(status: schema.NodeStatus) -> bool:
    age = (parse_rfc3339(status["time"]) - parse_rfc3339(status["startedAt"])).total_seconds()
    is_read = all(source["state"] != "starting" for source in status["sources"])
    return 0 <= age < (_SETTLE_S if is_read else _START_S)


class _AdviceChange:
    """Compares each advice on the job socket with the first one."""

    def __init__(self, socket: Path | None, end: float | None) -> None:
        self._socket, self._end = socket, end
        self._first: bool | None = None

    def follow(self) -> Iterator[bool]:
        """As `follow_advice`. Of a daemon that was restarted, only what it says after a while."""
        if self._first is not None:
            with closing(follow_advice(self._socket, self._end)) as restarted:
                next(restarted, None)
            time.sleep(min(_SETTLE_S, _seconds_left(self._end)))
        yield from follow_advice(self._socket, self._end)

    def has_come(self, advice: bool) -> bool:
        if self._first is None:
            self._first = advice
        return advice != self._first


def _list_parts(status: schema.NodeStatus) -> tuple[object, ...]:
    """What `change` compares."""
    return (
        status["status"],
        status["action"],
        status["rebootRequired"],
        status["replacementRequired"],
        status.get("advice"),
    )


def _wait_for_status(arguments: argparse.Namespace, end: float | None) -> str:
    """What came, on a line; empty if the time is over before. Raises NoAnswer."""
    has_come = _choose_condition(arguments.until)
    status = _wait_for(lambda: _follow_status(arguments, end), has_come, end)
    if status is None:
        return ""
    return json.dumps(status) if arguments.json else _describe(arguments.until, status)


def _wait_for_advice(arguments: argparse.Namespace, end: float | None) -> str:
    """The same over the job socket, for a user who may not read the API: the advice alone."""
    change = _AdviceChange(arguments.socket, end)
    if arguments.until == "change":
        saved = _wait_for(change.follow, change.has_come, end)
    else:
        saved = _wait_for(lambda: follow_advice(arguments.socket, end), bool, end)
    if saved is None:
        return ""
    return "jobs are advised to save" if saved else "jobs are not advised to save"


def _wait_for(
    follow: Callable[[], Iterator[T]], has_come: Callable[[T], bool], end: float | None
) -> T | None:
    """The first value with `has_come`; None if the time is over before. A stream that ends is
    followed again. Raises NoAnswer without a daemon.
    """
    started = time.monotonic()
    answered_at: float | None = None  # when the last stream that began ended
    while True:
        has_begun = False
        try:
            for value in follow():
                has_begun = True
                if has_come(value):
                    return value
            answered_at = time.monotonic()
        except (client.NoAnswer, client.DaemonRefused) as error:
            if not _is_passing(error):
                raise
            answered_at = time.monotonic() if has_begun else answered_at
            since = started if answered_at is None else answered_at
            if not _is_over(end) and time.monotonic() - since > _AWAY_S:
                raise
            if answered_at is None and _seconds_left(end) <= _RETRY_S:
                time.sleep(_seconds_left(end))
                raise
        if _is_over(end):
            return None
        time.sleep(min(_RETRY_S, _seconds_left(end)))


def _seconds_left(end: float | None) -> float:
    return math.inf if end is None else max(0.0, end - time.monotonic())


def _is_over(end: float | None) -> bool:
    return _seconds_left(end) == 0.0


def _is_passing(error: client.NoAnswer | client.DaemonRefused) -> bool:
    """Whether it may be otherwise after a restart of the daemon, or with fewer watchers."""
    if isinstance(error, client.DaemonRefused):
        return error.status == _TOO_MANY
    return not isinstance(error, UntrustedListener) and not isinstance(
        error.__cause__, PermissionError
    )


def _follow_status(arguments: argparse.Namespace, end: float | None) -> Iterator[schema.NodeStatus]:
    """The status now, and after each change, until the stream or the time ends."""
    yield _read_status(arguments, end)
    for line in client.follow_changes(arguments, end, _SILENCE_S):
        if line["type"] in _TELLING:
            yield _read_status(arguments, end)


def _read_status(arguments: argparse.Namespace, end: float | None) -> schema.NodeStatus:
    timeout = min(_ANSWER_S, _seconds_left(end))
    asking = argparse.Namespace(socket=arguments.socket, timeout=timeout)
    return client.read_status(asking, work=arguments.work)


def _describe(until: str, status: schema.NodeStatus) -> str:
    advice = status.get("advice")
    if until == "save" and advice is not None:
        return render.describe_advice(advice)
    return render.escape_text(f"{status['status']}: {summarize_reasons(status)}")


def _run_command(command: list[str]) -> int:
    """Become the command: what waits for this process waits for it."""
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a command inherits that
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
    except OSError as error:
        print(f"vitald: {render.escape_text(command[0])}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN
