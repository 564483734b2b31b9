"""Diagnostics on the socket and the port: what may be asked for, how it is told, and that hostile
text makes no series without end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.harness import Json
from tests.system.document import conforms
from tests.system.people import request_as_nobody
from tests.system.test_api_contract import CONFIG, TIGHT, _Unix
from tests.system.test_metrics import complaints
from tests.unit.diagnosing import BEGAN, FAILED, FakeDiagnostics, Served, run_of, slow_link
from vitald.metrics import diagnostics
from vitald.model.component import Component, DeviceNames
from vitald.model.diagnostic import (
    ActiveRun,
    Measure,
    Refusal,
    Report,
    Run,
    RunRequest,
    ScheduledRun,
    Stage,
    Test,
)
from vitald.model.words import ComponentKind, Outcome

RUN, CANCEL = "/v1/diagnostics/run", "/v1/diagnostics/cancel"


@pytest.fixture
def fake() -> FakeDiagnostics:
    return FakeDiagnostics()


@pytest.fixture
def served(tmp_path: Path, fake: FakeDiagnostics) -> Iterator[Served]:
    with Served(tmp_path, fake) as running:
        yield running


def get(served: Served, path: str) -> Json:
    status, answer = served.request("GET", path)
    assert status == 200, answer
    return answer


def full_of(fake: FakeDiagnostics) -> None:
    """One of everything."""
    ask = RunRequest(check="dcgm", level=2, gpus=(1, 3), by="root (uid 0), pid 7", reason="x")
    fake.active = (
        ActiveRun(
            id="a-1",
            request=ask,
            requested_at=BEGAN,
            stage=Stage.RUNNING,
            began=time.time() - 30.0,
            expected_s=480.0,
            test="memory",
        ),
        ActiveRun(
            id="a-2",
            request=replace(ask, level=3, gpus=()),
            requested_at=BEGAN,
            waits_for="idle devices: job 815",
        ),
    )
    fake.scheduled = (
        ScheduledRun(check="dcgm", level=1, at=BEGAN),
        ScheduledRun(check="dcgm_health", level=0, at=BEGAN + 5, waits_for="job 815"),
    )
    fake.remembered = [run_of(FAILED, raw='{"DCGM GPU Diagnostic": 1}', exit_code=226), slow_link()]
    fake.last_runs = {
        (run.request.check, run.request.level): replace(run, raw="") for run in fake.remembered
    }
    fake.blocked = "job 815"


# --- what is shown


def test_everything_is_in_the_document(served: Served, fake: FakeDiagnostics) -> None:
    full_of(fake)
    answer = get(served, "/v1/diagnostics")
    conforms("Diagnostics", answer)
    dcgm, health, nccl = answer["checks"]
    assert dcgm["every"] == {"1": 3600.0, "2": 86400.0, "3": 0.0, "4": 0.0}
    assert dcgm["needsIdle"] == {"1": False, "2": True, "3": True, "4": True}
    assert (health["levels"], nccl["missing"]) == ([0], "all_reduce_perf is not installed")
    running, waiting = answer["active"]
    assert (running["stage"], running["gpus"], running["test"], waiting["stage"]) == (
        "running",
        [1, 3],
        "memory",
        "waiting",
    )
    assert running["elapsed"] >= 30.0
    assert (waiting["elapsed"], waiting["began"], waiting["waitsFor"]) == (
        0.0,
        None,
        "idle devices: job 815",
    )
    assert [one["at"] for one in answer["scheduled"]] == [
        "2026-11-18T11:06:40.000Z",
        "2026-11-18T11:06:45.000Z",
    ]
    assert answer["blocked"] == "job 815"

    runs = get(served, "/v1/diagnostics/runs")
    conforms("DiagnosticRuns", runs)
    listed = runs["runs"]
    assert [one["outcome"] for one in listed] == ["fail", "fail"]
    assert "raw" not in listed[0]
    of_nccl = get(served, "/v1/diagnostics/runs?check=nccl&limit=1")
    assert (of_nccl["runs"], of_nccl["more"]) == ([listed[1]], False)
    assert get(served, "/v1/diagnostics/runs?limit=1")["more"] is True

    one = get(served, f"/v1/diagnostics/runs/{fake.remembered[0].id}")
    conforms("DiagnosticRunInFull", one)
    assert (one["raw"], one["culprits"], one["action"], one["why"]) == (
        '{"DCGM GPU Diagnostic": 1}',
        [3],
        "replace",
        FAILED.reason,
    )
    assert (one["rebootRequired"], one["replacementRequired"], one["exitCode"], one["seconds"]) == (
        False,
        True,
        226,
        60.0,
    )
    assert one["tests"][0]["gpus"] == {"0": "Pass", "1": "Pass", "2": "Pass", "3": "Fail"}
    assert (one["faults"][0]["gpu"], one["faults"][0]["errorId"]) == (3, 84)


def test_figures_that_are_none(served: Served, fake: FakeDiagnostics) -> None:
    """What a program prints as infinite, or not at all, is null: JSON has no word for it."""
    measures = tuple(
        Measure(name="busbw_bytes_per_second", value=value)
        for value in (float("inf"), float("nan"), 1.0)
    )
    fake.remembered = [run_of(Report(outcome=Outcome.INCONCLUSIVE, measures=measures))]
    one = get(served, f"/v1/diagnostics/runs/{fake.remembered[0].id}")
    conforms("DiagnosticRunInFull", one)
    assert [measure["value"] for measure in one["measures"]] == [None, None, 1.0]


def test_what_is_not_there(served: Served, fake: FakeDiagnostics) -> None:
    full_of(fake)
    for path, status, error in (
        ("/v1/diagnostics/runs/a-1", 404, "has not ended"),
        ("/v1/diagnostics/runs/b-1", 404, "no run 'b-1'"),
        ("/v1/diagnostics/runs/%2e%2e%2f", 404, "no run"),
        ("/v1/diagnostics/runs?check=dcmg", 404, "did you mean dcgm?"),
        ("/v1/diagnostics/runs?limit=0", 400, "limit"),
        ("/v1/diagnostics/runs?limit=1001", 400, "limit"),
        ("/v1/diagnostics/runs?level=1", 400, "unknown parameter 'level'"),
        ("/v1/diagnostics?x=1", 400, "unknown parameter"),
    ):
        answered, answer = served.request("GET", path)
        assert (answered, error in str(answer["error"])) == (status, True), answer
    fake.ledger_fails = "disk I/O error"
    for path in ("/v1/diagnostics/runs", "/v1/diagnostics/runs/b-1"):
        answered, answer = served.request("GET", path)
        assert (answered, "disk I/O error" in str(answer["error"])) == (503, True)
    conforms("Diagnostics", get(served, "/v1/diagnostics"))


# --- what is asked for


def test_asking(served: Served, fake: FakeDiagnostics) -> None:
    """Answered at once; the level is the lowest where none is said."""
    why = {"reason": " why not "}
    status, answer = served.request("POST", RUN, why)
    assert status == 202
    conforms("OneActiveDiagnostic", answer)
    assert (answer["active"]["stage"], answer["active"]["level"]) == ("waiting", 1)
    assert served.request("POST", RUN, {**why, "check": "dcgm_health"})[0] == 202
    everything = {**why, "check": "dcgm", "level": 2.0, "gpus": [3, 1.0], "busy": True}
    assert served.request("POST", RUN, everything)[0] == 202
    first = RunRequest(
        check="dcgm", level=1, by=f"root (uid 0), pid {os.getpid()}", reason="why not"
    )
    assert fake.asked == [
        first,
        replace(first, check="dcgm_health", level=0),
        replace(first, level=2, gpus=(1, 3), busy=True),
    ]


def test_a_gpu_by_another_name_than_its_index(served: Served, fake: FakeDiagnostics) -> None:
    first, second = (Component(ComponentKind.GPU, f"0000:{bus}:00.0") for bus in ("19", "3b"))
    served.devices.replace_devices(
        "nvml",
        [
            DeviceNames(component=first, index="0", serial="165001", slot="1", address=first.id),
            DeviceNames(component=second, serial="165002", slot="1", address=second.id),
        ],
    )
    fake.gpus = [first]
    for name in ("165001", "0000:19:00.0", "19:00", "gpu/0"):
        assert served.request("POST", RUN, {"reason": "x", "gpus": [name, 3]})[0] == 202
        assert fake.asked[-1].gpus == (0, 3)
    for gpus, status, error in (
        (["165001", 0], 400, "gpus: expected"),
        (["165003"], 404, "no GPU '165003' on this node"),
        (["165002"], 409, "gpu/0000:3b:00.0 has no number"),
        (["slot 1"], 400, "'slot 1' is ambiguous"),
    ):
        answered, answer = served.request("POST", RUN, {"reason": "x", "gpus": gpus})
        assert (answered, error in str(answer["error"])) == (status, True), answer


def test_what_is_refused(served: Served, fake: FakeDiagnostics) -> None:
    why = {"reason": "x"}
    bodies: list[tuple[object, int, str]] = [
        ({}, 400, "reason"),
        ({"reason": "  "}, 400, "reason"),
        ({"reason": "a\nb"}, 400, "reason"),
        ({**why, "check": "nvbandwidth"}, 404, "no check 'nvbandwidth'"),
        ({**why, "check": "dcgm_heath"}, 404, "did you mean dcgm_health?"),
        ({**why, "check": None}, 400, "check: "),
        ({**why, "check": ["dcgm"]}, 400, "check: "),
        ({**why, "level": 5}, 400, "dcgm has no level 5"),
        ({**why, "level": 0}, 400, "dcgm has no level 0"),
        ({**why, "check": "nccl", "level": 1}, 400, "nccl has no level 1"),
        *(
            ({**why, "level": level}, 400, "level: expected")
            for level in ("2", None, True, -1, 101, 1.5, 1e300)
        ),
        *(
            ({**why, "gpus": gpus}, 400, "gpus: expected")
            for gpus in (3, "3", [-1], [[]], [True], [None], [1, 1], [1.5], [4096], [*range(65)])
        ),
        ({**why, "busy": 1}, 400, "busy: expected"),
        ({**why, "levels": 2}, 400, "'levels', did you mean level?"),
        ([], 400, "not a JSON object"),
    ]
    for body, status, error in bodies:
        answered, answer = served.request("POST", RUN, body)
        conforms("Error", answer)
        assert (answered, error in str(answer["error"])) == (status, True), (body, answer)
    assert fake.asked == []


def test_refused_by_the_diagnostics(served: Served, fake: FakeDiagnostics) -> None:
    fake.refusal = Refusal("the devices are released", "vitald release --end")
    assert served.request("POST", RUN, {"reason": "x"}) == (
        409,
        {"error": "the devices are released", "hint": "vitald release --end"},
    )


def test_cancelling(served: Served, fake: FakeDiagnostics) -> None:
    status, answer = served.request("POST", CANCEL, {"reason": "a job waits"})
    assert (status, answer["error"]) == (409, "no diagnostic runs")
    full_of(fake)
    assert (
        served.request("POST", CANCEL, {"reason": "x", "id": "b-9"})[1]["error"]
        == "no diagnostic b-9 runs or waits"
    )
    status, answer = served.request("POST", CANCEL, {"reason": "a job waits"})
    conforms("OneActiveDiagnostic", answer)
    assert (status, answer["active"]["id"], answer["active"]["stage"]) == (200, "a-1", "ending")
    assert fake.cancelled[-1] == (None, f"root (uid 0), pid {os.getpid()}", "a job waits")
    assert served.request("POST", CANCEL, {"reason": "x", "id": "a-2"})[0] == 200
    before = len(fake.cancelled)
    for body in (
        {},
        {"id": "a-2"},
        {"reason": "x", "id": 7},
        {"reason": "x", "id": ""},
        {"reason": "x", "id": None},
        {"reason": "x", "level": 1},
    ):
        assert served.request("POST", CANCEL, body)[0] == 400, body
    assert len(fake.cancelled) == before


def test_others_may_look_and_not_touch(served: Served, fake: FakeDiagnostics) -> None:
    """The socket's group, here root's, reads."""
    served.socket.chmod(0o666)
    served.runtime.chmod(0o755)
    group = (0,)
    assert request_as_nobody(served, "GET", "/v1/diagnostics", groups=group)[0] == 200  # type: ignore[arg-type]
    for path in (RUN, CANCEL):
        status, answer = request_as_nobody(served, "POST", path, {"reason": "mine"}, groups=group)  # type: ignore[arg-type]
        assert (status, "may not change" in str(answer["error"])) == (403, True)
    assert request_as_nobody(served, "GET", "/v1/diagnostics/runs")[0] == 403  # type: ignore[arg-type]
    assert (fake.asked, fake.cancelled) == ([], [])


OURS = {
    **TIGHT,
    "paths": {
        path: item for path, item in TIGHT["paths"].items() if path.startswith("/v1/diagnostics")
    },
}
schema = schemathesis.openapi.from_dict(OURS, config=CONFIG)
REFUSABLE = ("runDiagnostic", "cancelDiagnostic")  # no such level, nothing runs


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[requests.Session]:
    fake = FakeDiagnostics()
    full_of(fake)
    with Served(tmp_path_factory.mktemp("served"), fake) as running:
        made = requests.Session()
        made.mount("http://vitald", _Unix(running.socket))
        yield made


@schema.parametrize()
@settings(
    max_examples=25, phases=[Phase.explicit, Phase.generate], suppress_health_check=[*HealthCheck]
)
def test_every_answer_is_in_the_document(
    case: schemathesis.Case, contract: requests.Session
) -> None:
    excluded = (
        [positive_data_acceptance]
        if case.operation.definition.raw["operationId"] in REFUSABLE
        else []
    )
    case.call_and_validate(base_url="http://vitald", session=contract, excluded_checks=excluded)


# --- the port


class Page(Collector):
    def __init__(self, fake: FakeDiagnostics, tally: diagnostics.RunTally) -> None:
        self._fake, self._tally = fake, tally

    def collect(self) -> Iterator[Metric]:
        yield from diagnostics.collect_current(self._fake)
        yield from diagnostics.collect_results(self._fake, self._tally)


def page(fake: FakeDiagnostics, *ended: Run) -> str:
    tally = diagnostics.RunTally()
    for run in ended:
        tally.count_run(run)
    registry = CollectorRegistry()
    registry.register(Page(fake, tally))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines), "a sample is told twice"
    return found


def test_what_the_port_says(fake: FakeDiagnostics) -> None:
    full_of(fake)
    told = samples(
        page(
            fake,
            run_of(FAILED),
            run_of(FAILED),
            run_of(),
            run_of(check="nccl", level=0, preempted="job 815"),
        )
    )
    outcome = 'vitald_diagnostic_last_outcome{check="dcgm",level="2"'
    outcomes = {name: value for name, value in told.items() if name.startswith(outcome)}
    assert outcomes[f'{outcome},outcome="fail"}}'] == sum(outcomes.values()) == 1.0
    assert {f'{outcome},outcome="{one}"}}' for one in ("pass", "preempted")} < {*outcomes}
    assert (
        told['vitald_diagnostic_last_end_timestamp_seconds{check="dcgm",level="2"}'] == BEGAN + 60.0
    )
    assert told['vitald_diagnostic_last_duration_seconds{check="dcgm",level="2"}'] == 60.0
    assert told['vitald_diagnostic_runs_total{check="dcgm",level="2",outcome="fail"}'] == 2.0
    assert told['vitald_diagnostic_runs_total{check="nccl",level="0",outcome="preempted"}'] == 1.0
    running, waiting = (
        [told[f'vitald_diagnostic_{name}{{check="dcgm",level="{level}"}}'] for level in (1, 2, 3)]
        for name in ("running", "waiting")
    )
    assert (running, waiting) == ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    owed = [
        told.get(f'vitald_diagnostic_owed_since_timestamp_seconds{{check="dcgm",level="{level}"}}')
        for level in (1, 2, 3)
    ]
    assert owed == [None, BEGAN, BEGAN]
    assert told['vitald_diagnostic_next_timestamp_seconds{check="dcgm",level="1"}'] == BEGAN
    test = 'vitald_diagnostic_test_status{{check="dcgm",gpu_index="{0}",level="2",test="{2}",test_status="{1}"}}'
    assert told[test.format(3, "fail", "Page Retirement/Row Remap")] == 1.0
    assert told[test.format(0, "pass", "Page Retirement/Row Remap")] == 1.0
    assert told[test.format("", "pass", "CUDA Main Library")] == 1.0
    measured = 'vitald_diagnostic_measure{}{{check="nccl",device="{}",measure="{}"}}'
    assert told[measured.format("", "", "busbw_bytes_per_second")] == 101.5e9
    assert told[measured.format("_ratio", "", "busbw_bytes_per_second")] == pytest.approx(0.29)
    assert told[measured.format("_ratio", "rdmap0s6", "latency_seconds")] == pytest.approx(
        50 / 21.6
    )


def test_the_watches_have_the_same_statuses_as_the_tests(fake: FakeDiagnostics) -> None:
    statuses = {"0": "Healthy", "1": "Warning", "2": "Failure"}
    tests = (Test(name="health", status="Failure", gpus=statuses),)
    fake.last_runs = {("dcgm", 2): run_of(Report(outcome=Outcome.FAIL, tests=tests))}
    told = samples(page(fake))
    name = 'vitald_diagnostic_test_status{{check="dcgm",gpu_index="{0}",level="2",test="{2}",test_status="{1}"}}'
    for gpu, status in enumerate(("pass", "warn", "fail")):
        assert told[name.format(gpu, status, "health")] == 1.0


def test_gauges_fall_again(fake: FakeDiagnostics) -> None:
    full_of(fake)
    fake.active = ()
    fake.last_runs = {("dcgm", 2): run_of()}
    told = samples(page(fake))
    assert told['vitald_diagnostic_last_outcome{check="dcgm",level="2",outcome="fail"}'] == 0.0
    assert told['vitald_diagnostic_running{check="dcgm",level="2"}'] == 0.0
    gone = (
        "vitald_diagnostic_test_status",
        "vitald_diagnostic_measure",
        "vitald_diagnostic_owed_since",
    )
    assert [name for name in told if name.startswith(gone)] == []


def test_promtool_has_nothing_to_say(fake: FakeDiagnostics, promtool: str) -> None:
    assert complaints(promtool, page(fake)) == ""
    full_of(fake)
    assert complaints(promtool, page(fake, run_of(FAILED))) == ""


def test_hostile_documents_make_no_series_without_end(fake: FakeDiagnostics) -> None:
    """And what failed is among those that are told."""
    statuses = {str(gpu): "Pass" for gpu in range(1000)}
    tests = [Test(name=f'test "{number}"\n\\' + "x" * 500, gpus=statuses) for number in range(50)]
    tests += [
        Test(name="the last", gpus={"7": "Fail", "8": "made up\x1b[2J"}),
        Test(name="the last", gpus={"7": "Pass"}),
    ]
    measures = tuple(
        Measure(name=f"figure {number}", value=1.0, device="\x1b]0;") for number in range(5000)
    )
    fake.last_runs = {
        ("dcgm", 2): run_of(Report(outcome=Outcome.FAIL, tests=tuple(tests), measures=measures))
    }
    text = page(fake)
    told = samples(text)
    assert len(told) < 1000
    assert "\x1b" not in text
    test = (
        'vitald_diagnostic_test_status{{check="dcgm",gpu_index="{}",level="2",test="the last"'
        ',test_status="{}"}}'
    )
    assert told[test.format(7, "fail")] == told[test.format(8, "other")] == 1.0
    assert test.format(7, "pass") not in told
