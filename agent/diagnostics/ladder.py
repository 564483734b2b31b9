"""
From a suspicion to a diagnostic: which run the open findings ask for.

An unknown Xid, a trend, a test that failed once: what would settle it is a diagnostic that passes at the level that its entry of
the catalogue names. The ladder goes there step by step, from level 1 on, and not beyond what may run without a person.
A fault that must be confirmed is tested again, at level 2 at least, when nobody uses the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.catalog import Clears
from agent.diagnostics.report import Ask, Outcome, Run
from agent.model import Action, ComponentKind, Finding

_SUSPICIONS = (Action.OBSERVE, Action.INSPECT)
_TESTED = (ComponentKind.NODE, ComponentKind.GPU, ComponentKind.NVSWITCH, ComponentKind.PCI)
_SETTLES = (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG)
_AGAIN_S = 3600.0  # a fault that goes on being reported asks no more often than this
_SOON_S = 600.0  # after a run that came to nothing, or that found what must be found twice
Last = Mapping["tuple[str, int]", Run]


def asked(findings: Iterable[Finding], clears: Callable[[Finding], Clears], last: Last, most: int, now: float) -> list[Ask]:
    """The runs that are worth asking for now, the first finding's first; each level once."""
    wanted: dict[tuple[str, int], Ask] = {}
    for finding in findings:
        if finding.simulated or finding.shadow:
            continue
        ask = _of(finding, clears(finding), last, most)
        if ask is not None and _may(last.get((ask.check, ask.level)), now, soon=_unconfirmed(finding)):
            wanted.setdefault((ask.check, ask.level), ask)
    return list(wanted.values())


def beyond(finding: Finding, clears: Clears, most: int) -> int:
    """The level that would settle it and that only a person may ask for; 0 where there is none."""
    needed = clears.diagnostic or 0
    return needed if needed > most and finding.action in _SUSPICIONS and finding.component.kind in _TESTED else 0


def _of(finding: Finding, clears: Clears, last: Last, most: int) -> Ask | None:
    reason = f"finding #{finding.id}: {finding.component.name} {finding.code}"
    check = finding.fields.get("check")
    if _unconfirmed(finding) and isinstance(check, str) and check != "dcgm":
        return None if _settled(last.get((check, 0)), finding.last) else Ask(check=check, by=f"finding #{finding.id}", reason=reason)
    if finding.component.kind is ComponentKind.NEURON:
        if finding.action in _SUSPICIONS and clears.diagnostic and not _settled(last.get(("nccom", 0)), finding.last):
            return Ask(check="nccom", by=f"finding #{finding.id}", reason=reason)
        return None
    if finding.component.kind not in _TESTED:
        return None
    if _unconfirmed(finding):
        found_at = finding.fields.get("level")
        level = max(2, found_at if isinstance(found_at, int) else 0)
    elif finding.action in _SUSPICIONS and clears.diagnostic:
        done = max((level for (check, level), run in last.items() if check == "dcgm" and _settled(run, finding.last)), default=0)
        level = done + 1
        if level > clears.diagnostic:
            return None
    else:
        return None
    if level > most or _settled(last.get(("dcgm", level)), finding.last):
        return None
    return Ask(check="dcgm", level=level, by=f"finding #{finding.id}", reason=reason)


def _unconfirmed(finding: Finding) -> bool:
    return finding.fields.get("confirmed") is False


def _settled(run: Run | None, since: float) -> bool:
    """Whether a run that came to something began after the finding was last seen. The run that found it does not count."""
    return run is not None and run.began > since and run.report.outcome in _SETTLES


def _may(run: Run | None, now: float, *, soon: bool) -> bool:
    if run is None or run.ended > now:
        return True
    return now - run.ended >= (_SOON_S if soon or run.report.outcome not in _SETTLES else _AGAIN_S)
