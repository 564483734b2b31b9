"""Other users: the command line and plain requests, asked by a process that gave up root before it
connected.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Protocol, cast

from tests.harness import PYTHON, ROOT, Json
from tests.waiting import WAIT_S

NOBODY = 65534
# It answers a line of JSON with a line of JSON. Everything is imported while still root: the
# interpreter may lie where others cannot read; and it works in the folder of the socket, to which
# others may have no way.
_PERSON = """
import contextlib, importlib, io, json, os, pkgutil, sys
from pathlib import Path
uid, groups, root = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
sys.path.insert(0, root)
import tests.harness, encodings.idna, vitald.tomlfile, vitald.cli
for module in pkgutil.walk_packages(vitald.cli.__path__, "vitald.cli."):
    importlib.import_module(module.name)
os.setgroups(groups)
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
reads, answers = sys.stdin, sys.stdout

def request(method, path, body):
    connection = tests.harness.UnixConnection(Path("vitald.sock"))
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return [answer.status, json.loads(answer.read())]
    except PermissionError as error:
        return [0, {"error": str(error)}]
    finally:
        connection.close()

def cli(*arguments):
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            code = vitald.cli.main([*arguments, "--socket", "vitald.sock"])
        except SystemExit as ended:
            code = ended.code
    return [code, said.getvalue(), complained.getvalue()]

for line in reads:
    name, arguments = json.loads(line)
    print(json.dumps({"request": request, "cli": cli}[name](*arguments)), file=answers, flush=True)
"""


class HasRuntime(Protocol):
    """What serves the API below this folder."""

    @property
    def runtime(self) -> Path: ...


class _Person:
    """A process of another user, in one folder."""

    def __init__(self, folder: Path, groups: tuple[int, ...]) -> None:
        self.key = (folder, groups)
        command = [PYTHON, "-c", _PERSON, str(NOBODY), json.dumps(groups), str(ROOT)]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, name: str, *arguments: object) -> list[object]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"{name} {arguments}: it has ended: {self._process.wait(WAIT_S)}"
        return cast("list[object]", json.loads(answer))

    def end(self) -> None:
        self._process.communicate(timeout=WAIT_S)


_present: list[_Person] = []  # at most one, which ends with this process at the latest


def _person(node: HasRuntime, groups: tuple[int, ...]) -> _Person:
    key = (node.runtime, groups)
    if not _present or _present[0].key != key:
        while _present:
            _present.pop().end()
        _present.append(_Person(*key))
    return _present[0]


def cli_as_nobody(
    node: HasRuntime, *arguments: str, groups: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    code, said, complained = _person(node, groups).ask("cli", *arguments)
    return subprocess.CompletedProcess([*arguments], cast("int", code), str(said), str(complained))


def request_as_nobody(
    node: HasRuntime, method: str, path: str, body: object = None, groups: tuple[int, ...] = ()
) -> tuple[int, Json]:
    """Status and answer; status 0 where the socket cannot even be connected to."""
    status, answer = _person(node, groups).ask("request", method, path, body)
    return cast("int", status), cast("Json", answer)
