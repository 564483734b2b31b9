"""The scripts and configurations for node-problem-detector and kured."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.builders import ROOT
from vitald.publish.kubernetes.desired import build_own_parts
from vitald.publish.summary import DaemonSilent
from vitald.tomlfile import parse_duration

NPD, KURED = ROOT / "packaging/npd", ROOT / "packaging/kured"
PLUGIN, SENTINEL = NPD / "vitald-npd", KURED / "reboot-sentinel"
CONFIGURATIONS = sorted(NPD.glob("*.json"))
# The keys that NPD reads: pkg/custompluginmonitor/types/config.go and types.go, pkg/types/types.go.
# It ignores others.
_KEYS = {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
_GLOBAL_KEYS = {
    *("invoke_interval", "timeout", "max_output_length", "concurrency"),
    *("enable_message_change_based_condition_update", "skip_initial_status"),
}


@pytest.fixture
def run_with(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs a script beside a vitald that prints its arguments and ends with this exit code."""

    def run(script: Path, code: int | None, *arguments: str) -> tuple[int, str]:
        program = tmp_path / "vitald"
        if code is not None:
            program.write_text(f'#!/bin/sh\necho "vitald $*"\nexit {code}\n')
            program.chmod(0o755)
        done = subprocess.run(
            [script, *arguments],
            env={"VITALD": str(program)},
            check=False,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout

    return run


def test_the_plugin_has_the_codes_of_npd(run_with: Callable[..., tuple[int, str]]) -> None:
    for question, asked, codes in (
        ("unhealthy", "vitald check\n", {0: 0, 10: 0, 20: 1, 30: 2}),
        ("reboot", "vitald check --due reboot\n", {0: 1, 10: 0, 30: 2}),
        ("replacement", "vitald check --due replacement\n", {0: 1, 10: 0, 30: 2}),
    ):
        assert {code: run_with(PLUGIN, code, question) for code in codes} == {
            code: (expected, asked) for code, expected in codes.items()
        }


def test_a_broken_vitald_is_no_problem_of_the_node(
    run_with: Callable[..., tuple[int, str]],
) -> None:
    """Python ends with 1 after a traceback; NPD would take that for a problem."""
    for question, code in (("unhealthy", 1), ("reboot", 1), ("reboot", 20)):
        exit_code, output = run_with(PLUGIN, code, question)
        assert exit_code == 2, question
        assert output.endswith(f"/vitald ended with exit code {code}\n")


def test_a_missing_vitald_is_unknown(run_with: Callable[..., tuple[int, str]]) -> None:
    for question in ("unhealthy", "reboot"):
        exit_code, output = run_with(PLUGIN, None, question)
        assert exit_code == 2, question
        assert output.startswith("unknown: ")


def test_another_question_is_refused(run_with: Callable[..., tuple[int, str]]) -> None:
    assert run_with(PLUGIN, 0, "lunch") == (
        2,
        "vitald-npd: expected unhealthy, reboot or replacement, found: lunch\n",
    )
    assert run_with(PLUGIN, 0)[0] == 2


def test_kured_reboots_only_where_a_reboot_is_due(run_with: Callable[..., tuple[int, str]]) -> None:
    expected = {0: 0, 10: 1, 30: 2, 1: 2, 2: 2, 20: 2, 127: 2}
    found = {code: run_with(SENTINEL, code) for code in expected}
    assert {code: exit_code for code, (exit_code, _) in found.items()} == expected
    assert all(output.startswith("vitald check --due reboot\n") for _, output in found.values())


def test_kured_without_vitald_reboots_nothing(run_with: Callable[..., tuple[int, str]]) -> None:
    assert run_with(SENTINEL, None)[0] == 2


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_npd_accepts_the_configuration(path: Path) -> None:
    """What Validate of NPD's config.go demands, and that it knows each key."""
    document = json.loads(path.read_text())
    assert set(document) <= _KEYS
    settings = document["pluginConfig"]
    assert set(settings) <= _GLOBAL_KEYS
    assert document["plugin"] == "custom"
    assert 0 < parse_duration(settings["timeout"]) < parse_duration(settings["invoke_interval"])
    assert settings["skip_initial_status"] is True
    ((condition,), (rule,)) = document["conditions"], document["rules"]
    assert set(condition) == {"type", "reason", "message"}
    assert set(rule) == {"type", "condition", "reason", "path", "args"}
    assert (rule["type"], rule["condition"]) == ("permanent", condition["type"])
    assert Path(rule["path"]).name == PLUGIN.name
    assert rule["args"] == [path.stem.removeprefix("vitald-")]
    assert document["source"] == path.stem


def test_npd_has_the_conditions_of_the_publisher() -> None:
    """But the first, whose polarity NPD sets: a problem is True."""
    silent = DaemonSilent(since=0.0, detail="")
    published = build_own_parts(silent, "vitald.io")["own"]
    types = {json.loads(path.read_text())["conditions"][0]["type"] for path in CONFIGURATIONS}
    assert types == {each.type for each in published.conditions} - {"vitald.io/Healthy"} | {
        "vitald.io/Unhealthy"
    }


@pytest.mark.parametrize("script", [PLUGIN, SENTINEL], ids=lambda path: path.name)
def test_the_scripts_are_sound(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
