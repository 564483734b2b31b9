"""`[nvhcd]` of the configuration: keys, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.settings import one_of, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NvhcdSettings:
    """What `vitald nvhcd` answers NVIDIA's ft_launcher, which asks it whether this node may take
    part in a job (docs/nvrx.md).
    """

    unknown: str = setting(
        "allow",
        one_of("allow", "refuse"),
        "A node whose state is unknown, for example while vitald is stopped: it may take part, or"
        " not.",
    )
