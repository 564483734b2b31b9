"""
What each code of a table with policies asks for and says, as one digest a code:

    python -m tests.rule_digests        writes tests/data/rules/PROFILE-KIND.txt

A change of a policy changes every code that names it. The digests show which, in the test that
compares them and in the diff of a change that was meant.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from vitald.catalog import Catalog, load
from vitald.outputs import form

FOLDER = Path(__file__).resolve().parent / "data/rules"
# Profile and kind.
TABLES = (("nvidia", "sxid"), ("nvidia", "xid"), ("nvidia", "dcgm"), ("hyperpod", "xid"))
_UNLISTED = "unlisted"  # a code that the table does not have: its kind's default


def digests(profile: str, kind: str) -> dict[str, str]:
    """By code, of a kind and of one unlisted code, a digest of all that the rule says."""
    catalog = load(profile)
    codes = [code for code, rule in catalog.rules.items() if rule.kind == kind]
    return {code: _digest(catalog, code) for code in (*codes, f"{kind}/{_UNLISTED}")}


def _digest(catalog: Catalog, code: str) -> str:
    rule = catalog.rule(code)
    said = {**form.rule(rule), "component": rule.component.value, "unusable": rule.unusable}
    said.pop("origin")
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]


def kept(profile: str, kind: str) -> dict[str, str]:
    """The digests that are on file."""
    return dict(line.split() for line in _file(profile, kind).read_text("utf-8").splitlines())


def _file(profile: str, kind: str) -> Path:
    return FOLDER / f"{profile}-{kind}.txt"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for table in TABLES:
        lines = [f"{code} {digest}\n" for code, digest in digests(*table).items()]
        _file(*table).write_text("".join(lines), encoding="utf-8")
