"""The API's document is made from its types, and is as they are."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Annotated, Literal, TypedDict, Union

import pytest

from tests import openapi
from tests.examples import EXAMPLES, name_endpoint
from tests.system.document import DOCUMENT, conforms_to
from tests.unit.builders import ROOT
from vitald.server import endpoints
from vitald.server.endpoint import Endpoint, Stream
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
    silent = {"Jobs", "JobTold"}
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


@pytest.mark.parametrize("operation", openapi.list_operations(), ids=lambda one: one.id)
def test_the_examples_are_as_their_types_say(operation: openapi.Operation) -> None:
    """Without a key that the type lacks: an example that is older than its type is recorded anew."""
    content = DOCUMENT["paths"][operation.endpoint.path][operation.endpoint.method.lower()]
    example = EXAMPLES.get(name_endpoint(operation.endpoint), {})
    if "request" in example:
        conforms_to(
            content["requestBody"]["content"]["application/json"]["schema"], example["request"]
        )
    (answer,) = content["responses"][str(operation.endpoint.status)]["content"].values()
    values = example.get("answer", [])
    for value in values if isinstance(operation.endpoint, Stream) else [values][: len(example)]:
        conforms_to(answer["schema"], value)


def test_each_endpoint_is_served_once() -> None:
    """By a handler whose answer has the endpoint's type, which mypy checks."""
    served = re.findall(
        r"make_route\(endpoints\.(\w+),",
        "".join(path.read_text() for path in (ROOT / "agent/vitald/server/routes").glob("*.py")),
    )
    named = [name for name, one in vars(endpoints).items() if isinstance(one, Endpoint)]
    assert sorted(served) == sorted(named)
