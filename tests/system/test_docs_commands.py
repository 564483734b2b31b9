"""The documents' commands, run: on a simulated node that has the real paths, as root, with a daemon
of its own. See tests/doc_commands.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import findings_page
from tests.conftest import require
from tests.dcgmi import Dcgmi
from tests.doc_commands import ROOT, Command, Where, commands, expand, failures, spans, unsound
from tests.harness import POLLED, PYTHON, UnixConnection
from tests.waiting import WAIT_S, until
from vitald.cli import VERBS, main
from vitald.simulator.simulated_node import SimulatedNode

DOCUMENTS = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]
DOCUMENTS += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packaging/*/README.md"))
ENDLESS = {"run", "demo"}  # verbs that run until they are stopped, or for a minute
# What the placeholders may stand for where only the options are checked.
WORDS = {
    "ID": "1",
    "TEXT": "'a word'",
    "LEVEL": "2",
    "N": "3",
    "P": "nvidia",
    "USER": "root",
    "PCI": "0000:65:00.0",
}

# What the machine's folders become: copies on write, of which nothing is left; and no network or
# process but its own.
_MACHINE = """
set -e
mount -t tmpfs tmpfs {scratch}
for folder in etc var usr; do
    mkdir {scratch}/$folder {scratch}/$folder.work
    upper="upperdir={scratch}/$folder,workdir={scratch}/$folder.work"
    mount -t overlay overlay -o "lowerdir=/$folder,$upper" /$folder
