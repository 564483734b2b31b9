"""Notifications: at least once, in order for each finding, over failures and kills; few of them,
whatever happens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from tests.notifications import FINDING
from tests.unit.test_publish_events import STATE, Ledger, make_change
from tests.waiting import WAIT_S
from vitald.model.words import Action, Status
from vitald.publish.notify import runner as engine
from vitald.publish.notify.backlog import (
    MAX_RECEIPTS,
    Progress,
    Receipt,
    format_progress,
    parse_progress,
)
from vitald.publish.notify.findings import FindingReader
from vitald.publish.notify.formats.text import describe_notification, is_resolved
from vitald.publish.notify.notification import (
    NodeFlags,
    NodeIdentity,
    Notification,
    NotificationKind,
    NotifiedFinding,
)
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.runner import NotifyRunner
from vitald.publish.notify.settings import CHANGES, NotifySettings
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import Cursor, StateStore
from vitald.publish.summary import DaemonSilent, NodeSummary
from vitald.publish.transitions import (
    ChangeKind,
    FindingChange,
    TransitionPage,
    TransitionReader,
)

NODE = NodeIdentity(host="node1", instance_id="", boot_id="b")
FINDINGS = ("opened", "escalated", "cleared")
SETTINGS = NotifySettings(url=("https://x",), on=FINDINGS, quiet_s=0.0, settle_s=0.0)
OPENED, CLEARED = ChangeKind.OPENED, ChangeKind.CLEARED
SILENT = DaemonSilent(since=0.0, detail="killed")
NAME = "notify-hook"


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Recorder:
    """A receiver. `fate`: what becomes of a message once it has it."""

    taken: list[Notification] = field(default_factory=list)
    fate: Callable[[Notification], BaseException | None] = lambda _: None

    async def deliver(self, notification: Notification) -> None:
        fate = self.fate(notification)
        if fate is None or isinstance(fate, Killed):
            self.taken.append(notification)
        if fate is not None:
            raise fate

    @property
    def sent(self) -> list[str]:
        """`opened 1` for that of finding 1, `digest 5` for one of five changes."""
        return [_name_message(message) for message in self.taken]


def _name_message(message: Notification) -> str:
    if message.finding is not None:
        return f"{message.kind.value} {message.finding.id}"
    if message.digest is not None:
        return f"digest {message.digest.count}{'' if message.digest.groups else ' over'}"
    return f"{message.kind.value} {message.flags.status.value}"


class Findings:
    """Stands for the daemon's, by its ledger: what is open, with details."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def read_open(self) -> list[NotifiedFinding]:
        last: dict[int, FindingChange] = {change.finding: change for change in self._ledger.changes}
        return [self._describe(change) for change in last.values() if change.kind is not CLEARED]

    async def read_one(self, number: int) -> NotifiedFinding | None:
        changes = [change for change in self._ledger.changes if change.finding == number]
        return self._describe(changes[-1]) if changes else None

    def _describe(self, change: FindingChange) -> NotifiedFinding:
        return replace(
            FINDING,
            id=change.finding,
            component=change.component,
            code=change.code,
            action=change.action,
            simulated=change.simulated,
            since=next(each.at for each in self._ledger.changes if each.finding == change.finding),
        )


def make_runner(
    store: StateStore,
    ledger: Ledger,
    recorder: Recorder,
    settings: NotifySettings = SETTINGS,
    open_in: Ledger | None = None,
) -> NotifyRunner:
    """`open_in`: the ledger by which findings are open, if it is another one."""
    reader, findings = cast("TransitionReader", ledger), Findings(open_in or ledger)
    return NotifyRunner(
        NAME, settings, recorder, NODE, store, reader, cast("FindingReader", findings)
    )


def run_once(
    folder: Path,
    ledger: Ledger,
    recorder: Recorder,
    settings: NotifySettings = SETTINGS,
    steps: int = 1,
    state: Any = STATE,
) -> NotifyRunner:
    """A publisher from its start until it was killed, after so many attempts."""

    async def run() -> NotifyRunner:
        store = StateStore(folder)
        runner = make_runner(store, ledger, recorder, settings)
        runner.offer_state(state)
        try:
            for _ in range(steps):
                await runner._work_off()
        except Killed:
            pass
        finally:
            store.close()
        return runner

    return asyncio.run(run())


