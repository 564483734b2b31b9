"""docs/findings.md: each code that can become a finding has an anchor, which alerts lead to."""

from __future__ import annotations

import re

import pytest

from tests import findings_page
from tests.unit.builders import catalogue
from tests.unit.test_docs import read_anchors
from vitald.catalog.rules import FaultClass

CODES = [rule.code for rule in catalogue().rules.values() if findings_page.can_open(rule)]


def test_each_code_has_one_anchor_and_it_is_none_of_a_heading() -> None:
    page = findings_page.page(catalogue())
    anchors = re.findall(r'<a id="([^"]+)"></a>', page)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == {findings_page.make_anchor(code) for code in CODES} | {"other-other"}
    headings = read_anchors(findings_page.PAGE) - set(anchors)
    assert "gpus-by-nvml" in headings
    assert len(headings) == len(re.findall(r"^#+ ", page, re.MULTILINE))


def test_an_anchor_stands_before_its_code() -> None:
    page = findings_page.page(catalogue())
    for code in CODES:
        assert f'<a id="{findings_page.make_anchor(code)}"></a>{code}: ' in page


@pytest.mark.parametrize("code", CODES[::50])
def test_an_anchor_needs_no_quoting(code: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", findings_page.make_anchor(code))


def test_codes_of_old_drivers_are_there_too() -> None:
    rules = catalogue().rules.values()
    old = [
        rule.code
        for rule in rules
        if rule.fault_class is FaultClass.UNUSED and findings_page.can_open(rule)
    ]
    assert set(old) <= set(CODES)
    assert "sxid/11007" in old
