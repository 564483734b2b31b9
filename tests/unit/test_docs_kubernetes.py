"""The two pages on Kubernetes: the names in them are those that vitald writes and ships."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.builders import ROOT
from vitald.config.sections import load_config
from vitald.publish.kubernetes.desired import get_hold_key, list_own_types
from vitald.publish.kubernetes.taint import get_taint_key

PAGES = [ROOT / "docs" / name for name in ("kubernetes.md", "kubernetes-readers.md")]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
WRITTEN = {
    *list_own_types("vitald.io"),
    *(f"vitald.io/{name}" for name in ("status", "action", "findings", "recovery")),
    "vitald.io/vitald",  # as the controller that reports the Events
    get_taint_key("vitald.io"),
    get_hold_key("vitald.io"),
}


def read_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", read_blocks("toml"))
def test_a_configuration_is_valid(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    load_config(path)


def test_the_readiness_rule_is_the_one_that_is_shipped() -> None:
    shipped = ROOT / "packaging/kubernetes/publish/node-readiness-rule.yaml"
    rules: list[dict[str, Any]] = [yaml.safe_load(text) for text in read_blocks("yaml")]
    assert yaml.safe_load(shipped.read_text()) in rules
    assert all(rule["spec"] for rule in rules if "apiVersion" in rule)


def test_names_with_the_prefix_are_written() -> None:
    named = set(re.findall(r"vitald\.io/[A-Za-z]+", TEXT))
    assert named >= set(list_own_types("vitald.io"))
    assert named <= WRITTEN
