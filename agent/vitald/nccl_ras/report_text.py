"""
What a report of NCCL RAS in words says is wrong: the lines of its sections "Errors" and "Warnings"
(NCCL user guide, "RAS", "Sample Output"). It names outliers only, so it stays short for a job of
any size.
"""

from __future__ import annotations

from vitald.text import replace_unprintable

MAX_LINES = 12
_MAX_COLUMNS = 160
_SECTIONS = ("Errors", "Warnings")
# Of the query itself: what it says differs between two queries of a job that does not move
_OF_THE_QUERY = "TIMEOUT"


def list_problems(report: bytes) -> tuple[str, ...]:
    """The lines of both sections, without those about the query itself."""
    found: list[str] = []
    in_section, is_of_query = False, False
    for line in report.decode("utf-8", "replace").splitlines():
        text = replace_unprintable(line.rstrip())[:_MAX_COLUMNS]
        if text in _SECTIONS or (text and not text.startswith(" ") and text.endswith("...")):
            in_section, is_of_query = text in _SECTIONS, False
        elif in_section and _is_heading(text):
            is_of_query = text.strip() == _OF_THE_QUERY
        if in_section and not is_of_query and text and not _is_rule(text):
            found += [] if text in _SECTIONS else [text.strip()]
    return tuple(found[:MAX_LINES])


def _is_heading(text: str) -> bool:
    """Whether a line begins the next problem: it is indented by two columns or by none, and in
    capitals at its end.
    """
    return bool(text) and not text.startswith("    ") and text.split()[-1].isupper()


def _is_rule(text: str) -> bool:
    return not text.strip("= ")
