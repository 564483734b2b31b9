"""What `vitald status` prints of an answer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.examples import get_answer
from vitald.cli.status import format_status
from vitald.server import endpoints


def make_status() -> Any:
    return get_answer(endpoints.STATUS)


def test_other_devices_of_an_incident_have_their_numbers() -> None:
    status = make_status()
    other = copy.deepcopy(status["components"][0])
    other |= {"name": "gpu/0000:ca:00.0", "device": {"index": 6, "text": "GPU 6"}}
    status["components"].append(other)
    members = status["incidents"][0]["members"]
    consequence = next(each for each in members if each["code"] == "xid/45")
    members += [
        {**consequence, "component": "gpu/0000:ca:00.0"},
        {**consequence, "component": "gpu/0000:cb:00.0", "count": 1},  # of which nothing is known
    ]
    shown = " ".join(" ".join(format_status(status)).split())
    assert "xid/45 on gpu/0000:ca:00.0 (GPU 6) x 2, xid/45 on gpu/0000:cb:00.0" in shown


@pytest.mark.parametrize(
    ("simulated", "drills", "left_out", "shown"),
    [
        (False, [False], 0, ""),
        (True, [True], 0, ", simulated"),
        (True, [], 0, "  simulated"),
        (True, [True, False], 0, ", partly simulated"),
        (True, [True], 1, ", partly simulated"),
    ],
)
def test_what_is_simulated_is_in_the_first_line(
    simulated: bool, drills: list[bool], left_out: int, shown: str
) -> None:
    """A real finding beside a drill is real, and one that a long answer leaves out may be."""
    status = make_status()
    finding = status["findings"][0]
    status |= {"simulated": simulated, "incidents": [], "rebootRequired": bool(drills)}
    status |= {"replacementRequired": False, "openFindings": len(drills) + left_out}
    status["findings"] = [{**finding, "simulated": is_drill} for is_drill in drills]
    head = next(iter(format_status(status)))
    assert head.endswith(shown or "(confirmed)"), head
