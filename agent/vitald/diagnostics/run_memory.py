"""
What is kept from one run to the next: faults that were found once, and runs without a verdict.

Owns     which faults are unconfirmed still, and their stored form.
Refuses  which faults must be found twice: the check knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from vitald.model.diagnostic import Outcome, Run

_RAN = ("pass", "fail", "warn")  # statuses of a test that was carried out
_MAX_UNCONFIRMED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedFault:
    """A fault that must be found twice, and was found once."""

    check: str
    level: int
    test: str
    code: str
    identity: str  # the identity of its device
    device: str = ""


@dataclass(slots=True)
class RunMemory:
    """What is kept from one run to the next: unconfirmed faults, and runs without a verdict."""

    unconfirmed: set[UnconfirmedFault] = field(default_factory=set)
    # By `dcgm level 2`: the number of successive runs without a verdict.
    failed_runs: dict[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> dict[str, object]:
        once = sorted(
            [fault.check, fault.level, fault.test, fault.code, fault.identity, fault.device]
            for fault in self.unconfirmed
        )
        return {"once": once, "vain": self.failed_runs}

    @staticmethod
    def from_memory(memory: Mapping[str, object]) -> RunMemory:
        """Raises TypeError, ValueError, AttributeError."""
        once, vain = memory.get("once", []), memory.get("vain", {})
        if not isinstance(once, list) or not isinstance(vain, dict):
            raise TypeError("not what was stored")
        found = {
            UnconfirmedFault(
                check=str(check),
                level=int(level),
                test=str(test),
                code=str(code),
                identity=str(who),
                device=str(device),
            )
            for check, level, test, code, who, device in once
        }
        return RunMemory(found, {str(check): int(count) for check, count in vain.items()})

    def has_found(self, code: str, who: str, device: str) -> bool:
        return any(
            (fault.code, fault.identity, fault.device) == (code, who, device)
            for fault in self.unconfirmed
        )

    def update_unconfirmed(
        self, run: Run, found: Collection[UnconfirmedFault], tested: Collection[str] | None
    ) -> None:
        """Adds what a run found. What it could have found again and did not is forgotten: at this
        level, of these devices, by a test that was carried out. `tested`: by identity; None for
        all.
        """
        carried_out = {
            test.name
            for test in run.report.tests
            if any(status.lower() in _RAN for status in (test.status, *test.gpus.values()))
        }
        again = {(fault.code, fault.identity, fault.device) for fault in found}

        def refuted(fault: UnconfirmedFault) -> bool:
            if (fault.code, fault.identity, fault.device) in again:
                return True  # remembered anew, with the level that found it
            was_tested = (
                run.report.outcome is Outcome.PASS
                or not run.report.tests
                or fault.test in carried_out
            )
            return (
                fault.check == run.ask.check
                and fault.level <= run.ask.level
                and was_tested
                and (tested is None or fault.identity in tested)
            )

        self.unconfirmed = set(sorted(found, key=str)[:_MAX_UNCONFIRMED]) | {
            fault for fault in self.unconfirmed if not refuted(fault)
        }
        while len(self.unconfirmed) > _MAX_UNCONFIRMED:
            self.unconfirmed.pop()
