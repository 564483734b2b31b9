"""
The run that a suspicion requires (docs/notices.md): which one, until when, and how often it is
tried. What raises a suspicion is in `core.suspicion`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitald.backoff import Backoff
from vitald.core.suspicion import Cause, Request
from vitald.diagnostics.schedule import RETRY_S
from vitald.model.diagnostic import Outcome, Remedy, Run, RunRequest

SUSPICION = "suspicion"  # the requester of these runs
CHECK = "dcgm"
MIN_LEVEL = 2  # level 1 tests no device, and runs every hour
MAX_WAIT_S = 7 * 86400.0  # for idle devices; then the request ends
MAX_TRIES = 3  # that came to no verdict for a temporary reason; those that made room apart
_DAY_S = 86400.0
_VERDICTS = (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG)


def is_open(request: Request, runs: Iterable[Run], now: float) -> bool:
    """Whether no run has answered it yet. `runs`: the last ones of each check and level."""
    if now - request.time > MAX_WAIT_S:
        return False
    since = _list_since(request, runs)
    tries = [run for run in since if run.ask.by == SUSPICION and not run.preempted]
    return len(tries) < MAX_TRIES and not any(map(_answers, since))


def find_run(request: Request, runs: Iterable[Run], now: float) -> RunRequest | None:
    """The run to be queued now; None where it has to wait after one that made room or could not
    run.
    """
    own = [run for run in _list_since(request, runs) if run.ask.by == SUSPICION]
    if own:
        last = max(run.ended for run in own)
        if now < last + Backoff(RETRY_S, _DAY_S).delay_s(len(own) - 1):
            return None
    return RunRequest(check=CHECK, level=request.level, by=SUSPICION, reason=request.because)


def may_request(last: Request | None, now: float, every_s: float, most: int, obstacle: str) -> bool:
    """Whether one more diagnostic may be requested: not where none can run by itself. `most`: the
    highest level that may.
    """
    if every_s <= 0 or most < MIN_LEVEL or obstacle:
        return False
    return last is None or now - last.time >= every_s


def describe_request(cause: Cause, level: int) -> str:
    return f"DCGM's diagnostic, level {level}, once the devices are idle: {cause.because}"


def _list_since(request: Request, runs: Iterable[Run]) -> list[Run]:
    return [
        run
        for run in runs
        if run.ask.check == CHECK
        and not run.ask.gpus
        and run.ask.level >= request.level
        and run.began >= request.time
    ]


def _answers(run: Run) -> bool:
    """A verdict of whoever requested it; of our own runs any end that is not to be repeated."""
    if run.preempted:
        return False
    is_temporary = run.report.remedy in (Remedy.RETRY, Remedy.EXCLUSIVE_RERUN)
    return run.report.outcome in _VERDICTS or (run.ask.by == SUSPICION and not is_temporary)
