"""
The operations of the API: routes, parameters, answers and problems. The types are in `schema`. Only
the tool that writes openapi.json imports this package.
"""

from __future__ import annotations

from vitald.server.operations import (
    advice,
    catalogue,
    diagnostics,
    document,
    drills,
    events,
    findings,
    gpus,
    jobs,
    node,
    notices,
    publishers,
    scheduler,
)
from vitald.server.operations.operation import Answer, Body, Operation, Parameter, Problem
from vitald.server.operations.problems import PROBLEMS

__all__ = [
    "DESCRIPTION",
    "OPERATIONS",
    "PROBLEMS",
    "SERVER",
    "SERVER_DESCRIPTION",
    "SUMMARY",
    "TAGS",
    "Answer",
    "Body",
    "Operation",
    "Parameter",
    "Problem",
]

SUMMARY = "Can this node be trusted with work, and if not, what must be done to it?"
DESCRIPTION = (
    "HTTP and JSON over a Unix socket: `curl --unix-socket /run/vitald/vitald.sock "
    "http://vitald/v1/status`.\n\n"
    "The kernel says who asks. Reading is for the socket's group, changing for root and the "
    "daemon's own user; the user of `vitald publish` may report its sinks and the cloud "
    "provider's notices, and release the GPUs. "
    "Answers may gain fields within version 1, so ignore those that you do "
    "not know; a parameter or key that vitald does not know is refused. A request must be "
    "complete within 5 s; 128 clients may be connected at once."
)
SERVER = "http://vitald"
SERVER_DESCRIPTION = "Behind /run/vitald/vitald.sock; the host name does not matter."
TAGS = {
    "node": "The verdict.",
    "gpus": "What the driver reports of each GPU, and the release of GPUs.",
    "findings": "What is wrong.",
    "events": "What has happened, and what happens.",
    "catalogue": "What codes mean.",
    "diagnostics": "Programs that test the hardware.",
    "jobs": "The jobs on this node, as its scheduler reports them.",
    "drills": "Injected faults, marked as such.",
}

# In the order of openapi.json.
OPERATIONS = (
    *node.OPERATIONS,
    *publishers.OPERATIONS,
    *notices.OPERATIONS,
    *gpus.OPERATIONS,
    *diagnostics.OPERATIONS,
    *jobs.OPERATIONS,
    *advice.OPERATIONS,
    *scheduler.OPERATIONS,
    *findings.OPERATIONS,
    *events.OPERATIONS,
    *catalogue.OPERATIONS,
    *drills.OPERATIONS,
    *document.OPERATIONS,
)
