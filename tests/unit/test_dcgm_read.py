"""`vitald diag read`: an output that was captured anywhere, explained."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.dcgm_made import a_test, level2, new, old, passing, refused, warning
from tests.unit.test_imports import SERVER, forbidden, loaded_by
from vitald.cli import main

pytestmark = pytest.mark.usefixtures("catalog_loaded_once")

HEALTHY = {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}
NO_HOST = (
    "Error: unable to establish a connection to the specified host: localhost\nError: Unable to"
    " connect to host engine. x\n"
)
FAILED = new(
    a_test("memory", {0: "Pass", 1: "Pass"}, {1: [warning(57, "GPU 1 is bad")]}, status="Fail"),
    *passing("pcie"),
)


def told(tmp_path: Path, output: object, *words: str) -> int:
    path = tmp_path / "printed"
    path.write_text(output if isinstance(output, str) else json.dumps(output), encoding="utf-8")
    return main(["diag", "read", str(path), *words])


def as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: object, *words: str
) -> tuple[int, dict[str, Any]]:
    code = told(tmp_path, output, "--json", *words)
    return code, json.loads(capsys.readouterr().out)


def test_outcomes_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = old(*level2(), deployment={"Persistence Mode": [{"status": "Fail"}]})
    mig = refused("Error: GPU 0's MIG configuration is incompatible")
    for output, words, code, outcome in (
        (new(*passing("memory", "pcie")), ["--level", "2", "--exit-code", "0"], 0, "pass"),
        (new(*passing("memory", "pcie")), ["--level", "3"], 30, "inconclusive"),
        (new(*passing("memory", "pcie")), ["--exit-code", "-9"], 30, "error"),
        (FAILED, [], 20, "fail"),
        (settings, [], 10, "config"),
        (mig, ["--exit-code", "226"], 10, "not_applicable"),
        ("", ["--exit-code", "127"], 30, "error"),
    ):
        assert told(tmp_path, output, *words) == code, outcome
        assert capsys.readouterr().out
        found, said = as_json(tmp_path, capsys, output, *words)
        assert (found, said["outcome"]) == (code, outcome)


def test_the_text_says_who_is_to_blame_for_what_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(tmp_path, FAILED, "--exit-code", "205", "--level", "2")
    text = capsys.readouterr().out
    assert text.startswith("FAIL  dcgmi diag level 2, DCGM 4.5.2, driver 580.95.05, 2 x 2330\n")
    for words in (
        "replace the node, once a second run has found it too\n",
        "GPU 1          to blame: error 57",
        "GPU 0          not to blame",
    ):
        assert words in text
    assert "CUDA ran into a memory error" in text  # what it means, by the catalogue


def test_the_json_holds_what_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = old(*level2(), deployment={"Persistence Mode": [{"status": "Fail"}]})
    _, said = as_json(tmp_path, capsys, output)
    persistence = {"category": "Deployment", "status": "Fail", "gpus": {}, "cpus": {}}
    assert said["tests"]["Persistence Mode"] == persistence
    assert said["tests"]["PCIe"] == {
        "category": "Hardware",
        "status": None,
        "gpus": {"0": "Pass", "1": "Pass"},
        "cpus": {},
    }
    # Concluded from the status, not printed.
    assert (said["outcome"], said["errors"]) == ("config", [])
    text = "GPUs 0 and 1 had uncorrectable memory errors"
    both = {"status": "Fail", "warnings": text, "error_id": 80, "error_severity": 2}
    output = old(*level2(), deployment={"Page Retirement/Row Remap": [both]})
    _, said = as_json(tmp_path, capsys, output)
    assert said["errors"] == [{"test": "Page Retirement/Row Remap", "gpu": None, "error_id": 80}]
    assert said["culprit_gpus"] == [0, 1]


def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(json.dumps(FAILED).encode())))
    )
    assert main(["diag", "read", "-"]) == 20
    assert "GPU 1" in capsys.readouterr().out


def test_however_it_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(FAILED, indent=2)
    saved = {
        "byte order mark": b"\xef\xbb\xbf" + text.encode(),
        "gzip": gzip.compress(text.encode()),
        "colours": text.replace('"Fail"', '"\x1b[0;32mFail\x1b[0m"').encode(),
        "crlf": text.replace("\n", "\r\n").encode(),
    }
    file = tmp_path / "diag.json"
    for how, data in saved.items():
        file.write_bytes(data)
        assert main(["diag", "read", str(file)]) == 20, how
        assert "GPU 1" in capsys.readouterr().out, how
    file.write_bytes(gzip.compress(json.dumps(new()).encode())[:-40])
    assert main(["diag", "read", str(file)]) == 66
    assert "cut short or damaged" in capsys.readouterr().err


def test_a_run_in_a_private_engine_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path, NO_HOST + json.dumps(new()), "--level", "1") == 0
    assert "private engine" in capsys.readouterr().out


def test_the_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = "\nLocal build info:\nVersion : 4.5.2\nBuild ID : 1\n\nHostengine build info:\n"
    unreachable = {"gpu_count": None, "error": "engine unreachable"}
    for output, words, code, said in (
        (HEALTHY, [], 0, {"health": "Healthy"}),
        (
            "Error: Health watches not enabled. Please enable watches. \n",
            [],
            30,
            {"health": None, "error": "watches not set"},
        ),
        (NO_HOST, [], 30, {"health": None, **unreachable}),
        (NO_HOST, ["--of", "discovery"], 30, unreachable),
        ("8 GPUs found (Active).\n+---+\n", [], 0, {"gpu_count": 8}),
        ("1 GPU found.\n", [], 0, {"gpu_count": 1}),
        ("0 GPUs found.\n", [], 30, {"gpu_count": 0}),
        ("\ndcgmi  version: 3.3.7\n\n", [], 0, {"version": "3.3.7"}),
        (f"{build}Version : 4.4.0\n", [], 0, {"version": "4.5.2"}),
    ):
        found, answer = as_json(tmp_path, capsys, output, *words)
        del answer["reason"]
        assert (found, answer) == (code, said), output
        assert told(tmp_path, output, *words) == code
        assert capsys.readouterr().out.strip(), output


def test_trouble_that_health_tells_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nvlink = {"value": "Failure", "overflow": ["GPU 3's NvLink link 4 is", "currently down"]}
    gpu = {"children": {"Errors": {"children": {"NVLINK system": nvlink}}}, "value": "Failure"}
    body = {"GPU": {"children": {"3": gpu}}, "Overall Health": {"value": "Failure"}}
    ill = {**HEALTHY, "body": body}
    code, said = as_json(tmp_path, capsys, ill)
    assert (code, said["health"], said["culprit_gpus"]) == (20, "Failure", [3])
    told(tmp_path, ill)
    assert "GPU 3" in capsys.readouterr().out


def test_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diag", "read", str(tmp_path / "none")]) == 66
    assert main(["diag", "read", str(tmp_path)]) == 66
    path = tmp_path / "wrong.toml"
    path.write_text("[catalgo]\n")
    assert told(tmp_path, "", "--config", str(path)) == 78
    assert capsys.readouterr().err.count("vitald: ") >= 3


def test_an_override_of_the_catalogue_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[catalog.overrides."dcgm/57"]\ndiagnostic = { remedy = "monitor" }\n')
    _, said = as_json(tmp_path, capsys, FAILED, "--config", str(path))
    assert (said["outcome"], said["action"], said["replacement_required"]) == (
        "fail",
        "monitor",
        False,
    )


def test_nothing_that_was_printed_drives_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rude = new(
        a_test("memory\x1b[2J", {0: "Pa\x1b[31mss", 1: "Fail"}, {1: [warning(57, "\x1b]0;x\x07")]}),
        version="4\x1b[2J",
    )
    told(tmp_path, rude)
    assert "\x1b" not in capsys.readouterr().out


def test_it_loads_no_server(tmp_path: Path) -> None:
    path = tmp_path / "printed"
    path.write_text(json.dumps(FAILED))
    loaded = loaded_by(["diag", "read", str(path)])
    assert "vitald.cli.diag.read" in loaded
    server = (*SERVER, "vitald.daemon", "vitald.core.pipeline", "vitald.core.ledger_writer")
    assert forbidden(loaded, *server) == []
