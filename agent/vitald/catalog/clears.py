"""
Evidence, and what closes a finding: the evidence that its rule names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vitald.model import Action


class Evidence(Enum):
    """What an event is evidence of, so that it closes findings."""

    REBOOT = "reboot"
    DEVICE_RESET = "device_reset"
    REPLACED = "replaced"
    DIAGNOSTIC = "diagnostic"  # passed, at the run level in the event's field `level`


@dataclass(frozen=True, slots=True, kw_only=True)
class Clears:
    """The evidence that closes a finding; a person may always close it."""

    reboot: bool = False
    device_reset: bool = False
    recovers: bool = False
    replaced: bool = False
    diagnostic: int | None = None  # passed at this DCGM run level
    quiet_s: float | None = None

    def is_cleared_by(self, evidence: Evidence, level: int = 0) -> bool:
        """Whether this evidence closes the finding. `level`: DCGM run level of a diagnostic."""
        if evidence is Evidence.DIAGNOSTIC:
            return self.diagnostic is not None and level >= self.diagnostic
        # A replaced board was reset as well.
        return {
            Evidence.REBOOT: self.reboot,
            Evidence.DEVICE_RESET: self.device_reset,
            Evidence.REPLACED: True,
        }[evidence]

    def join_evidence(self, other: Clears) -> Clears:
        """This evidence or the other's; the quiet period stays this one's."""
        levels = [clears.diagnostic for clears in (self, other) if clears.diagnostic is not None]
        return Clears(
            reboot=self.reboot or other.reboot,
            device_reset=self.device_reset or other.device_reset,
            recovers=self.recovers or other.recovers,
            replaced=self.replaced or other.replaced,
            diagnostic=min(levels, default=None),
            quiet_s=self.quiet_s,
        )

    def list_phrases(self) -> list[str]:
        """Phrases for operators: `a reboot`, `24 h without another`."""
        phrases = []
        if self.device_reset:
            phrases.append("a device reset")
        if self.reboot:
            phrases.append("a reboot")
        if self.replaced:
            phrases.append("replacement")
        if self.recovers:
            phrases.append("its own recovery")
        if self.diagnostic is not None:
            phrases.append(f"a passed level {self.diagnostic} diagnostic")
        if self.quiet_s is not None:
            hours = self.quiet_s / 3600
            phrases.append(
                f"{hours:g} h without another"
                if hours >= 1
                else f"{self.quiet_s / 60:g} min without another"
            )
        return phrases


# What closes a finding whose action is not its entry's own, by action.
CLEARS_OF = {
    Action.NONE: Clears(quiet_s=3600.0, reboot=True),
    Action.OBSERVE: Clears(quiet_s=86400.0, reboot=True),
    Action.INSPECT: Clears(diagnostic=3, reboot=True),
    Action.RESTART_WORKLOAD: Clears(quiet_s=3600.0, reboot=True),
    Action.RESET_DEVICE: Clears(device_reset=True, reboot=True),
    Action.REBOOT_NODE: Clears(reboot=True),
    Action.REPLACE_NODE: Clears(replaced=True),
}
