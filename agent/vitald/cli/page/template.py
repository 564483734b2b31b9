"""
Renders the status page from `page.html`, with its style sheet in the document.

Owns     that no value becomes markup: autoescaping, and visible escapes for control characters and
         for those that change the direction of writing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vitald import __version__
from vitald.cli.page.model import Page, Span
from vitald.text import escape_unprintable

REFRESH_S = 10
_FOLDER = Path(__file__).parent


class PageTemplate:
    """`redact` is applied to every text before it is shown."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._redact = redact
        # The only text that is not escaped: it is a part of the program.
        self._style = Markup((_FOLDER / "page.css").read_text(encoding="utf-8"))  # noqa: S704
        environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=self._finalize_value,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._template = environment.get_template("page.html")

    @property
    def policy(self) -> str:
        """The Content-Security-Policy: the page's own style sheet, by its digest, and nothing
        else.
        """
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        return (
            f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        )

    def render_page(
        self,
        page: Page,
        *,
        is_live: bool = False,
        is_refreshing: bool = False,
        span: Span | None = None,
    ) -> str:
        """`is_live`: the page is served, and has links to itself; `is_refreshing`: it is loaded
        again by itself. `span`: the one that was chosen for the timeline.
        """
        return self._template.render(
            page=page,
            style=self._style,
            policy=self.policy,
            version=__version__,
            is_live=is_live,
            refresh_s=REFRESH_S if is_live and is_refreshing else 0,
            chosen_span=span,
            spans=tuple(Span),
        )

    def _finalize_value(self, value: object) -> object:
        if isinstance(value, Markup):
            return value
        return escape_unprintable(self._redact(str(value)))
