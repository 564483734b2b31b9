"""The socket API keeps what its OpenAPI document promises, whatever is asked: schemathesis over the
Unix socket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.harness import Json, Node, UnixConnection
from tests.system.document import DOCUMENT, SCHEMAS
from tests.system.lines import wait_for_pid, xid
from tests.waiting import WAIT_S


class _Pool(urllib3.HTTPConnectionPool):
    def __init__(self, path: Path) -> None:
        super().__init__("vitald")
        self._path = path

    def _new_conn(self) -> Any:
        made = urllib3.connection.HTTPConnection("vitald", timeout=WAIT_S)
        made._new_conn = self._socket  # type: ignore[method-assign]
        return made

    def _socket(self) -> Any:
        plain = UnixConnection(self._path)
        plain.connect()
        return plain.sock


class _Unix(requests.adapters.HTTPAdapter):
    """requests over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._pool = _Pool(path)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> Any:
        return self._pool


@pytest.fixture(scope="module")
def session(shared_node: Node) -> requests.Session:
    shared_node.write(
        xid(1),
        xid(2, code=13, message="Graphics Exception"),
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2",
    )
    wait_for_pid(shared_node, 2)
    made = requests.Session()
    made.mount("http://vitald", _Unix(shared_node.socket))
    return made


# The document's own schema stands open; the stream has no end, and tests of its own.
TIGHT: Json = {**DOCUMENT, "components": {**DOCUMENT["components"], "schemas": SCHEMAS}}
TIGHT["paths"] = {path: item for path, item in DOCUMENT["paths"].items() if path != "/v1/watch"}
CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {"unsupported_method": {"enabled": True}},
        # Enumerated as the tests are collected, which takes each worker seconds: not in the gate.
        "phases": {"coverage": {"enabled": not settings().derandomize}},
    }
)
schema = schemathesis.openapi.from_dict(TIGHT, config=CONFIG)
# Valid by their schema and refused all the same: a line that no rule recognises, a finding, drill
# or GPU that is not there, the 31st of February, a count that has not settled, a program that is
# not installed, a sink that is named twice, a reason that cannot be printed.
REFUSABLE = (
    "clear",
    "accept",
    "remedy",
    "why",
    "announce",
    "drill",
    "events",
    "transitions",
    "findings",
    "components",
    "release",
    "confirm",
    "runDiagnostic",
    "cancelDiagnostic",
    "reportSinks",
    "endRelease",
)


@schema.parametrize()
@settings(
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[*HealthCheck],
)
def test_every_answer_is_in_the_document(
    case: schemathesis.Case, session: requests.Session
) -> None:
    """No 5xx; status, headers, content type and body as told; what the document forbids is
    refused.
    """
    excluded = (
        [positive_data_acceptance]
        if case.operation.definition.raw["operationId"] in REFUSABLE
        else []
    )
    case.call_and_validate(base_url="http://vitald", session=session, excluded_checks=excluded)


def test_the_daemon_outlived_it(session: requests.Session, shared_node: Node) -> None:
    assert shared_node.status()["ledger"]["ok"]
    assert shared_node.said("request_failed") == []
    assert shared_node.process is not None
    assert shared_node.process.poll() is None
