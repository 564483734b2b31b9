"""Imports point one way: facts, meaning, judgement, answers. And asking the daemon costs no more than it must."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from agent.cli import VERBS
from tests.unit.builders import ROOT

AGENT = ROOT / "agent"
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(AGENT.rglob("*.py"))}
IMPURE = ("asyncio", "os", "socket", "sqlite3", "subprocess", "time", "threading", "anyio", "random", "datetime", "logging", "structlog")
PURE = ["agent.model", "agent.catalog.rules", "agent.judge", "agent.judge.findings", "agent.judge.verdict"]
GRAMMARS = [f"agent.sources.kernel_log.{name}" for name in ("lines", "recognise", "record", "sighting", "sxid", "xid")]
SERVER = ("aiohttp", "structlog", "prometheus_client", "anyio")


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere in it, and every name that it takes from one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def forbidden(names: Iterable[str], *roots: str) -> list[str]:
    return sorted(name for name in names if any(name == root or name.startswith(f"{root}.") for root in roots))


def named(prefix: str) -> list[str]:
    return [name for name in MODULES if name == prefix or name.startswith(f"{prefix}.")]


def test_the_house_is_where_these_tests_look() -> None:
    assert set(PURE) <= set(MODULES)
    assert set(GRAMMARS) <= set(MODULES)
    assert len(named("agent.outputs")) >= 4
    assert len(named("agent.sources")) >= 8
    assert imports(MODULES["agent.judge.verdict"]) >= {"agent.model", "agent.model.Action"}


@pytest.mark.parametrize("module", [*PURE, *GRAMMARS])
def test_the_pure_parts_touch_no_machine(module: str) -> None:
    assert forbidden(imports(MODULES[module]), *IMPURE) == []


@pytest.mark.parametrize("module", [*named("agent.judge"), "agent.model", *named("agent.catalog"), "agent.toml"])
def test_judgement_knows_neither_sources_nor_outputs(module: str) -> None:
    everyone = (
        "agent.outputs",
        "agent.sources",
        "agent.daemon",
        "agent.cli",
        "agent.pipeline",
        "agent.keeper",
        "agent.board",
        "agent.ledger",
        "agent.config",
    )
    assert forbidden(imports(MODULES[module]), *everyone) == []


@pytest.mark.parametrize("module", ["agent.model", *named("agent.catalog"), "agent.toml"])
def test_meaning_knows_no_judgement(module: str) -> None:
    assert forbidden(imports(MODULES[module]), "agent.judge") == []


def test_the_nouns_know_nobody() -> None:
    assert forbidden(imports(MODULES["agent.model"]), "agent") == []


@pytest.mark.parametrize("module", named("agent.outputs"))
def test_outputs_do_not_judge(module: str) -> None:
    assert forbidden(imports(MODULES[module]), "agent.judge.judge", "agent.daemon", "agent.cli") == []


@pytest.mark.parametrize("module", named("agent.sources"))
def test_sources_neither_judge_nor_tell_nor_remember(module: str) -> None:
    assert (
        forbidden(
            imports(MODULES[module]),
            "agent.judge",
            "agent.outputs",
            "agent.ledger",
            "agent.pipeline",
            "agent.keeper",
            "agent.board",
            "agent.daemon",
            "agent.cli",
        )
        == []
    )


def test_only_the_command_line_builds_the_daemon() -> None:
    assert [name for name, path in MODULES.items() if forbidden(imports(path), "agent.daemon")] == ["agent.cli.run"]


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: {one for one in imports(path) if one in MODULES and one != name} for name, path in MODULES.items()}
    while graph:
        leaves = {name for name, needs in graph.items() if not needs & set(graph)}
        # A package's front door names what lies inside; that is no circle while nothing inside names the door.
        assert leaves, sorted(graph)
        graph = {name: needs - leaves for name, needs in graph.items() if name not in leaves}


ASKING = {
    "check": ["check", "--socket", "/nonexistent"],
    "status": ["status", "--socket", "/nonexistent"],
    "events": ["events", "--socket", "/nonexistent"],
    "findings": ["findings", "--socket", "/nonexistent"],
    "clear": ["clear", "1", "--reason", "x", "--socket", "/nonexistent"],
    "why": ["why", "1", "--socket", "/nonexistent"],
    "remedy": ["remedy", "1", "--reason", "x", "--socket", "/nonexistent"],
    "replay": ["replay", "/dev/null"],
    "gpus": ["gpus", "--socket", "/nonexistent"],
    "components": ["components", "--socket", "/nonexistent"],
    "expect": ["expect", "--socket", "/nonexistent"],
    "release": ["release", "--socket", "/nonexistent"],
    "demo": ["demo", "--profile", "no such"],
    "diag": ["diag", "list", "--socket", "/nonexistent"],
    "slurm": ["slurm", "health", "--socket", "/nonexistent"],
    "recover": ["recover", "--dry-run", "--config", "/nonexistent"],
    "recovery": ["recovery", "--config", "/nonexistent"],
    "explain": ["explain", "xid/79"],
    "scan": ["scan", "/dev/null"],
    "config": ["config", "check", "/dev/null"],
    "report": ["report", "--socket", "/nonexistent", "--output", "/dev/null"],
    "inject": ["inject", "xid/79", "--socket", "/nonexistent"],
    "version": ["version"],
}


def loaded_by(arguments: list[str]) -> set[str]:
    """The modules that a run of the command has imported at its end."""
    code = f"import sys, json, agent.cli\ntry:\n agent.cli.main({arguments!r})\nexcept SystemExit:\n pass\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_verb_but_run_is_looked_at() -> None:
    assert set(ASKING) == set(VERBS) - {"run"}


@pytest.mark.parametrize("verb", list(ASKING))
def test_a_verb_loads_no_server(verb: str) -> None:
    loaded = loaded_by(ASKING[verb])
    assert f"agent.cli.{VERBS[verb][0]}" in loaded
    assert forbidden(loaded, *SERVER, "agent.daemon", "agent.pipeline", "agent.keeper") == []


@pytest.mark.parametrize("verb", ["check", "status", "events", "clear", "why", "remedy"])
def test_asking_loads_no_rules_and_no_database(verb: str) -> None:
    """These stand in schedulers' prologs: every import is paid for at every job."""
    assert (
        forbidden(
            loaded_by(ASKING[verb]),
            "agent.catalog",
            "agent.config",
            "agent.judge",
            "agent.sources",
            "asyncio",
            "sqlite3",
            "tomllib",
            "tomli",
        )
        == []
    )
