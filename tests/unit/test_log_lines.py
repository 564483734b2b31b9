"""Lines of the log: as text, as JSON, for the journal."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping

import pytest
import structlog

from vitald.log import output
from vitald.log.line_format import format_record, is_journal

WHEN = "2026-11-22T06:57:55.123456Z"
RECORD: Mapping[str, object] = {
    "gpus": 8,
    "sinks": ["nfd", "textfile"],
    "error": 'no "space" left',
    "path": "/a/b",
    "gone": None,
    "none": [],
    "event": "ledger_failed",
    "level": "error",
    "timestamp": WHEN,
}
TEXT = (
    r'ledger_failed gpus=8 sinks="nfd, textfile" error="no \"space\" left" path=/a/b gone=None'
    r' none=""'
)


def render(form: str = "text", *, to_journal: bool = True, **fields: object) -> list[str]:
    return format_record({**RECORD, **fields}, form, to_journal=to_journal).split("\n")


def test_text_is_the_event_and_its_fields() -> None:
    assert render() == [f"<3>{TEXT}"]
    assert render(to_journal=False) == [f"{WHEN} error    {TEXT}"]


@pytest.mark.parametrize(
    ("level", "priority"),
    [("critical", 2), ("error", 3), ("warning", 4), ("notice", 5), ("info", 6), ("debug", 7)],
)
def test_the_priority_in_the_journal_is_the_level(level: str, priority: int) -> None:
    for form in ("text", "json"):
        assert render(form, level=level)[0].startswith(f"<{priority}>")


def test_a_message_is_the_whole_text_and_a_field_of_the_object() -> None:
    assert render(message="a sentence") == ["<3>a sentence"]
    (line,) = render("json", message="a sentence", to_journal=False)
    assert json.loads(line) == {**RECORD, "message": "a sentence"}


def test_a_traceback_has_the_priority_on_each_line() -> None:
    first, *others = render(exception="Traceback:\n  File\n<0>Error: \x1b[2J")
    assert first == f"<3>{TEXT}"
    assert others == ["<3>    Traceback:", "<3>      File", "<3>    <0>Error: \\x1b[2J"]
    assert len(render("json", exception="Traceback:\n  File")) == 1


@pytest.mark.parametrize("name", ["error", "message", "event"])
def test_a_value_cannot_begin_a_line_or_reach_the_terminal(name: str) -> None:
    for form in ("text", "json"):
        (line,) = render(form, **{name: "a\n<0>b\r\x1b[2J\u2028\u202e\udc80c"})
        assert line.encode().decode().isprintable() and line.count("<0>") == 1


def test_a_file_is_the_journal_by_its_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's variable is inherited by whatever it starts, wherever that writes."""
    ours, theirs = socket.socketpair()
    with ours, theirs, os.fdopen(ours.detach(), "w") as file, open(os.devnull, "w") as other:
        found = os.fstat(file.fileno())
        assert not is_journal(file)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert is_journal(file) and not is_journal(other)
    assert not is_journal(other)


@pytest.fixture
def configured() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("configured")
def test_text_as_the_services_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    output.configure_log("info", "text")
    structlog.get_logger("test").info("ready", level="notice", pid=7)
    assert capsys.readouterr().err.split()[1:] == ["notice", "ready", "pid=7"]


@pytest.mark.usefixtures("configured")
def test_the_log_as_the_services_configure_it(capsys: pytest.CaptureFixture[str]) -> None:
    output.configure_log("info", "json")
    said = structlog.get_logger("test")
    said.info("ready", level="notice")
    said.warning("late")
    said.debug("left out")
    output.set_level("warning")
    said.info("left out")
    try:
        raise ValueError("why")
    except ValueError:
        said.exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        *(("ready", "notice"), ("late", "warning"), ("failed", "error"))
    ]
    assert lines[-1]["exception"].endswith("ValueError: why")
