"""The theory at the top of the engine, compared with the code, and the order of the stages."""

from __future__ import annotations

import ast
import re
from dataclasses import fields

import pytest

from tests.unit.builders import ROOT, catalogue, event
from vitald.judge import engine
from vitald.judge.engine import STAGES, Judge, Stage
from vitald.judge.state import Evaluation
from vitald.model.event import VOUCHED, Event, Trust
from vitald.model.finding import Finding

JUDGE = ROOT / "agent" / "vitald" / "judge"
LAYERS = [each.name for each in fields(Finding) if str(each.type).startswith("Requirement")]


def read_table(heading: str) -> list[str]:
    """The first column of the table below a heading of the engine's theory."""
    assert engine.__doc__ is not None
    section = engine.__doc__.partition(f"\n{heading}\n---")[2]
    rows = re.findall(
        r"^    (\S(?:\S| (?! ))*) {2,}\S", section.partition("\n---")[0], re.MULTILINE
    )
    assert rows
    return rows


def test_the_theory_lists_the_stages_that_run_in_their_order() -> None:
    assert read_table("Stages of one event") == [
        stage.name + ("*" if stage.always else "") for stage in STAGES
    ]


def test_the_theory_lists_the_layers_of_a_finding() -> None:
    assert read_table("The requirement of a finding") == LAYERS


def test_the_page_of_the_judge_lists_the_layers_of_a_finding() -> None:
    page = (ROOT / "docs" / "judgement.md").read_text(encoding="utf-8")
    section = page.partition("\n## What is required")[2].partition("\n## ")[0]
    assert re.findall(r"^\d\. \*\*(\w+)\*\*", section, re.MULTILINE) == LAYERS
    assert section.partition("\n")[0] == ": five layers"
    assert len(LAYERS) == 5


def test_only_the_table_runs_a_stage() -> None:
    """Otherwise the table would not be their order."""
    stages = {stage.apply.__name__ for stage in STAGES}
    assert len(stages) == len(STAGES)
    for path in JUDGE.glob("*.py"):
        names = (
            getattr(node, "id", None) or getattr(node, "attr", None)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
        if path.stem != "engine":
            assert stages.isdisjoint(names), path.name


STARRED = [stage.name for stage in STAGES if stage.always]
FIRST = ["expiry", "evidence", "relevance"]


@pytest.mark.parametrize(
    ("second", "passed"),
    [
        (event(time=1.0), [stage.name for stage in STAGES]),
        (event(time=1.0, trust=Trust.UNTRUSTED), STARRED),
        (event(time=1.0, trust=Trust.ACCEPTED, fields={VOUCHED: False}), [*FIRST, *STARRED[1:]]),
        (
            event("xid/154", time=-1.0, fields={"recovery": 2}),
            [*FIRST, "shared cause", "order", *STARRED[1:]],
        ),
    ],
    ids=["the same fault again", "not trusted", "hearsay", "late state"],
)
def test_an_event_passes_the_stages_in_order_until_one_ends_it(
    second: Event, passed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def record(stage: Stage) -> Stage:
        def apply(evaluation: Evaluation) -> None:
            names.append(stage.name)
            stage.apply(evaluation)

        return Stage(stage.name, apply, stage.always)

    judge = Judge(catalogue())
    for first in (event(), event("xid/154", fields={"recovery": 2})):
        judge.apply_event(first)
    monkeypatch.setattr(engine, "STAGES", tuple(map(record, STAGES)))
    judge.apply_event(second)
    assert names == passed
