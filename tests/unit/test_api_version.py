"""Version 1 of the API: what was promised is kept. Whatever is added may be; nothing goes, and
nothing changes its type.

`python -m tests.unit.test_api_version` writes what is promised today to tests/data/api-v1.json: for
additions, with each release.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness import Json
from tests.system.document import DOCUMENT
from tests.unit.builders import ROOT

SNAPSHOT = ROOT / "tests" / "data" / "api-v1.json"
# What automation branches on: a word more would be one that it does not know.
CLOSED = ("status", "action")


def promised(document: Json) -> dict[str, str]:
    """Every parameter, key of a body and field of an answer, with its type and its words."""
    found: dict[str, str] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method not in ("get", "post"):
                continue
            name = f"{method.upper()} {path}"
            found[name] = "required path"
            for parameter in (_resolved(document, one) for one in operation.get("parameters", ())):
                found |= _walk(
                    document,
                    parameter["schema"],
                    f"{name} ? {parameter['name']}",
                    required=parameter.get("required", False),
                )
            for content in (
                _resolved(document, operation.get("requestBody", {})).get("content", {}).values()
            ):
                found |= _walk(document, content["schema"], f"{name} < ", required=True)
            for status, answer in operation["responses"].items():
                if status.startswith("2"):
                    for content in _resolved(document, answer).get("content", {}).values():
                        found |= _walk(
                            document, content["schema"], f"{name} > {status} ", required=True
                        )
    return found


def _resolved(document: Json, value: Json) -> Any:
    if "$ref" not in value:
        return value
    found: Any = document
    for step in str(value["$ref"]).removeprefix("#/").split("/"):
        found = found[step]
    return {
        **_resolved(document, found),
        **{key: one for key, one in value.items() if key != "$ref"},
    }


def _walk(
    document: Json, schema: Json, at: str, *, required: bool, above: tuple[str, ...] = ()
) -> dict[str, str]:
    name = str(schema.get("$ref", ""))
    if name in above:
        return {at: f"required {name}"}
    above = (*above, name) if name else above
    schema = _resolved(document, schema)
    choices = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    kinds = schema.get("type", [])
    words = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    kinds = [
        *([kinds] if isinstance(kinds, str) else kinds),
        *("null" for one in choices if one.get("type") == "null"),
    ]
    said = " ".join(
        [
            "required" if required else "optional",
            "|".join(sorted(kinds)),
            *(f"={word}" for word in sorted(map(str, words))),
        ]
    )
    found = {at: said}
    for number, one in enumerate(one for one in choices if one.get("type") != "null"):
        which = str(one.get("$ref", number)).rpartition("/")[2]
        found |= _walk(document, one, f"{at}({which})", required=True, above=above)
    for key, one in schema.get("properties", {}).items():
        found |= _walk(
            document, one, f"{at}.{key}", required=key in schema.get("required", ()), above=above
        )
    for key, sign in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            found |= _walk(document, schema[key], f"{at}{sign}", required=True, above=above)
    return found


def broken(before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """What a client of `before` relies on, and no longer finds."""
    for place, said in before.items():
        if place not in now:
            yield f"{place}: gone"
            continue
        asked = bool(re.search(r" [?<] ", place))  # by a client; what else is answered
        (need, kind, *words), (need_now, kind_now, *words_now) = (
            said.split(" "),
            now[place].split(" "),
        )
        if kind != kind_now:
            yield f"{place}: was {kind}, is {kind_now}"
        if need != need_now and need == ("optional" if asked else "required"):
            yield f"{place}: was {need}, is {need_now}"
        lost = bool({*words} - {*words_now}) or (asked and not words and words_now)
        if lost or (words != words_now and place.rpartition(".")[2] in CLOSED):
            yield f"{place}: was one of {words}, is one of {words_now}"
    for place, said in now.items():
        if (
            place not in before
            and " < ." in place
            and said.startswith("required")
            and place.partition(" < ")[0] in before
        ):
            yield f"{place}: is asked for, and was not"


def snapshot() -> dict[str, str]:
    told: dict[str, str] = json.loads(SNAPSHOT.read_text())
    return told


def test_what_version_1_promised_is_kept() -> None:
    assert [*broken(snapshot(), promised(DOCUMENT))] == []


def test_the_snapshot_is_of_the_whole_document() -> None:
    """Streams, choices, lists and bodies included."""
    kept = snapshot()
    assert (
        kept["GET /v1/status > 200 .status"]
        == "required string =degraded =healthy =unhealthy =unknown"
    )
    assert kept["GET /v1/status > 200 .components[].status"].startswith("required string")
    assert kept["POST /v1/findings/{id}/clear < .reason"] == "required string"
    assert any(place.startswith("GET /v1/watch > 200 (WatchFinding)") for place in kept)
    assert len(kept) > 500


def test_every_path_has_its_version() -> None:
    """But for the daemon's own sign of life, which load balancers ask for."""
    assert {path.split("/")[1] for path in DOCUMENT["paths"]} == {"v1", "healthz"}
    assert DOCUMENT["info"]["version"].split(".")[0] == "1"


