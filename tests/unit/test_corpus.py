"""Published lines with labels: what is read from each, and nothing from those that are noise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.unit.builders import LABELS, LINES, labelled, labels_of, read_line, recogniser


def misread(path: Path) -> list[tuple[str, dict[str, object], dict[str, object]]]:
    """Line, labels, and what was read instead."""
    known = recogniser()
    wrong = []
    for entry in labelled(path):
        wanted = {name: entry[name] for name in LABELS}
        got = labels_of(read_line(known, str(entry["line"]).encode()))
        if got != wanted:
            wrong.append((str(entry["line"]), wanted, got))
    return wrong


def test_every_line_of_the_corpus_gives_its_labels() -> None:
    assert misread(LINES) == []


def test_the_corpus_has_every_kind_and_form() -> None:
    entries = labelled(LINES)
    kinds = Counter(entry["kind"] for entry in entries)
    known = {
        *("xid", "sxid", "gpu_lost", "gpu_init_failed", "neuron", "aer", "mce", "edac"),
        *("oom", "hung_task", "lockup", "fs", "nvme", "ib", "efa", "thermal"),
    }
    assert set(kinds) == known | {"noise"}
    assert min(kinds.values()) >= 8
    assert kinds["noise"] >= 200
    assert {entry["form"] for entry in entries} == {
        *("dmesg", "dmesg-T", "journal", "syslog", "kmsg", "message-only")
    }


def test_the_corpus_says_what_a_line_says_once() -> None:
    entries = labelled(LINES)
    assert len({entry["line"] for entry in entries}) == len(entries)
    assert all("\n" not in str(entry["line"]) for entry in entries)


@pytest.mark.parametrize("suffix", ["\n", "\r\n"])
def test_line_ends_change_nothing(suffix: str) -> None:
    plain, ended = recogniser(), recogniser()
    for entry in labelled(LINES):
        line = str(entry["line"])
        assert read_line(plain, line.encode()) == read_line(ended, f"{line}{suffix}".encode()), line
