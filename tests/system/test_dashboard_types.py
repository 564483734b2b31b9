"""The dashboards are of the types that Grafana publishes."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.dashboards.schema import list_type_errors
from tests.npm import CannotFetch
from tests.unit.test_dashboards import NAMES, load


def check_types(dashboard: dict[str, Any], folder: Path) -> str:
    require(shutil.which("node"), "Node.js (apt-get install nodejs)")
    try:
        return list_type_errors(dashboard, folder)
    except CannotFetch as missing:
        require(False, str(missing))
        raise


@pytest.mark.parametrize("name", NAMES)
def test_grafana_has_these_types(name: str, tmp_path: Path) -> None:
    dashboard = load(name)
    assert check_types(dashboard, tmp_path) == ""
    for path in (("schemaVersion",), ("templating", "list", 1, "refresh"), ("panels", 1, "title")):
        wrong = misspell(dashboard, path)
        assert "does not exist in type" in check_types(wrong, tmp_path), path
    options = misspell(
        dashboard, ("panels", 1, "options", next(iter(dashboard["panels"][1]["options"])))
    )
    assert "does not exist in type" in check_types(options, tmp_path)


def misspell(dashboard: dict[str, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
    """The dashboard with this key under a name that Grafana does not have."""
    wrong = copy.deepcopy(dashboard)
    at: Any = wrong
    for key in path[:-1]:
        at = at[key]
    at[f"{path[-1]}x"] = at.pop(path[-1])
    return wrong
