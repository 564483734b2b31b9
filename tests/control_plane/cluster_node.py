"""A Node object of a control plane that is one test's own, as its readers see it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.control_plane.audit import AuditedRequest, read_audit_log
from tests.control_plane.plane import ControlPlane, kubelet_token
from tests.waiting import WAIT_S, until
from vitald.timestamps import parse_rfc3339

Json = dict[str, Any]
PREFIX = "vitald.io"
HEALTHY, REBOOT, REPLACEMENT = (
    f"{PREFIX}/{name}" for name in ("Healthy", "RebootRequired", "ReplacementRequired")
)
# The tokens of kubelets are read as the API server starts: a test takes the next of these names.
NAMES = tuple(f"node-{number:03}" for number in range(200))
_names = itertools.cycle(NAMES)


@contextmanager
def create_cluster_node(plane: ControlPlane) -> Iterator[ClusterNode]:
    """A node with a name that no other test has had; deleted at the end. The control plane must
    have been started with NAMES.
    """
    node = ClusterNode(plane, next(_names))
    node.create()
    try:
        yield node
    finally:
        node.delete()


@dataclass(slots=True)
class ClusterNode:
    """The Node object. Every property is read anew from the API server."""

    plane: ControlPlane
    name: str

    @property
    def kubelet_token(self) -> str:
        return kubelet_token(self.name)

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    def create(self) -> Json:
        return self.plane.create_node(self.name)

    def delete(self) -> None:
        """Nothing is wrong with a node that is gone already."""
        status, answer = self.plane.call("DELETE", self.path)
        assert status in (200, 404), answer

    def read(self) -> Json:
        return self.plane.read_node(self.name)

    @property
    def uid(self) -> str:
        uid: str = self.read()["metadata"]["uid"]
        return uid

    @property
    def labels(self) -> dict[str, str]:
        """Those with our prefix, without it."""
        return _strip_prefix(self.read()["metadata"].get("labels") or {})

    @property
    def annotations(self) -> dict[str, str]:
        """Those with our prefix, without it."""
        return _strip_prefix(self.read()["metadata"].get("annotations") or {})

    @property
    def findings(self) -> Any:
        """What the annotation says, `{"open": 1, "findings": [...]}`; None if there is none."""
        text = self.annotations.get("findings")
        return None if text is None else json.loads(text)

    @property
    def conditions(self) -> dict[str, Json]:
        """By type."""
        entries = self.read().get("status", {}).get("conditions") or []
        return {entry["type"]: entry for entry in entries}

    def read_status(self, type_: str = HEALTHY) -> str:
        """`True`, `False`, `Unknown`; "" where the condition is missing."""
        return str(self.conditions.get(type_, {}).get("status", ""))

    def read_reason(self, type_: str = HEALTHY) -> str:
        return str(self.conditions.get(type_, {}).get("reason", ""))

    def read_transition(self, type_: str = HEALTHY) -> float:
        """Seconds since the epoch."""
        return parse_rfc3339(self.conditions[type_]["lastTransitionTime"]).timestamp()

    def read_requests(self) -> list[AuditedRequest]:
        """Every request of `vitald` about this node that the API server answered, in order."""
        return [
            request
            for request in read_audit_log(self.plane.audit_log)
            if request.name == self.name and request.agent.startswith("vitald/")
        ]

    def read_writes(self) -> list[AuditedRequest]:
        """The patches of its status that were accepted, in order."""
        return [
            request
            for request in self.read_requests()
            if (request.verb, request.resource, request.code) == ("patch", "nodes/status", 200)
        ]

    def patch(self, patch: Json, content_type: str = "") -> Json:
        """As another controller may: the node's status, with labels and annotations."""
        return self.plane.demand("PATCH", f"{self.path}/status", patch, content_type=content_type)

    def wait_for_status(self, status: str, type_: str = HEALTHY, seconds: float = WAIT_S) -> float:
        """Until the condition has this status. Returns the seconds that it took."""
        begun = time.monotonic()
        until(lambda: self.read_status(type_) == status, f"{type_} to be {status}", seconds)
        return time.monotonic() - begun


def _strip_prefix(words: dict[str, str]) -> dict[str, str]:
    own = f"{PREFIX}/"
    return {name[len(own) :]: value for name, value in words.items() if name.startswith(own)}
