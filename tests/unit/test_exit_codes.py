"""What each verb exits with where no daemon answers, and what those that need none exit with."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitald.cli import main

NOBODY = ("--socket", "/nonexistent/vitald.sock")
WITHOUT_DAEMON = {
    30: (
        *("status", "check", "check --strict", "findings", "why 1", "events", "gpus"),
        *("components", "expect", "diag list", "diag run 1 --reason x", "release --reason x"),
        *("clear 1 --reason x", "remedy 1 --reason x", "accept 1 --for 1d --reason x"),
    ),
    1: ("check --as slurm",),
    2: ("check --as npd",),
    3: ("check --as nagios",),
}
ALONE = {
    0: (
        *("version", "--version", "--help", "explain xid/79", "explain xid/99999"),
        *("replay log", "config example"),
    ),
    2: ("", "nonsense", "explain nosuch/1", "explain", "config"),
    20: ("scan log", "scan log --json"),
    66: ("scan /nonexistent", "replay /nonexistent"),
    78: (
        *("config check /nonexistent", "config check wrong.toml"),
        *("run --config /nonexistent", "run --config wrong.toml"),
    ),
}


def exit_codes(asked: dict[int, tuple[str, ...]], *more: str) -> dict[int, tuple[str, ...]]:
    """The same commands by the code that they exit with now."""
    found: dict[int, tuple[str, ...]] = dict.fromkeys(asked, ())
    for words in (words for some in asked.values() for words in some):
        try:
            code = main([*words.split(), *more])
        except SystemExit as ended:
            code = int(ended.code or 0)
        found[code] = (*found.get(code, ()), words)
    return found


def test_where_nobody_answers() -> None:
    assert exit_codes(WITHOUT_DAEMON, *NOBODY) == WITHOUT_DAEMON


def test_without_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").write_text(
        "[    1.0] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n"
    )
    Path("wrong.toml").write_text("[nvml]\nfast = true\n")
    assert exit_codes(ALONE) == ALONE
