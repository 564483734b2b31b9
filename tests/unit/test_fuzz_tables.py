"""Any tables for catalogue and configuration: they are taken, or told as mistakes, and nothing else
is raised.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_loader import ESCALATION, GOOD, entry
from vitald import tomlfile
from vitald.catalog import Catalog, CatalogError, load_catalog
from vitald.config.errors import ConfigError
from vitald.config.sections import SECTIONS, parse_config

WORDS = st.one_of(
    st.sampled_from(
        sorted(
            {
                *GOOD,
                "cases",
                "also",
                "match",
                "state",
                "fatal",
                "component",
                "when",
                "where",
                "at_least",
                "xid",
                "xid/1",
                "1",
                "default",
                "policies",
                "policy",
                "steps",
                "after",
            }
        )
    ),
    st.text(max_size=5),
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-10, 10**12),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(
        [
            "reboot_node",
            "none",
            "now",
            "after_job",
            "reboot",
            "quiet:1h",
            "diagnostic:3",
            "quiet:",
            "{bdf}",
            "a(",
            "[",
            "gpu",
            "hardware",
            "off",
            "/x",
            "1h",
            "1MiB",
        ]
    ),
    st.dates(),
    st.times(),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=12,
)
TABLES = st.dictionaries(WORDS, TREES, max_size=4)
ENTRIES = st.builds(
    lambda changes: {**GOOD, **changes},
    st.dictionaries(
        st.sampled_from([*GOOD, "cases", "also", "match", "when", "component", "state"]),
        TREES,
        max_size=3,
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("catalogue")
    (made / "escalation.toml").write_text(ESCALATION)
    (made / "site.toml").write_text(entry())
    return made


@given(
    overrides=st.one_of(
        TABLES, st.dictionaries(st.sampled_from(["xid/1", "xid/2", "site/x"]), ENTRIES, max_size=2)
    )
)
def test_any_overrides_are_taken_or_told(folder: Path, overrides: dict[str, object]) -> None:
    """A mistake is a CatalogError; what is taken can be used."""
    try:
        catalog: Catalog = load_catalog("nvidia", overrides, folder)
    except CatalogError as error:
        assert error.errors
        assert all(one.startswith("[catalog.overrides]: ") for one in error.errors)
        return
    for code in catalog.rules:
        assert catalog.find_rule(code).apply_to({"a": 1}).action in type(
            catalog.find_rule(code).action
        )


SETTINGS = st.dictionaries(
    st.one_of(
        st.sampled_from([section for section in SECTIONS if section != "catalog"]),
        st.text(max_size=5),
    ),
    st.one_of(
        TREES,
        st.dictionaries(
            st.sampled_from(
                sorted({key for section in SECTIONS.values() for key in section.list_settings()})
            ),
            SCALARS,
            max_size=4,
        ),
    ),
    max_size=4,
)


@given(tables=SETTINGS)
def test_any_settings_are_taken_or_told(tables: dict[str, object]) -> None:
    try:
        parse_config("", tables, "c.toml")
    except ConfigError as error:
        assert error.errors
        assert all(one.startswith("c.toml: ") for one in error.errors)


@given(
    text=st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(
                [
                    "[log]",
                    "level",
                    "=",
                    '"info"',
                    "\n",
                    "[",
                    "]",
                    "'",
                    "#",
                    "{",
                    "}",
                    ",",
                    "1",
                    "\\",
                    ".",
                ]
            ),
            max_size=20,
        ).map("".join),
    )
)
def test_any_text_is_toml_or_told(text: str) -> None:
    try:
        tables = tomlfile.parse_toml(text, "c.toml")
    except ValueError as error:
        assert str(error).startswith("c.toml: not valid TOML: ")
        return
    try:
        parse_config(text, tables, "c.toml")
    except ConfigError as error:
        assert error.errors


@given(text=st.text(alphabet="[]{}=.,a1'\"# \n", max_size=80))
def test_every_table_and_key_has_a_line(text: str) -> None:
    try:
        tables = tomlfile.parse_toml(text, "c.toml")
    except ValueError:
        return
    lines = tomlfile.index_lines(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    assert lines.keys() == set(paths_in(tables))


def paths_in(value: object, *above: str) -> list[tuple[str, ...]]:
    tables = [
        one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)
    ]
    inner = [((*above, key), inside) for table in tables for key, inside in table.items()]
    return [path for path, _ in inner] + [
        deeper for path, inside in inner for deeper in paths_in(inside, *path)
    ]
