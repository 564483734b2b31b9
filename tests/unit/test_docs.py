"""The documentation: each link leads to a file and a heading that exist, each page is linked, and
each configuration is valid.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitald import tomlfile
from vitald.catalog import load_catalog
from vitald.catalog.settings import CatalogSettings
from vitald.config.sections import parse_config

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
_TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)


def find_pages(root: Path) -> list[Path]:
    """The Markdown pages that people read: those at the root, in docs/ and beside the packaging."""
    patterns = ("*.md", "docs/**/*.md", "packaging/*/README.md")
    return sorted(page for pattern in patterns for page in root.glob(pattern))


def read_text(page: Path) -> str:
    """The page without its code blocks, which may contain `#` and brackets."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def read_links(page: Path) -> list[str]:
    """Targets of the relative links, images included."""
    links: list[str] = _LINK.findall(read_text(page))
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def read_anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them, and explicit ones (`<a id="...">`)."""
    text = read_text(page)
    titles = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    anchors: set[str] = set(re.findall(r"<\w+ (?:id|name)=\"([^\"]+)\"", text))
    for title in titles:
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        repeated = (f"{anchor}-{number}" for number in range(1, len(titles)))
        anchors.add(
            anchor if anchor not in anchors else next(n for n in repeated if n not in anchors)
        )
    return anchors


def find_broken_links(page: Path) -> list[str]:
    """Links whose file or heading does not exist."""
    broken = []
    for link in read_links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in read_anchors(target)):
            broken.append(link)
    return broken


def find_unlinked_pages(root: Path) -> set[str]:
    """Pages of docs/ to which no other page links."""
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in find_pages(root)
        for link in read_links(page)
        if link.partition("#")[0] not in ("", page.name)
    }
    pages = {page.resolve() for page in root.glob("docs/**/*.md")}
    return {str(page.relative_to(root.resolve())) for page in pages - linked}


def test_links_resolve_and_every_page_is_linked() -> None:
    broken = {str(page): find_broken_links(page) for page in find_pages(ROOT)}
    assert {page: links for page, links in broken.items() if links} == {}
    assert find_unlinked_pages(ROOT) == set()


def test_configurations_on_a_page_are_valid() -> None:
    """The blocks of TOML that are parts of the configuration file."""
    blocks = [
        (page, block)
        for page in find_pages(ROOT)
        for block in _TOML.findall(page.read_text(encoding="utf-8"))
        if page.name != "catalogue.md" or "overrides" in block  # others are the catalogue's own
    ]
    assert len(blocks) > 10
    for page, block in blocks:
        parse_config(block, tomlfile.parse_toml(block, page.name), page.name)


def test_what_the_page_on_nhc_makes_a_node_unfit_does() -> None:
    text = (ROOT / "docs/nhc.md").read_text(encoding="utf-8")
    (block,) = (block for block in _TOML.findall(text) if "overrides" in block)
    settings = parse_config(block, tomlfile.parse_toml(block, "nhc.md"), "nhc.md")[CatalogSettings]
    catalogue = load_catalog(settings.profile, settings.overrides)
    codes = [*settings.overrides]
    assert len(codes) == 3 and all(
        catalogue.find_rule(code).apply_to({}).unusable for code in codes
    )
    assert not any(load_catalog().find_rule(code).apply_to({}).unusable for code in codes)


def test_broken_links_and_unlinked_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs/reference").mkdir(parents=True)
    readme = tmp_path / "README.md"
    readme.write_text(
        "# A page: it's `here`\n\n```sh\n# not a heading\necho [no](link.md)\n```\n\n## Twice\n\n## Twice\n\n"
        '<a id="xid-79"></a>[a](#a-page-its-here) [b](#twice-1) [c](docs/a.md#top) [d](#xid-79)\n'
        "[e](#not-a-heading) [f](docs/b.md) [g](docs/a.md#bottom) ![h](docs/a.svg) [i](https://example.com/#x)\n"
    )
    (tmp_path / "docs/a.md").write_text("# Top\n\n[itself](a.md)\n")
    (tmp_path / "docs/reference/c.md").write_text(
        "# Reference\n\n[itself](c.md) [up](../a.md#top)\n"
    )
    assert [page.name for page in find_pages(tmp_path)] == ["README.md", "a.md", "c.md"]
    assert find_broken_links(readme) == [
        "#not-a-heading",
        "docs/b.md",
        "docs/a.md#bottom",
        "docs/a.svg",
    ]
    assert find_broken_links(tmp_path / "docs/reference/c.md") == []
    assert find_unlinked_pages(tmp_path) == {"docs/reference/c.md"}
