"""Outputs of `dcgmi diag` made to order, in the shapes of 3.x and 4.x."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from vitald.catalog import load_catalog
from vitald.diagnostics.dcgm import reading
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.model.diagnostic import Report

DEPLOYMENT = (
    *(
        "Denylist",
        "NVML Library",
        "CUDA Main Library",
        "Permissions and OS Blocks",
        "Persistence Mode",
        "Environment Variables",
    ),
    *("Page Retirement/Row Remap", "Graphics Processes", "Inforom"),
)
Json = dict[str, Any]


@cache
def meanings(profile: str = "nvidia") -> Meanings:
    return Meanings(load_catalog(profile))


def read(
    output: object,
    code: int | None = 0,
    level: int | None = 2,
    stderr: str = "",
    gpus: Sequence[int] = (),
) -> Report:
    """An object is printed first."""
    text = output if isinstance(output, (str, bytes)) else json.dumps(output, indent=1)
    return reading.read_report(
        text, meanings(), exit_code=code, level=level, stderr=stderr, gpus=gpus
    )


def warning(
    number: int | None,
    text: str = "something is wrong",
    severity: int | None = 2,
    category: int = 10,
) -> Json:
    return {
        "warning": text,
        **(
            {"error_id": number, "error_category": category, "error_severity": severity}
            if number is not None
            else {}
        ),
    }


def a_test(
    name: str,
    statuses: Mapping[int, str],
    own: Mapping[int, list[Json]] | None = None,
    **summary: object,
) -> Json:
    """A test as 4.x prints it: a result for each GPU, and a summary that is `status`, or made of
    these.
    """
    results = [
        {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status}
        | ({"warnings": own[gpu]} if own and gpu in own else {})
        for gpu, status in statuses.items()
    ]
    worst = next((word for word in ("Fail", "Skip") if word in statuses.values()), "Pass")
    return {"name": name, "results": results, "test_summary": {"status": worst, **summary}}


def new(*tests: Json, version: str = "4.5.2", gpus: int = 2, model: str = "2330") -> Json:
    """A document of 4.x. The software test is there unless it is given."""
    given = {test["name"]: test for test in tests}
    if "software" not in given:
        given = {"software": a_test("software", dict.fromkeys(range(gpus), "Pass")), **given}
    entities = [
        {"device_id": model, "entity_id": gpu, "serial_num": f"16530{gpu}"} for gpu in range(gpus)
    ]
    return {
        "DCGM Diagnostic": {
            "test_categories": [{"category": "Hardware", "tests": list(given.values())}]
        },
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": "580.95.05", "version": version},
    }


def passing(*names: str, gpus: int = 2) -> list[Json]:
    return [a_test(name, dict.fromkeys(range(gpus), "Pass")) for name in names]


def old(
    *tests: Json,
    deployment: Mapping[str, list[Json]] | None = None,
    version: str | None = "3.3.7",
    models: Sequence[str] = ("2330", "2330"),
) -> Json:
    """A document of 3.x. `deployment`: the results of some of these tests; all others pass. Without
    a version it is one of 3.0.
    """
    software = [
        {"name": name, "results": (deployment or {}).get(name, [{"status": "Pass"}])}
        for name in DEPLOYMENT
    ]
    root: Json = {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {"category": "Deployment", "tests": software},
                {"category": "Hardware", "tests": list(tests)},
            ]
        }
    }
    if version is not None:
        root |= {
            "version": version,
            "Driver Version Detected": "535.183.01",
            "GPU Device IDs": list(models),
        }
    return root


def an_old_test(name: str, statuses: Mapping[int, str], key: str = "gpu_id", **more: Json) -> Json:
    """A test of 3.x; `more`: `_1={...}` is added to the result of GPU 1."""
    return {
        "name": name,
        "results": [
            {key: str(gpu), "status": status, **more.get(f"_{gpu}", {})}
            for gpu, status in statuses.items()
        ],
    }


def level2(gpus: int = 2) -> list[Json]:
    return [
        an_old_test("PCIe", dict.fromkeys(range(gpus), "Pass")),
        an_old_test("GPU Memory", dict.fromkeys(range(gpus), "Pass")),
    ]


def refused(text: str, version: str = "4.4.2") -> Json:
    return {"DCGM Diagnostic": {"runtime_error": text, "version": version}}
