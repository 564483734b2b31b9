"""What tests share. A test whose real part is missing skips by hand and fails under CI=true."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.harness import ROOT, Node
from vitald.catalog import Catalog, load_catalog
from vitald.diagnostics.idle import device_users

# The gate tries the same examples of a property on every run and machine; `all` generates new ones.
settings.register_profile("gate", max_examples=40, derandomize=True, database=None, deadline=None)
settings.register_profile("search", max_examples=200, deadline=None, print_blob=True)
settings.load_profile("gate")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    Node.warm = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Which tests run one after the other, and who begins.

    Tests that run at the same time must not see each other. There is one kernel log and one Slurm,
    and one Kubernetes control plane, which takes half a gigabyte; tests of a file that share a
    daemon stay together; every other test is on its own. The longest groups begin, so that none is
    left over at the end.
    """
    kinds = {item: _kind(item) for item in items}
    for item, kind in kinds.items():
        if kind in ("unit", "control_plane"):
            item.add_marker(getattr(pytest.mark, kind))
        if group := _group(item, kind):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _ORDER.index(kinds[item]))


_ORDER = ("control_plane", "kernel_log", "slurm", "shared", "alone", "unit")
_MADE_ONCE = {
    "catalog",
    "library",
    "_compiler",
    "request",
    "tmp_path_factory",
}  # and nothing of it runs


# Diagnostics of these tests make room for any job of this machine's Slurm.
NOT_BESIDE_SLURM = pytest.mark.xdist_group("slurm")


def _kind(item: pytest.Item) -> str:
    """What a test needs for itself, of `_ORDER`."""
    names = set(getattr(item, "fixturenames", ()))
    if "kmsg" in names or item.get_closest_marker("kmsg"):
        return "kernel_log"
    if "control_plane" in names or item.get_closest_marker("control_plane"):
        return "control_plane"
    if "slurm" in names:
        return "slurm"
    if (ROOT / "tests/system") not in item.path.parents:
        return "unit"
    return "shared" if _shares(item) else "alone"


def _shares(item: pytest.Item) -> bool:
    """Whether a fixture of the test lives longer than one test, and is the project's own."""
    info = getattr(item, "_fixtureinfo", None)
    found = info.name2fixturedefs if info is not None else {}
    return any(
        one.scope != "function" and "tests" in one.baseid
        for name in found.keys() - _MADE_ONCE
        for one in found[name]
    )


def _group(item: pytest.Item, kind: str) -> str:
    if kind in ("control_plane", "kernel_log", "slurm"):
        return kind
    return item.path.stem if _shares(item) else ""


def require(holds: object, what: str) -> None:
    """Skip with a reason, or fail where everything must be there."""
    if holds:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI needs {what}")
    pytest.skip(f"needs {what}")


# Files of tests that lay out whole machines, thousands of files each: half a second on a disk.
_IN_MEMORY = {
    *(
        "test_components",
        "test_device_metrics",
        "test_expect",
        "test_expected",
        "test_network",
        "test_neuron",
        "test_neuron_hostile",
    ),
    *(
        "test_golden",
        "test_neuron_node",
        "test_pci_functions",
        "test_every_source",
        "test_whole_node",
    ),
}
_MEMORY = Path("/dev/shm")


# --- a second run of core tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rerun-core",
        action="store_true",
        help="run core system tests that failed once more, alone",
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With --rerun-core, if only core system tests failed: if all of them pass now, they are flaky
    and the run has passed.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.option.rerun_core or reporter is None or session.exitstatus != 1:
        return
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    if not all("core" in report.keywords for report in failed):
        return
    names = {_strip_group(report.nodeid) for report in failed}
    reporter.write_line(f"\nrunning {len(names)} failed core system tests once more, alone")
    command = [sys.executable, "-m", "pytest", *sorted(names)]
    if subprocess.run(command, cwd=session.config.rootpath).returncode == 0:
        reporter.stats["flaky"] = failed
        reporter.stats.pop("failed", None)
        reporter.stats.pop("error", None)
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("flaky", ()):
        report.toterminal(terminalreporter._tw)
        terminalreporter.write_line(f"FLAKY {_strip_group(report.nodeid)}")


def _strip_group(nodeid: str) -> str:
    """Removes the group name that pytest-xdist appends."""
    return re.sub(r"@[\w-]+$", "", nodeid)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of the test's own, in memory where that pays."""
    if request.module.__name__.rpartition(".")[2] not in _IN_MEMORY or not os.access(
        _MEMORY, os.W_OK
    ):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="vitald-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def catalog_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that call a verb in this process dozens of times: the same catalogue is loaded for
    all of them.
    """
    monkeypatch.setattr("vitald.catalog.load_catalog", _load_once)


_loaded: dict[str, Catalog] = {}


def _load_once(
    profile: str = "nvidia",
    overrides: Mapping[str, object] | None = None,
    extra: Path | None = None,
) -> Catalog:
    key = repr((profile, overrides, extra))
    if key not in _loaded:
        _loaded[key] = load_catalog(profile, overrides, extra=extra)
    return _loaded[key]


@pytest.fixture
def whole_machine() -> None:
    """Not a container, whose processes are not all that there are: in one, vitald never takes a
    device for unused.
    """
    require(
        str(Path("/proc/self/ns/pid").readlink()) == device_users._HOST_PIDS,
        "a machine whose processes are all seen",
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A running daemon that follows a file."""
    with Node(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The same for all tests of a file that do not mind what the others left."""
    with Node(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Nodes made to order; whatever still runs at the end is stopped."""
    made: list[Node] = []

    def make(**settings: Any) -> Node:
        made.append(Node(tmp_path / f"node{len(made)}", **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def kmsg() -> Iterator[Callable[[str], object]]:
    """Writes lines to the real kernel log, with the kernel's rate limit for writers off
    meanwhile.
    """
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    setting = Path("/proc/sys/kernel/printk_devkmsg")
    with Path("/tmp/vitald-tests-kmsg.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # there is one kernel log, however many test runs
        before = setting.read_text().strip()
        if before != "on":
            # In a container /proc/sys may be read-only: then the host decides.
            require(not is_read_only(setting), f"{setting} to be writable, or `on` already")
            setting.write_text("on\n")
        fd = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
        try:
            yield lambda line: os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)
            if before != "on":
                setting.write_text(f"{before}\n")


def is_read_only(path: Path) -> bool:
    """Whether its file system is mounted so; root's permission says nothing about that."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    require(path, "promtool (apt-get install prometheus)")
    assert path is not None
    return path
