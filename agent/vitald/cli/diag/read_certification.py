"""What `vitald diag read` prints of certifications of NVCRE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vitald.cli import layout, render
from vitald.cli.diag import views
from vitald.cli.render import Json
from vitald.cli.table import Column, format_table

if TYPE_CHECKING:
    from vitald.diagnostics.nvcre import Certification

_COLUMNS = (Column("  category"), Column("status"), Column("nodes passed", -1))
_NODE_COLUMNS = (Column("  node"), Column("category"), Column("reason"), Column("", folded=True))
_MAX_NODES = 64


def serialize_certifications(certifications: Sequence[Certification]) -> Json:
    return {
        "certifications": [
            {
                "name": each.name,
                "outcome": each.outcome.value,
                "reason": each.reason,
                "categories": dict(each.categories),
                "failed_nodes": [
                    {
                        "node": row.node,
                        "category": row.category,
                        "reason": row.reason,
                        "message": row.message,
                    }
                    for row in each.failed
                ],
                "passed_nodes": {name: list(nodes) for name, nodes in each.passed.items()},
                "missing": list(each.missing),
            }
            for each in certifications
        ]
    }


def format_certifications(certifications: Sequence[Certification]) -> Iterator[str]:
    for position, certification in enumerate(certifications):
        if position:
            yield ""
        yield from _format_certification(certification)


def _format_certification(certification: Certification) -> Iterator[str]:
    outcome, columns = certification.outcome.value, views.get_text_columns()
    name = render.escape_text(certification.name)
    yield f"{views.format_outcome(outcome)}  NVCRE certification {name}"
    yield from views.wrap_text("why", certification.reason, columns)
    yield from views.wrap_text("means", views.MEANINGS.get(outcome, ""), columns)
    if certification.categories:
        yield ""
        rows = []
        for category, status in certification.categories.items():
            passed = certification.passed.get(category)
            count = "-" if passed is None else str(len(passed))
            rows.append((f"  {render.escape_text(category)}", render.escape_text(status), count))
        yield from format_table(_COLUMNS, rows)
    if certification.failed:
        yield ""
        shown = [
            (
                f"  {render.escape_text(row.node)}",
                render.escape_text(row.category),
                render.escape_text(row.reason),
                layout.cut_text(render.escape_text(row.message), columns),
            )
            for row in certification.failed[:_MAX_NODES]
        ]
        yield from format_table(_NODE_COLUMNS, shown)
    if len(certification.failed) > _MAX_NODES:
        yield f"  and {len(certification.failed) - _MAX_NODES} more: --json lists all"
    if certification.missing:
        yield ""
        names = ", ".join(certification.missing)
        note = f"without the ConfigMaps {names} the nodes are not known: print them, too"
        yield from views.wrap_text("note", note, columns)