def begun(folder: Path, ledger: Ledger, settings: NotifySettings = SETTINGS) -> None:
    """A receiver that is not new."""
    run_once(folder, ledger, Recorder(), settings)


def change_of(number: int, finding: int, **values: Any) -> FindingChange:
    """The transition `number`, of a finding on a GPU of its own."""
    return make_change(number, **{"finding": finding, "component": f"gpu/{finding}", **values})


@pytest.fixture
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many messages as there are."""
    monkeypatch.setattr(engine, "_BURST", 10_000)


# --- each is sent, in order

CHANGES_OF_A_LEDGER = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.sampled_from([OPENED, ChangeKind.ESCALATED, CLEARED]),
        st.sampled_from([Action.OBSERVE, Action.INSPECT, Action.REBOOT_NODE]),
    ),
    max_size=15,
)


def make_ledger(steps: list[tuple[int, ChangeKind, Action]]) -> Ledger:
    """Findings are opened first, an escalation requires more, and nothing follows their ends."""
    ledger, required, over = Ledger(), dict[int, Action](), set[int]()
    for finding, kind, action in steps:
        if finding in over:
            continue
        if finding not in required:
            kind = OPENED
        elif kind is not CLEARED:
            kind = ChangeKind.ESCALATED
            action = Action.find_strongest([action, required[finding]])
            if action is required[finding]:
                continue
        required[finding] = action
        if kind is CLEARED:
            over.add(finding)
        ledger.changes.append(change_of(ledger.newest + 1, finding, kind=kind, action=action))
    return ledger


def list_expected(ledger: Ledger) -> list[str]:
    """By the rules, in other words than the engine's."""
    expected: list[str] = []
    opened: set[int] = set()
    for change in ledger.changes:
        if change.kind is CLEARED:
            expected += [f"cleared {change.finding}"] * (change.finding in opened)
        elif change.action is not Action.OBSERVE:
            kind = change.kind.value if change.finding in opened else "opened"
            expected.append(f"{kind} {change.finding}")
            opened.add(change.finding)
    return expected


@limits(deadline=None, max_examples=60)  # each of them starts threads and writes files
@given(
    changes=CHANGES_OF_A_LEDGER,
    fates=st.lists(st.sampled_from(["ok", "fail", "kill"]), max_size=12),
)
@pytest.mark.usefixtures("no_limit")
def test_each_is_sent_in_order_over_failures_and_kills(
    changes: list[tuple[int, ChangeKind, Action]], fates: list[str]
) -> None:
    ledger = make_ledger(changes)
    left = list(fates)
    killed: list[str] = []

    def decide(message: Notification) -> BaseException | None:
        fate = left.pop(0) if left else "ok"
        if fate == "kill":
            killed.append(message.id)
            return Killed()
        return SinkFailed("down") if fate == "fail" else None

    recorder = Recorder(fate=decide)
    with tempfile.TemporaryDirectory() as name:
        begun(Path(name), Ledger())
        for _ in range(len(fates) + 2):
            run_once(Path(name), ledger, recorder)
    times = Counter(message.id for message in recorder.taken)
    assert all(count <= 1 + killed.count(id_) for id_, count in times.items())
    first = list({message.id: message for message in recorder.taken}.values())
    of_finding: dict[str, list[str]] = {}
    for message in first:
        of_finding.setdefault(message.key, []).append(_name_message(message))
    expected: dict[str, list[str]] = {}
    for each in list_expected(ledger):
        key = f"node1/gpu/{each.rpartition(' ')[2]}/xid/79"
        expected.setdefault(key, []).append(each)
    assert of_finding == expected


def test_a_message_has_the_details_of_its_finding(tmp_path: Path) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder()
    unhealthy = replace(STATE, status=Status.UNHEALTHY, reboot_required=True)
    run_once(tmp_path, Ledger([change_of(1, 7, cause="seen")]), recorder, state=unhealthy)
    (message,) = recorder.taken
    assert message.finding is not None
    assert (message.finding.serial, message.finding.raw) == (FINDING.serial, FINDING.raw)
    assert (message.finding.cause, message.finding.id) == ("seen", 7)
    assert message.flags == NodeFlags(status=Status.UNHEALTHY, reboot_required=True)
    assert message.key == "node1/gpu/7/xid/79"