def _drop(document: Any) -> None:
    del document["components"]["schemas"]["Finding"]["properties"]["raw"]


def _retype(document: Any) -> None:
    document["components"]["schemas"]["Finding"]["properties"]["count"]["type"] = "string"


def _loosen(document: Any) -> None:
    document["components"]["schemas"]["NodeStatus"]["required"].remove("reasons")


def _nullable(document: Any) -> None:
    document["components"]["schemas"]["Finding"]["properties"]["title"]["type"] = ["string", "null"]


def _unword(document: Any) -> None:
    document["components"]["schemas"]["Status"]["enum"].remove("degraded")


def _word(document: Any) -> None:
    document["components"]["schemas"]["Status"]["enum"].append("resting")


def _path(document: Any) -> None:
    del document["paths"]["/v1/gpus"]


def _parameter(document: Any) -> None:
    parameters = document["paths"]["/v1/findings"]["get"]["parameters"]
    parameters[:] = [one for one in parameters if one.get("name") != "code"]


def _ask(document: Any) -> None:
    body = document["paths"]["/v1/findings/{id}/clear"]["post"]["requestBody"]
    schema = _resolved(
        document, next(iter(_resolved(document, body)["content"].values()))["schema"]
    )
    schema["properties"]["ticket"] = {"type": "string"}
    schema["required"].append("ticket")


@pytest.mark.parametrize(
    "change", [_drop, _retype, _loosen, _nullable, _unword, _word, _path, _parameter, _ask]
)
def test_what_would_break_a_client_is_found(change: Callable[[Any], None]) -> None:
    changed = copy.deepcopy(DOCUMENT)
    change(changed)
    assert [*broken(promised(DOCUMENT), promised(changed))]


def _field(document: Any) -> None:
    finding = document["components"]["schemas"]["Finding"]
    finding["properties"]["owner"] = {"type": "string"}
    finding["required"].append("owner")


def _more_paths(document: Any) -> None:
    document["paths"]["/v1/tickets"] = copy.deepcopy(document["paths"]["/v1/findings"])


def _fault_class(document: Any) -> None:
    document["components"]["schemas"]["FaultClass"]["enum"].append("cosmic")


def _may_ask(document: Any) -> None:
    document["paths"]["/v1/findings"]["get"]["parameters"].append(
        {"name": "owner", "in": "query", "schema": {"type": "string"}}
    )


@pytest.mark.parametrize("change", [_field, _more_paths, _fault_class, _may_ask])
def test_what_is_added_breaks_nobody(change: Callable[[Any], None]) -> None:
    changed = copy.deepcopy(DOCUMENT)
    change(changed)
    assert promised(changed) != promised(DOCUMENT)
    assert [*broken(promised(DOCUMENT), promised(changed))] == []


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(promised(DOCUMENT), indent=1, sort_keys=True) + "\n")
