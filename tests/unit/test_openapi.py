"""The API's document is made from its types, and is as they are."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Literal, TypedDict, Union

import pytest

from tests import openapi
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