def test_a_receiver_that_is_new_gets_what_is_open_over_a_kill(tmp_path: Path) -> None:
    steps = [(number, OPENED, Action.INSPECT) for number in (1, 2, 3)]
    steps += [(2, CLEARED, Action.INSPECT), (3, ChangeKind.ESCALATED, Action.REBOOT_NODE)]
    ledger = make_ledger(steps)
    recorder = Recorder(fate=lambda _: Killed() if not recorder.taken else None)
    run_once(tmp_path, ledger, recorder)
    ledger.changes.append(change_of(6, 3, kind=CLEARED))
    run_once(tmp_path, ledger, recorder)
    assert recorder.sent == ["opened 1", "opened 1"]  # 3 came and went unknown to it
    assert recorder.taken[0].id == recorder.taken[1].id
    run_once(tmp_path, ledger, recorder)
    assert len(recorder.taken) == 2


def test_another_finding_of_that_number_lends_no_details(tmp_path: Path) -> None:
    """The ledger was begun anew since its transitions were read."""
    begun(tmp_path, Ledger())
    recorder, other = Recorder(), Ledger([change_of(1, 1, component="gpu/other")])

    async def run() -> None:
        store = StateStore(tmp_path)
        runner = make_runner(store, Ledger([change_of(1, 1)]), recorder, open_in=other)
        runner.offer_state(STATE)
        await runner._work_off()
        store.close()

    asyncio.run(run())
    (message,) = recorder.taken
    assert message.finding is not None
    assert (message.finding.component, message.finding.serial) == ("gpu/1", "")


def test_a_ledger_that_was_begun_anew(tmp_path: Path) -> None:
    """What is still open is not sent again; what is not has ended."""
    ledger = make_ledger([(1, OPENED, Action.INSPECT), (2, OPENED, Action.INSPECT)])
    recorder = Recorder()
    begun(tmp_path, Ledger())
    run_once(tmp_path, ledger, recorder)
    other = Ledger([change_of(1, 1, component="gpu/2", action=Action.INSPECT, at=1.0)])
    recorder.taken.clear()
    run_once(tmp_path, other, recorder)
    assert recorder.sent == ["cleared 1"]
    assert recorder.taken[0].finding is not None
    assert recorder.taken[0].finding.component == "gpu/1"
    assert recorder.taken[0].finding.cause == "the ledger was begun anew"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (replace(SETTINGS, min_action="reboot_node"), ["opened 1", "cleared 1"]),
        (replace(SETTINGS, on=("opened",)), ["opened 1", "opened 2"]),
        (replace(SETTINGS, on=("escalated", "cleared")), ["escalated 1", "cleared 1"]),
        (
            replace(SETTINGS, drills=True),
            ["opened 1", "opened 2", "opened 3", "escalated 1", "cleared 1", "cleared 2"],
        ),
    ],
)
@pytest.mark.usefixtures("no_limit")
def test_what_is_left_out(tmp_path: Path, settings: NotifySettings, expected: list[str]) -> None:
    """The end of a finding, too, of which nothing was sent."""
    begun(tmp_path, Ledger(), settings)
    inspect = Action.INSPECT
    changes = [
        change_of(1, 1, action=inspect),
        change_of(2, 2, action=inspect),
        change_of(3, 3, action=inspect, simulated=True),
        change_of(5, 1, kind=ChangeKind.ESCALATED),
        change_of(6, 1, kind=CLEARED, action=inspect),
        change_of(7, 2, kind=CLEARED, action=inspect),
        change_of(9, 5, kind=ChangeKind.OTHER),
        change_of(10, 5, kind=ChangeKind.IN_REMEDY),
    ]
    recorder = Recorder()
    run_once(tmp_path, Ledger(changes), recorder, settings)
    assert recorder.sent == expected


def test_a_drill_and_the_fault_it_stands_for_are_two(tmp_path: Path) -> None:
    settings = replace(SETTINGS, drills=True)
    begun(tmp_path, Ledger(), settings)
    recorder = Recorder()
    ledger = Ledger([change_of(1, 1, simulated=True), change_of(2, 2, component="gpu/1")])
    run_once(tmp_path, ledger, recorder, settings)
    assert recorder.sent == ["opened 1", "opened 2"]
    assert len({message.key for message in recorder.taken}) == 2


