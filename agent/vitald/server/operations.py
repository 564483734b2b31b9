"""
The operations of the API: what may be asked where, how it is answered and what may go wrong. The
types are in `schema`. Only the tool that writes openapi.json loads this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Union

from vitald.server import examples, schema

SUMMARY = "Can this node be trusted with work, and if not, what must be done to it?"
DESCRIPTION = (
    "HTTP and JSON over a Unix socket: `curl --unix-socket /run/vitald/vitald.sock "
    "http://vitald/v1/status`.\n\n"
    "The kernel says who asks. Reading is for the socket's group, changing for root and the "
    "daemon's own user. Answers may gain fields within version 1, so ignore those that you do "
    "not know; a parameter or key that vitald does not know is refused. A request must be "
    "complete within 5 s; 128 clients may be connected at once."
)
SERVER = "http://vitald"
SERVER_DESCRIPTION = "Behind /run/vitald/vitald.sock; the host name does not matter."
TAGS = {
    "node": "The verdict.",
    "gpus": "What the driver says of each GPU, and letting go of them.",
    "findings": "What is wrong.",
    "events": "What has happened, and what happens.",
    "catalogue": "What codes mean.",
    "diagnostics": "Programs that test the hardware.",
    "jobs": "The work on this node, as its scheduler tells of it.",
    "drills": "Faults made on purpose, and marked as such.",
}


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


_SINCE: object = Union[
    Annotated[str, schema.Keywords(title="id", pattern=r"^[0-9]{1,15}$")],
    Annotated[
        str, schema.Keywords(title="duration", pattern=r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)$")
    ],
    Annotated[
        str,
        schema.Keywords(
            title="time",
            pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
            r"([Zz]|[+-][0-9]{2}:[0-9]{2})$",
        ),
    ],
]
FINDING_ID = Parameter(
    "id",
    "path",
    "The finding's number.",
    Annotated[int, schema.Keywords(minimum=0, maximum=999999999999999)],
    example=7,
)
WORK = Parameter(
    "for",
    "query",
    (
        "What the answer is for: a job that is about to begin, one that has ended, or the one "
        "that runs. What may wait for the running job (`after_job`) is due before and after "
        "it."
    ),
    Annotated[Literal["prolog", "epilog", "running"], schema.Keywords(default="running")],
    example="prolog",
)
LIMIT = Parameter(
    "limit",
    "query",
    "At most so many.",
    Annotated[int, schema.Keywords(minimum=1, maximum=1000, default=100)],
)
COMPONENT = Parameter(
    "component", "query", "Of this component only.", str, example="gpu/0000:65:00.0"
)
KIND = Parameter("kind", "query", "Of this kind only.", str, example="xid")
CODE = Parameter(
    "code",
    "query",
    "Of this code only, written kind/code.",
    Annotated[str, schema.Keywords(pattern="/")],
    example="xid/79",
)
SINCE = Parameter(
    "since",
    "query",
    (
        "After the event with this id (what `next` gives), from an RFC 3339 time on, or for "
        "so long back from now (`90s`, `30m`, `24h`, `7d`)."
    ),
    _SINCE,
    examples={"id": "41", "duration": "30m", "time": "2026-11-20T13:00:00Z"},
)
NEWEST = Parameter(
    "newest",
    "query",
    ("The last `limit` events instead of the first; they still come oldest first."),
    Annotated[bool, schema.Keywords(default=False)],
)
STATE = Parameter(
    "state",
    "query",
    (
        "The open ones (those in remedy too), the strongest first; or the cleared ones, the "
        "last cleared first."
    ),
    Annotated[Literal["open", "cleared"], schema.Keywords(default="open")],
)
BAD_REQUEST = Problem(
    "BadRequest",
    400,
    (
        "A parameter or the body is wrong; the text says which and how. What is not HTTP at "
        "all, or a header above 8 KiB, is told so in plain text."
    ),
    {"error": "limit: expected a number from 1 to 1000, found '0'"},
    plain=True,
)
MAY_NOT_READ = Problem(
    "MayNotRead",
    403,
    "Neither root, nor the daemon's own user, nor in the socket's group.",
    {"error": "uid 1000 may not read", "hint": "be a member of the socket's group, or root"},
)
MAY_NOT_CHANGE = Problem(
    "MayNotChange",
    403,
    "Only root and the daemon's own user may change anything.",
    {
        "error": "uid 1000 may not change anything",
        "hint": "only root and the daemon's own user may",
    },
)
NOT_FOUND = Problem(
    "NotFound",
    404,
    "There is no such thing.",
    {"error": "no open finding 7", "hint": "vitald findings shows the open ones"},
)
METHOD_NOT_ALLOWED = Problem(
    "MethodNotAllowed",
    405,
    "Not with this method.",
    {"error": "Method Not Allowed", "hint": "see /v1/openapi.json"},
    headers={
        "Allow": {
            "description": "The methods that are.",
            "required": True,
            "schema": {"type": "string"},
        }
    },
)
SLOW = Problem(
    "Slow", 408, "The body did not come within 5 s.", {"error": "the body did not come within 5 s"}
)
NOT_ASKED = Problem(
    "NotAsked",
    409,
    ("NVML is not asked on this node, or it has no GPU on PCI, so nothing of vitald's holds one."),
    {
        "error": "NVML is not asked on this node",
        "hint": "[nvml] enabled = false: nothing of ours holds a GPU",
    },
)
NOT_RUNNABLE = Problem(
    "NotRunnable",
    409,
    (
        "It cannot run here, or not now: its program is not installed, the GPUs are released, "
        "it was asked for already."
    ),
    {"error": "dcgm level 2 is waiting already, asked by schedule", "hint": "vitald diag list"},
)
NOTHING_RUNS = Problem(
    "NothingRuns",
    409,
    "No such run runs or waits.",
    {"error": "no diagnostic runs", "hint": "vitald diag list shows what does"},
)
NOT_SETTLED = Problem(
    "NotSettled",
    409,
    ("The counts have not been the same for long enough, or the configuration says them all."),
    {
        "error": "nothing has been counted yet",
        "hint": "try again in a few minutes; vitald expect shows what is counted",
    },
)
TOO_LARGE = Problem(
    "TooLarge", 413, "The body is larger than 16 KiB.", {"error": "Request Entity Too Large"}
)
BROKEN = Problem(
    "Broken",
    500,
    "A mistake of vitald's. Its log says which; please report it.",
    {"error": "vitald failed to answer", "hint": "its log says why; please report it"},
)
UNAVAILABLE = Problem(
    "Unavailable",
    503,
    (
        "Too many clients (128) or watchers (32), the ledger cannot be read, the judge is "
        "stuck, or the GPUs could not be let go of within 10 s."
    ),
    {"error": "too many clients", "hint": "128 at once; try again later"},
)

_ALWAYS = (BAD_REQUEST, METHOD_NOT_ALLOWED, BROKEN, UNAVAILABLE)
# By method: whatever is changed has a body.
PROBLEMS = {
    "get": (*_ALWAYS, MAY_NOT_READ),
    "post": (*_ALWAYS, MAY_NOT_CHANGE, SLOW, TOO_LARGE),
}


OPERATIONS = (
    Operation(
        "healthz",
        "get",
        "/healthz",
        "node",
        "Does the daemon itself work?",
        description="About the daemon only; the node's health is `/v1/status`.",
        answer=Answer(schema.Health, "It works.", examples.HEALTHZ),
    ),
    Operation(
        "status",
        "get",
        "/v1/status",
        "node",
        "Can this node be trusted with work, and if not, what must be done?",
        parameters=(WORK,),
        answer=Answer(schema.NodeStatus, "The verdict, and all that it rests on.", examples.STATUS),
    ),
    Operation(
        "components",
        "get",
        "/v1/components",
        "node",
        ("What is watched, each with its own verdict, and what cannot be observed here"),
        answer=Answer(schema.Components, "The components.", examples.COMPONENTS),
    ),
    Operation(
        "expect",
        "get",
        "/v1/expect",
        "node",
        "What this node should have, who says so, and what is here",
        answer=Answer(
            schema.Expected,
            "Of each kind of device how many, and the versions that may run.",
            examples.EXPECT,
        ),
    ),
    Operation(
        "confirm",
        "post",
        "/v1/expect/confirm",
        "node",
        "Say that what is here now is right",
        description=(
            "For root and the daemon's own user. What is here now is expected from now on, but "
            "for what the configuration says and for GPUs where NVML is asked. Who said it, when "
            "and why is an event, `vitald/confirmed`. What was told of a count that differed ends "
            "at the next look."
        ),
        body=Body(schema.ConfirmRequest, "Why it is right.", examples.CONFIRM_REQUEST),
        answer=Answer(schema.Confirmed, "Expected from now on.", examples.CONFIRM),
        problems=(NOT_SETTLED,),
    ),
    Operation(
        "gpus",
        "get",
        "/v1/gpus",
        "gpus",
        "Each GPU: who it is, how it is, what the driver says of it",
        description=(
            "Every GPU that PCI shows, that the driver told of, or that has an open finding, "
            "ordered by address. From memory: no call into the driver is made for this."
        ),
        answer=Answer(schema.Gpus, "The GPUs.", examples.GPUS),
    ),
    Operation(
        "release",
        "post",
        "/v1/release",
        "gpus",
        "Let go of the GPUs for a while, so that somebody can reset them",
        description=(
            "For root and the daemon's own user. Answers once nothing of vitald's holds the "
            "devices, or it is known what does. Until the time is over, or `/v1/release/end`, the "
            "source `nvml` is `released`, and a node that would be fit is `unknown`; then they "
            "are looked at again."
        ),
        body=Body(
            schema.ReleaseRequest, "What for, for how long, and which.", examples.RELEASE_REQUEST
        ),
        answer=Answer(schema.Released, "Let go of.", examples.RELEASE),
        problems=(
            NOT_FOUND,
            NOT_ASKED,
        ),
    ),
    Operation(
        "endRelease",
        "post",
        "/v1/release/end",
        "gpus",
        "Take everything back now",
        description="For root and the daemon's own user. Ends every release that runs.",
        body=Body(schema.EndReleaseRequest, "An empty object.", examples.END_RELEASE_REQUEST),
        answer=Answer(schema.ReleaseEnded, "Taken back.", examples.END_RELEASE),
        problems=(NOT_ASKED,),
    ),
    Operation(
        "diagnostics",
        "get",
        "/v1/diagnostics",
        "diagnostics",
        "What can be run here, what runs, what comes next",
        answer=Answer(
            schema.Diagnostics,
            "The checks, the runs under way, and the last ones.",
            examples.DIAGNOSTICS,
        ),
    ),
    Operation(
        "diagnosticRuns",
        "get",
        "/v1/diagnostics/runs",
        "diagnostics",
        "Runs that have ended, the newest first",
        parameters=(
            LIMIT,
            Parameter("check", "query", "Only of this check.", str, example="dcgm"),
        ),
        answer=Answer(schema.DiagnosticRuns, "The runs.", examples.DIAGNOSTIC_RUNS),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "diagnosticRun",
        "get",
        "/v1/diagnostics/runs/{id}",
        "diagnostics",
        "One run in full, with what was printed",
        parameters=(
            Parameter(
                "id",
                "path",
                "The run's id.",
                Annotated[str, schema.Keywords(pattern="^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$")],
                example="20261120T114808-2-dcgm-1",
            ),
        ),
        answer=Answer(schema.DiagnosticRunInFull, "The run.", examples.DIAGNOSTIC_RUN),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "runDiagnostic",
        "post",
        "/v1/diagnostics/run",
        "diagnostics",
        "Ask for a run",
        description=(
            "For root and the daemon's own user. Answers at once: the run begins when its turn "
            "comes and, where it needs them idle, when nobody uses the devices. Levels 3 and 4 "
            "load every GPU fully, for half an hour and up to two hours. What it finds comes as "
            "events and findings."
        ),
        body=Body(
            schema.RunDiagnosticRequest,
            "What to run, on what, and what for.",
            examples.RUN_DIAGNOSTIC_REQUEST,
        ),
        answer=Answer(schema.OneGoing, "Asked for.", examples.RUN_DIAGNOSTIC, status=202),
        problems=(
            NOT_FOUND,
            NOT_RUNNABLE,
        ),
    ),
    Operation(
        "cancelDiagnostic",
        "post",
        "/v1/diagnostics/cancel",
        "diagnostics",
        "End a run, or take it out of the queue",
        description=(
            "For root and the daemon's own user. Answers at once; the run's programs get a few "
            "seconds to end by themselves."
        ),
        body=Body(
            schema.CancelDiagnosticRequest, "Which, and why.", examples.CANCEL_DIAGNOSTIC_REQUEST
        ),
        answer=Answer(schema.OneGoing, "Told to end.", examples.CANCEL_DIAGNOSTIC),
        problems=(NOTHING_RUNS,),
    ),
    Operation(
        "jobs",
        "get",
        "/v1/jobs",
        "jobs",
        "The work on this node",
        description=(
            "What runs, and what ended within a day; what was near an incident that is open is "
            "kept for longer."
        ),
        parameters=(LIMIT,),
        answer=Answer(schema.Jobs, "The latest first.", examples.JOBS),
    ),
    Operation(
        "tellJob",
        "post",
        "/v1/jobs",
        "jobs",
        "A job begins, or has ended",
        description=(
            "For root and the daemon's own user: a scheduler's prolog and epilog. `begin` is "
            "answered once no diagnostic holds the devices any more, after about 2 s at most. "
            "Each is an event (`job/began`, `job/ended`, `job/died`). The end of a job that "
            "nobody said began here is noted only where it failed: Slurm calls the epilog of a "
            "job that the prolog refused, too."
        ),
        body=Body(schema.TellJobRequest, "Which job, and how it ended.", examples.TELL_JOB_REQUEST),
        answer=Answer(schema.JobTold, "It is known, and stored.", examples.TELL_JOB),
    ),
    Operation(
        "findings",
        "get",
        "/v1/findings",
        "findings",
        "What is wrong now, or was",
        parameters=(
            STATE,
            LIMIT,
            COMPONENT,
            Parameter(
                "code", "query", "Of this code only, written kind/code.", str, example="xid/79"
            ),
        ),
        answer=Answer(schema.Findings, "The findings.", examples.FINDINGS),
    ),
    Operation(
        "clear",
        "post",
        "/v1/findings/{id}/clear",
        "findings",
        "Close a finding, with a reason",
        description=(
            "For root and the daemon's own user. Who, when and why is kept. The finding does not "
            "come back from an old line."
        ),
        parameters=(FINDING_ID,),
        body=Body(schema.ClearRequest, "Why it is no longer true.", examples.CLEAR_REQUEST),
        answer=Answer(schema.OneFinding, "Closed, and stored.", examples.CLEAR),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "accept",
        "post",
        "/v1/findings/{id}/accept",
        "findings",
        "Live with a finding for a time",
        description=(
            "For root and the daemon's own user. Who, when and why is kept. The finding stays "
            "open and shown; it changes neither fitness nor flags until its time is over, or "
            "until it asks for more. 0 seconds end what was accepted before."
        ),
        parameters=(FINDING_ID,),
        body=Body(schema.AcceptRequest, "For how long, and why.", examples.ACCEPT_REQUEST),
        answer=Answer(schema.OneFinding, "Accepted, and stored.", examples.ACCEPT),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "remedy",
        "post",
        "/v1/findings/{id}/remedy",
        "findings",
        "Say that what a finding asks for has begun",
        description=(
            "For root and the daemon's own user. Who, when and why is kept. The finding stands, "
            "as `in_remedy`, until the evidence says that the remedy held."
        ),
        parameters=(FINDING_ID,),
        body=Body(schema.RemedyRequest, "What is being done.", examples.REMEDY_REQUEST),
        answer=Answer(schema.OneFinding, "Begun, and stored.", examples.REMEDY),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "why",
        "get",
        "/v1/findings/{id}/why",
        "findings",
        "How a finding came to be, from the raw lines to the flags",
        description=(
            "Of an open finding, one of a rule on trial, or a cleared one that the ledger still "
            "keeps."
        ),
        parameters=(FINDING_ID,),
        answer=Answer(schema.Why, "The chain.", examples.WHY),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "incidents",
        "get",
        "/v1/incidents",
        "findings",
        "The stories: causes with their consequences",
        description=(
            "The open ones, the strongest first. Then those that are over, the youngest first, as "
            "long as a late line could still join them."
        ),
        parameters=(LIMIT,),
        answer=Answer(schema.Incidents, "The incidents.", examples.INCIDENTS),
    ),
    Operation(
        "events",
        "get",
        "/v1/events",
        "events",
        "What has happened",
        description=(
            "From the ledger, oldest first. While the ledger cannot be read, the last thousand "
            "come from memory."
        ),
        parameters=(
            SINCE,
            LIMIT,
            COMPONENT,
            CODE,
            KIND,
            NEWEST,
        ),
        answer=Answer(schema.Events, "A page of events.", examples.EVENTS),
    ),
    Operation(
        "watch",
        "get",
        "/v1/watch",
        "events",
        "What happens, as it happens",
        description=(
            "A client that reads too slowly is told `lagged` and closed: what it missed is in "
            "`/v1/events`."
        ),
        answer=Answer(
            schema.WatchLine,
            (
                "A stream without an end: one JSON object a line, each a `WatchLine`. The verdict "
                "comes first."
            ),
            examples.WATCH,
            stream=True,
            headers={
                "Cache-Control": {
                    "description": "It is not to be kept.",
                    "schema": {"const": "no-store"},
                }
            },
        ),
    ),
    Operation(
        "rule",
        "get",
        "/v1/rules/{kind}/{code}",
        "catalogue",
        "What a code means",
        description=("A code that is not listed is answered too: unknown is said, never dropped."),
        parameters=(
            Parameter(
                "kind",
                "path",
                "Kind of the fault.",
                Annotated[str, schema.Keywords(min_length=1)],
                example="xid",
            ),
            Parameter(
                "code",
                "path",
                "Its code.",
                Annotated[str, schema.Keywords(min_length=1)],
                example="79",
            ),
        ),
        answer=Answer(schema.Rule, "The catalogue's entry, or its kind's default.", examples.RULE),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "announce",
        "post",
        "/v1/injections",
        "drills",
        "Announce a drill",
        description=(
            "For root and the daemon's own user. The next record with exactly this text is taken "
            "once, although a process wrote it, and everything that it causes is marked as "
            "simulated. `vitald inject` does both steps."
        ),
        body=Body(schema.AnnounceRequest, "The line to expect.", examples.ANNOUNCE_REQUEST),
        answer=Answer(
            schema.AnnouncedDrill,
            "Announced: now write the line, within the window.",
            examples.ANNOUNCE,
            status=201,
        ),
    ),
    Operation(
        "drill",
        "get",
        "/v1/injections/{id}",
        "drills",
        "How a drill goes",
        parameters=(
            Parameter(
                "id",
                "path",
                "The drill's number.",
                Annotated[str, schema.Keywords(pattern="^[0-9a-f]{12}$")],
                example="e7670eded13c",
            ),
        ),
        answer=Answer(schema.Drill, "The drill.", examples.DRILL),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "openapi",
        "get",
        "/v1/openapi.json",
        "node",
        "This document",
        answer=Answer(schema._Document, "This document."),
    ),
)
