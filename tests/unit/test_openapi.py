"""The API's document is made from its types, and is as they are."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Annotated, Literal, TypedDict, Union

import pytest

from tests import openapi
from tests.examples import EXAMPLES, name_endpoint
from tests.system.document import DOCUMENT, closed, conforms_to
from tests.unit.builders import ROOT
from vitald.server import endpoints
from vitald.server.endpoint import Endpoint
from vitald.server.schema import Keywords


class _Colour(Enum):
    RED = "red"
    BLUE = "blue"


class _Part(TypedDict, total=False):
    """A part."""

    name: str


class _Whole(_Part):
    colour: Annotated[str, _Colour]


def test_the_document_is_what_the_types_say() -> None:
    written = openapi.DOCUMENT.read_text(encoding="utf-8")
    assert written == openapi.text(), "write it again: python -m tests.openapi"


def test_every_path_has_its_version() -> None:
    """But for the daemon's own sign of life, which load balancers ask for."""
    document = json.loads(openapi.text())
    assert {path.split("/")[1] for path in document["paths"]} == {"v1", "healthz"}
    assert document["info"]["version"].split(".")[0] == "1"


def test_every_schema_is_described() -> None:
    """A text below a key or a name is easily put in the wrong place, and then nobody has it."""
    schemas = json.loads(openapi.text())["components"]["schemas"]
    silent = {"Jobs", "JobReported"}
    assert {name for name, one in schemas.items() if "description" not in one} == silent


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Annotated[int, Keywords(exclusive_minimum=0)], {"type": "integer", "exclusiveMinimum": 0}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[True], {"const": True}),
        (Annotated[str, _Colour], {"type": "string", "enum": ["red", "blue"]}),
        (Union[str, None], {"type": ["string", "null"]}),
        (Union[_Part, None], {"anyOf": [openapi.schema_of(_Part), {"type": "null"}]}),
        (list[float], {"type": "array", "items": {"type": "number"}}),
        (
            _Whole,
            {
                "type": "object",
                "required": ["colour"],
                "properties": {
                    "name": {"type": "string"},
                    "colour": {"type": "string", "enum": ["red", "blue"]},
                },
            },
        ),
    ],
)
def test_a_type_as_json_schema(kind: object, expected: dict[str, object]) -> None:
    assert openapi.schema_of(kind) == expected


def test_every_endpoint_has_an_example_and_every_example_an_endpoint() -> None:
    known = {name_endpoint(one.endpoint) for one in openapi.list_operations()}
    assert {*EXAMPLES} == known - {name_endpoint(endpoints.OPENAPI)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_as_its_types_say(name: str) -> None:
    """Without a key that the type lacks: an example that is older than its type is recorded anew."""
    method, path = name.split()
    operation, example = DOCUMENT["paths"][path][method.lower()], EXAMPLES[name]
    if method == "POST":
        body = operation["requestBody"]["content"]["application/json"]
        conforms_to(closed(body["schema"]), example["request"])
    success = next(said for code, said in operation["responses"].items() if code < "300")
    ((media, content),) = success["content"].items()
    is_stream = media == "application/x-ndjson"
    for value in example["answer"] if is_stream else [example["answer"]]:
        conforms_to(closed(content["schema"]), value)


@pytest.mark.parametrize(
    ("endpoint", "values", "target"),
    [
        (endpoints.FINDINGS, {}, "/v1/findings"),
        (endpoints.FINDINGS, {"code": None, "limit": 0}, "/v1/findings?limit=0"),
        (endpoints.FINDINGS, {"code": "a&b=c #"}, "/v1/findings?code=a%26b%3Dc+%23"),
        (endpoints.WHY, {"id": 7}, "/v1/findings/7/why"),
        (endpoints.WHY, {"id": "../x?y"}, "/v1/findings/..%2Fx%3Fy/why"),
        (endpoints.RULE, {"kind": "xid", "code": "7/9"}, "/v1/rules/xid/7%2F9"),
    ],
)
def test_the_target_of_a_request(
    endpoint: Endpoint[object], values: dict[str, object], target: str
) -> None:
    assert endpoint.make_target(values) == target


def test_a_target_without_its_part_of_the_path() -> None:
    with pytest.raises(KeyError, match="id"):
        endpoints.WHY.make_target({"limit": 1})


def test_each_endpoint_is_served_once() -> None:
    """By a handler whose answer has the endpoint's type, which mypy checks."""
    served = re.findall(
        r"make_route\(endpoints\.(\w+),",
        "".join(path.read_text() for path in (ROOT / "agent/vitald/server/routes").glob("*.py")),
    )
    named = [name for name, one in vars(endpoints).items() if isinstance(one, Endpoint)]
    assert sorted(served) == sorted(named)