done
mount -t tmpfs tmpfs /run
ip link set lo up
echo ready
exec sleep infinity
"""
_CONFIG = """\
[paths]
sysfs = "{sysfs}"
[kernel_log]
source = "file"
path = "/var/log/kern.log"
[nvml]
library = "{library}"
fast = "1s"
slow = "2s"
[diagnostics]
idle = "1s"
{polled}
"""


class Machine:
    """A node with 8 GPUs at the usual paths, seen only by what is run in it."""

    def __init__(self, folder: Path, gpus: SimulatedNode, dcgmi: Dcgmi) -> None:
        self.folder, self.gpus = folder, gpus
        scratch = folder / "scratch"
        scratch.mkdir()
        script = _MACHINE.format(scratch=scratch)
        spaces = [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        self.holder = subprocess.Popen(
            [*spaces, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != "ready\n":
            require(False, f"namespaces and overlays: {self.holder.communicate(timeout=WAIT_S)[1]}")
        (first,) = (
            Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        )
        self.first, self.root = int(first), Path(f"/proc/{first}/root")
        self.enter = ["nsenter", "--target", first, "--mount", "--net", "--pid"]
        self.daemon: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            **gpus.environment,
            "PATH": dcgmi.search_path,
            "PYTHONPATH": str(ROOT),
        }
        self.put("/usr/bin/vitald", f'#!/bin/sh\nexec {PYTHON} -m vitald "$@"\n', 0o755)
        # Where a package would have put them.
        polled = "".join(f"[{section}]\nenabled = false\n" for section in POLLED)
        self.put(
            "/etc/vitald/config.toml",
            _CONFIG.format(sysfs=gpus.sysfs, library=gpus.library, polled=polled),
        )
        self.put("/var/log/kern.log", "")

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        done = self.shell(
            f"mkdir -p {Path(path).parent} && cat > {path} && chmod {mode:o} {path}", text
        )
        assert done.returncode == 0, done.stderr

    def shell(self, text: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [*self.enter, f"--wd={self.folder}", "sh", "-c", text]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env=self.environment,
        )

    def start(self) -> None:
        log = (self.folder / "vitald.log").open("wb")
        with log:
            self.daemon = subprocess.Popen(
                [*self.enter, "vitald", "run"], stdout=log, stderr=log, env=self.environment
            )
        until(self.looked, lambda: f"the first look: {(self.folder / 'vitald.log').read_text()}")

    def get(self, path: str) -> dict[str, list[dict[str, object]]]:
        connection = UnixConnection(self.root / "run/vitald/vitald.sock")
        try:
            connection.request("GET", path)
            found: dict[str, list[dict[str, object]]] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()

    def looked(self) -> bool:
        try:
            return all(
                source["state"] != "starting" for source in self.get("/v1/status")["sources"]
            )
        except OSError:
            return False

    def words(self) -> dict[str, str]:
        """What a reader would put for the placeholders."""
        found = self.get("/v1/findings")["findings"]
        return {"ID": str(found[0]["id"]), "CODE": str(found[0]["code"])} if found else {}

    def stop(self) -> None:
        os.kill(self.first, signal.SIGKILL)  # and everything in there with it
        for process in (self.daemon, self.holder):
            if process is not None:
                process.wait(WAIT_S)
        assert self.holder.stdout is not None and self.holder.stderr is not None
        self.holder.stdout.close()
        self.holder.stderr.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    require(
        os.geteuid() == 0 and all(map(shutil.which, ("unshare", "nsenter", "ip", "curl"))),
        "root, unshare, nsenter, ip and curl",
    )
    with Dcgmi(tmp_path / "bin") as dcgmi:
        # A GPU's reset is NVIDIA's to do.
        smi = dcgmi.folder / "nvidia-smi"
        smi.write_text('#!/bin/sh\n[ "$*" = "-r -i 3" ]\n')
        smi.chmod(0o755)
        made = Machine(tmp_path, SimulatedNode(tmp_path / "gpus", "h100"), dcgmi)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def with_blocks(*wanted: Where) -> list[str]:
    return [document for document in DOCUMENTS if commands(document, *wanted)]


@pytest.mark.parametrize("document", with_blocks(Where.NODE))
def test_what_a_node_is_told_works(machine: Machine, document: str) -> None:
    """In order, on one node, each as it stands in the document."""
    failed = [
        text
        for command in commands(document, Where.NODE)
        for text in failures(command, machine.shell, machine.words())
    ]
    assert not failed, "\n".join(failed)


NOT_HERE = (Where.BOOTED, Where.CLUSTER, Where.ELSEWHERE)


@pytest.mark.parametrize("document", with_blocks(*NOT_HERE))
def test_what_is_run_elsewhere_is_sound(document: str) -> None:
    """Its syntax, and the files of this repository that it names."""
    failed = [text for command in commands(document, *NOT_HERE) for text in unsound(command)]
    assert not failed, "\n".join(failed)


def test_the_operations_guide_has_commands_of_each_place() -> None:
    """So that a parser that finds nothing does not pass; and none hides where it finds nothing."""
    there = {command.where for command in commands("docs/operations.md")}
    assert there == set(Where) - {Where.CLUSTER}
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    assert set(re.findall(r"^```(.*)", text, re.MULTILINE)[::2]) == {
        "sh",
        "sh booted",
        "sh elsewhere",
        "toml",
    }
    assert not re.search(r"^    \S", text, re.MULTILINE)


@pytest.mark.core
def test_commands_in_the_text_are_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each `vitald ...` names a verb and options that there are; what an alert asks for is a whole
    command.
    """
    for module, *_ in VERBS.values():
        monkeypatch.setattr(
            importlib.import_module(f"vitald.cli.{module}"), "run", lambda arguments: 0
        )
    wrong = [
        told
        for document in DOCUMENTS
        for command in spans(document)
        if (told := refused(command, capsys))
    ]
    alerts = "packaging/prometheus/rules.yml"
    todos = [
        Command(alerts, 0, Where.NODE, text)
        for text in re.findall(r"`(vitald [^`]+)`", (ROOT / alerts).read_text("utf-8"))
    ]
    assert {"vitald status"} <= {command.text for command in todos}
    wrong += [told for command in todos if (told := refused(command, capsys, is_whole=True))]
    assert not wrong, "\n".join(wrong)


