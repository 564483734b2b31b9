"""The API's OpenAPI document, and whether an answer is in it."""

from __future__ import annotations

import json

import jsonschema_rs

from tests.harness import ROOT

DOCUMENT = json.loads((ROOT / "agent/vitald/server/openapi.json").read_text())


def closed(schema: object) -> object:
    """The same schema without room for fields that it does not name: what is answered must be told
    completely.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: closed(value) for key, value in schema.items() if key not in ("example", "examples")
    }
    if (
        schema.get("type") == "object"
        and "properties" in schema
        and "additionalProperties" not in schema
    ):
        made["additionalProperties"] = False
    return made


SCHEMAS = closed(DOCUMENT["components"]["schemas"])


def conforms(name: str, value: object) -> None:
    """Raises where the value is not as the document says."""
    conforms_to({"$ref": f"#/components/schemas/{name}"}, value)


def conforms_to(schema: object, value: object) -> None:
    """As `conforms`, of a schema that refers to those of the document."""
    whole = {"allOf": [schema], "components": {"schemas": SCHEMAS}}
    jsonschema_rs.Draft202012Validator(whole).validate(value)
