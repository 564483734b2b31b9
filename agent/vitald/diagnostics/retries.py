"""
Which runs the open findings require.

An unknown Xid, a trend or a test that failed once is resolved by a diagnostic that passes at the
level that its catalogue entry names. Levels are tried one after the other from level 1 on, up to
the highest one that may run without a person. A fault that must be confirmed is tested again, at
level 2 at least, on idle devices.

The number of runs is limited: a fault that a diagnostic found requires no other run once it was
tested twice, and a fault that returns after a pass loads its device at most once a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from vitald.catalog import Clears
from vitald.model import Action, ComponentKind, Finding
from vitald.model.diagnostic import Run, RunRequest

_DCGM, _NCCOM = "dcgm", "nccom"
_SUSPICIONS = (Action.OBSERVE, Action.INSPECT)
_TESTED = (ComponentKind.NODE, ComponentKind.GPU, ComponentKind.NVSWITCH, ComponentKind.PCI)
_PERIOD_S = 3600.0  # a fault that goes on being reported asks no more often than this
_LOAD_PERIOD_S = 86400.0  # the same of a run that needs idle devices
_SHORT_PERIOD_S = 600.0  # after a run that came to nothing, or that found what must be found twice
# The last runs of each check and level, the oldest first.
Past = Mapping["tuple[str, int]", Sequence[Run]]


def request_runs(
    findings: Iterable[Finding],
    clears: Callable[[Finding], Clears],
    past: Past,
    most: int,
    now: float,
) -> list[RunRequest]:
    """The runs that findings require now, in the order of the findings; each level once."""
    # A run of some GPUs resolves nothing for all.
    full = {key: [run for run in runs if not run.request.gpus] for key, runs in past.items()}
    wanted: dict[tuple[str, int], RunRequest] = {}
    for finding in findings:
        if finding.is_simulated:
            continue
        request = _request_for(finding, clears(finding), full, most)
        if request is not None and _may_run(
            request,
            full.get((request.check, request.level), ()),
            now,
            soon=_is_unconfirmed(finding),
        ):
            wanted.setdefault((request.check, request.level), request)
    return list(wanted.values())


def find_manual_level(finding: Finding, clears: Clears, most: int) -> int:
    """The level that resolves the finding and only a person may request; 0 if there is none."""
    if (
        finding.is_simulated
        or finding.action not in _SUSPICIONS
        or finding.component.kind not in _TESTED
    ):
        return 0
    found_at = _found_at(finding)
    needed = max(clears.diagnostic, found_at) if clears.diagnostic is not None else 0
    return needed if needed > most else 0


def _request_for(finding: Finding, clears: Clears, past: Past, most: int) -> RunRequest | None:
    check = finding.fields.get("check")
    unconfirmed = _is_unconfirmed(finding)
    if unconfirmed and isinstance(check, str) and check != _DCGM:
        return _request_check(finding, check, past, since=finding.since)
    clearing_level = clears.diagnostic if finding.action in _SUSPICIONS else None
    if finding.component.kind is ComponentKind.NEURON:
        if not clearing_level:
            return None
        return _request_check(finding, _NCCOM, past, since=finding.last)
    if finding.component.kind not in _TESTED:
        return None
    if unconfirmed:
        level = _find_confirming_level(finding, past)
    elif clearing_level and check != _DCGM:
        level = _find_next_level(finding, clearing_level, past)
    else:
        return None  # found by a diagnostic, without need of confirmation: the schedule repeats it
    return _make_request(finding, _DCGM, level) if 0 < level <= most else None


def _request_check(finding: Finding, check: str, past: Past, since: float) -> RunRequest | None:
    """A run of a check without levels, unless it has given a verdict since then."""
    if _was_tested(past.get((check, 0), ()), since):
        return None
    return _make_request(finding, check, 0)


def _find_confirming_level(finding: Finding, past: Past) -> int:
    """The level at which the fault is tested again; 0 if that was done."""
    level = max(2, _found_at(finding))
    # Seen first at the end of the run that found it: any run since then has answered, also where
    # the finding's fields do not say so.
    return (
        0 if any(tested >= level for tested in _list_tested_levels(past, finding.since)) else level
    )


def _find_next_level(finding: Finding, clearing_level: int, past: Past) -> int:
    """The lowest level that was not run since the fault was last seen; 0 if all were."""
    level = max(_list_tested_levels(past, finding.last), default=0) + 1
    return level if level <= clearing_level else 0


def _list_tested_levels(past: Past, since: float) -> list[int]:
    """The levels of DCGM's diagnostic at which a run has given a verdict since then."""
    return [
        level
        for (check, level), runs in past.items()
        if check == _DCGM and _was_tested(runs, since)
    ]


def _make_request(finding: Finding, check: str, level: int) -> RunRequest:
    return RunRequest(
        check=check,
        level=level,
        by=f"finding #{finding.id}",
        reason=f"finding #{finding.id}: {_fault_name(finding)}",
    )


def _fault_name(finding: Finding) -> str:
    return f"{finding.component.name} {finding.code}"


def _is_unconfirmed(finding: Finding) -> bool:
    return finding.fields.get("confirmed") is False


def _found_at(finding: Finding) -> int:
    level = finding.fields.get("level")
    return level if finding.fields.get("check") == _DCGM and isinstance(level, int) else 0


def _was_tested(runs: Sequence[Run], since: float) -> bool:
    """True if a run with a verdict began after `since`: after the run that found it."""
    return any(run.began > since and run.report.outcome.is_verdict for run in runs)


def _may_run(request: RunRequest, runs: Sequence[Run], now: float, *, soon: bool) -> bool:
    # Later runs are from before the clock was set back.
    runs = [run for run in runs if run.ended <= now]
    if not runs:
        return True
    last = max(runs, key=lambda run: run.ended)
    if now - last.ended < (
        _SHORT_PERIOD_S if soon or not last.report.outcome.is_verdict else _PERIOD_S
    ):
        return False
    fault = request.reason.partition(": ")[2]
    same = [
        run
        for run in runs
        if run.request.by.startswith("finding #") and run.request.reason.endswith(f": {fault}")
    ]
    loads = request.check != _DCGM or request.level > 1
    return not (
        loads
        and any(run.report.outcome.is_verdict and now - run.ended < _LOAD_PERIOD_S for run in same)
    )