def test_what_is_refused_is_dropped_and_shown(tmp_path: Path) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder()
    refusal = NotificationRefused("x answered 400")
    recorder.fate = lambda each: refusal if "gpu/1" in each.key else None
    ledger = make_ledger([(1, OPENED, Action.INSPECT)])
    runner = run_once(tmp_path, ledger, recorder, steps=2)
    assert not runner.health.is_up and runner.health.failures == 1
    assert runner.health.error == "dropped opened node1/gpu/1/xid/79: x answered 400"
    ledger.changes.append(change_of(2, 2))
    runner = run_once(tmp_path, ledger, recorder)
    assert recorder.sent == ["opened 2"] and runner.health.is_up


def test_a_receiver_that_is_down_is_tried_again_later_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, Ledger())
    monkeypatch.setattr("vitald.publish.retry.random.uniform", lambda _, most: most)
    recorder = Recorder(fate=lambda _: SinkFailed("x: down", is_unreachable=True))
    ledger = make_ledger([(1, OPENED, Action.INSPECT)])
    waits: list[float | None] = []

    async def run() -> NotifyRunner:
        store = StateStore(tmp_path)
        runner = make_runner(store, ledger, recorder)
        runner.offer_state(STATE)
        for _ in range(12):
            waits.append(await runner._work_off())
        recorder.fate = lambda _: SinkFailed("x: later", retry_after_s=100.0)
        runner._retry.note_success()
        waits.append(await runner._work_off())
        store.close()
        return runner

    runner = asyncio.run(run())
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 16.0] and waits[11] == 300.0
    assert waits[12] == pytest.approx(120.0)  # Retry-After, and up to a fifth more
    assert (runner.health.waiting, runner.health.error) == (1, "x: later")


def test_a_receiver_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path, Ledger())
    monkeypatch.setattr(engine, "_DELIVERY_S", 0.05)
    recorder = Recorder()

    async def hang(_: Notification) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(recorder, "deliver", hang)
    runner = run_once(tmp_path, Ledger([change_of(1, 1)]), recorder)
    assert runner.health.error == "no end within 0.05 s"


# --- storms


def make_storm(count: int) -> Ledger:
    return make_ledger([(n, OPENED, Action.INSPECT) for n in range(1, count + 1)])


def test_a_storm_is_one_message_over_a_kill(tmp_path: Path) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder(fate=lambda _: Killed())
    ledger = make_storm(50)
    run_once(tmp_path, ledger, recorder)
    recorder.fate = lambda _: None
    ledger.changes += [change_of(51, 51), change_of(52, 3, kind=CLEARED)]
    run_once(tmp_path, ledger, recorder)
    assert recorder.sent == ["digest 50", "digest 50", "opened 51"]
    first, second = recorder.taken[:2]
    assert (first.id, first.key, first.digest) == (second.id, second.key, second.digest)
    assert first.key == "node1/digest"
    (group,) = first.digest.groups if first.digest is not None else ()
    assert (group.kind, group.code, group.count) == (NotificationKind.OPENED, "xid/79", 50)
    assert group.components == tuple(f"gpu/{n}" for n in range(1, 9))


def test_ten_thousand_findings_in_a_minute_are_few_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive over a minute, while the receiver takes each message at once."""
    begun(tmp_path, Ledger())
    now = time.monotonic()
    offset = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now + offset[0])
    ledger, recorder = Ledger(), Recorder()

    async def read_page(after: int) -> TransitionPage:
        changes = tuple(ledger.changes[after : after + 500])
        more = changes[-1].id if after + 500 < len(ledger.changes) else None
        return TransitionPage(changes, more, ledger.newest)

    monkeypatch.setattr(ledger, "read_page", read_page)

    async def run() -> None:
        store = StateStore(tmp_path)
        runner = make_runner(store, ledger, recorder, open_in=Ledger())
        runner.offer_state(STATE)
        for second in range(60):
            offset[0] = float(second)
            first = ledger.newest + 1
            ledger.changes += [change_of(n, n) for n in range(first, first + 10_000 // 60 + 1)]
            await runner._work_off()
        assert len(recorder.taken) <= 5
        offset[0] = 120.0
        await runner._work_off()
        store.close()
        assert len(runner._progress.receipts if runner._progress else ()) <= MAX_RECEIPTS

    asyncio.run(run())
    counts = [1 if each.digest is None else each.digest.count for each in recorder.taken]
    assert sum(counts) == ledger.newest > 10_000


def test_a_digest_that_was_begun_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver may have it: single messages would have other ids."""
    begun(tmp_path, Ledger())
    recorder, ledger = Recorder(), make_storm(3)
    run_once(tmp_path, ledger, recorder)
    ledger.changes += [change_of(4, 4), change_of(5, 5)]  # one more may be sent
    recorder.fate = lambda _: Killed()
    run_once(tmp_path, ledger, recorder)
    now = time.time() + 3600.0
    monkeypatch.setattr(engine.time, "time", lambda: now)
    recorder.fate = lambda _: None
    run_once(tmp_path, ledger, recorder)
    assert recorder.sent == ["opened 1", "opened 2", "opened 3", "digest 2", "digest 2"]
    assert recorder.taken[3].id == recorder.taken[4].id


