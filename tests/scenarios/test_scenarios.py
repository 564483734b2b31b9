"""
Log in, verdict out: each `*.scenario` beside this file is a story of one node. A new one needs no code.

    # a comment                      profile hyperpod           before the first line: judge by another profile
    at 90s                           device_reset               before the first line: the site resets devices itself
    line NVRM: Xid (PCI:...          accept_userspace           before the first line: believe what processes write
    reboot                           deaf / hears               the kernel log is not read / is read again
    clear xid/64@0000:65:00.0 why    drill 10m NVRM: Xid (...   an announced drill, written by a process
    expect status=unhealthy action=reboot_node reboot=true replace=false findings=xid/79@0000:65:00.0:reboot_node

`at` is the time since the beginning. A line may have any form that a rendered log has. `expect` checks what it names,
`findings` exactly: CODE@COMPONENT:ACTION, `/after_job` behind the action, `*N` if seen N times, `~` before a drill's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import toml
from agent.judge.findings import Findings
from agent.judge.verdict import fold
from agent.model import Finding, SourceHealth, SourceState, When
from agent.sources.kernel_log.lines import Line, strip
from tests.unit.builders import booted, catalogue, interpreter

FOLDER = Path(__file__).parent
VERBS = ("at", "line", "drill", "reboot", "clear", "deaf", "hears", "expect")


class Node:
    """What a story is told to."""

    def __init__(self, profile: str, *, accept_userspace: bool, device_reset: bool) -> None:
        self.interpreter = interpreter(profile, accept_userspace=accept_userspace)
        self.findings = Findings(catalogue(profile))
        self.device_reset = device_reset
        self.now, self.looked, self.hearing, self.boots, self.records = 0.0, 0.0, True, 1, 0

    def at(self, duration: str) -> None:
        before, self.now = self.now, toml.duration(duration)
        assert before <= self.now, "time does not go back"
        self.findings.expire(self.now)

    def line(self, text: str) -> None:
        line = strip(text.encode())
        if line is not None:
            self.record(line)

    def drill(self, rest: str) -> None:
        hold, _, text = rest.partition(" ")
        self.interpreter.announcements.announce(text, self.now, toml.duration(hold))
        self.record(Line(text.encode(), 1))

    def record(self, line: Line) -> None:
        self.records += 1
        sighting = self.interpreter.recognise(line.message)
        if sighting is not None:
            record = {"identity": f"record {self.records}", "time": self.now, "boot_id": f"boot-{self.boots}", "usec": None}
            self.findings.apply(self.interpreter.event(sighting, line.message, line.facility, **record))

    def reboot(self, _: str) -> None:
        self.boots += 1
        self.findings.apply(booted(f"boot-{self.boots}", self.now))

    def clear(self, rest: str) -> None:
        name, _, reason = rest.partition(" ")
        (number,) = [found.id for found in self.findings.opened if named(found) == name]
        self.findings.clear(number, self.now, "alice", reason)

    def deaf(self, _: str) -> None:
        self.hearing = False

    def hears(self, _: str) -> None:
        self.hearing = True

    def expect(self, rest: str) -> None:
        self.looked = self.now if self.hearing else self.looked
        source = SourceHealth(name="kernel_log", state=SourceState.OK, deadline=30.0, last_seen=self.looked, looked=self.looked)
        verdict = fold(self.findings.opened, [source], self.now, device_reset=self.device_reset)
        flags = {"reboot": verdict.reboot_required, "replace": verdict.replacement_required, "simulated": verdict.simulated}
        got = {"status": verdict.status.value, "action": verdict.action.value, **{name: str(flag).lower() for name, flag in flags.items()}}
        got["findings"] = ",".join(sorted(map(shown, self.findings.opened))) or "none"
        wanted = dict(word.split("=", 1) for word in rest.split())
        assert {name: got[name] for name in wanted} == {name: ",".join(sorted(value.split(","))) for name, value in wanted.items()}


def named(found: Finding) -> str:
    return f"{found.code}@{found.component.id or found.component.name}"


def shown(found: Finding) -> str:
    later = "/after_job" if found.when is When.AFTER_JOB else ""
    return f"{'~' if found.simulated else ''}{named(found)}:{found.action.value}{later}{f'*{found.count}' if found.count > 1 else ''}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.scenario")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    profile, flags, node = "nvidia", set[str](), None
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        verb, _, rest = text.partition(" ")
        if not verb or verb.startswith("#"):
            continue
        if node is None and verb in ("profile", "accept_userspace", "device_reset"):
            profile, flags = (rest, flags) if verb == "profile" else (profile, flags | {verb})
            continue
        node = node or Node(profile, accept_userspace="accept_userspace" in flags, device_reset="device_reset" in flags)
        try:
            assert verb in VERBS, "no such word"
            getattr(node, verb)(rest)
        except Exception as error:
            raise AssertionError(f"{path.name}:{number}: {text}\n{error}") from error
    assert verb == "expect", "a story ends with an `expect`"


def test_there_are_stories() -> None:
    assert len(list(FOLDER.glob("*.scenario"))) >= 20
