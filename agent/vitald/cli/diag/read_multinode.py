"""What `vitald diag read` prints of a report of dcgmi mndiag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitald.cli import render
from vitald.cli.diag import views
from vitald.cli.render import Json
from vitald.cli.table import Column, format_table
from vitald.text import join_ranges

if TYPE_CHECKING:
    from vitald.diagnostics.dcgm.multinode import HostResult, MultiNodeReport

_COLUMNS = (Column("  host"), Column("by GPU, as printed", folded=True))
_MAX_ERRORS = 32
NOTES = (
    "an error names the GPU whose process reported it: in a collective test that need not be the"
    " one at fault. A level 3 diagnostic on each of these hosts tells them apart",
    "a host that printed nothing is not in the document: compare the hosts with those requested",
)


def serialize_multinode(report: MultiNodeReport) -> Json:
    return {
        "outcome": report.outcome.value,
        "reason": report.reason,
        "hosts": [
            {
                "hostname": host.name,
                "dcgm_version": host.dcgm_version or None,
                "driver_version": host.driver_version or None,
                "gpus": {str(gpu): status for gpu, status in host.gpus.items()},
            }
            for host in report.hosts
        ],
        "tests": dict(report.tests),
        "errors": [
            {
                "host": error.host or None,
                "gpu": error.gpu,
                "error_id": error.error_id,
                "text": error.text,
            }
            for error in report.errors
        ],
        "notes": [*NOTES],
    }


def format_multinode(report: MultiNodeReport) -> Iterator[str]:
    """The outcome, the hosts, the errors."""
    outcome, columns = report.outcome.value, views.get_text_columns()
    yield f"{views.format_outcome(outcome)}  {render.escape_text(_describe_run(report))}"
    yield from views.wrap_text("why", report.reason, columns)
    yield from views.wrap_text("means", views.MEANINGS.get(outcome, ""), columns)
    if report.hosts:
        yield ""
        rows = [(f"  {render.escape_text(host.name)}", _group(host)) for host in report.hosts]
        yield from format_table(_COLUMNS, rows)
    if report.errors:
        yield ""
    for error in report.errors[:_MAX_ERRORS]:
        gpu = f" GPU {error.gpu}" if error.gpu is not None else ""
        text = f"{error.host or 'all hosts'}{gpu}: {error.text or 'no text'}"
        yield f"  {render.escape_text(text)}"
    if len(report.errors) > _MAX_ERRORS:
        yield f"  and {len(report.errors) - _MAX_ERRORS} more"
    yield ""
    for note in NOTES:
        yield from views.wrap_text("note", note, columns)


def _describe_run(report: MultiNodeReport) -> str:
    count = len(report.hosts)
    about = ["dcgmi mndiag", f"{count} host{'' if count == 1 else 's'}"]
    about += [f"{name} {status}" for name, status in report.tests.items()]
    for word, values in (
        ("DCGM", [host.dcgm_version for host in report.hosts]),
        ("driver", [host.driver_version for host in report.hosts]),
    ):
        versions = [version for version in dict.fromkeys(values) if version]
        about += [f"{word} {' and '.join(versions)}"] if versions else []
    return ", ".join(about)


def _group(host: HostResult) -> str:
    """`Fail GPU 3, Pass GPU 0-2,4-7`: passes last."""
    gpus: dict[str, list[int]] = {}
    for gpu, status in host.gpus.items():
        gpus.setdefault(status, []).append(gpu)
    ordered = sorted(gpus.items(), key=lambda item: item[0].lower() == "pass")
    parts = [f"{render.escape_text(word)} GPU {join_ranges(numbers)}" for word, numbers in ordered]
    return ", ".join(parts) or "no result"
