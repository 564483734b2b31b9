"""
agent/vitald/server/openapi.json, made from the endpoints and types of the API, with real answers as
examples (tests/api_examples.py):

    python -m tests.openapi        writes it

A test keeps the two in step.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import pkgutil
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.examples import EXAMPLES, name_endpoint
from vitald.server import endpoints, schema
from vitald.server.endpoint import Endpoint, Problem, Stream
from vitald.server.schema import value_types

Json = dict[str, object]

DOCUMENT = Path(__file__).resolve().parent.parent / "agent/vitald/server/openapi.json"
_SERVER = "Behind /run/vitald/vitald.sock; the host name does not matter."
# Written out where they are used.
_IN_PLACE = ("RequestedDiagnostic", "Document", "Reading")
_SCALARS = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    object: "object",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint with its id, and the types that its annotation names. `body`: None for none."""

    id: str
    endpoint: Endpoint[object]
    body: object
    answer: object


@cache
def list_operations() -> tuple[Operation, ...]:
    """In the order of the document."""
    hints = typing.get_type_hints(endpoints, {**vars(endpoints), "schema": schema})
    types_of = {name: (None, *typing.get_args(hint))[-2:] for name, hint in hints.items()}
    return tuple(
        Operation(_in_camel_case(name.lower()), value, *types_of[name])
        for name, value in vars(endpoints).items()
        if isinstance(value, Endpoint)
    )


def document() -> Json:
    """The whole document."""
    writer = _SchemaWriter()
    paths: dict[str, Json] = {}
    problems: dict[str, Problem] = {}
    for one in list_operations():
        written = _operation(one, writer)
        paths.setdefault(one.endpoint.path, {})[one.endpoint.method.lower()] = written
        problems |= {problem.name: problem for problem in _problems(one.endpoint)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vitald",
            "version": "1",
            "summary": endpoints.SUMMARY_OF_API,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": endpoints.DESCRIPTION_OF_API,
        },
        "servers": [{"url": "http://vitald", "description": _SERVER}],
        "tags": [{"name": name, "description": text} for name, text in endpoints.TAGS.items()],
        "paths": paths,
        "components": {
            "responses": {name: _problem(one, writer) for name, one in problems.items()},
            "schemas": dict(sorted(writer.schemas.items())),
        },
    }


def text() -> str:
    """The document as it is kept: a client and a reviewer read it as text."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def schema_of(kind: object) -> Json:
    """JSON Schema of one type."""
    return _SchemaWriter().of(kind)


class _SchemaWriter:
    """JSON Schema of types. Each public one is written once, in `schemas`, and referred to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}

    def of(self, kind: object, description: str = "") -> Json:
        """The schema of a type where it is used; the description is of this use."""
        name = _name_of(kind)
        if not name or name.startswith("_") or name in _IN_PLACE:
            own = _descriptions_of_names().get(name, "")
            return self.in_full(kind, description or own)
        if name not in self.schemas:
            self.schemas[name] = {}  # a type may be within itself
            self.schemas[name] = self.in_full(kind, _descriptions_of_names().get(name, ""))
        reference: Json = {"$ref": f"#/components/schemas/{name}"}
        return {**reference, "description": description} if description else reference

    def in_full(self, kind: Any, description: str = "") -> Json:
        """The schema of a type, written out."""
        described: Json = {"description": description} if description else {}
        if typing.is_typeddict(kind):
            return {**self._table(kind), **_described_class(kind), **described}
        origin, parts = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            written = self.in_full(parts[0], description)
            for one in parts[1:]:
                written |= _keywords(one)
            return written
        if origin in (typing.Union, types.UnionType):
            return {**self._choice(parts), **described}
        if origin is typing.Literal:
            return {**_words(parts), **described}
        if origin is list:
            return {"type": "array", **described, "items": self.of(parts[0])}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", **described, **self._map(*parts)}
        return {"type": _SCALARS[kind], **described}

    def _table(self, kind: Any) -> Json:
        hints = typing.get_type_hints(kind, include_extras=True)
        described = _descriptions_of_keys(kind)
        written: Json = {"type": "object"}
        required = [key for key in hints if key in kind.__required_keys__]
        if required:
            written["required"] = required
        if hints:
            keys = {key: self.of(hint, described.get(key, "")) for key, hint in hints.items()}
            written["properties"] = keys
        return written

    def _choice(self, parts: tuple[Any, ...]) -> Json:
        if all(part in _SCALARS for part in parts):
            return {"type": [_SCALARS[part] for part in parts]}
        scalars = [part for part in parts if part in _SCALARS and part is not type(None)]
        if len(scalars) > 1:  # together with something else: values of a kernel line, readings
            plain = [part for part in parts if part in _SCALARS]
            others = [part for part in parts if part not in _SCALARS]
            return {"anyOf": [self._choice(tuple(plain)), *map(self.of, others)]}
        if all(typing.is_typeddict(part) for part in parts):
            return self._tagged(parts)
        choices = [self.of(part) for part in parts]
        kinds = {str(one.get("type")) for one in choices}
        if len(kinds) == 1 and "type" in choices[0]:
            bare = [{key: one[key] for key in one if key != "type"} for one in choices]
            return {"type": kinds.pop(), "anyOf": bare}
        return {"anyOf": choices}

    def _tagged(self, parts: tuple[object, ...]) -> Json:
        """Tables that say by their key `type` which one they are."""
        mapping = {}
        for part in parts:
            (tag,) = typing.get_args(typing.get_type_hints(part)["type"])
            mapping[tag] = self.of(part)["$ref"]
        return {
            "oneOf": [self.of(part) for part in parts],
            "discriminator": {"propertyName": "type", "mapping": mapping},
        }

    def _map(self, key: object, value: object) -> Json:
        # A key is always a string.
        names = {word: said for word, said in self.of(key).items() if word != "type"}
        return {
            **({"propertyNames": names} if names else {}),
            **({} if value is object else {"additionalProperties": self.of(value)}),
        }


