"""
What an endpoint of the API consists of: method, path, parameters, the types of its body and answer,
and the errors that it may answer with. The endpoints are in vitald/server/endpoints.py.

Cheap to import: every command, the daemon and the publisher do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from vitald.model.words import WorkPhase

Json = dict[str, object]
PAGE, MAX_PAGE = 100, 1000  # entries in one answer: without `limit`, and at most
Body = TypeVar("Body", contravariant=True)
Answer = TypeVar("Answer", covariant=True)


class Problem:
    """An error answer, as openapi.json describes it. `plain`: in plain text, too."""

    __slots__ = ("description", "example", "headers", "name", "plain", "status")

    def __init__(
        self,
        name: str,
        status: int,
        description: str,
        error: str,
        hint: str = "",
        *,
        plain: bool = False,
        headers: Mapping[str, object] | None = None,
    ) -> None:
        self.name, self.status, self.description = name, status, description
        self.example = {"error": error, "hint": hint} if hint else {"error": error}
        self.plain, self.headers = plain, headers or {}


def _describe_query(name: str, description: str, schema: Json, **more: object) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema, **more}


def describe_path(name: str, description: str, schema: Json, example: object) -> Json:
    """A parameter that is part of the path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
        "example": example,
    }


_SWITCH: Json = {"type": "boolean", "default": False}
FINDING_ID = describe_path(
    "id",
    "The finding's number.",
    {"type": "integer", "minimum": 0, "maximum": 999999999999999},
    7,
)
WORK = _describe_query(
    "for",
    "What the answer is for: a job that is about to begin, one that has ended, or the one that "
    "runs. What may wait for the running job (`after_job`) is due before and after it.",
    {
        "type": "string",
        "enum": [phase.value for phase in WorkPhase],
        "default": WorkPhase.RUNNING.value,
    },
    example="prolog",
)
DRILLS = _describe_query("drills", "Simulated findings count as real and confirmed ones.", _SWITCH)
LIMIT = _describe_query(
    "limit",
    "At most so many.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE},
)
COMPONENT = _describe_query(
    "component",
    "Of this component only, by any name of its device: index, serial number, UUID, slot, PCI "
    "address, interface.",
    {"type": "string"},
    example="gpu/0000:65:00.0",
)
CHECK = _describe_query("check", "Only of this check.", {"type": "string"}, example="dcgm")
KIND = _describe_query("kind", "Of this kind only.", {"type": "string"}, example="xid")
CODE = _describe_query(
    "code",
    "Of this code only, written kind/code.",
    {"type": "string", "pattern": "/"},
    example="xid/79",
)
SINCE = _describe_query(
    "since",
    "After the one with this id (the value of `next`), from an RFC 3339 time on, or within this "
    "time before now (`90s`, `30m`, `24h`, `7d`).",
    {
        "type": "string",
        "anyOf": [
            {"title": "id", "pattern": r"^[0-9]{1,15}$"},
            {"title": "duration", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)$"},
            {
                "title": "time",
                "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
                r"([Zz]|[+-][0-9]{2}:[0-9]{2})$",
            },
        ],
    },
    examples={
        "id": {"value": "41"},
        "duration": {"value": "30m"},
        "time": {"value": "2026-11-20T13:00:00Z"},
    },
)
FINDING_CODE: Json = {**CODE, "schema": {"type": "string"}}
NEWEST = _describe_query(
    "newest", "The last `limit` instead of the first; they still come oldest first.", _SWITCH
)
STATE = _describe_query(
    "state",
    "The open ones (those in remedy too), the strongest first; or the cleared ones, the last "
    "cleared first.",
    {"type": "string", "enum": ["open", "cleared"], "default": "open"},
)

