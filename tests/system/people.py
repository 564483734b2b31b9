"""Other users: the command line and plain requests, asked by a process that gave up root before it connected."""

from __future__ import annotations

import json
import subprocess

from tests.harness import PYTHON, ROOT, Json, Node

NOBODY = 65534
# Everything is imported while still root: the interpreter may lie where others cannot read.
_DROP = """
import importlib, json, os, pkgutil, sys
uid, groups, arguments = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
sys.path.insert(0, {root!r})
import tests.harness, encodings.idna, agent.toml, agent.cli
for module in pkgutil.iter_modules(agent.cli.__path__):
    importlib.import_module("agent.cli." + module.name)
os.setgroups(groups)
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
"""
_REQUEST = """
from pathlib import Path
connection = tests.harness.UnixConnection(Path("vitald.sock"))
try:
    connection.request(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None)
    answer = connection.getresponse()
    print(json.dumps([answer.status, json.loads(answer.read())]))
except PermissionError as error:
    print(json.dumps([0, {"error": str(error)}]))
"""
_CLI = """
sys.exit(agent.cli.main([*arguments, "--socket", "vitald.sock"]))
"""


def _run(node: Node, script: str, groups: list[int], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-c", _DROP.format(root=str(ROOT)) + script, str(NOBODY), json.dumps(groups), *arguments]
    return subprocess.run(command, cwd=node.runtime, capture_output=True, text=True, timeout=30)


def cli_as_nobody(node: Node, *arguments: str, groups: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return _run(node, _CLI, [*groups], *arguments)


def request_as_nobody(node: Node, method: str, path: str, body: object = None, groups: tuple[int, ...] = ()) -> tuple[int, Json]:
    """Status and answer; status 0 where the socket cannot even be connected to."""
    done = _run(node, _REQUEST, [*groups], method, path, *([] if body is None else [json.dumps(body)]))
    assert done.returncode == 0, done.stderr
    status, answer = json.loads(done.stdout)
    return status, answer
