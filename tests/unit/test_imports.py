"""Imports point one way: facts, meaning, judgement, answers. And asking the daemon costs no more
than it must.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.builders import ROOT
from tests.waiting import WAIT_S
from vitald.cli import VERBS

PACKAGE = ROOT / "agent/vitald"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# What of Python's own reads neither clock nor machine. Anything else is refused in the pure parts.
CALM = {
    *(
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "re",
        "string",
        "zlib",
    ),
    "typing",
}
READER = (  # of the catalogue's files; the package names it, and is the way to it
    "vitald.catalog.loader"
)
# Puts a time that it is given into words, and needs `datetime` for that
CALENDAR = "vitald.judge.device_history"
ROOTS_RULES = [f"vitald.recovery.{name}" for name in ("action_log", "decision", "recovery_request")]
SERVER = (
    *("aiohttp", "structlog", "prometheus_client", "anyio", "jinja2"),
    *("vitald.http_server", *(f"vitald.server.{name}" for name in ("app", "schema", "routes"))),
)


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports anywhere in it, and every name that it takes from one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def forbidden(names: Iterable[str], *roots: str) -> list[str]:
    return sorted(
        name for name in names if any(name == root or name.startswith(f"{root}.") for root in roots)
    )


def named(prefix: str) -> list[str]:
    return [name for name in MODULES if name == prefix or name.startswith(f"{prefix}.")]


GRAMMARS = [
    f"vitald.collectors.kernel_log.{name}" for name in ("lines", "recognise", "record", "xid")
]
# Sections of the configuration, each in the package that it configures
SETTINGS = [name for name in MODULES if name.endswith(".settings")]
RULES = [name for name in named("vitald.catalog") if name not in (READER, *SETTINGS)]
PURE = [
    *named("vitald.model"),
    "vitald.text",
    "vitald.checking",
    *RULES,
    *(name for name in named("vitald.judge") if name not in SETTINGS),
    *GRAMMARS,
    "vitald.scan.saved_clock",
    *ROOTS_RULES,
]

# Each part imports only from those before it. A part is a module of `vitald`, or a package with all
# that is in it.
LAYERS = (
    *("text", "timestamps", "backoff", "tasks"),
    *("model", "tomlfile", "checking", "worker_thread", "lock", "log", "systemd", "small_files"),
    *("config", "catalog", "settings", "slurm", "judge"),
    *("topology", "collectors", "scan", "ledger", "config.sections", "core"),
    *("diagnostics", "recovery"),
    *("http_server", "metrics", "server", "publish"),
    *("simulator", "daemon", "cli", "__main__"),
)


def ours(name: str) -> set[str]:
    """The modules of `vitald` that a module imports. Of `vitald` itself there is only the version
    to be had.
    """
    return {one for one in imports(MODULES[name]) if one in MODULES and one != "vitald"}


def part(module: str) -> str:
    """Its place in LAYERS. What reads the whole configuration lies above all that has a section."""
    if module in SETTINGS:
        return "settings"
    package = module.split(".")[1]
    is_whole = package == "config" and "vitald.config.sections" in (
        module,
        *imports(MODULES[module]),
    )
    return "config.sections" if is_whole else package


def test_the_house_is_where_these_tests_look() -> None:
    assert {*PURE, READER, CALENDAR} <= set(MODULES)
    assert len(named("vitald.judge")) >= 7
    assert len(RULES) >= 8
    assert len(named("vitald.server")) >= 4
    assert len(named("vitald.collectors")) >= 8
    assert imports(MODULES["vitald.judge.verdict"]) >= {
        "vitald.model.words",
        "vitald.model.words.Action",
    }


def test_the_pure_parts_touch_no_machine() -> None:
    for module in PURE:
        calm = CALM | ({"datetime"} if module == CALENDAR else set())
        theirs = {name.split(".")[0] for name in imports(MODULES[module])} - {"vitald"}
        assert theirs <= calm, module


def test_the_pure_parts_have_nobody_touch_it_for_them() -> None:
    """Neither by what they import of ours, nor by a name that needs no import."""
    # `vitald.tomlfile` has one function that reads, and `vitald.catalog` takes it in; both are
    # refused below by its name.
    allowed = {*PURE, "vitald.tomlfile", "vitald.catalog", *packages(PURE)}
    for module in (name for name in PURE if name != "vitald.catalog"):
        assert ours(module) <= allowed, module
        assert [*reaching(MODULES[module])] == []


def packages(modules: Iterable[str]) -> set[str]:
    """What holds them, and has no code of its own."""
    found = {name.rpartition(".")[0] for name in modules}
    return {name for name in found if name in MODULES and not imports(MODULES[name])}


def reaching(path: Path) -> Iterator[str]:
    """Where a module reaches for a file, the time, or code that is not written in it."""
    builtins = ("open", "input", "print", "exec", "eval", "__import__")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and node.id in builtins:
            yield f"{path.name}:{node.lineno}: {node.id}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            (".now", ".utcnow", ".today")
        ):
            yield f"{path.name}:{node.lineno}: {ast.unparse(node.func)}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in (
            "tomlfile.read_toml",
            "catalog.load_catalog",
        ):
            yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module in (
            "vitald.tomlfile",
            "vitald.catalog",
            READER,
        ):
            names = {one.name for one in node.names} & {"load_catalog", "loader", "read_toml"}
            yield from (f"{path.name}:{node.lineno}: {name}" for name in names)


def test_a_part_imports_only_from_those_below_it() -> None:
    modules = set(MODULES) - {"vitald"}
    assert {part(name) for name in modules} == set(LAYERS)
    height = {name: LAYERS.index(part(name)) for name in modules}
    upward = {(name, one) for name in modules for one in ours(name) if height[one] > height[name]}
    assert sorted(upward) == []


def list_imports(package: str, *roots: str) -> dict[str, list[str]]:
    """What the modules of a package import of what is under the roots."""
    found = {name: forbidden(imports(MODULES[name]), *roots) for name in named(package)}
    return {name: names for name, names in found.items() if names}


def test_the_architecture_names_every_part_of_the_tree() -> None:
    """At most ten modules beside the packages, the daemon and the command line."""
    table = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    parts = {name.split(".")[1] for name in MODULES if "." in name} - {"__main__"}
    packages = {name for name in parts if PACKAGE.joinpath(name).is_dir()}
    names = {f"`{name}/`" if name in packages else f"`{name}`" for name in parts}
    assert {name for name in names if name not in table} == set()
    assert len(parts - packages - {"daemon"}) <= 10


def test_what_the_architecture_names_is_in_the_tree() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row[2])}
    assert len(names) > 20
    tree = {str(path.relative_to(PACKAGE).with_suffix("")) for path in MODULES.values()}
    tree |= {str(path.parent.relative_to(PACKAGE)) for path in MODULES.values()}
    missing = {
        name
        for name in names
        if not any(f"/{known}".endswith(f"/{name.rstrip('/')}") for known in tree)
    }
    assert missing == set()


def test_what_a_package_says_of_its_modules_is_in_the_tree() -> None:
    """Tables name modules of the package; the text may name others, too."""
    everywhere = {part for name in MODULES for part in name.split(".")}
    tables = 0
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        listed = set(re.findall(r"^    ([a-z_]+)  +\S", text, re.M))
        tables += bool(listed)
        assert listed <= {found.stem for found in path.parent.iterdir()}, name
        assert {*re.findall(r"`([a-z_]+)`", text)} <= everywhere, name
    assert tables >= 2


def test_no_module_is_too_long_to_read() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name for name, length in lengths.items() if length > 500} == set()


def test_a_module_gives_each_name_one_meaning() -> None:
    """A constant that is assigned a second time changes what is above it."""
    for name, path in MODULES.items():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assigned = [
            found.id
            for node in body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for found in ast.walk(target)
            if isinstance(found, ast.Name)
        ]
        assert len(assigned) == len({*assigned}), name


def test_outputs_and_sources_do_not_judge() -> None:
    engine = ("vitald.judge.engine", "vitald.daemon", "vitald.cli")
    assert list_imports("vitald.server", *engine) == {}
    assert list_imports("vitald.collectors", "vitald.judge") == {}


def test_what_root_runs_knows_nothing_of_the_daemon() -> None:
    daemons = ("core", "diagnostics", "judge", "ledger", "collectors", "metrics")
    found = list_imports("vitald.recovery", *(f"vitald.{name}" for name in daemons))
    requesting = "vitald.recovery.requester"  # the daemon's part
    assert found.pop(requesting)
    modules = {name for names in found.values() for name in names if name in MODULES}
    assert modules <= {*SETTINGS}
    assert list_imports("vitald.recovery", requesting) == {}
    assert list_imports("vitald.cli", requesting) == {}


def test_only_the_command_line_builds_the_daemon() -> None:
    assert [
        name for name, path in MODULES.items() if forbidden(imports(path), "vitald.daemon")
    ] == ["vitald.cli.run"]


def test_only_the_command_line_reads_saved_logs() -> None:
    importers = {name for name, path in MODULES.items() if forbidden(imports(path), "vitald.scan")}
    outside = importers - {*named("vitald.scan")}
    assert outside and outside <= {*named("vitald.cli")}


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        name: {one for one in imports(path) if one in MODULES and one != name}
        for name, path in MODULES.items()
    }
    while graph:
        leaves = {name for name, needs in graph.items() if not needs & set(graph)}
        # A package's front door names what lies inside; that is no circle while nothing inside
        # names the door.
        assert leaves, sorted(graph)
        graph = {name: needs - leaves for name, needs in graph.items() if name not in leaves}


ASKING = {
    "check": ["check", "--socket", "/nonexistent"],
    "status": ["status", "--socket", "/nonexistent"],
    "events": ["events", "--socket", "/nonexistent"],
    "findings": ["findings", "--socket", "/nonexistent"],
    "accept": ["accept", "1", "--for", "7d", "--reason", "x", "--socket", "/nonexistent"],
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
    "recovery": ["recovery", "status", "--config", "/nonexistent"],
    "recovery run": ["recovery", "run", "--dry-run", "--config", "/nonexistent"],
    "explain": ["explain", "xid/79"],
    "scan": ["scan", "/dev/null"],
    "config": ["config", "check", "/dev/null"],
    "report": ["report", "--socket", "/nonexistent", "--output", "/dev/null"],
    "notify": ["notify", "show", "--config", "/dev/null"],
    "drill": ["drill", "xid/79", "--socket", "/nonexistent"],
    "version": ["version"],
}
SERVING = {"page", "publish", "run"}


def loaded_by(arguments: list[str]) -> set[str]:
    """The modules that a run of the command has imported at its end."""
    code = (
        f"import sys, json, vitald.cli\ntry:\n vitald.cli.main({arguments!r})\nexcept SystemExit:\n"
        " pass\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_verb_is_looked_at_but_those_that_serve() -> None:
    assert {called.split()[0] for called in ASKING} == set(VERBS) - SERVING


# These stand in schedulers' prologs: every import is paid for at every job.
LEAN = ("check", "status", "events", "clear", "why", "remedy")
HEAVY = (
    "vitald.model.component",
    *("vitald.catalog", "vitald.config", "vitald.judge", "vitald.collectors"),
    *("asyncio", "sqlite3", "tomllib", "tomli"),
)


@pytest.mark.parametrize("verb", list(ASKING))
def test_a_verb_loads_no_more_than_it_needs(verb: str) -> None:
    """No server; those that only ask, no rules and no database either."""
    daemons = ("vitald.daemon", "vitald.core.pipeline", "vitald.core.ledger_writer")
    loaded = loaded_by(ASKING[verb])
    assert f"vitald.cli.{VERBS[verb.split()[0]][0]}" in loaded
    assert forbidden(loaded, *SERVER, *daemons, *(HEAVY if verb in LEAN else ())) == []


def test_root_loads_nothing_for_people_and_people_nothing_of_root() -> None:
    """Each part of `vitald recovery` loads what it needs, and not what the other one needs."""
    of_run = ("vitald.cli.recovery.run", "vitald.recovery.attempt", "vitald.recovery.brake")
    of_status = ("vitald.cli.recovery.status",)
    run, status = loaded_by(ASKING["recovery run"]), loaded_by(ASKING["recovery"])
    assert {*of_run} <= run and {*of_status} <= status
    assert (forbidden(run, *of_status), forbidden(status, *of_run)) == ([], [])