def _keywords(fact: object) -> Json:
    if isinstance(fact, type) and issubclass(fact, Enum):
        return {"enum": [one.value for one in fact]}
    assert isinstance(fact, schema.Keywords), fact
    said = {key: value for key, value in asdict(fact).items() if value is not None}
    lists = {key: list(value) for key, value in said.items() if isinstance(value, tuple)}
    return {_in_camel_case(key): value for key, value in {**said, **lists}.items()}


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def _words(values: tuple[object, ...]) -> Json:
    if len(values) == 1:
        return {"const": values[0]}
    return {"type": "string", "enum": list(values)}


@cache
def _names() -> dict[str, object]:
    """Type aliases of the schema, by name."""
    written = {name: value for module in _modules() for name, value in vars(module).items()}
    return {
        name: value
        for name, value in written.items()
        if not name.startswith("__") and typing.get_origin(value) is not None
    }


def _name_of(kind: object) -> str:
    if typing.is_typeddict(kind):
        # Types that share their name with one of the model begin with Api here.
        return str(getattr(kind, "__name__", "")).removeprefix("Api")
    return next((name for name, value in _names().items() if value == kind), "")


def _described_class(kind: object) -> Json:
    docs = inspect.cleandoc(getattr(kind, "__doc__", None) or "")
    return {"description": " ".join(docs.split())} if docs else {}


@cache
def _modules() -> tuple[types.ModuleType, ...]:
    """Modules of the schema's package, with the one of plain values first."""
    names = (found.name for found in pkgutil.iter_modules(schema.__path__))
    return (value_types, *(import_module(f"{schema.__name__}.{name}") for name in names))


@cache
def _statements() -> list[ast.stmt]:
    return [
        statement
        for module in _modules()
        for statement in ast.parse(inspect.getsource(module)).body
    ]


@cache
def _descriptions_of_names() -> dict[str, str]:
    return dict(_followed_by_text(_statements()))


def _descriptions_of_keys(kind: type) -> dict[str, str]:
    """Those of the tables that it extends, too."""
    classes = {one.name: one for one in _statements() if isinstance(one, ast.ClassDef)}
    found: dict[str, str] = {}
    pending = [kind.__name__]
    while pending:
        written = classes.get(pending.pop())
        if written is not None:
            found = {**dict(_followed_by_text(written.body)), **found}
            pending += [base.id for base in written.bases if isinstance(base, ast.Name)]
    return found


def _followed_by_text(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for one, after in itertools.pairwise(body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(said))):
                    yield one.target.id, " ".join(said.split())


def _operation(operation: Operation, writer: _SchemaWriter) -> Json:
    endpoint = operation.endpoint
    example = EXAMPLES.get(name_endpoint(endpoint), {})
    written: Json = {"operationId": operation.id, "tags": [endpoint.tag]}
    written |= {"summary": endpoint.summary}
    if endpoint.description:
        written["description"] = endpoint.description
    if endpoint.parameters:
        written["parameters"] = [*endpoint.parameters]
    if operation.body is not None:
        kind = {**writer.in_full(operation.body), "additionalProperties": False}
        content = {"schema": kind, "example": example["request"]}
        written["requestBody"] = {"required": True, "content": {"application/json": content}}
    responses = [
        (str(endpoint.status), _answer(endpoint, writer.of(operation.answer), example)),
        *((str(one.status), _reference(one)) for one in _problems(endpoint)),
    ]
    written["responses"] = dict(sorted(responses))
    return written


def _answer(endpoint: Endpoint[object], kind: Json, example: Mapping[str, Any]) -> Json:
    described: Json = {"description": HTTPStatus(endpoint.status).phrase}
    content: Json = {"schema": kind}
    if isinstance(endpoint, Stream):
        content["example"] = "".join(json.dumps(line) + "\n" for line in example["answer"])
        kept = {"description": "It is not to be kept.", "schema": {"const": "no-store"}}
        described["headers"] = {"Cache-Control": kept}
        return {**described, "content": {"application/x-ndjson": content}}
    if "answer" in example:
        content["example"] = example["answer"]
    return {**described, "content": {"application/json": content}}


def _problems(endpoint: Endpoint[object]) -> Iterable[Problem]:
    return (*endpoint.usual_problems, *endpoint.problems)


def _reference(problem: Problem) -> Json:
    return {"$ref": f"#/components/responses/{problem.name}"}


def _problem(problem: Problem, writer: _SchemaWriter) -> Json:
    answer = {"schema": writer.of(schema.Error), "example": problem.example}
    content: Json = {"application/json": answer}
    if problem.plain:
        content["text/plain"] = {"schema": {"type": "string"}}
    headers: Json = {"headers": problem.headers} if problem.headers else {}
    return {"description": problem.description, "content": content, **headers}


if __name__ == "__main__":
    DOCUMENT.write_text(text(), encoding="utf-8")
