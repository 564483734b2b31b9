"""`[slurm]` of the configuration, which Slurm's scripts read themselves, at every call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitald.checking import read_flag
from vitald.config.readers import one_of, read_nonempty_text, read_path, read_period
from vitald.config.section import Section, TakesEffect, duration, setting

UNKNOWN_CHOICES = ("allow", "refuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """What the scripts of packaging/slurm do. They read this file themselves: a change needs no
    restart.
    """

    unknown: str = setting(
        "allow",
        one_of(*UNKNOWN_CHOICES),
        "Jobs on a node whose state is unknown, for example while vitald is stopped.",
    )
    level_1_age_s: float = duration(
        "off",
        "The prolog runs a level 1 diagnostic first if the last one is older than this, and time"
        ' allows. "off": never.',
        read_period,
    )
    budget_s: float = duration(
        "2s", "The prolog takes no longer than this. Nor does the epilog, and at most 2 s."
    )
    level_2_after_failure: bool = setting(
        True,
        read_flag,
        "The epilog requests a level 2 diagnostic after a job that failed or left findings.",
    )
    reason: str = setting(
        "vitald",
        read_nonempty_text,
        "Prefix of the reason of nodes that vitald drains: it resumes only nodes with it.",
    )
    record: Path = setting(
        Path("/var/lib/vitald-recover/slurm-reason"),
        read_path,
        "Where the last of these reasons are recorded. Without it a drained node counts as edited.",
    )
    hyperpod: bool = setting(
        False,
        read_flag,
        "Give nodes the state and reason that SageMaker HyperPod acts on: fail, Action:Reboot or"
        " Action:Replace.",
    )

    @property
    def prefix(self) -> str:
        """The beginning of every reason that we give a node."""
        return f"{self.reason}: "


SLURM = Section(name="slurm", settings=SlurmSettings, effect=TakesEffect.AT_ONCE)
