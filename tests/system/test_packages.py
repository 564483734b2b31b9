"""
The packages, as packaging/build makes them from a copy of what is under version control: what is in
them, for whom, and that it runs.

The deb is unpacked into a folder and its launcher run there. Installing, upgrading and removing it
on a booted machine: tests/booted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import require
from tests.harness import ROOT
from vitald import __version__

# As packaging/build names a commit.
VERSION = f"{__version__}+1234.gabc1234"

BUILD = "packaging/build"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PYTHON = next(
    (
        version
        for version in PYTHONS
        if Path("/usr/bin/python3").resolve().name == f"python{version}"
    ),
    "",
)
MACHINES = {"amd64": 62, "arm64": 183}  # e_machine: EM_X86_64, EM_AARCH64
COMPILED = {"aiohttp", "frozenlist", "markupsafe", "multidict", "propcache", "yarl"}


class Packages:
    """The deb for both architectures and the rpm for one, and the debs' files; each is built when
    it is first asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = clean_copy(folder / "source")

    def _built(self, arch: str) -> Path:
        out = self.folder / arch
        if not (out / "control").exists():
            kinds = ("--deb", "--rpm") if arch == "amd64" else ("--deb",)
            build(self.source, self.folder, *kinds, "--arch", arch, "--out", str(out))
            (deb,) = out.glob("*.deb")
            run("dpkg-deb", "-x", str(deb), str(out / "tree"))
            run("dpkg-deb", "-e", str(deb), str(out / "control"))
        return out

    def deb(self, arch: str = "amd64") -> Path:
        return self._built(arch) / f"vitald_{VERSION}_{arch}.deb"

    def rpm(self) -> Path:
        return self._built("amd64") / f"vitald-{VERSION}-1.x86_64.rpm"

    def tree(self, arch: str = "amd64") -> Path:
        return self._built(arch) / "tree"

    def control(self, name: str) -> str:
        return (self._built("amd64") / "control" / name).read_text()


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert done.returncode == 0, (
        f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


def clean_copy(folder: Path) -> Path:
    """As somebody else would get it: nothing that git ignores. Its files have other dates than
    ours.
    """
    listed = run("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(source: Path, folder: Path, *arguments: str) -> None:
    """Libraries are fetched once, into the folder."""
    command = [
        sys.executable,
        str(source / BUILD),
        "--quick",
        "--wheels",
        str(folder / "wheels"),
        "--version",
        VERSION,
        *arguments,
    ]
    run(*command, SOURCE_DATE_EPOCH="1700000000")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    require(
        shutil.which("dpkg-deb") and shutil.which("rpmbuild"),
        "dpkg-deb and rpmbuild (apt-get install rpm)",
    )
    return Packages(tmp_path_factory.mktemp("packages"))


def files(tree: Path) -> Iterator[Path]:
    return (path for path in sorted(tree.rglob("*")) if not path.is_symlink() and path.is_file())


def names(tree: Path) -> set[str]:
    return {
        f"/{path.relative_to(tree)}"
        for path in tree.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def rpm(*arguments: object) -> list[str]:
    return run("rpm", *map(str, arguments)).splitlines()


@pytest.mark.core
def test_everything_that_a_node_needs_is_there(packages: Packages) -> None:
    have = names(packages.tree())
    units = {
        f"/usr/lib/systemd/system/{path.name}"
        for path in (ROOT / "systemd").iterdir()
        if path.suffix != ".conf"
    }
    assert units <= have
    assert have >= {
        "/usr/bin/vitald",
        "/etc/vitald/config.toml",
        "/usr/lib/sysusers.d/vitald.conf",
        "/usr/lib/tmpfiles.d/vitald.conf",
        "/usr/share/vitald/slurm/prolog",
        "/usr/share/vitald/prometheus/rules.yml",
        "/usr/share/vitald/prometheus/scrape-large-fleet.yml",
        "/usr/share/vitald/grafana/node.json",
        "/usr/share/vitald/grafana/provisioning/dashboards/vitald.yaml",
        "/usr/share/vitald/otel/collector.yaml",
        "/usr/share/vitald/notify/eventbridge",
        "/usr/share/man/man1/vitald.1.gz",
        "/usr/share/bash-completion/completions/vitald",
        "/usr/share/doc/vitald/README.md",
        "/usr/share/doc/vitald/copyright",
    }


@pytest.mark.core
def test_every_file_of_the_daemon_is_there_and_nothing_else(packages: Packages) -> None:
    installed = packages.tree() / "opt/vitald/lib/common/vitald"
    there = {path.relative_to(installed) for path in files(installed)}
    assert there == {
        path.relative_to(packages.source / "agent/vitald")
        for path in files(packages.source / "agent/vitald")
    }
    assert not list(packages.tree().rglob("__pycache__"))


@pytest.mark.core
def test_what_units_and_pages_point_at_is_there(packages: Packages) -> None:
    tree = packages.tree()
    for unit in (tree / "usr/lib/systemd/system").iterdir():
        for page in re.findall(r"^Documentation=file://(\S+)", unit.read_text(), re.MULTILINE):
            assert (tree / page.lstrip("/")).exists(), f"{unit.name}: {page}"
        for program in re.findall(r"^Exec\w+=(/usr/bin/vitald)\b", unit.read_text(), re.MULTILINE):
            assert os.access(tree / program.lstrip("/"), os.X_OK)
    documents = tree / "usr/share/doc/vitald"
    for page in sorted(documents.rglob("*.md")):
        for to in re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text()):
            if "CONTRIBUTING" not in to:  # for those who have the sources
                assert (page.parent / to).exists(), f"{page.relative_to(documents)}: {to}"


@pytest.mark.parametrize("arch", MACHINES)
def test_compiled_libraries_are_of_that_architecture_and_of_an_old_enough_glibc(
    packages: Packages, arch: str
) -> None:
    """The control file asks for libc6 2.28."""
    library = packages.tree(arch) / "opt/vitald/lib"
    for python in PYTHONS:
        compiled = list((library / f"python{python}").rglob("*.so"))
        parts = {path.relative_to(library).parts[1] for path in compiled}
        # Compiled by mypyc, it has a library of its own name beside it; for Python 3.10 there is
        # none.
        assert {part for part in parts if not re.search(r"__mypyc\.", part)} == COMPILED | (
            {"tomli"} if python != "3.10" else set()
        )
        for path in compiled:
            data = path.read_bytes()
            assert data[:4] == b"\x7fELF"
            assert int.from_bytes(data[18:20], "little") == MACHINES[arch], path
            assert f"cpython-{python.replace('.', '')}-" in path.name
            assert max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", data)) <= 28, path
    assert not list((library / "common").rglob("*.so")), "what all Pythons share is plain Python"


@pytest.mark.core
def test_permissions_and_owners(packages: Packages) -> None:
    listed = run("dpkg-deb", "-c", str(packages.deb())).splitlines()
    assert all(line.split()[1] == "root/root" for line in listed)
    for path in packages.tree().rglob("*"):
        if not path.is_symlink():
            mode = path.stat().st_mode
            executable = path.is_dir() or mode & stat.S_IXUSR
            assert stat.S_IMODE(mode) == (0o755 if executable else 0o644), path
    programs = {
        f"/{path.relative_to(packages.tree())}"
        for path in files(packages.tree())
        if os.access(path, os.X_OK)
    }
    started = {f"/opt/vitald/lib/python{python}/bin/vitald" for python in PYTHONS}
    assert programs == {
        "/usr/bin/vitald",
        "/opt/vitald/setup",
        *started,
        *(f"/usr/share/vitald/slurm/{x}" for x in ("prolog", "epilog", "healthcheck")),
        *(f"/usr/share/vitald/notify/{x}" for x in ("eventbridge", "mail", "sns")),
        *(f"/usr/share/vitald/{x}" for x in ("npd/vitald-npd", "kured/reboot-sentinel")),
    }


def test_two_builds_are_the_same_bytes(packages: Packages, tmp_path: Path) -> None:
    """In another folder, from files with other dates, under another umask."""
    source = Path(
        shutil.copytree(packages.source, tmp_path / "elsewhere/source", copy_function=shutil.copy)
    )
    before = os.umask(0o077)
    try:
        build(source, packages.folder, "--deb", "--arch", "amd64", "--out", str(tmp_path / "out"))
    finally:
        os.umask(before)
    (again,) = (tmp_path / "out").iterdir()
    assert (
        hashlib.sha256(again.read_bytes()).digest()
        == hashlib.sha256(packages.deb().read_bytes()).digest()
    )


@pytest.mark.core
def test_the_maintainer_scripts_are_shell(packages: Packages) -> None:
    for name in ("preinst", "postinst", "prerm", "postrm"):
        assert "@" not in packages.control(name).replace("$@", "")
        subprocess.run(["sh", "-n"], input=packages.control(name), text=True, check=True)
    for name in ("usr/bin/vitald", "opt/vitald/setup"):
        run("sh", "-n", str(packages.tree() / name))
    run("sh", "-n", str(ROOT / "packaging/install"))


@pytest.mark.core
def test_the_lock_has_what_the_project_asks_for() -> None:
    """And every line its hash."""
    text = (ROOT / "pyproject.toml").read_text()
    (block,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    wanted = re.findall(r'^  "([\w-]+)>=(\d+)', block, re.MULTILINE)
    assert len(wanted) > 5
    for python in PYTHONS:
        lock = (ROOT / f"packaging/requirements/python{python}.txt").read_text()
        pinned = dict(re.findall(r"^([\w-]+)==(\d+)", lock, re.MULTILINE))
        for name, least in wanted:
            assert int(pinned[name]) >= int(least), f"{name} for {python}"
        assert all(
            part.count("--hash=sha256:") in (1, 2)
            for part in re.split(r"^(?=\w)", lock, flags=re.MULTILINE)[1:]
        )


# It runs


def compile_all(tree: Path) -> None:
    for part in ("common", f"python{PYTHON}"):
        run(
            f"/usr/bin/python{PYTHON}",
            "-IS",
            "-m",
            "compileall",
            "-q",
            str(tree / "opt/vitald/lib" / part),
        )


@pytest.fixture(scope="module")
def unpacked(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deb in a folder, compiled as an installation has it."""
    machine = "amd64" if os.uname().machine == "x86_64" else "arm64"
    require(PYTHON, "a Python 3.10 to 3.13 as /usr/bin/python3")
    tree = tmp_path_factory.mktemp("unpacked")
    run("dpkg-deb", "-x", str(packages.deb(machine)), str(tree))
    compile_all(tree)
    return tree


def vitald(tree: Path, *arguments: str, **environment: str) -> str:
    return run(str(tree / "usr/bin/vitald"), *arguments, **environment)


def test_the_launcher_starts_the_package_and_nothing_else(unpacked: Path, tmp_path: Path) -> None:
    """Neither variables nor the current folder, nor the libraries of this machine."""
    (tmp_path / "vitald").mkdir()
    (tmp_path / "vitald/__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "aiohttp.py").write_text("raise SystemExit('the wrong one')")
    done = subprocess.run(
        [unpacked / "usr/bin/vitald", "version"],
        cwd=tmp_path,
        env={"PATH": "/nowhere", "PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"vitald {VERSION} (Python {PYTHON}.")


def test_every_library_comes_from_the_package_but_the_systems_own(
    unpacked: Path, tmp_path: Path
) -> None:
    """Imported as the launcher does it: with the entry's first lines, then a look around."""
    entry = (unpacked / f"opt/vitald/lib/python{PYTHON}/bin/vitald").read_text()
    look = tmp_path / "bin/look"
    look.parent.mkdir()
    look.write_text(
        entry.replace(
            "__file__", repr(str(unpacked / f"opt/vitald/lib/python{PYTHON}/bin/vitald"))
        ).partition("from vitald.cli")[0]
        + "import vitald.daemon, aiohttp, aiohttp._http_parser, multidict._multidict,"
        " yarl._quoting_c, frozenlist._frozenlist\nimport propcache._helpers_c, pynvml,"
        " structlog, prometheus_client, pyudev, anyio, jinja2, markupsafe._speedups\nprint(*(f'{name} {module.__file__}' for"
        " name, module in sorted(sys.modules.items()) if getattr(module, '__file__', None)),"
        " sep='\\n')\n"
    )
    loaded = dict(
        line.split(" ", 1)
        for line in run(f"/usr/bin/python{PYTHON}", "-IS", str(look)).splitlines()
    )
    places = (str(unpacked), f"/usr/lib/python{PYTHON}/", str(look), f"/usr/lib64/python{PYTHON}/")
    assert not {name: path for name, path in loaded.items() if not path.startswith(places)}
    assert loaded["vitald.daemon"].startswith(str(unpacked / "opt/vitald/lib/common"))
    assert loaded["aiohttp._http_parser"].endswith(".so")


@pytest.mark.parametrize(
    ("there", "default", "chosen"),
    [
        (["3.9", "3.11"], "3.9", "3.11"),  # RHEL 9, Amazon Linux 2023
        (
            ["3.10", "3.12"],
            "3.10",
            "3.10",
        ),  # the default, though a newer one is there: python3-systemd is made for that
        (["3.13", "3.14"], "3.14", "3.13"),
        (["3.9"], "3.9", None),
        ([], None, None),
    ],
)
def test_the_launcher_chooses_a_python(
    unpacked: Path, tmp_path: Path, there: Sequence[str], default: str | None, chosen: str | None
) -> None:
    """The real one, with only the folder of the interpreters changed: what stands there says its
    own name.
    """
    root, pythons = tmp_path / "root", tmp_path / "bin"
    (root / "usr/bin").mkdir(parents=True)
    pythons.mkdir()
    for version in there:
        (pythons / f"python{version}").write_text("")
        (pythons / f"python{version}").chmod(0o755)
    if default is not None:
        (pythons / "python3").symlink_to(f"python{default}")
    for version in PYTHONS:
        entry = root / f"opt/vitald/lib/python{version}/bin/vitald"
        entry.parent.mkdir(parents=True)
        entry.write_text(f'#!/bin/sh\necho {version} $PPID "$@"\n')
        entry.chmod(0o755)
    launcher = root / "usr/bin/vitald"
    launcher.write_text(
        (unpacked / "usr/bin/vitald").read_text().replace("/usr/bin/python", f"{pythons}/python")
    )
    launcher.chmod(0o755)
    done = subprocess.run([launcher, "check", "--for", "a job"], capture_output=True, text=True)
    if chosen is None:
        assert done.returncode == 69
        assert "3.10 to 3.13" in done.stderr
    else:
        assert done.stdout.split() == [
            chosen,
            str(os.getpid()),
            "check",
            "--for",
            "a",
            "job",
        ]  # our child itself: no process between


@pytest.mark.core
def test_the_daemon_starts_from_the_package(unpacked: Path, tmp_path: Path) -> None:
    """With its worker beside it, asked through the package's own command; and nothing is written
    into the package.
    """
    before = names(unpacked)
    said = vitald(unpacked, "demo", "--pause", "0", XDG_CACHE_HOME=str(tmp_path))
    assert "That was all of it" in said
    assert "source nvml: ok" in said
    assert names(unpacked) == before


# The two formats


def test_the_deb_says_what_it_needs(packages: Packages) -> None:
    control = packages.control("control")
    assert f"\nVersion: {VERSION}\n" in control
    assert "python3-systemd" in control
    assert packages.control("conffiles").split() == ["/etc/vitald/config.toml"]
    assert "Architecture: arm64\n" in run("dpkg-deb", "-f", str(packages.deb("arm64")))


def test_the_systems_journal_library_is_linked_not_copied(packages: Packages) -> None:
    for python in PYTHONS:
        link = packages.tree() / f"opt/vitald/lib/python{python}/systemd"
        assert str(link.readlink()) == "/usr/lib/python3/dist-packages/systemd"


@pytest.mark.core
def test_the_rpm_holds_the_same_files(packages: Packages) -> None:
    directories = ("/opt/vitald", "/etc/vitald", "/usr/share/vitald", "/usr/share/doc/vitald")
    listed = {line for line in rpm("-qpl", packages.rpm()) if line}
    have = {
        name.replace("zsh/vendor-completions", "zsh/site-functions")
        for name in names(packages.tree())
    }
    assert have <= listed
    assert all(extra.startswith(directories) for extra in listed - have), (
        "only our own folders beside files"
    )
    flags = rpm("-qp", "--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", packages.rpm())
    assert [line for line in flags if " c" in line] == ["/etc/vitald/config.toml cn"], (
        "n: noreplace"
    )
    owners = rpm("-qp", "--queryformat", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]", packages.rpm())
    assert set(owners) == {"root:root"}


def test_the_rpm_says_what_it_needs(packages: Packages) -> None:
    needs = rpm("-qp", "--requires", packages.rpm())
    assert "glibc >= 2.28" in needs
    assert [line for line in needs if "python3.11" in line and "python3 < 3.14" in line]
    assert not [line for line in needs if line.startswith("python(abi)") or ".so" in line], (
        "three in four of the libraries are for other Pythons"
    )


def test_the_rpm_installs_upgrades_and_goes(packages: Packages, tmp_path: Path) -> None:
    """Into an empty root, as far as that has no shell: the files, and a configuration that somebody
    changed.
    """
    root = ("--root", str(tmp_path), "--dbpath", "/rpm", "--nodeps", "--noscripts", "--notriggers")
    rpm(*root, "-i", packages.rpm())
    config = tmp_path / "etc/vitald/config.toml"
    config.write_text("# mine\n")
    rpm(*root, "-U", "--replacepkgs", packages.rpm())
    assert config.read_text() == "# mine\n"
    assert (tmp_path / "opt/vitald/setup").exists()
    rpm(*root, "-e", "vitald")
    assert {path.name for path in tmp_path.rglob("*vitald*") if not path.is_dir()} == set()
    assert [path.name for path in (tmp_path / "etc/vitald").iterdir()] == ["config.toml.rpmsave"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / BUILD, "--out", tmp_path / "out"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 69
    assert "dpkg-deb" in done.stderr
    assert "rpmbuild" in done.stderr
    assert not (tmp_path / "out").exists()
