"""The benchmarks' command: what the documents say to type is accepted, and what is there can be
asked for.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.bench.__main__ import BENCHMARKS, BY_NAME_ONLY, parsed
from tests.unit.builders import ROOT

BENCH = ROOT / "tests" / "bench"
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for part in ("agent", "packaging") for path in sorted((ROOT / part).rglob("*.md"))),
    *sorted((ROOT / "tests").rglob("*.py")),
]
SAID = re.compile(r"-m tests\.bench(?P<module>\.[a-z_]+)?(?P<words>(?: [a-z_]+\b(?!\.))*)")


def said() -> dict[str, tuple[str, str]]:
    """Each way to begin a benchmark that is written anywhere, with the module and the names that it
    gives.
    """
    return {
        f"{path.relative_to(ROOT)}: {match[0]}": (match["module"] or "", match["words"])
        for path in DOCUMENTS
        if path != Path(__file__)
        for match in SAID.finditer(path.read_text("utf-8"))
    }


def test_what_is_said_is_found() -> None:
    assert {"soak", "judge", "nvml", "rounds"} <= {words.strip() for _, words in said().values()}
    assert ".soak" in {module for module, _ in said().values()}


def test_a_command_that_is_written_down_can_be_given() -> None:
    for module, words in said().values():
        if module:
            assert callable(importlib.import_module(f"tests.bench{module}").main)
            assert 'if __name__ == "__main__":' in (BENCH / f"{module[1:]}.py").read_text("utf-8")
        else:
            assert parsed(words.split()).names == (words.split() or parsed([]).names)


def test_every_benchmark_can_be_asked_for() -> None:
    modules = {path.stem for path in BENCH.glob("*.py") if not path.stem.startswith("_")}
    runs = {
        name for name in modules if hasattr(importlib.import_module(f"tests.bench.{name}"), "run")
    }
    assert runs == set(BENCHMARKS)
    assert all(parsed([name]).names == [name] for name in runs)


def test_a_day_is_not_run_unasked() -> None:
    assert set(parsed([]).names) == set(BENCHMARKS) - BY_NAME_ONLY
    assert "soak" in BY_NAME_ONLY
    assert (parsed(["soak"]).hours, parsed(["soak", "--hours", "0.5"]).hours) == (24.0, 0.5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["soak", "soap"], "no such benchmark: soap"),
        (["soak", "--hours", "0.001"], "0.03 or more"),
        (["soak", "--hours", "nan"], "0.03 or more"),
    ],
)
def test_what_cannot_be_had_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
