"""The recipes of docs/kubernetes.md: their names are those that vitald writes and ships."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.builders import ROOT
from vitald import config
from vitald.publish.kubernetes.desired import list_annotation_keys, list_own_types
from vitald.publish.kubernetes.written import get_taint_key
from vitald.publish_sections import KubernetesSettings

PAGE = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
WRITTEN = {
    *list_own_types("vitald.io"),
    *list_annotation_keys("vitald.io"),
    *(f"vitald.io/{name}" for name in ("status", "action", "recovery")),
    get_taint_key(KubernetesSettings()),
}


def read_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", read_blocks("toml"))
def test_a_configuration_is_valid(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    config.load(path)


def test_the_readiness_rule_is_the_one_that_is_shipped() -> None:
    shipped = ROOT / "packaging/kubernetes/publish/node-readiness-rule.yaml"
    rules: list[dict[str, Any]] = [yaml.safe_load(text) for text in read_blocks("yaml")]
    assert yaml.safe_load(shipped.read_text()) in rules
    assert all(rule["apiVersion"] and rule["spec"] for rule in rules)


def test_names_with_the_prefix_are_written() -> None:
    named = set(re.findall(r"vitald\.io/[A-Za-z-]+", PAGE))
    assert named >= set(list_own_types("vitald.io"))
    assert named <= WRITTEN
