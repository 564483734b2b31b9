"""What notices raise as a suspicion: what counts, for how long, and that it changes no status."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builders import catalogue, event, gpu
from vitald.catalog import CatalogError, load_catalog
from vitald.core.node_state import NodeState
from vitald.core.suspicion import SUSPICION_CODES, Cause, Suspicion
from vitald.core.suspicion_history import read_suspicion_events
from vitald.judge.engine import Judge
from vitald.ledger import Ledger, LedgerEntry
from vitald.model import NODE, Event, MarkKind, Trust, Value
from vitald.model.codes import CLOCK_STEPPED, DIAGNOSTIC_REQUESTED
from vitald.model.notice import JOB_NOT_FINITE, JOB_RESUMED, JOB_STALLED, NOTICE_CODES, WAITING

DAY = 86400.0
NOW = 1_795_000_000.0
UUID = "GPU-5f0c1d2e"


def report(code: str, user: int, at: float, job: str = "1", **fields: Value) -> Event:
    """The word of a job."""
    said = {"job": job, "uid": user, **fields}
    return event(code, NODE, NOW + at, trust=Trust.JOB, fields=said)


def not_finite(user: int, at: float = 0.0, job: str = "1") -> Event:
    return report(JOB_NOT_FINITE, user, at, job)


def waited(at: float, *devices: str, seconds: float = 600.0) -> Event:
    """The GPUs have waited for so long, and others took no part."""
    fields = {
        "seconds": seconds,
        "odd": ", ".join(gpu(number).name for number, _ in enumerate(devices)),
        "oddDevices": ", ".join(devices),
    }
    return event(WAITING, NODE, NOW + at, trust=Trust.DAEMON, fields=fields)


def moves(at: float) -> Event:
    return event(WAITING, NODE, NOW + at, trust=Trust.DAEMON, fields={"recovered": True})


def stall(at: float, user: int, *devices: str) -> list[Event]:
    """A stall that both the job and the GPUs show, for 20 minutes from `at`."""
    return [
        report(JOB_STALLED, user, at + 120),
        waited(at + 600, *(devices or (UUID,))),
        report(JOB_RESUMED, user, at + 1200),
        moves(at + 1200),
    ]


def requested(at: float, cause: Cause) -> Event:
    fields = {"level": cause.level, "because": cause.because, "uids": list(cause.users)}
    return event(DIAGNOSTIC_REQUESTED, NODE, NOW + at, trust=Trust.DAEMON, fields=fields)


def suspicion_of(events: Sequence[Event]) -> Suspicion:
    """As they come in."""
    made = Suspicion()
    for each in events:
        made.take_event(each)
    return made


def find(events: Sequence[Event], at: float = 0.0) -> Cause | None:
    return suspicion_of(events).find_cause(NOW + at, catalogue().suspicions)


# --- values that are not finite


def test_jobs_of_two_users_that_are_not_finite() -> None:
    cause = find([not_finite(1001), not_finite(1002, DAY)], at=2 * DAY)
    assert cause is not None
    assert (cause.code, cause.level, cause.users) == (JOB_NOT_FINITE, 3, (1001, 1002))
    assert cause.because == (
        "jobs of 2 users (1001, 1002) computed values that are not finite within 7 days"
        " (job/not_finite)"
    )


def test_one_user_alone_is_never_enough() -> None:
    """However many jobs it claims, and over how long."""
    claims = [not_finite(1001, at * 60.0, job=f"{at}") for at in range(1000)]
    assert find(claims, at=DAY) is None
    assert find([*claims, not_finite(1002, DAY)], at=DAY) is not None


def test_the_span_is_a_week() -> None:
    events = [not_finite(1001), not_finite(1002, 8 * DAY)]
    assert find(events, at=8 * DAY) is None
    assert find([not_finite(1001), not_finite(1002, 6.9 * DAY)], at=6.9 * DAY) is not None


@pytest.mark.parametrize("trust", [trust for trust in Trust if trust is not Trust.JOB])
def test_only_the_job_socket_reports_for_jobs(trust: Trust) -> None:
    events = [replace(not_finite(user), trust=trust) for user in (1001, 1002)]
    assert find(events) is None


@pytest.mark.parametrize("user", [None, True, "1002", 2.0])
def test_a_report_without_a_user_does_not_count(user: Value) -> None:
    wrong = replace(not_finite(7), fields={"job": "1", "uid": user})
    assert find([not_finite(1001), wrong]) is None


def test_a_drill_does_not_count() -> None:
    drills = [replace(each, simulated_until=NOW + DAY) for each in (not_finite(1), not_finite(2))]
    assert find(drills) is None
    stalls = [*stall(0, 1), *stall(2 * DAY, 1)]
    assert find(stalls, at=3 * DAY) is not None
    assert find([replace(each, simulated_until=NOW) for each in stalls], at=3 * DAY) is None


def test_what_a_request_used_up_does_not_count_again() -> None:
    first = [not_finite(1001), not_finite(1002)]
    cause = find(first)
    assert cause is not None
    after = [*first, requested(60, cause), not_finite(1001, DAY), not_finite(1002, DAY)]
    assert find(after, at=2 * DAY) is None
    third = [*after, not_finite(1003, 2 * DAY), not_finite(1004, 2 * DAY)]
    cause = find(third, at=2 * DAY)
    assert cause is not None and cause.users == (1003, 1004)
    again = [*after, not_finite(1001, 8 * DAY), not_finite(1002, 8 * DAY)]
    assert find(again, at=8 * DAY) is not None  # a week later


# --- stalls


def test_two_stalls_in_which_a_gpu_took_no_part() -> None:
    assert find(stall(0, 1001), at=DAY) is None
    cause = find([*stall(0, 1001), *stall(2 * DAY, 1001)], at=3 * DAY)
    assert cause is not None
    assert (cause.code, cause.level, cause.users) == (WAITING, 2, ())
    assert cause.because == (
        f"jobs stalled 2 times within 7 days while the GPUs waited and {gpu(0).name} took no part"
        " (nvml/waiting)"
    )


def test_the_stalls_of_one_user_count_once_a_day() -> None:
    often = [each for at in range(10) for each in stall(at * 3600, 1001)]
    assert find(often, at=DAY) is None
    assert find([*stall(0, 1001), *stall(3600, 1002)], at=DAY) is not None


def test_the_word_of_jobs_is_no_stall_without_the_measurement() -> None:
    words = [report(JOB_STALLED, user, user * DAY / 2) for user in range(8)]
    assert find(words, at=4 * DAY) is None


def test_a_wait_is_no_stall_without_a_job_that_says_so() -> None:
    """Rank 0 that evaluates for long, and a job without the client."""
    assert find([waited(0, UUID), moves(60), waited(DAY, UUID)], at=DAY) is None


def test_a_stall_that_was_over_before_the_wait_is_another_matter() -> None:
    def resumed(at: float) -> list[Event]:
        return [
            report(JOB_STALLED, 1001, at),
            report(JOB_RESUMED, 1001, at + 60),
            waited(at + 600, UUID),
            moves(at + 700),
        ]

    assert find([*resumed(0), *resumed(2 * DAY)], at=3 * DAY) is None
    early = [report(JOB_STALLED, 1001, at) for at in (-DAY, DAY)]
    waits = [waited(0, UUID), moves(60), waited(2 * DAY, UUID)]
    assert find(sorted([*early, *waits], key=lambda each: each.time), at=3 * DAY) is None


def test_a_job_may_notice_its_stall_after_the_gpus() -> None:
    """Its steps take long; the wait goes on."""
    events = [waited(600, UUID), report(JOB_STALLED, 1001, 900), moves(1200)]
    cause = find([*events, *stall(2 * DAY, 1001)], at=3 * DAY)
    assert cause is not None


def test_all_gpus_wait_is_no_suspicion_against_this_node() -> None:
    nobody = [
        replace(each, fields={**each.fields, "odd": "", "oddDevices": ""})
        for each in (
            *stall(0, 1001),
            *stall(2 * DAY, 1001),
        )
        if each.code != WAITING or "recovered" not in each.fields
    ]
    assert find(nobody, at=3 * DAY) is None


# --- restored, bounded, by any clock


def test_it_survives_a_restart(tmp_path: Path) -> None:
    events = [not_finite(1001), *stall(60, 1001), not_finite(1002, DAY), *stall(2 * DAY, 1002)]
    with_identity = [replace(each, identity=str(at)) for at, each in enumerate(events)]
    ledger = Ledger(tmp_path)
    ledger.open()
    ledger.commit([LedgerEntry(events=(each,)) for each in with_identity])
    restored = Suspicion()
    restored.restore(read_suspicion_events(ledger.path))
    ledger.close()
    rules, live = catalogue().suspicions, suspicion_of(events)
    assert restored.find_cause(NOW + 3 * DAY, rules) == live.find_cause(NOW + 3 * DAY, rules)
    assert restored.list_marks() == live.list_marks() != {}


def test_a_wait_that_the_daemon_did_not_see_end_agrees_with_nothing_later() -> None:
    restored = Suspicion()
    restored.restore([waited(0, UUID)])
    for user, at in ((1001, DAY), (1002, 2 * DAY)):
        restored.take_event(report(JOB_STALLED, user, at))
    assert restored.list_marks() == {}


def test_a_stepped_clock_takes_the_reports_along() -> None:
    stepped = event(CLOCK_STEPPED, NODE, NOW, trust=Trust.DAEMON, fields={"seconds": -30 * DAY})
    events = [not_finite(1001), *stall(0, 1001), stepped]
    made = suspicion_of([*events, not_finite(1002, -30 * DAY)])
    assert made.find_cause(NOW - 30 * DAY, catalogue().suspicions) is not None
    (mark,) = made.list_marks()[UUID]
    assert mark.time == NOW + 600 - 30 * DAY


def test_a_flood_is_bounded() -> None:
    made = Suspicion()
    for number in range(5000):
        made.take_event(not_finite(number, number))
        made.take_event(report(JOB_STALLED, number, number, job=str(number)))
        made.take_event(waited(number, UUID, seconds=0.5))
    assert len(made._not_finite) == len(made._stalled) == 1024
    assert len(made._stalls) == 256


# --- the lemon score


def lemon(events: Sequence[Event], at: float = 0.0) -> dict[str, float]:
    state = NodeState("boot-a", NOW, device_reset=False)
    state.publish_changes(Judge(catalogue()), events)
    return {
        device: {kind: points for kind, _, points in parts}["job_stalled_here"]
        for device, (_, parts) in state.score_suspects(NOW + at).items()
    }


def test_the_gpu_that_took_no_part_scores_and_is_capped() -> None:
    scoring = catalogue().lemon
    assert scoring.weights[MarkKind.JOB_STALLED_HERE] == 0.5
    assert lemon(stall(-600, 1001)) == {UUID: 0.5}
    often = [each for user in range(20) for each in stall(-600 + user, user)]
    assert lemon(often, at=60) == {UUID: 1.0}
    assert scoring.caps[MarkKind.JOB_STALLED_HERE] < scoring.suspect


def test_of_several_gpus_none_is_charged() -> None:
    assert lemon(stall(-600, 1001, UUID, "GPU-other")) == {}


def test_the_word_of_a_job_alone_scores_nothing() -> None:
    assert lemon([report(JOB_STALLED, user, user) for user in range(9)]) == {}


# --- nothing else changes


def test_a_replay_with_and_without_is_equal() -> None:
    """Findings, flags, fitness and what is remembered, whatever jobs report and whatever the GPUs
    show; a request for a diagnostic too.
    """
    source = random.Random(7)
    faults = [
        event(code, gpu(at % 3), NOW + at * 10.0) for at, code in enumerate(("xid/79", "xid/48"))
    ]
    faults += [event("nvml/lost", gpu(2), NOW + 500.0, trust=Trust.DAEMON)]
    cause = find([not_finite(1), not_finite(2)])
    assert cause is not None
    words = [requested(at * 5.0, cause) for at in range(5)]
    for at in range(300):
        code = source.choice([*NOTICE_CODES, *SUSPICION_CODES[:-2]])
        if code == WAITING:
            words.append(waited(at * 4.0, UUID))
        else:
            words.append(report(code, source.randrange(5), at * 4.0))
    plain, noisy = (NodeState("boot-a", NOW, device_reset=True) for _ in range(2))
    judges = Judge(catalogue()), Judge(catalogue())
    for state, judge, events in zip(
        (plain, noisy), judges, (faults, sorted([*faults, *words], key=lambda each: each.time))
    ):
        for each in events:
            state.publish_changes(judge, [each], judge.apply_event(each))
    assert judges[0].memory == judges[1].memory
    assert plain.findings == noisy.findings != ()
    assert plain.verdict() == noisy.verdict()
    assert plain.responses.latest == noisy.responses.latest
    assert noisy.suspicion.last_request is not None


@pytest.mark.parametrize(
    ("code", "value", "error"),
    [
        ("job.stalled", "{ times = 2, within = '7d', level = 2 }", "only of job/not_finite and"),
        ("job.not_finite", "{ times = 1, within = '7d', level = 2 }", "a whole number of times"),
        ("job.not_finite", "{ times = 2, within = 7, level = 2 }", "suspicion: "),
        ("job.not_finite", "{ times = 2, within = '7d', level = 4 }", "level 2 or 3"),
        ("nvml.waiting", "{ times = 2 }", "expected a table of level, times, within"),
        ("nvml.waiting", "7", "expected a table of level, times, within"),
    ],
)
def test_a_mistake_names_its_place(tmp_path: Path, code: str, value: str, error: str) -> None:
    texts = "title = 't'\nmeaning = 'm'\nadvice = 'a'\nsource = 's'"
    (tmp_path / "application.toml").write_text(f"[notice.{code}]\n{texts}\nsuspicion = {value}\n")
    with pytest.raises(CatalogError) as caught:
        load_catalog(extra=tmp_path)
    (mistake,) = caught.value.errors
    assert mistake.startswith(f"application.toml: [notice.{code}]: suspicion: ")
    assert error in mistake
