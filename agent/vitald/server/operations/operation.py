"""An operation of the API: method, path, parameters, body, answer and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vitald.server import schema


@dataclass(frozen=True, slots=True)
class Parameter:
    """Part of a path or a query. Only what is in the path must be given."""

    name: str
    place: Literal["path", "query"]
    description: str
    type: object
    example: object = None
    examples: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Body:
    """What a POST must say: JSON, with no other keys than these."""

    type: object
    description: str
    example: object


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered where all goes well. A stream is one JSON object a line, without an end."""

    type: object
    description: str
    example: object = None
    status: int = 200
    stream: bool = False
    headers: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is answered where it does not. `plain`: or in plain text."""

    name: str
    status: int
    description: str
    example: schema.Error
    plain: bool = False
    headers: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `problems`: beyond those that every operation of its method has."""

    name: str
    method: Literal["get", "post"]
    path: str
    tag: str
    summary: str
    answer: Answer
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    problems: tuple[Problem, ...] = ()
