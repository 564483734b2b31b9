"""
What a command run by root does where somebody else answers in the daemon's place: nothing that it
was told to.

The false daemon says to everything what its script has for that path. Run by another user it is not
even asked; run by root's own hand it stands for a daemon that was taken over, and what it says must
lead root nowhere.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.harness import PYTHON, ROOT, Json, Node
from tests.waiting import WAIT_S

STRANGER = 61001
LINE = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=real, GPU has fallen off the bus."
ROOTS = "root ALL=(ALL) ALL\n"
_FALSE = """
import json, os, re, socket, sys
uid, place, answers = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
listener = socket.socket(socket.AF_UNIX)
if uid:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
listener.bind(place)
listener.listen(8)
os.chmod(place, 0o666)
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    head, _, sent = connection.recv(65536).partition(b"\\r\\n\\r\\n")
    length = re.search(rb"Content-Length: ([0-9]+)", head)
    while length and len(sent) < int(length[1]):
        sent += connection.recv(65536)
    asked = head.decode()
    print(asked.partition("\\r\\n")[0], flush=True)
    path = asked.split(" ")[1].partition("?")[0]
    body = json.dumps(answers.get(path, answers[""])).encode() if asked else b""
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    connection.close()
"""
FINDING = {
    "id": 1,
    "component": "gpu/0000:65:00.0",
    "title": "t",
    "code": "xid/79",
    "clears": [],
    "accepted": None,
}
DRILL = {
    "id": "x",
    "line": LINE,
    "state": "seen",
    "finding": 1,
    "simulatedUntil": "2026-01-01T00:00:00.000Z",
    "windowSeconds": 10,
}


class FalseDaemon:
    """A false daemon."""

    def __init__(self, folder: Path, uid: int, answers: Json) -> None:
        folder.mkdir()
        os.chown(folder, uid, uid)
        self.socket = folder / "vitald.sock"
        self.log = folder.parent / "kernel.log"
        self.log.touch()
        self.config = folder.parent / "config.toml"
        self.config.write_text(f'[kernel_log]\nsource = "file"\npath = "{self.log}"\n')
        command = [sys.executable, "-c", _FALSE, str(uid), "vitald.sock", json.dumps(answers)]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [PYTHON, "-m", "vitald", *arguments, "--socket", str(self.socket)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)

    def end(self) -> list[str]:
        """What it was asked."""
        self.process.terminate()
        return self.process.communicate(timeout=WAIT_S)[0].splitlines()


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[int, Json], FalseDaemon]]:
    require(os.geteuid() == 0, "root")
    made: list[FalseDaemon] = []

    def make(uid: int, answers: Json) -> FalseDaemon:
        made.append(FalseDaemon(tmp_path / "run", uid, answers))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.core
@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("check",),
        ("findings",),
        ("events", "--follow"),
        ("clear", "1", "--reason", "x"),
        ("accept", "1", "--for", "1h", "--reason", "x"),
        ("remedy", "1", "--reason", "x"),
        ("release", "--reason", "x"),
        ("expect", "--confirm", "--reason", "x"),
        ("diag", "run", "2", "--reason", "x"),
        ("drill", "xid", "79"),
    ],
    ids=lambda words: words[0],
)
def test_root_believes_no_socket_of_another_users(
    answering: Callable[[int, Json], FalseDaemon], words: tuple[str, ...]
) -> None:
    """Who listens is what the kernel says; nothing is asked, and the answer is the one for no
    daemon.
    """
    false = answering(STRANGER, {"": {"status": "healthy", "reasons": [], "finding": FINDING}})
    more = ("--config", str(false.config)) if words[0] == "drill" else ()
    done = false.cli(*words, *more)
    said = done.stdout + done.stderr
    assert (done.returncode, f"uid {STRANGER} listens" in said, "Traceback" in said) == (
        30,
        True,
        False,
    ), said
    assert false.end() in ([], [""])


def test_slurms_prolog_does_not_either(
    answering: Callable[[int, Json], FalseDaemon], tmp_path: Path
) -> None:
    false = answering(STRANGER, {"": {"status": "healthy", "reasons": []}})
    config = tmp_path / "slurm.toml"
    config.write_text(f'[slurm]\nunknown = "refuse"\nrecord = "{tmp_path}/record/reason"\n')
    done = false.cli("slurm", "prolog", "--config", str(config))
    assert (done.returncode, f"uid {STRANGER} listens" in done.stderr) == (20, True), done.stderr
    assert (tmp_path / "record/slurm-unknown-refuse").stat().st_size == 1


def test_another_user_may_ask_his_own(answering: Callable[[int, Json], FalseDaemon]) -> None:
    """Who is not root is led to nothing that he may not do himself."""
    false = answering(STRANGER, {"": {"findings": []}})
    script = (
        "import os, sys; from vitald.cli import argument_types, client, findings, render;"
        " os.setgroups([]);"
        f" os.setresgid({STRANGER}, {STRANGER}, {STRANGER}); os.setresuid({STRANGER}, {STRANGER},"
        f" {STRANGER}); from vitald.cli import main; sys.exit(main(['findings', '--socket',"
        " 'vitald.sock']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=false.socket.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["file", "fifo", "link"])
def test_a_drill_is_written_where_the_configuration_says(
    answering: Callable[[int, Json], FalseDaemon], tmp_path: Path, target: str
) -> None:
    """Whatever a daemon that was taken over names in its answer."""
    path = tmp_path / "sudoers"
    if target == "fifo":
        os.mkfifo(path)
    else:
        (tmp_path / "real").write_text(ROOTS)
        path.symlink_to(tmp_path / "real") if target == "link" else path.write_text(ROOTS)
    false = answering(0, {"": {**DRILL, "writeTo": str(path)}})
    done = false.cli("drill", "line", LINE, "--config", str(false.config))
    assert done.returncode == 69, done.stderr
    assert f"the daemon reads '{path}', and {false.config} says '{false.log}'" in done.stderr
    assert false.log.read_text() == ""
    if target != "fifo":
        assert path.read_text() == ROOTS


@pytest.mark.parametrize(
    "name",
    [
        "gpu/0000:65:00.0\n<0>EDAC MC0: UE",
        "gpu/x",
        "gpu/0000:65:00.0): 79, GPU has fallen off the bus. (",
        "gpu/",
    ],
)
def test_the_device_of_a_drill_is_an_address(
    answering: Callable[[int, Json], FalseDaemon], name: str
) -> None:
    """It becomes a part of what root writes to the kernel log."""
    gpu = {
        "kind": "gpu",
        "name": name,
        "attributes": {"a": "b"},
        "sources": ["nvml"],
        "status": "healthy",
    }
    false = answering(
        0, {"/v1/components": {"components": [gpu]}, "": {**DRILL, "writeTo": "/dev/null"}}
    )
    done = false.cli("drill", "xid", "79", "--config", str(false.config))
    assert (done.returncode, "PCI address" in done.stderr) == (30, True), done.stderr
    assert false.log.read_text() == ""


def _link(path: Path) -> None:
    path.with_name("real").write_text(ROOTS)
    path.symlink_to(path.with_name("real"))


def _second_name(path: Path) -> None:
    path.with_name("real").write_text(ROOTS)
    os.link(path.with_name("real"), path)


def _of_a_user(path: Path) -> None:
    path.touch()
    os.chown(path, STRANGER, -1)


def _in_anybodys_folder(path: Path) -> None:
    path.touch()
    path.parent.chmod(0o777)


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_link, "symbolic link"),
        (_second_name, "another name"),
        (_of_a_user, f"belongs to uid {STRANGER}"),
        (_in_anybodys_folder, "mode 0777"),
        (os.mkfifo, "not an ordinary file"),
        (_device, "not an ordinary file"),
        (lambda path: path.mkdir(), "not an ordinary file"),
        (lambda path: None, "No such file"),
    ],
    ids=[
        "link",
        "second name",
        "another user's",
        "folder",
        "pipe",
        "device",
        "directory",
        "absent",
    ],
)
def test_what_is_no_kernel_log_of_roots(
    answering: Callable[[int, Json], FalseDaemon],
    tmp_path: Path,
    make: Callable[[Path], object],
    said: str,
) -> None:
    """Also where the configuration names it: nothing is announced, nothing written, and nothing
    waited for.
    """
    path = tmp_path / "logs/kernel.log"
    path.parent.mkdir()
    make(path)
    false = answering(0, {"": {**DRILL, "writeTo": str(path)}})
    false.config.write_text(f'[kernel_log]\nsource = "file"\npath = "{path}"\n')
    done = false.cli("drill", "line", LINE, "--config", str(false.config))
    assert (done.returncode, said in done.stderr, "not written" in done.stderr) == (
        69,
        True,
        True,
    ), done.stderr
    assert false.end() == []
    assert not (tmp_path / "logs/real").exists() or (tmp_path / "logs/real").read_text() == ROOTS


@pytest.mark.parametrize("name", ["null", "file", "log"])
def test_what_is_not_the_kernel_logs_device(
    answering: Callable[[int, Json], FalseDaemon], tmp_path: Path, name: str
) -> None:
    path = {"null": Path("/dev/null"), "file": tmp_path / "file", "log": tmp_path / "link"}[name]
    if name == "file":
        path.touch()
    elif name == "log":
        path.symlink_to("/dev/kmsg")
    false = answering(0, {"": {**DRILL, "writeTo": str(path)}})
    false.config.write_text(f'[kernel_log]\npath = "{path}"\n')
    done = false.cli("drill", "line", LINE, "--config", str(false.config))
    said = "symbolic link" if name == "log" else "not the kernel log's device"
    assert (done.returncode, said in done.stderr) == (69, True), done.stderr
    assert false.end() == []


def test_a_configuration_that_is_anybodys_is_none(
    answering: Callable[[int, Json], FalseDaemon],
) -> None:
    false = answering(0, {"": {**DRILL, "writeTo": "/dev/null"}})
    false.config.chmod(0o666)
    done = false.cli("drill", "line", LINE, "--config", str(false.config))
    assert (done.returncode, "mode 0666" in done.stderr) == (78, True), done.stderr


def test_a_drill_in_a_file(make_node: Callable[..., Node]) -> None:
    """The whole way, where the daemon follows a file of root's."""
    require(os.geteuid() == 0, "root")
    node = make_node()
    node.start()
    done = node.cli("drill", "line", LINE)
    assert done.returncode == 0, done.stderr
    assert node.log.read_text() == f"{LINE}\n"
    (finding,) = node.findings()
    assert finding["simulated"]


def test_who_listens_is_told_of_who_called_listen() -> None:
    """As the kernel has it, and as systemd relies on: the process that made the socket, not the one
    that serves it.
    """
    listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listener, client:
        listener.bind("")  # the kernel chooses an abstract name
        listener.listen(1)
        child = os.fork()
        if child == 0:
            try:
                listener.accept()
            finally:
                os._exit(0)
        client.connect(listener.getsockname())
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        os.waitpid(child, 0)
    assert int.from_bytes(peer[:4], sys.byteorder) == os.getpid()