def refused(command: Command, capsys: pytest.CaptureFixture[str], *, is_whole: bool = False) -> str:
    """What argparse says against it. That more would be needed is no mistake of a text that only
    names a verb, unless it is to be a whole command.
    """
    text = re.sub(r"\.\.\.|…", "TEXT", command.text)
    for name in sorted({*WORDS, *command.placeholders}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w$.-]){name}\b", WORDS.get(name, name.lower()), text)
    arguments = [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", text)][1:]
    try:
        main(arguments)
    except SystemExit as error:
        said = capsys.readouterr().err
        if error.code != 0 and (is_whole or "arguments are required" not in said):
            return f"{command}\n    {said.strip().splitlines()[-1]}"
    return ""


def test_complete_commands_in_the_guide_are_run(machine: Machine) -> None:
    """Those of the running text that need nothing filled in that is not there: they end, with one
    of our codes and without a traceback.
    """
    machine.shell("vitald drill xid 79")
    failed = []
    for text in dict.fromkeys(command.text for command in spans("docs/operations.md")):
        whole = Command("docs/operations.md", 0, Where.NODE, text)
        if (
            text.split()[1] in ENDLESS
            or not whole.placeholders <= {"ID", "CODE"}
            or re.search(r"\b[NP]\b|\.\.\.", text)
        ):
            continue
        done = machine.shell(whole.with_values(machine.words()))
        named_only = done.returncode == 2 and (
            "arguments are required" in done.stderr or len(text.split()) == 2
        )
        if not (done.returncode in (0, 10, 20) or named_only) or "Traceback" in done.stderr:
            failed.append(f"{text}: {done.returncode} {done.stderr}")
    assert not failed, "\n".join(failed)


def test_the_page_of_findings_is_the_catalogues() -> None:
    assert findings_page.PAGE.read_text("utf-8") == findings_page.page(
        findings_page.load_catalog()
    ), "run: python -m tests.findings_page"


def test_how_documents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks by their place, continued lines, exit codes, placeholders; and a block whose place
    nobody knows is a mistake.
    """
    monkeypatch.setattr("tests.doc_commands.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "Say `vitald why ID`, or `vitald check [--for prolog\\|epilog]`.\n\n```sh\nvitald clear ID"
        ' \\\n  --reason "ID it is"\n# a comment\nvitald check   # exit 10 or 20: not'
        " fit\n```\n\n```toml\nx = 1\n```\n\n```sh booted\nsystemctl reload vitald\n```\n"
    )
    clear, check, reload = commands("page.md")
    assert (clear.line, clear.where, clear.exits, clear.placeholders) == (
        4,
        Where.NODE,
        (0,),
        {"ID"},
    )
    assert clear.with_values({"ID": "7"}) == 'vitald clear 7 --reason "7 it is"'
    assert (check.exits, reload.where, commands("page.md", Where.BOOTED)) == (
        (10, 20),
        Where.BOOTED,
        [reload],
    )
    assert [span.text for span in spans("page.md")] == [
        "vitald why ID",
        "vitald check",
        "vitald check --for prolog",
        "vitald check --for epilog",
    ]

    def answer(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(text, 10, "out", "err")

    assert failures(check, answer, {}) == []
    assert "exited with 10, and should with 0" in failures(reload, answer, {})[0]
    assert "nobody says what" in failures(clear, answer, {})[0]
    for block in ("```sh later\nls\n```\n", "```console\n$ ls\n```\n"):
        page.write_text(block)
        with pytest.raises(ValueError, match="a block of commands is one of"):
            commands("page.md")


def test_a_synopsis_is_every_command_that_it_stands_for() -> None:
    assert expand("vitald diag run|list [--gpu N] [--busy]") == [
        "vitald diag run",
        "vitald diag list",
        "vitald diag run --gpu N",
        "vitald diag run --busy",
    ]
    assert expand("vitald drill line 'TEXT [with] brackets'") == [
        "vitald drill line 'TEXT [with] brackets'"
    ]