def test_the_limit_is_remembered_over_a_restart(tmp_path: Path) -> None:
    begun(tmp_path, Ledger())
    recorder, ledger = Recorder(), Ledger()
    for number in range(1, 9):
        ledger.changes.append(change_of(number, number))
        run_once(tmp_path, ledger, recorder)
    assert recorder.sent == [f"opened {n}" for n in range(1, 5)]


def test_a_digest_ends_with_the_last_of_its_findings(tmp_path: Path) -> None:
    begun(tmp_path, Ledger())
    recorder, ledger = Recorder(), make_storm(5)
    run_once(tmp_path, ledger, recorder)
    ledger.changes += [change_of(5 + n, n, kind=CLEARED) for n in range(1, 5)]
    run_once(tmp_path, ledger, recorder)
    assert recorder.sent == ["digest 5"]
    ledger.changes.append(change_of(10, 5, kind=CLEARED))
    run_once(tmp_path, ledger, recorder, steps=2)
    assert recorder.sent == ["digest 5", "digest 5 over"]
    assert [is_resolved(message) for message in recorder.taken] == [False, True]
    assert len({message.key for message in recorder.taken}) == 1


def test_what_happens_while_an_end_is_waited_for_waits_for_the_limit_only(tmp_path: Path) -> None:
    """All messages of a burst are used up, and the next thing due is an end in an hour."""
    begun(tmp_path, Ledger())

    async def run() -> None:
        store = StateStore(tmp_path)
        runner = make_runner(store, Ledger(), Recorder())
        runner._limit.full_at = time.monotonic() + runner._limit.refill_s - 59.9
        assert runner._limit.find_wait_s(time.monotonic()) > 0.0
        runner.offer_state(STATE)
        await asyncio.wait_for(runner._wait(3600.0), WAIT_S)
        store.close()

    asyncio.run(run())


# --- what comes and goes


def test_what_comes_and_goes_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, settle_s=300.0)
    begun(tmp_path, Ledger(), settings)
    recorder, ledger, began = Recorder(), Ledger(), time.time()
    now = [began]
    monkeypatch.setattr(engine.time, "time", lambda: now[0])
    for number in range(1, 40, 2):  # each time another finding of the same fault
        now[0] += 100.0
        opened = change_of(number, number, component="gpu/1", at=now[0] - 50.0)
        cleared = change_of(
            number + 1, number, component="gpu/1", at=now[0], kind=CLEARED, cause="quiet"
        )
        ledger.changes += [opened, cleared]
        run_once(tmp_path, ledger, recorder, settings)
    assert recorder.sent == ["opened 1"]
    now[0] += 400.0
    run_once(tmp_path, ledger, recorder, settings)
    assert recorder.sent == ["opened 1", "cleared 39"]
    end = recorder.taken[1]
    assert end.finding is not None and end.finding.cause == "quiet"
    assert end.finding.serial == FINDING.serial
    assert end.time == ledger.changes[-1].at


def test_what_comes_back_and_stays_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, settle_s=300.0)
    begun(tmp_path, Ledger(), settings)
    now = [time.time()]
    monkeypatch.setattr(engine.time, "time", lambda: now[0])
    recorder, changes = Recorder(), [change_of(1, 1), change_of(2, 1, kind=CLEARED)]
    run_once(tmp_path, Ledger(changes), recorder, settings)
    changes.append(change_of(3, 3, component="gpu/1"))
    now[0] += 200.0
    run_once(tmp_path, Ledger(changes), recorder, settings)
    now[0] += 1000.0
    run_once(tmp_path, Ledger(changes), recorder, settings)
    assert recorder.sent == ["opened 1"]


