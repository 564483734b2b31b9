"""The API's document is made from its types, and is as they are."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Literal, TypedDict, Union

import pytest

from tests import openapi
from tests.unit.builders import ROOT
from vitald.server.operations import OPERATIONS
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


# What no verb asks: a load balancer's sign of life, a stream, one code's rule, this document, and
# what `vitald publish` reads and reports.
_NOT_ASKED = {"healthz", "watch", "rule", "openapi", "reportSinks"}


def _asked_and_answered() -> Iterator[tuple[str, str, str]]:
    """Path, type of the body, type of the answer, as `client.call_api` declares them."""
    source = (ROOT / "agent/vitald/cli/client.py").read_text(encoding="utf-8")
    for one in ast.parse(source).body:
        if isinstance(one, ast.FunctionDef) and one.name == "call_api" and one.decorator_list:
            _, path, body = (ast.unparse(each.annotation or each) for each in one.args.args)
            assert one.returns is not None
            if path.startswith("Literal"):
                yield ast.literal_eval(path[len("Literal[") : -1]), body, ast.unparse(one.returns)


def _annotation(kind: object) -> str:
    return f"schema.{getattr(kind, '__name__', '')}"


def test_the_command_line_takes_each_answer_for_what_it_is() -> None:
    contract = {
        (
            one.path,
            _annotation(one.body.type) if one.body is not None else "None",
            _annotation(one.answer.type),
        )
        for one in OPERATIONS
        if one.name not in _NOT_ASKED
    }
    assert {*_asked_and_answered()} == contract
