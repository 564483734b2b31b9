"""
Golden tests of what a running daemon exports: names, types and labels of /metrics, and exit codes.

`python -m tests.system.test_golden` writes them to tests/data/golden/metrics.json anew.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import golden, metrics_page
from tests.conftest import require
from tests.dcgmi import Dcgmi
from tests.harness import Node
from tests.system.lines import wait_for_pid, xid
from tests.system.test_diagnostics import asked, ended
from tests.waiting import until
from tests.whole_tree import WholeTree
from vitald.simulator.node import SimulatedNode

HOW = "python -m tests.system.test_golden"
Json = dict[str, Any]

# What is the machine's or the build's: only that it is there is held.
_OPEN = ("version",)
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? \S+")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_FATAL = "20034, Fatal, Link 38 LTSSM Fault Up"
_RECOVERY = """
[recovery]
mode = "automatic"
after = "1h"
"""
_ASKED = (
    *(("status",), ("check",), ("check", "--strict"), ("check", "--as", "npd")),
    *(("check", "--as", "nagios"), ("check", "--as", "slurm"), ("findings",), ("why", "1")),
    *(("why", "999"), ("events",), ("gpus",), ("components",), ("expect",), ("diag", "list")),
    *(("clear", "999", "--reason", "x"), ("remedy", "999", "--reason", "x")),
)


def shape_of(page: str) -> Json:
    """Each family's type, and the labels of its samples with their values."""
    found: Json = {}
    family = ""
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            found[family] = {"type": kind, "samples": {}}
        elif not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            labels = dict(_LABEL.findall(sample[2] or ""))
            values = found[family]["samples"].setdefault(sample[1], {})
            for name in labels:
                known = values.setdefault(name, [])
                if family.startswith("vitald_") and name not in _OPEN and labels[name] not in known:
                    known.append(labels[name])
                    known.sort()
    return found


@contextmanager
def gpu_node(folder: Path) -> Iterator[Node]:
    """Eight H100, a diagnostic that ran, and lines of other devices and of an unknown code."""
    gpus = SimulatedNode(folder / "gpus", "h100")
    with Dcgmi(folder / "bin", gpus=8) as dcgmi:
        extra = f"""
[diagnostics]
idle = "1s"
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "12h"
[dcgm_health]
enabled = false
{_RECOVERY}"""
        with Node(folder / "node", gpus=gpus, extra=extra) as node:
            node.wait(lambda status: status["status"] == "healthy")
            ended(node, asked(node, 1))
            node.write(xid(1), xid(2, code=13, pci="0000:3b:00", message="Graphics Exception"))
            node.write(f"nvidia-nvswitch0: SXid (PCI:0000:87:00.0): {_FATAL}")
            node.write(xid(3, code=9999))
            wait_for_pid(node, 3)
            yield node


@contextmanager
def other_gpus(folder: Path, model: str) -> Iterator[Node]:
    """GPUs that count what an H100 does not: C2C links and NVLink 5, or retired pages."""
    with Node(folder / "node", gpus=SimulatedNode(folder / "gpus", model)) as node:
        yield node


@contextmanager
def tree_node(folder: Path) -> Iterator[Node]:
    """Trainium, EFA, InfiniBand, a plain adapter, memory controllers and a drive, all well."""
    tree = WholeTree(folder)
    tree.proc.write("sys/kernel/threads-max", 8000)
    tree.proc.write("sys/kernel/pid_max", 4000)
    tree.neuron.write("class/nvme/nvme0/hwmon0/temp1_input", 41850)
    tree.neuron.write("class/nvme/nvme0/hwmon0/temp1_alarm", 0)
    looks = ("neuron", "network", "pci", "host")
    often = "".join(f'[{one}]\nevery = "200ms"\ndeadline = "5s"\n' for one in looks)
    # The units of the tests' machine are none of the tree's.
    often += "units = []\nunits_if_enabled = []\n"
    node = Node(folder / "node", sysfs=tree.root, looks=looks, extra=often + _RECOVERY)
    node.configure("[paths]\n", f'[paths]\nprocfs = "{tree.proc.root}"\n')
    with node:
        node.wait(lambda status: status["status"] == "healthy")
        yield node


Made = Callable[[Path], AbstractContextManager[Node]]
NODES: dict[str, Made] = {
    "gpu": gpu_node,
    "gb200": partial(other_gpus, model="gb200"),
    "v100": partial(other_gpus, model="v100"),
    "tree": tree_node,
}


def exit_codes(node: Node) -> Json:
    return {" ".join(words): node.cli(*words).returncode for words in _ASKED}


def of_node(name: str, table: Json) -> Json:
    """What a table says of one of the nodes."""
    return {key: value for key, value in table.items() if key.partition(" ")[0] == name}


def told(name: str, node: Node) -> Json:
    return {f"{name} {family}": one for family, one in shape_of(node.metrics()).items()}


@pytest.fixture(autouse=True)
def _compiler() -> None:
    found = shutil.which("cc") or shutil.which("gcc")
    require(found, "a C compiler (apt-get install gcc libc6-dev)")


@pytest.mark.parametrize("name", NODES)
def test_metrics(name: str, tmp_path: Path) -> None:
    """Some are there only after a second look: what is held is what comes to be there."""
    before = of_node(name, golden.read("metrics"))
    found: list[Json] = []  # as near to that as it has come

    def as_before() -> bool:
        found.append(told(name, node))
        found[:] = [min(found, key=lambda one: golden.count_differing(before, one))]
        return found[0] == before

    with NODES[name](tmp_path) as node:
        with suppress(AssertionError):  # what differs is told below
            until(as_before, "the metrics that there were")
        golden.hold("metrics", found[0], HOW, only=f"{name} ")
        written, shown = (
            metrics_page.help_texts_written(),
            metrics_page.help_texts_of(node.metrics()),
        )
        assert shown == {family: written.get(family) for family in shown}, metrics_page.HOW
        if name == "gpu":
            golden.hold("metrics_exit_codes", exit_codes(node), HOW)


def settled(look: Callable[[], Json], seconds: float = 10.0) -> Json:
    """What `look` gives once it has been the same for so long."""
    last, since = look(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.5)
        if (now := look()) != last:
            last, since = now, time.monotonic()
    return last


def main() -> None:
    table: Json = {}
    os.environ["VITALD_SLURM_RECORD"] = "/nonexistent/record"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name, made in NODES.items():
            with made(Path(folder) / name) as node:
                table |= settled(lambda: told(name, node))
                if name == "gpu":
                    golden.write("metrics_exit_codes", exit_codes(node))
    golden.write("metrics", table)


if __name__ == "__main__":
    sys.exit(main())