def test_what_comes_back_stronger_is_sent(tmp_path: Path) -> None:
    settings = replace(SETTINGS, settle_s=300.0)
    begun(tmp_path, Ledger(), settings)
    recorder = Recorder()
    changes = [
        change_of(1, 1, action=Action.INSPECT),
        change_of(2, 1, action=Action.INSPECT, kind=CLEARED),
        change_of(3, 2, component="gpu/1", action=Action.REPLACE_NODE),
    ]
    run_once(tmp_path, Ledger(changes), recorder, settings)
    assert recorder.sent == ["opened 1", "escalated 2"]


def test_an_end_without_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died after it had reported the end."""
    settings = replace(SETTINGS, settle_s=0.2)
    begun(tmp_path, Ledger(), settings)
    recorder = Recorder()
    ledger = Ledger([change_of(1, 1), change_of(2, 1, kind=CLEARED)])
    run_once(tmp_path, ledger, recorder, settings)
    assert recorder.sent == ["opened 1"]

    async def be_away(*_: object) -> None:
        raise engine.DaemonAway("killed")

    monkeypatch.setattr(ledger, "read_page", be_away)
    while len(recorder.sent) < 2:
        run_once(tmp_path, ledger, recorder, settings, state=SILENT)
    assert recorder.sent[1] == "cleared 1"


@pytest.mark.parametrize(("state", "is_shown"), [(STATE, True), (SILENT, False)])
def test_a_daemon_that_answers_others_and_not_this_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, is_shown: bool
) -> None:
    """One that is silent is reported as that."""
    begun(tmp_path, Ledger())
    ledger = Ledger()

    async def be_away(*_: object) -> None:
        raise engine.DaemonAway("/v1/transitions: no answer within 10 s")

    monkeypatch.setattr(ledger, "read_page", be_away)
    runner = run_once(tmp_path, ledger, Recorder(), steps=5, state=state)
    assert ("no answer within 10 s" in runner.health.error) == is_shown
    assert bool(runner.health.failures) == is_shown


# --- the quiet time


def test_nothing_is_sent_in_the_quiet_time_nor_what_passed_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr("time.time", lambda: now[0])
    settings = replace(SETTINGS, quiet_s=120.0, settle_s=0.0)
    recorder, ledger = Recorder(), Ledger([change_of(1, 1, at=now[0] - 7200.0)])
    for expected in (["opened 1"], ["opened 1", "opened 3", "cleared 1"]):
        now[0] += 7200.0
        runner = run_once(tmp_path, ledger, recorder, settings)
        assert runner.health.is_up and len(recorder.sent) < len(expected)
        if len(expected) > 1:
            ledger.changes += [
                change_of(2, 2, at=now[0] + 1.0),
                change_of(3, 2, at=now[0] + 2.0, kind=CLEARED),
                change_of(4, 3, at=now[0] + 3.0),
                change_of(5, 1, at=now[0] + 4.0, kind=CLEARED),
            ]
        now[0] += 60.0
        run_once(tmp_path, ledger, recorder, settings)
        assert len(recorder.sent) < len(expected)
        now[0] += 61.0
        run_once(tmp_path, ledger, recorder, settings)
        assert recorder.sent == expected


def test_what_was_not_yet_sent_is_no_part_of_the_quiet_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver was down, and the publisher is started again: nothing is lost."""
    settings = replace(SETTINGS, quiet_s=120.0)
    begun(tmp_path, Ledger(), replace(settings, quiet_s=0.0))
    now = [time.time() + 7200.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    before = now[0] - 60.0
    ledger = Ledger([change_of(1, 1, at=before), change_of(2, 1, at=before, kind=CLEARED)])
    recorder = Recorder()
    run_once(tmp_path, ledger, recorder, settings)
    assert recorder.sent == []
    now[0] += 121.0
    run_once(tmp_path, ledger, recorder, settings)
    assert recorder.sent == ["opened 1", "cleared 1"]


def test_a_publisher_that_crashes_again_and_again_is_not_quiet_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr("time.time", lambda: now[0])
    settings = replace(SETTINGS, quiet_s=120.0)
    recorder = Recorder()
    for _ in range(5):
        run_once(tmp_path, make_storm(1), recorder, settings)
        now[0] += 50.0
    assert recorder.sent == ["opened 1"]


# --- flags

ALL = replace(SETTINGS, on=CHANGES, settle_s=300.0)
UNHEALTHY = replace(STATE, status=Status.UNHEALTHY, reboot_required=True)
UNKNOWN = replace(STATE, status=Status.UNKNOWN)


@dataclass
class Site:
    """A publisher that runs on, with clocks that the test turns."""

    runner: NotifyRunner
    now: list[float]

    async def pass_time(self, seconds: float, state: Any = None) -> None:
        if state is not None:
            self.runner.offer_state(state)
            await self.runner._work_off()
        self.now[0] += seconds
        await self.runner._work_off()


def run_site(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
    ledger: Ledger,
    states: list[tuple[float, Any]],
    settings: NotifySettings = ALL,
) -> None:
    """`states`: for how long each lasts, in seconds."""
    now = [0.0]
    monotonic, wall = time.monotonic(), time.time()
    monkeypatch.setattr(engine.time, "monotonic", lambda: monotonic + now[0])
    monkeypatch.setattr(engine.time, "time", lambda: wall + now[0])

    async def run() -> None:
        store = StateStore(folder)
        runner = make_runner(store, ledger, recorder, settings)
        site = Site(runner, now)
        for seconds, state in states:
            await site.pass_time(seconds, state)
        store.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([(600.0, STATE)], []),  # that all is well is no news
        ([(600.0, UNHEALTHY)], ["flags unhealthy"]),
        ([(1.0, UNHEALTHY), (200.0, STATE), (600.0, UNHEALTHY)], ["flags unhealthy"]),
        ([(1.0, UNHEALTHY), (301.0, STATE)], ["flags unhealthy", "flags healthy"]),
        ([(200.0, SILENT), (600.0, STATE)], []),  # an upgrade
        ([(200.0, UNKNOWN), (600.0, STATE)], []),
        ([(301.0, SILENT), (301.0, STATE)], ["flags unknown", "flags healthy"]),
        (
            [(1.0, UNHEALTHY), (301.0, STATE), (1.0, UNHEALTHY)],
            ["flags unhealthy", "flags healthy", "flags unhealthy"],
        ),
        (
            [(1.0, UNHEALTHY), (1.0, replace(UNHEALTHY, replacement_required=True))],
            ["flags unhealthy", "flags unhealthy"],
        ),
    ],
)
def test_flags(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: list[tuple[float, NodeSummary | DaemonSilent]],
    expected: list[str],
) -> None:
    """Worse ones at once; better ones, and that nothing is known, once they have lasted."""
    recorder = Recorder()
    run_site(tmp_path, monkeypatch, recorder, Ledger(), states)
    assert recorder.sent == expected
    assert len({message.id for message in recorder.taken}) == len(expected)


