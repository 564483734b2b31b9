"""Advice to the jobs of this node: in `/v1/status`, `/v1/watch` and `POST /v1/advice`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from vitald.model.advice import ADVICE_ACTIONS, MAX_ANNOUNCED_S, MIN_ANNOUNCED_S
from vitald.server.schema.values import Keywords, Moment, When, _Positive, _Reason


class ApiAdvice(TypedDict):
    """Whether jobs on this node are advised to save a checkpoint now. It changes no verdict, and
    nothing is forced. The other keys are empty or null if they are not."""

    save: bool
    why: str
    """The fault, or the reason that a person gave."""
    action: Annotated[str, Keywords(enum=ADVICE_ACTIONS)] | None
    """What follows: a repair, `interruption` (the cloud provider interrupts the instance), or
    `announced` (what a person announced)."""
    when: When | None
    by: Moment | None
    """When it follows at the earliest, if that is known."""
    finding: _Positive | None
    """The finding that is the reason, if one is."""


class _OptionalAdviseRequest(TypedDict, total=False):
    seconds: Annotated[float, Keywords(minimum=MIN_ANNOUNCED_S, maximum=MAX_ANNOUNCED_S)]
    """For how long, 20 minutes by default: it ends by itself. Without effect for `none`."""


class AdviseRequest(_OptionalAdviseRequest):
    advice: Literal["save", "none"]
    """`none` ends what was announced; advice for another reason stays."""
    reason: _Reason
    """Jobs get it with the advice."""


class Advised(TypedDict):
    """The advice after a request."""

    changed: bool
    """False for `none` where nothing was announced."""
    advice: ApiAdvice
    """The present advice, which may have a stronger reason."""