NOT_FOUND = Problem(
    "NotFound",
    404,
    "There is no such thing.",
    "no open finding 7",
    "vitald findings shows the open ones",
)
NOT_ASKED = Problem(
    "NotAsked",
    409,
    "NVML is not used on this node, or it has no GPU on PCI: vitald holds no GPU.",
    "NVML is not asked on this node",
    "[nvml] enabled = false: nothing of ours holds a GPU",
)
NOT_RUNNABLE = Problem(
    "NotRunnable",
    409,
    "It cannot run here, or not now: its program is not installed, the GPUs are released, it was "
    "requested already.",
    "dcgm level 2 is waiting already, requested by schedule",
    "vitald diag list",
)
NOTHING_RUNS = Problem(
    "NothingRuns",
    409,
    "No such run runs or waits.",
    "no diagnostic runs",
    "vitald diag list shows what does",
)
NOT_SETTLED = Problem(
    "NotSettled",
    409,
    "The counts have not been equal for long enough, or the configuration sets all of them.",
    "nothing has been counted yet",
    "try again in a few minutes; vitald expect shows what is counted",
)
_ALLOW = {
    "description": "The methods that it has.",
    "required": True,
    "schema": {"type": "string"},
}
_ALWAYS: tuple[Problem, ...] = (
    Problem(
        "BadRequest",
        400,
        "A parameter or the body is wrong; the text names it and the mistake. What is not HTTP at "
        "all, or a header above 8 KiB, gets an answer in plain text.",
        "limit: expected a number from 1 to 1000, found '0'",
        plain=True,
    ),
    Problem(
        "MethodNotAllowed",
        405,
        "The path does not have this method.",
        "Method Not Allowed",
        "see /v1/openapi.json",
        headers={"Allow": _ALLOW},
    ),
    Problem(
        "Broken",
        500,
        "A defect of vitald: see its log, and please report it.",
        "vitald failed to answer",
        "its log says why; please report it",
    ),
    Problem(
        "Unavailable",
        503,
        "Too many clients (128) or watchers (32), the ledger cannot be read, the judge is stuck, "
        "the first reading is not complete, or the GPUs could not be released within 10 s.",
        "too many clients",
        "128 at once; try again later",
    ),
)
_MAY_NOT_READ = Problem(
    "MayNotRead",
    403,
    "Neither root, nor the daemon's own user, nor in the socket's group.",
    "uid 1000 may not read",
    "join the socket's group, or run this as root",
)
_REFUSED_CHANGES = (
    Problem(
        "MayNotChange",
        403,
        "Only root and the daemon's own user may change anything, and that of `vitald publish` "
        "what its operation says.",
        "uid 1000 may not change anything",
        "only root and the daemon's own user may",
    ),
    Problem(
        "Slow",
        408,
        "The body did not come within 5 s.",
        "the body did not come within 5 s",
    ),
    Problem("TooLarge", 413, "The body is larger than 16 KiB.", "Request Entity Too Large"),
)


class Endpoint(Generic[Answer]):
    """A method of a path, and the type of its answer (of vitald.server.schema). `parameters`:
    parameter objects of OpenAPI. `problems`: beside those of its method.
    """

    __slots__ = ("description", "parameters", "path", "problems", "status", "summary", "tag")
    method = ""
    usual_problems = _ALWAYS

    def __init__(
        self,
        path: str,
        tag: str,
        summary: str,
        description: str = "",
        *,
        parameters: tuple[Json, ...] = (),
        problems: tuple[Problem, ...] = (),
        status: int = 200,
    ) -> None:
        self.path, self.tag, self.summary, self.description = path, tag, summary, description
        self.parameters, self.problems, self.status = parameters, problems, status

    def make_target(self, values: Mapping[str, object]) -> str:
        """Path and query with these values; None is left out. Raises KeyError if the path lacks
        one.
        """
        path = self.path.format_map({name: quote(str(values[name]), safe="") for name in values})
        query = {
            name: value
            for name, value in values.items()
            if value is not None and f"{{{name}}}" not in self.path
        }
        return f"{path}?{urlencode(query)}" if query else path


class Get(Endpoint[Answer]):
    """Reads, and changes nothing."""

    __slots__ = ()
    method = "GET"
    usual_problems = (*_ALWAYS, _MAY_NOT_READ)


class Stream(Get[Answer]):
    """Answers without an end: one JSON object a line."""

    __slots__ = ()


class Post(Endpoint[Answer], Generic[Body, Answer]):
    """Changes something. Has a JSON body, without other keys than those of its type."""

    __slots__ = ()
    method = "POST"
    usual_problems = (*_ALWAYS, *_REFUSED_CHANGES)