def test_what_a_message_on_a_finding_says_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the flags, too."""
    begun(tmp_path, Ledger(), ALL)
    recorder, ledger = Recorder(), Ledger([change_of(1, 1)])
    run_site(tmp_path, monkeypatch, recorder, ledger, [(100.0, UNHEALTHY)])
    assert recorder.sent == ["opened 1"]
    ledger.changes.append(change_of(2, 1, kind=CLEARED))
    run_site(tmp_path, monkeypatch, recorder, ledger, [(400.0, STATE)])
    assert recorder.sent == ["opened 1", "cleared 1"]


def test_flags_that_had_a_message_of_their_own_are_ended_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an alert of PagerDuty stayed open."""
    begun(tmp_path, Ledger(), ALL)
    recorder, ledger = Recorder(), Ledger()
    run_site(tmp_path, monkeypatch, recorder, ledger, [(10.0, UNHEALTHY)])
    ledger.changes += [change_of(1, 1), change_of(2, 1, kind=CLEARED)]
    run_site(tmp_path, monkeypatch, recorder, ledger, [(400.0, STATE), (400.0, STATE)])
    assert recorder.sent == ["flags unhealthy", "opened 1", "cleared 1", "flags healthy"]
    assert is_resolved(recorder.taken[-1])


@pytest.mark.parametrize("on", [FINDINGS, ("flags",)])
def test_what_is_begun_anew_has_other_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: tuple[str, ...]
) -> None:
    """publish.db and the ledger are gone: a receiver must not take it for a repeat."""
    recorder = Recorder()
    for folder, at in (("a", 1.0), ("b", 2.0)):
        settings, ledger = replace(SETTINGS, on=on), Ledger([change_of(1, 1, at=at)])
        run_site(tmp_path / folder, monkeypatch, recorder, ledger, [(10.0, UNHEALTHY)], settings)
    assert len(recorder.taken) == len({message.id for message in recorder.taken}) == 2


