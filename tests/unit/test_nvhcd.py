"""The answers of `vitald nvhcd` and their bytes."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, cast

import pytest

from tests.unit.builders import finding as build_finding
from vitald.cli import client
from vitald.cli.nvhcd.answer import HealthAnswer, build_answer
from vitald.cli.nvhcd.messages import encode_answer
from vitald.cli.nvhcd.server import MAX_CLIENTS, MAX_PER_USER, ClientLimit
from vitald.cli.nvhcd.service import VerdictReader
from vitald.model import Action, Requirement, When
from vitald.server import schema


def finding(**values: object) -> dict[str, object]:
    return {
        "component": "gpu/0000:65:00.0",
        "title": "GPU has fallen off the bus",
        "code": "xid/79",
        "action": "reboot_node",
        "when": "now",
        "unusable": True,
        "accepted": None,
        **values,
    }


def verdict(status: str, *findings: dict[str, object], **values: object) -> schema.NodeStatus:
    return cast(
        "schema.NodeStatus",
        {"status": status, "simulated": False, "findings": list(findings), **values},
    )


def output(answer: HealthAnswer) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(answer.output))


def test_a_fit_node_takes_part() -> None:
    for status in ("healthy", "degraded"):
        answer = build_answer(verdict(status, finding(action="observe", unusable=False)), "refuse")
        assert (answer.success, answer.exit_code, answer.error) == (True, 0, "")
        assert output(answer)["fail_count"] == 0 and output(answer)["failed_checks"] == []
        assert output(answer)["vitald"]["status"] == status


def test_an_unfit_node_does_not_and_says_why() -> None:
    answer = build_answer(
        verdict("unhealthy", finding(), finding(action="observe", unusable=False, code="x/y")),
        "allow",
    )
    assert (answer.success, answer.exit_code) == (False, 20)
    assert output(answer)["fail_count"] == 1
    assert output(answer)["failed_checks"] == [
        "gpu/0000:65:00.0: GPU has fallen off the bus (xid/79)"
    ]


@pytest.mark.parametrize("unknown", ["allow", "refuse"])
@pytest.mark.parametrize("silent", [True, False])
def test_the_configuration_decides_on_an_unknown_node(unknown: str, silent: bool) -> None:
    answer = build_answer(None if silent else verdict("unknown", finding()), unknown)
    assert answer.success is (unknown == "allow")
    assert answer.exit_code == (0 if unknown == "allow" else 30)
    assert output(answer)["fail_count"] == (0 if unknown == "allow" else 1)
    assert output(answer)["vitald"]["status"] == "unknown"
    assert output(answer)["vitald"]["answers"] is not silent


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, True),
        ({"accepted": {"by": "alice"}}, False),
        ({"when": "maintenance", "unusable": False}, False),
        ({"when": "maintenance"}, True),
        ({"when": "after_job", "unusable": False}, True),
        ({"action": "observe"}, True),
        ({"action": "inspect", "unusable": False}, False),
    ],
)
def test_only_what_makes_the_node_unfit_is_named(values: dict[str, object], shown: bool) -> None:
    """As the model decides, for a job about to begin."""
    answer = build_answer(verdict("unhealthy", finding(**values)), "allow")
    assert (output(answer)["failed_checks"] != ["vitald: the node is unhealthy"]) is shown
    assert answer.success is False and output(answer)["fail_count"] == 1


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("unusable", [True, False])
def test_it_agrees_with_the_model(action: Action, when: When, unusable: bool) -> None:
    modelled = build_finding(base=Requirement(action, when, unusable=unusable))
    shown = finding(action=action.value, when=when.value, unusable=unusable)
    answer = build_answer(verdict("unhealthy", shown), "allow")
    named = output(answer)["failed_checks"] != ["vitald: the node is unhealthy"]
    assert named is modelled.makes_unfit(between_jobs=True)


def test_neither_paths_nor_names_of_users_are_told() -> None:
    """The name of a disk may be the mount point of a file system, that of a unit a user's."""
    answer = build_answer(
        verdict(
            "unhealthy",
            finding(component="disk//home/alice", title="not mounted", code="mounts/missing"),
            finding(component="node/user@alice", title="failed", code="host/unit_failed"),
        ),
        "allow",
    )
    assert "alice" not in answer.output
    assert output(answer)["failed_checks"][0] == "disk: not mounted (mounts/missing)"


def test_a_long_list_is_cut_and_its_number_is_not() -> None:
    answer = build_answer(verdict("unhealthy", *[finding()] * 100), "allow")
    assert output(answer)["fail_count"] == 100
    assert len(output(answer)["failed_checks"]) == 16
    assert len(encode_answer(answer)) < 16 * 1024


def test_the_bytes_of_an_answer() -> None:
    """By the encoding of protocol buffers: field << 3 | type, numbers of seven bits, the lowest
    first, and no field with its default.
    """
    fit = HealthAnswer(success=True, exit_code=0, output='{"fail_count": 0}')
    assert encode_answer(fit) == b'\x08\x01\x1a\x11{"fail_count": 0}'
    unfit = HealthAnswer(success=False, exit_code=20, output="x" * 300, error="é")
    assert encode_answer(unfit) == b"\x10\x14\x1a\xac\x02" + b"x" * 300 + b"\x22\x02\xc3\xa9"


def test_a_users_share_of_the_places() -> None:
    limit = ClientLimit()
    assert [limit.admit_client(1000) for _ in range(MAX_PER_USER + 1)][-2:] == [True, False]
    assert limit.admit_client(1001)
    limit.forget_client(1000)
    assert limit.admit_client(1000)
    others = [limit.admit_client(uid) for uid in range(2000, 2000 + MAX_CLIENTS)]
    assert limit.clients == MAX_CLIENTS and not others[-1]


def test_waiting_requests_share_a_question_and_none_gets_an_older_answer() -> None:
    asked: list[int] = []
    release = threading.Event()

    def ask() -> schema.NodeStatus:
        asked.append(len(asked) + 1)
        release.wait(10)
        return verdict("healthy", pid=len(asked))

    async def main() -> list[Any]:
        reader = VerdictReader(ask)
        first = asyncio.ensure_future(reader.read_verdict())
        while not asked:
            await asyncio.sleep(0.001)
        later = [asyncio.ensure_future(reader.read_verdict()) for _ in range(50)]
        await asyncio.sleep(0.01)
        release.set()
        return [each["pid"] for each in await asyncio.gather(first, *later) if each is not None]

    assert asyncio.run(main()) == [1, *[2] * 50]
    assert asked == [1, 2]


def test_a_daemon_that_does_not_answer_gives_no_verdict() -> None:
    def ask() -> schema.NodeStatus:
        raise client.NoAnswer("no daemon listens on /run/vitald/vitald.sock")

    async def main() -> object:
        return await VerdictReader(ask).read_verdict()

    assert asyncio.run(main()) is None
