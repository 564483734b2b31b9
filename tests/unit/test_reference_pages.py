"""docs/reference/ is what the code says: settings, command line, API."""

from __future__ import annotations

import re

import pytest

from tests import reference_pages
from tests.reference_pages import FOLDER, HOW, PAGES
from vitald.cli import VERBS
from vitald.config.sections import SECTIONS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_is_generated(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name](), f"write it again: {HOW}"


def test_every_setting_has_a_default_or_an_example() -> None:
    page = reference_pages.configuration()
    for name, section in SECTIONS.items():
        table = page.split(f"## [{name}]\n")[1].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|", table, re.MULTILINE)
        assert [key for key, *_ in rows] == [*section.list_settings()], name
        assert all(re.fullmatch(r"(none; for example )?`.+`", default) for _, default, _ in rows)


def test_every_verb_is_on_the_page() -> None:
    headings = set(re.findall(r"^### vitald (\w+)$", reference_pages.commands(), re.MULTILINE))
    assert headings == {*VERBS}


def test_types_that_are_named_are_on_the_page() -> None:
    """A link into the page leads to a heading of it."""
    page = reference_pages.api()
    headings = {reference_pages._anchor(one) for one in re.findall(r"^#+ (.*)", page, re.MULTILINE)}
    named = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert named and named <= headings