def test_flags_over_a_kill_have_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path, Ledger(), ALL)
    recorder = Recorder(fate=lambda _: Killed() if not recorder.taken else None)
    with pytest.raises(Killed):
        run_site(tmp_path, monkeypatch, recorder, Ledger(), [(10.0, UNHEALTHY)])
    run_site(tmp_path, monkeypatch, recorder, Ledger(), [(10.0, UNHEALTHY)])
    assert recorder.sent == ["flags unhealthy"] * 2
    assert len({message.id for message in recorder.taken}) == 1


def test_flags_without_the_daemon_say_that_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that was required still is, for all that is known, and none is due."""
    recorder = Recorder()
    due = replace(UNHEALTHY, reboot_reason="Xid79")
    run_site(tmp_path, monkeypatch, recorder, Ledger(), [(10.0, due), (301.0, SILENT)])
    before, after = (message.flags for message in recorder.taken)
    assert before.reboot_due and not after.reboot_due and after.reboot_required
    assert describe_notification(recorder.taken[1]) == "node1: unknown, reboot required"


# --- what is remembered


@given(
    st.builds(
        Progress,
        cursor=st.builds(
            Cursor,
            position=st.integers(0, 9),
            at=st.floats(0, 9),
            combined=st.integers(0, 9),
        ),
        began=st.floats(0, 9),
        due=st.lists(st.integers(1, 9)).map(tuple),
        receipts=st.dictionaries(
            st.text(max_size=9),
            st.builds(
                Receipt,
                finding=st.builds(
                    NotifiedFinding,
                    id=st.integers(1, 9),
                    action=st.sampled_from(Action),
                    since=st.floats(0, 9),
                ),
                ended_at=st.floats(0, 9),
            ),
            max_size=3,
        ),
        flags=st.none() | st.builds(NodeFlags, status=st.sampled_from(Status)),
        full_at=st.floats(0, 9),
    )
)
def test_progress_is_read_as_it_was_written(progress: Progress) -> None:
    assert parse_progress(format_progress(progress)) == progress


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cursor":5}', "5", '{"cursor":{"position":1,"at":1},"due":[]}']
)
def test_what_is_no_progress_is_begun_anew(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):
        parse_progress(text)

    async def damage() -> None:
        store = StateStore(tmp_path)
        await store.write_progress(NAME, text or " ")
        store.close()

    asyncio.run(damage())
    recorder = Recorder()
    run_once(tmp_path, make_storm(1), recorder)
    assert recorder.sent == ["opened 1"]


def test_receivers_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    async def run() -> list[str]:
        store = StateStore(tmp_path)
        for name in ("notify-a", "notify-b"):
            await store.write_progress(name, "x")
        await store.keep_receivers(["notify-b", "nfd"])
        store.close()
        again = StateStore(tmp_path)
        found = [again.read_progress(name) for name in ("notify-a", "notify-b")]
        again.close()
        return found

    assert asyncio.run(run()) == ["", "x"]


def test_a_file_of_an_older_version_gets_its_table(tmp_path: Path) -> None:
    async def run() -> None:
        store = StateStore(tmp_path)
        await store.write_moment("m", 5.0)
        assert store._database is not None
        await store._thread.call(lambda: store._database.execute("DROP TABLE receivers"), 5.0)
        store.close()
        again = StateStore(tmp_path)
        await again.write_progress("notify-a", "x")
        again.close()
        third = StateStore(tmp_path)
        assert (third.read_progress("notify-a"), third.read_moment("m")) == ("x", 5.0)
        third.close()

    asyncio.run(run())
