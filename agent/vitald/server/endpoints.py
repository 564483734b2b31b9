"""
The endpoints of the API, one object each: the daemon's routes, the command line, the publisher,
`openapi.json` and docs/reference/api.md derive from it. The types are those of
vitald.server.schema; an operation's id in openapi.json is the name here, in camel case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitald.server.endpoint import (
    CHECK,
    CODE,
    COMPONENT,
    DRILLS,
    FINDING_CODE,
    FINDING_ID,
    KIND,
    LIMIT,
    NEWEST,
    NOT_ASKED,
    NOT_FOUND,
    NOT_RUNNABLE,
    NOT_SETTLED,
    NOTHING_RUNS,
    SINCE,
    STATE,
    WORK,
    Get,
    Post,
    Stream,
    describe_path,
)

if TYPE_CHECKING:
    from vitald.server import schema

SUMMARY_OF_API = "Can this node be trusted with work, and if not, what must be done to it?"
DESCRIPTION_OF_API = (
    "HTTP and JSON over a Unix socket: `curl --unix-socket /run/vitald/vitald.sock "
    "http://vitald/v1/status`.\n\n"
    "The kernel says who asks. Reading is for the socket's group, changing for root and the "
    "daemon's own user; the user of `vitald publish` may report its sinks and release the GPUs. "
    "Answers may gain fields within version 1, so ignore those that you do "
    "not know; a parameter or key that vitald does not know is refused. A request must be "
    "complete within 5 s; 128 clients may be connected at once."
)
TAGS = {
    "node": "The verdict.",
    "gpus": "What the driver reports of each GPU, and the release of GPUs.",
    "findings": "What is wrong.",
    "events": "What has happened, and what happens.",
    "catalogue": "What codes mean.",
    "diagnostics": "Programs that test the hardware.",
    "jobs": "The jobs on this node, as its scheduler reports them.",
    "drills": "Announced fault lines, marked as simulated.",
}
_PRIVILEGED = "For root and the daemon's own user."
_RECORDED = f"{_PRIVILEGED} Answered once it is stored, with user, time and reason."
_RELEASING = "For root, the daemon's own user and that of `[publish] user`"

# --- the node
HEALTHZ: Get[schema.Health] = Get(
    "/healthz",
    "node",
    "Does the daemon itself work?",
    "About the daemon only; the node's health is `/v1/status`.",
)
STATUS: Get[schema.NodeStatus] = Get(
    "/v1/status",
    "node",
    "Can this node be trusted with work, and if not, what must be done?",
    "The verdict, and all that it is computed from.",
    parameters=(WORK,),
)
SUMMARY: Get[schema.NodeSummary] = Get(
    "/v1/summary",
    "node",
    "The node's state in the words that other systems match, and which repairs are due now",
    "What publishers write to Kubernetes and others: without drills, and with a stable word for "
    "each fault. 503 for up to 10 s after a start, while the sources are read for the first time.",
    parameters=(DRILLS,),
)
COMPONENTS: Get[schema.Components] = Get(
    "/v1/components",
    "node",
    "What is watched, each with its own verdict, and what cannot be observed here",
    parameters=(COMPONENT,),
    problems=(NOT_FOUND,),
)
EXPECT: Get[schema.ApiExpected] = Get(
    "/v1/expect",
    "node",
    "What this node should have, where that comes from, and what is here",
    "Of each kind of device how many, and the versions that may run.",
)
CONFIRM: Post[schema.ConfirmRequest, schema.Confirmed] = Post(
    "/v1/expect/confirm",
    "node",
    "Confirm that what is here now is right",
    f"{_PRIVILEGED} What is here now is expected from now on, except for what the configuration "
    "sets, and for GPUs if NVML is used. User, time and reason are recorded in an event, "
    "`vitald/confirmed`. Findings about differing counts are closed at the next count.",
    problems=(NOT_SETTLED,),
)
RELOAD: Post[schema.ReloadRequest, schema.Reloaded] = Post(
    "/v1/reload",
    "node",
    "Read the configuration file again",
    f"{_PRIVILEGED} The body is an empty object. A file with a mistake is refused as a whole: see "
    "`errors`. Its keys that need no restart are in force before this is answered.",
)
REPORT_SINKS: Post[schema.ReportSinksRequest, schema.SinksReported] = Post(
    "/v1/publishers",
    "node",
    "Report how the sinks of `vitald publish` fare",
    "For root, the daemon's own user and the user that `[publish] user` names. Sent by `vitald "
    "publish` every 15 s, with all of its sinks; `/v1/status` and the metrics show it. It is kept "
    "in memory, and takes the place of the report before.",
)

# --- GPUs
GPUS: Get[schema.Gpus] = Get(
    "/v1/gpus",
    "gpus",
    "Each GPU: its identity, its status and its readings",
    "Every GPU that PCI shows, that the driver reported, or that has an open finding, ordered by "
    "address. From memory: no call into the driver is made for this.",
)
RELEASE: Post[schema.ReleaseRequest, schema.Released] = Post(
    "/v1/release",
    "gpus",
    "Release the GPUs for a while, so that they can be reset",
    f"{_RELEASING}, for driver upgrades. Answers once vitald does not hold the devices any more, "
    "or it is known which process does. Until the time is over, or `/v1/release/end`, the source "
    "`nvml` is `released`, and a node that would be healthy is `unknown`; then the GPUs are read "
    "again.",
    problems=(NOT_FOUND, NOT_ASKED),
)
END_RELEASE: Post[schema.EndReleaseRequest, schema.ReleaseEnded] = Post(
    "/v1/release/end",
    "gpus",
    "Take everything back now",
    f"{_RELEASING}. Ends all releases, or those with this reason.",
    problems=(NOT_ASKED,),
)

# --- diagnostics
DIAGNOSTICS: Get[schema.ApiDiagnostics] = Get(
    "/v1/diagnostics", "diagnostics", "What can be run here, what runs, what comes next"
)
DIAGNOSTIC_RUNS: Get[schema.DiagnosticRuns] = Get(
    "/v1/diagnostics/runs",
    "diagnostics",
    "Runs that have ended, the newest first",
    parameters=(LIMIT, CHECK),
    problems=(NOT_FOUND,),
)
DIAGNOSTIC_RUN: Get[schema.DiagnosticRunInFull] = Get(
    "/v1/diagnostics/runs/{id}",
    "diagnostics",
    "One run in full, with what was printed",
    parameters=(
        describe_path(
            "id",
            "The run's id.",
            {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$"},
            "20261120T114808-2-dcgm-1",
        ),
    ),
    problems=(NOT_FOUND,),
)
RUN_DIAGNOSTIC: Post[schema.RunDiagnosticRequest, schema.OneActiveDiagnostic] = Post(
    "/v1/diagnostics/run",
    "diagnostics",
    "Request a run",
    f"{_PRIVILEGED} Answers at once: the run begins when its turn comes and, if it needs idle "
    "devices, once they are idle. Levels 3 and 4 load every GPU fully, for half an hour and up to "
    "two hours. Its results are reported as events and findings.",
    problems=(NOT_FOUND, NOT_RUNNABLE),
    status=202,
)
CANCEL_DIAGNOSTIC: Post[schema.CancelDiagnosticRequest, schema.OneActiveDiagnostic] = Post(
    "/v1/diagnostics/cancel",
    "diagnostics",
    "End a run, or take it out of the queue",
    f"{_PRIVILEGED} Answers at once; the run's programs get a few seconds to end by themselves.",
    problems=(NOTHING_RUNS,),
)

# --- jobs
JOBS: Get[schema.ApiJobs] = Get(
    "/v1/jobs",
    "jobs",
    "The jobs on this node",
    "What runs, and what ended within a day, the latest first; what was near an incident that is "
    "open is kept for longer.",
    parameters=(LIMIT,),
)
REPORT_JOB: Post[schema.ReportJobRequest, schema.JobReported] = Post(
    "/v1/jobs",
    "jobs",
    "A job begins, or has ended",
    f"{_PRIVILEGED} Called by a scheduler's prolog and epilog; answered once it is stored. `begin` "
    "is answered once no diagnostic holds the devices any more, after about 2 s at most. Each is "
    "an event (`job/began`, `job/ended`, `job/died`). The end of a job whose begin was not "
    "reported is recorded only if it failed: Slurm calls the epilog of a job that the prolog "
    "refused, too.",
)
REPORT_SCHEDULER: Post[schema.SchedulerRequest, schema.SchedulerReported] = Post(
    "/v1/scheduler",
    "jobs",
    "A scheduler has drained the node, or has it in service again",
    f"{_PRIVILEGED} Called by Slurm's prolog and health check. It changes no verdict; the metric "
    "`vitald_incident_step_seconds` shows when. Repeating it changes nothing.",
)

# --- findings
FINDINGS: Get[schema.Findings] = Get(
    "/v1/findings",
    "findings",
    "What is wrong now, or was",
    parameters=(STATE, LIMIT, COMPONENT, FINDING_CODE),
    problems=(NOT_FOUND,),
)
CLEAR: Post[schema.ClearRequest, schema.OneFinding] = Post(
    "/v1/findings/{id}/clear",
    "findings",
    "Close a finding, with a reason",
    f"{_RECORDED} An old line does not open the finding again.",
    parameters=(FINDING_ID,),
    problems=(NOT_FOUND,),
)
ACCEPT: Post[schema.AcceptRequest, schema.OneFinding] = Post(
    "/v1/findings/{id}/accept",
    "findings",
    "Accept a finding for a time",
    f"{_RECORDED} The finding stays open and shown; it affects neither fitness nor flags until its "
    "time is over, or until it requires more. 0 seconds end an earlier acceptance.",
    parameters=(FINDING_ID,),
    problems=(NOT_FOUND,),
)
REMEDY: Post[schema.RemedyRequest, schema.OneFinding] = Post(
    "/v1/findings/{id}/remedy",
    "findings",
    "Record that the required action of a finding has begun",
    f"{_RECORDED} The finding stays open, as `in_remedy`, until evidence shows that the remedy "
    "worked.",
    parameters=(FINDING_ID,),
    problems=(NOT_FOUND,),
)
WHY: Get[schema.Why] = Get(
    "/v1/findings/{id}/why",
    "findings",
    "The chain of a finding, from the raw lines to the flags",
    "Of an open finding, or a cleared one that the ledger still keeps.",
    parameters=(FINDING_ID,),
    problems=(NOT_FOUND,),
)
INCIDENTS: Get[schema.Incidents] = Get(
    "/v1/incidents",
    "findings",
    "Incidents: root causes with their consequences",
    "The open ones, the strongest first. Then those that are over, the youngest first, as long as "
    "a late line could still join them.",
    parameters=(LIMIT,),
)

# --- events
EVENTS: Get[schema.Events] = Get(
    "/v1/events",
    "events",
    "What has happened",
    "From the ledger, oldest first. While the ledger cannot be read, the last thousand come from "
    "memory.",
    parameters=(SINCE, LIMIT, COMPONENT, CODE, KIND, NEWEST),
    problems=(NOT_FOUND,),
)
TRANSITIONS: Get[schema.Transitions] = Get(
    "/v1/transitions",
    "events",
    "How findings changed",
    "From the ledger, oldest first, with drills. An id does not appear after a "
    "higher one, so a client that keeps the last id misses nothing.",
    parameters=(SINCE, LIMIT, COMPONENT, CODE, KIND, NEWEST),
    problems=(NOT_FOUND,),
)
WATCH: Stream[schema.WatchLine] = Stream(
    "/v1/watch",
    "events",
    "A stream of what happens",
    "Without an end: one JSON object a line, each a `WatchLine`; the verdict comes first. A client "
    "that reads too slowly gets the line `lagged`, and its connection is closed: what it missed is "
    "in `/v1/events`.",
)

# --- the catalogue
RULE: Get[schema.ApiRule] = Get(
    "/v1/rules/{kind}/{code}",
    "catalogue",
    "What a code means",
    "A code that is not listed gets the default of its kind; its `known` is false.",
    parameters=(
        describe_path("kind", "Kind of the fault.", {"type": "string", "minLength": 1}, "xid"),
        describe_path("code", "Its code.", {"type": "string", "minLength": 1}, "79"),
    ),
    problems=(NOT_FOUND,),
)

# --- drills
ANNOUNCE: Post[schema.AnnounceRequest, schema.AnnouncedDrill] = Post(
    "/v1/drills",
    "drills",
    "Announce a drill",
    f"{_PRIVILEGED} The next record with exactly this text, to be written within the window, is "
    "taken once, although a process wrote it, and everything that it causes is marked as "
    "simulated. `vitald drill` does both steps.",
    status=201,
)
DRILL: Get[schema.Drill] = Get(
    "/v1/drills/{id}",
    "drills",
    "How a drill goes",
    parameters=(
        describe_path(
            "id",
            "The drill's number.",
            {"type": "string", "pattern": "^[0-9a-f]{12}$"},
            "e7670eded13c",
        ),
    ),
    problems=(NOT_FOUND,),
)

# --- the description of the API
OPENAPI: Get[schema.Document] = Get("/v1/openapi.json", "node", "This document")
