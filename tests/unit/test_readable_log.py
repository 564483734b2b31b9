"""The log as `packaging/install --run` shows it."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.harness import ROOT


def readable(*lines: str) -> list[str]:
    command = [sys.executable, str(ROOT / "packaging/readable-log")]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.check_output(command, input=text, text=True, env={"TZ": "UTC"}).splitlines()


def test_a_line_is_a_time_a_level_an_event_and_its_fields() -> None:
    when = "2026-11-22T06:57:55.123456Z"
    first = {"id": 1, "raw": "NVRM: Xid", "simulated": False}
    line = json.dumps({**first, "event": "opened", "level": "warning", "timestamp": when})
    assert readable(line) == ["06:57:55 warning opened  id=1  raw=NVRM: Xid  simulated=false"]


def test_what_is_no_object_stays() -> None:
    others = ["Started vitald.service.", "", "42", '{"half', '{"timestamp": "soon"}']
    assert readable(*others) == [*others[:4], "soon         "]


def test_a_terminal_is_told_nothing_by_a_kernel_line() -> None:
    (shown,) = readable(json.dumps({"event": "\x1b[2J\x07é"}))
    assert shown.split() == ["\\x1b[2J\\x07é"]
