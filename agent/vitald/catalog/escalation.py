"""
What a device's history adds to a fault. Escalation policies say what a fault requires when it comes
back on the same device; the lemon score sums the marks in a device's history, with weights and a
decay.

These conditions of escalation count: a remedy that was completed and failed, the same fault in
different processes, and, if its remedy may wait for maintenance, how long it waited and how often
it was seen meanwhile.

Source of the score's window and of its limits for jobs: Kokolis et al., "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters" (arXiv 2410.21680): repeat offenders over 28 days; a
failed job is attributed to a finding in its last 10 minutes or in the 5 minutes after its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vitald.model.component import MarkKind
from vitald.model.finding import Requirement
from vitald.model.words import Action, When


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationStep:
    """One step of a policy. One of `of`, `processes`, `waited_s`, `times` is its condition."""

    within_s: float  # the window in which they count, for `of` and `processes`
    action: Action
    when: When = When.NOW
    # `remedies` remedies of at least this strength, which its finding required, were completed, and
    # failed
    of: Action | None = None
    remedies: int = 1
    processes: int = 0  # number of different processes in which it was seen
    waited_s: float = 0.0  # time for which its remedy has waited for maintenance
    times: int = 0  # how often its open finding was seen
    # Fields that must be equal to count together, e.g. the GPC and TPC of an Xid 13
    same: tuple[str, ...] = ()

    @property
    def requirement(self) -> Requirement:
        """What the step requires. If that is an inspection after a failed remedy, the device stays
        unusable.
        """
        unusable = self.of is not None and self.action is Action.INSPECT
        return Requirement(self.action, self.when, unusable=unusable)


@dataclass(frozen=True, slots=True)
class EscalationPolicy:
    """The escalation steps that entries name, in order: of those that are reached, the last
    counts.
    """

    name: str
    steps: tuple[EscalationStep, ...]

    def without_replacement(self) -> EscalationPolicy:
        """The policy of a fault whose cause need not be inside the device: an inspection instead of
        a replacement.
        """
        steps = (
            replace(step, action=Action.INSPECT) if step.action is Action.REPLACE_NODE else step
            for step in self.steps
        )
        return EscalationPolicy(self.name, tuple(steps))

    def limit_steps(self, strongest: Action) -> EscalationPolicy:
        """The policy of an entry that requires nothing stronger by itself: without the steps after
        a remedy that neither the entry nor an earlier step requires.
        """
        steps = []
        for step in self.steps:
            if step.of is None or step.of.rank <= strongest.rank:
                steps.append(step)
                strongest = Action.find_strongest((strongest, step.action))
        return EscalationPolicy(self.name, tuple(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonScoring:
    """`weights` are points per mark, halved every `half_life_s`, and 0 after `window_s`."""

    window_s: float = 28 * 86400.0
    half_life_s: float = 7 * 86400.0
    suspect: float = 5.0  # a device with at least this score is suspect
    job_before_s: float = 300.0  # a job may fail this long before the finding
    job_after_s: float = 600.0  # or this long after it
    weights: Mapping[MarkKind, float] = field(default_factory=dict)
