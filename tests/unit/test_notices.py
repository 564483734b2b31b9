"""Notices: kept, bounded, explained by the catalogue, and without any effect on the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.builders import catalogue, event, gpu
from vitald.catalog import CatalogError, load_catalog
from vitald.catalog.loader import FOLDER
from vitald.core.node_state import NodeState
from vitald.core.notices import NoticeChange, Notices
from vitald.judge.engine import Judge
from vitald.model import NODE, Action, Event, Trust
from vitald.model.codes import BOOT, CLOCK_STEPPED, JOB_DIED, RESET, UNFIT
from vitald.model.notice import JOB_ERROR, JOB_STALLED, NOTICE_CODES, WAITING, Notice

CODES = (*sorted(catalogue().rules), *NOTICE_CODES, "xid/default", "no/such")


def notice(
    code: str = JOB_STALLED, since: float = 100.0, subject: str = "slurm:1 rank 0"
) -> Notice:
    return Notice(code=code, component=NODE, since=since, last=since, text="t", subject=subject)


def job_event(name: str, **fields: object) -> Event:
    return event(name, gpu(), 50.0, trust=Trust.JOB, fields=fields)


@pytest.mark.parametrize("fields", [{}, {"recovered": True}, {"vouched": True, "level": 3}])
def test_the_word_of_a_job_changes_nothing(fields: Mapping[str, object]) -> None:
    """Whatever its code: no finding, no evidence, no confirmation, nothing remembered."""
    judge = Judge(catalogue())
    judge.apply_event(event("xid/79", time=1.0))
    judge.apply_event(event("nvml/lost", gpu(1), 2.0, trust=Trust.DAEMON))
    judge.take_changes()
    before, findings = judge.memory, judge.open_findings
    for code in CODES:
        for component in (NODE, gpu(), gpu(2)):
            said = event(code, component, 1e9, trust=Trust.JOB, fields=fields)
            assert judge.apply_event(said) == [], code
            assert judge.accounts_for(said), code
    assert (judge.memory, judge.open_findings) == (before, findings)


def test_a_notice_is_no_finding_whoever_observed_it() -> None:
    judge = Judge(catalogue())
    for code in NOTICE_CODES:
        for trust in Trust:
            assert judge.apply_event(event(code, NODE, 1.0, trust=trust)) == []
            assert judge.accounts_for(event(code, NODE, 1.0, trust=trust))
    assert judge.open_findings == ()


def test_jobs_and_responses_do_not_take_the_word_of_a_job() -> None:
    """Neither as it comes in, nor restored from the ledger."""
    state = NodeState("boot-a", 0.0, device_reset=False)
    said = [
        job_event(JOB_DIED, job="1"),
        job_event("job/began", job="1"),
        job_event(UNFIT, finding=1, component="node", code="xid/79"),
    ]
    state.publish_changes(Judge(catalogue()), said)
    state.jobs.restore_jobs(said, "boot-a", 0.0, ())
    state.responses.restore(said, None)
    assert (list(state.jobs.recent), dict(state.jobs.running)) == ([], {})
    assert state.responses.latest == ()
    assert len(state.recent) == 3  # it is stored and listed


def test_the_catalogue_has_every_notice_and_they_ask_for_nothing() -> None:
    assert set(catalogue().notices) == set(NOTICE_CODES)
    for code in NOTICE_CODES:
        assert code not in catalogue().rules
        assert catalogue().find_rule(code).apply_to({}).action is Action.NONE
    for code in (BOOT, RESET, JOB_DIED):
        assert code not in catalogue().notices


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("title = 't'\nmeaning = 'm'\nadvice = 'a'", "source: expected a text"),
        ("title = 't'\nmeaning = ''\nadvice = 'a'\nsource = 's'", "meaning: expected a text"),
        (
            "title = 't'\nmeaning = 'm'\nadvice = 'a'\nsource = 's'\naction = 'none'",
            "action: unknown key",
        ),
    ],
)
def test_a_mistake_names_its_place(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "application.toml").write_text(f"[notice.job.stalled]\n{text}\n")
    (tmp_path / "site.toml").write_text("")
    with pytest.raises(CatalogError) as caught:
        load_catalog(extra=tmp_path)
    assert f"application.toml: [notice.job.stalled]: {error}" in str(caught.value)


def test_no_rule_has_the_code_of_a_notice() -> None:
    rule = {
        "title": "t",
        "meaning": "m",
        "class": "application",
        "action": "observe",
        "clears": ["reboot"],
        "escalation": "none",
        "source": "s",
    }
    with pytest.raises(CatalogError) as caught:
        load_catalog(overrides={"job": {"stalled": rule}})
    assert caught.value.errors == [
        "application.toml: [notice.job.stalled]: stands in [catalog.overrides] too: a notice is no"
        " finding"
    ]
    assert (FOLDER / "application.toml").is_file()


def test_a_notice_is_replaced_by_its_key_and_closed_once() -> None:
    changes: list[NoticeChange] = []
    notices = Notices(changes.append)
    notices.open_notice(notice(since=100.0))
    notices.open_notice(notice(since=100.0))
    notices.open_notice(notice(subject="slurm:1 rank 1", since=90.0))
    assert [each.subject for each in notices.notices] == ["slurm:1 rank 1", "slurm:1 rank 0"]
    assert notices.count_by_code() == {JOB_STALLED: 2}
    assert [change.is_open for change in changes] == [True, True]
    assert notices.close_notice(notice().key) == notice()
    assert notices.close_notice(notice().key) is None
    assert len(notices.notices) == 1
    assert changes[2:] == [NoticeChange(notice(), is_open=False)]


def test_too_many_close_the_one_that_was_opened_first() -> None:
    changes: list[NoticeChange] = []
    notices = Notices(changes.append, max_notices=2)
    for number in range(4):
        notices.open_notice(notice(subject=str(number)))
    assert [each.subject for each in notices.notices] == ["2", "3"]
    assert notices.dropped == 2
    assert [change.notice.subject for change in changes if not change.is_open] == ["0", "1"]


def test_the_words_of_a_job_do_not_hide_that_the_gpus_wait() -> None:
    notices = Notices(lambda change: None)
    for number in range(200):
        notices.open_notice(notice(JOB_ERROR, subject=str(number)))
    notices.open_notice(notice(WAITING, since=500.0))
    assert [each.code for each in notices.list_foremost(2)] == [WAITING, JOB_ERROR]


def test_a_stepped_clock_shifts_them() -> None:
    state = NodeState("boot-a", 0.0, device_reset=False)
    state.notices.open_notice(notice(WAITING, since=100.0))
    stepped = event(CLOCK_STEPPED, NODE, trust=Trust.DAEMON, fields={"seconds": 50.0})
    state.publish_changes(Judge(catalogue()), [stepped])
    state.publish_changes(Judge(catalogue()), [job_event(CLOCK_STEPPED, seconds=7.0)])
    assert [(each.since, each.last) for each in state.notices.notices] == [(150.0, 150.0)]
