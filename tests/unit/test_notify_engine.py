"""Notifications: at least once, in order for each finding, over failures and kills."""

from __future__ import annotations

import asyncio
import re
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

from tests.notifications import HEALTHY
from tests.unit.test_publish_events import STATE, Ledger, make_change
from vitald.model import Action, Status
from vitald.publish.notify import runner as engine
from vitald.publish.notify.flags import FlagsWatch, StateReader
from vitald.publish.notify.formats.text import describe_notification
from vitald.publish.notify.notification import (
    NodeIdentity,
    Notification,
    NotificationKind,
)
from vitald.publish.notify.progress import (
    Delivery,
    Progress,
    TimedFlags,
    format_progress,
    parse_progress,
)
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.runner import NotifyRunner
from vitald.publish.publisher import _run_sink
from vitald.publish.sink import BETTER_S, WORSE_S, SinkFailed, SinkHealth
from vitald.publish.state_store import Cursor, StateStore
from vitald.publish.summary import DaemonSilent, NodeSummary
from vitald.publish.transitions import ChangeKind, FindingChange, TransitionReader
from vitald.publish_sections import NotifySettings

NODE = NodeIdentity(host="node1", instance_id="", boot_id="b", version="1")
FINDINGS = ("opened", "escalated", "cleared")
SETTINGS = NotifySettings(name="hook", urls=("https://x",), on=FINDINGS)


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
    def sent(self) -> list[tuple[str, int]]:
        return [
            (each.kind.value, each.finding.id if each.finding is not None else 0)
            for each in self.taken
        ]


def run_once(
    folder: Path,
    ledger: Ledger,
    recorder: Recorder,
    settings: NotifySettings = SETTINGS,
    steps: int = 1,
    state: Any = STATE,
    state_reader: StateReader | None = None,
) -> NotifyRunner:
    """A publisher from its start until it was killed, after so many attempts."""

    async def run() -> NotifyRunner:
        store = StateStore(folder)
        reader = cast("TransitionReader", ledger)
        runner = NotifyRunner(settings, recorder, NODE, store, reader, state_reader)
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


CHANGES = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.sampled_from([ChangeKind.OPENED, ChangeKind.ESCALATED, ChangeKind.CLEARED]),
        st.sampled_from([Action.OBSERVE, Action.INSPECT, Action.REBOOT_NODE]),
    ),
    max_size=15,
)


def make_ledger(steps: list[tuple[int, ChangeKind, Action]]) -> Ledger:
    """Findings are opened first, and nothing follows their ends."""
    ledger, is_open, over = Ledger(), set[int](), set[int]()
    for finding, kind, action in steps:
        if finding in over:
            continue
        kind = ChangeKind.OPENED if finding not in is_open else kind
        if finding in is_open and kind is ChangeKind.OPENED:
            kind = ChangeKind.ESCALATED
        is_open.add(finding)
        if kind is ChangeKind.CLEARED:
            over.add(finding)
        number = ledger.newest + 1
        ledger.changes.append(make_change(number, finding=finding, kind=kind, action=action))
    return ledger


def list_expected(ledger: Ledger) -> list[tuple[str, int]]:
    """By the rules, in other words than the engine's."""
    expected: list[tuple[str, int]] = []
    opened: set[int] = set()
    for change in ledger.changes:
        if change.kind is ChangeKind.CLEARED:
            if change.finding in opened:
                expected.append(("cleared", change.finding))
        elif change.action is not Action.OBSERVE:
            opened.add(change.finding)
            expected.append((change.kind.value, change.finding))
    return expected


@limits(deadline=None, max_examples=60)  # each of them starts threads and writes files
@given(changes=CHANGES, fates=st.lists(st.sampled_from(["ok", "fail", "kill"]), max_size=12))
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
    assert {id_ for id_, count in times.items() if count > 1} <= {*killed}
    assert all(count <= 1 + killed.count(id_) for id_, count in times.items())
    first = list({message.id: message for message in recorder.taken}.values())
    sent = [(each.kind.value, each.finding.id) for each in first if each.finding is not None]
    assert sent == list_expected(ledger)
    assert {(each.finding.id, each.key) for each in first if each.finding} == {
        (number, f"node1/{number}") for _, number in sent
    }


def test_a_receiver_that_is_new_gets_what_is_open_over_a_kill(tmp_path: Path) -> None:
    opened, cleared = ChangeKind.OPENED, ChangeKind.CLEARED
    steps = [(number, opened, Action.INSPECT) for number in (1, 2, 3, 4)]
    steps += [(2, cleared, Action.INSPECT), (4, ChangeKind.ESCALATED, Action.REBOOT_NODE)]
    ledger = make_ledger(steps)
    recorder = Recorder(fate=lambda _: Killed() if len(recorder.taken) == 1 else None)
    run_once(tmp_path, ledger, recorder)
    ledger.changes.append(make_change(7, finding=1, kind=cleared))
    run_once(tmp_path, ledger, recorder)
    assert recorder.sent == [
        *(("opened", 1), ("opened", 3), ("opened", 3)),
        *(("opened", 4), ("cleared", 1)),
    ]
    assert recorder.taken[1].id == recorder.taken[2].id
    escalated = recorder.taken[3].finding
    assert escalated is not None and escalated.action is Action.REBOOT_NODE


def test_a_ledger_that_was_begun_anew(tmp_path: Path) -> None:
    begun(tmp_path, make_ledger([(1, ChangeKind.OPENED, Action.INSPECT)] * 5))
    recorder = Recorder(fate=lambda _: None if recorder.taken else Killed())
    other = make_ledger([(1, ChangeKind.OPENED, Action.INSPECT)])
    other.changes[0] = replace(other.changes[0], at=1.0)
    for _ in range(2):
        run_once(tmp_path, other, recorder, steps=2)
    assert recorder.sent == [("cleared", 1), ("cleared", 1), ("opened", 1)]
    assert recorder.taken[0] == recorder.taken[1]
    assert describe_notification(recorder.taken[0]) == (
        "node1: finding of the former ledger: cleared"
    )


def make_storm(count: int) -> Ledger:
    return make_ledger([(n, ChangeKind.OPENED, Action.INSPECT) for n in range(1, count + 1)])


def test_a_storm_is_one_message_over_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder()
    ledger = make_storm(50)
    digests = NotificationKind.DIGEST
    recorder.fate = lambda message: Killed() if message.kind is digests else None
    waits: list[float] = []

    def take(limit: Any, now: float) -> float:
        waits.append(now)
        return 0.0 if len(waits) != 21 else 5.0

    monkeypatch.setattr(engine.RateLimit, "take", take)
    run_once(tmp_path, ledger, recorder, steps=3)
    assert recorder.sent == [*(("opened", n) for n in range(1, 21)), ("digest", 0)]
    recorder.fate = lambda _: None
    ledger.changes += [make_change(50 + n, finding=n, kind=ChangeKind.CLEARED) for n in (1, 30)]
    run_once(tmp_path, ledger, recorder, steps=3)
    first, second = recorder.taken[20:22]
    assert (first.id, first.key, first.digest) == (second.id, second.key, second.digest)
    assert first.digest is not None
    assert (first.digest.count, first.digest.first_id, first.digest.last_id) == (30, 21, 50)
    assert [group.count for group in first.digest.groups] == [30]
    assert recorder.sent[22:] == [("cleared", 1), ("cleared", 30)]


def test_ends_of_what_was_sent_singly_wait_for_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder()
    ledger = make_storm(15)
    run_once(tmp_path, ledger, recorder)
    ledger.changes += [
        make_change(15 + n, finding=n, kind=ChangeKind.CLEARED) for n in range(1, 16)
    ]
    monkeypatch.setattr(engine.RateLimit, "take", lambda *_: 9.0)
    run_once(tmp_path, ledger, recorder)
    assert recorder.sent[15:] == [("cleared", n) for n in range(1, 16)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (replace(SETTINGS, min_action="reboot_node"), [("escalated", 1), ("cleared", 1)]),
        (replace(SETTINGS, on=("opened",)), [("opened", 1), ("opened", 2)]),
        (
            replace(SETTINGS, on=("opened", "cleared"), min_action="reboot_node"),
            [("opened", 1), ("cleared", 1)],
        ),
        (
            replace(SETTINGS, drills=True),
            [
                *(("opened", 1), ("opened", 2), ("opened", 3)),
                *(("escalated", 1), ("cleared", 1), ("cleared", 2)),
            ],
        ),
    ],
)
def test_what_is_left_out(
    tmp_path: Path, settings: NotifySettings, expected: list[tuple[str, int]]
) -> None:
    """The end of a finding, too, of which nothing was sent."""
    begun(tmp_path, Ledger(), settings)
    opened, inspect = ChangeKind.OPENED, Action.INSPECT
    changes: list[FindingChange] = [
        make_change(1, finding=1, kind=opened, action=inspect),
        make_change(2, finding=2, kind=opened, action=inspect),
        make_change(3, finding=3, kind=opened, action=inspect, simulated=True),
        make_change(4, finding=4, kind=opened, on_trial=True),
        make_change(5, finding=1, kind=ChangeKind.ESCALATED),
        make_change(6, finding=1, kind=ChangeKind.CLEARED, action=inspect),
        make_change(7, finding=2, kind=ChangeKind.CLEARED, action=inspect),
        make_change(8, finding=4, kind=ChangeKind.CLEARED),
    ]
    recorder = Recorder()
    run_once(tmp_path, Ledger(changes), recorder, settings)
    assert recorder.sent == expected


def test_what_is_refused_is_dropped_and_shown(tmp_path: Path) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder()
    refusal = NotificationRefused("x answered 400")
    recorder.fate = lambda each: refusal if each.key == "node1/1" else None
    ledger = make_storm(1)
    runner = run_once(tmp_path, ledger, recorder, steps=2)
    assert not runner.health.is_up and "node1/1: refused: x answered 400" in runner.health.error
    ledger.changes.append(make_change(2))
    runner = run_once(tmp_path, ledger, recorder)
    assert recorder.sent == [("opened", 2)] and runner.health.is_up


def test_an_old_message_is_given_up_after_a_day_and_a_young_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, Ledger())
    old = make_change(1, at=time.time() - 90_000.0)
    ledger = Ledger([old, make_change(2)])
    recorder = Recorder(fate=lambda _: SinkFailed("x: down"))

    async def run() -> NotifyRunner:
        store = StateStore(tmp_path)
        runner = NotifyRunner(SETTINGS, recorder, NODE, store, cast("TransitionReader", ledger))
        try:
            assert await runner._work_off() is not None
            cursor = store.read_cursor(runner.name)
            assert cursor is not None and cursor.position == 0
            began = time.monotonic()
            monkeypatch.setattr(engine.time, "monotonic", lambda: began + 90_000.0)
            await runner._work_off()
            cursor = store.read_cursor(runner.name)
            assert cursor is not None and cursor.position == 1
        finally:
            store.close()
        return runner

    runner = asyncio.run(run())
    assert recorder.taken == [] and "x: down" in runner.health.error
    assert "given up after 24 h" in runner._refused


def test_what_is_refused_stays_shown_while_nothing_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, Ledger())
    recorder = Recorder(fate=lambda _: NotificationRefused("x answered 400"))
    runner = run_once(tmp_path, make_storm(1), recorder, steps=4)
    assert not runner.health.is_up and "answered 400" in runner.health.error
    assert (runner.health.last_success, runner.health.waiting) == (0.0, 0)
    shown = capfd.readouterr()
    assert "sink_recovered" not in shown.out + shown.err + caplog.text


class FixedReader:
    """Says that the node is unhealthy, which a drill caused."""

    async def read_state(self) -> NodeSummary:
        return replace(STATE, status=Status.UNHEALTHY, reboot_required=True, simulated=True)


def test_flags_beside_a_finding_count_drills_as_the_receiver_does(tmp_path: Path) -> None:
    settings = replace(SETTINGS, drills=True)
    begun(tmp_path, Ledger(), settings)
    recorder, drill = Recorder(), Ledger([make_change(1, simulated=True)])
    run_once(tmp_path, drill, recorder, settings, state_reader=FixedReader())
    (message,) = recorder.taken
    assert (message.flags.status, message.flags.simulated) == (Status.UNHEALTHY, True)


@dataclass
class DyingRunner:
    """Dies of a fault when it begins, and ends the second time."""

    health: SinkHealth
    starts: int = 0

    def offer_state(self, state: object) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        self.starts += 1
        if self.starts == 1:
            raise LookupError("SECRET".lower())


def test_a_receiver_that_dies_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It must not end the other sinks; those of another kind end the publisher."""
    monkeypatch.setattr("vitald.publish.publisher._RESTART_S", 0.0)
    runner = DyingRunner(SinkHealth("notify/a"))
    asyncio.run(_run_sink(runner))
    assert runner.starts == 2
    assert (runner.health.is_up, runner.health.error) == (False, "fault of vitald: LookupError")
    with pytest.raises(LookupError):
        asyncio.run(_run_sink(DyingRunner(SinkHealth("kubernetes"))))
    shown = capfd.readouterr()
    assert "test_notify_engine.py" in shown.out + shown.err
    assert "secret" not in shown.out + shown.err


# --- flags


def test_worse_flags_are_sent_at_once_and_better_ones_once_they_last() -> None:
    worse = replace(HEALTHY, status=Status.UNHEALTHY, reboot_required=True)
    watch = FlagsWatch()
    assert watch.find_wait(HEALTHY, HEALTHY, 0.0) is None
    assert watch.find_wait(HEALTHY, worse, 10.0) == WORSE_S
    assert watch.find_wait(HEALTHY, worse, 10.0 + WORSE_S) == 0.0
    assert watch.find_wait(worse, HEALTHY, 20.0) == BETTER_S
    assert watch.find_wait(worse, worse, 22.0) is None  # a flap is not sent
    assert watch.find_wait(worse, HEALTHY, 23.0) == BETTER_S
    silent = replace(worse, status=Status.UNKNOWN)
    assert watch.find_wait(worse, silent, 30.0) == WORSE_S


def test_flags_are_sent_once_over_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitald.publish.notify.flags.WORSE_S", 0.0)
    settings = replace(SETTINGS, on=("flags",))
    worse = replace(STATE, status=Status.UNHEALTHY, reboot_required=True)
    recorder = Recorder()
    run_once(tmp_path, Ledger(), recorder, settings)  # all is well: that is no news
    recorder.fate = lambda _: Killed()
    run_once(tmp_path, Ledger(), recorder, settings, state=worse)
    recorder.fate = lambda _: None
    run_once(tmp_path, Ledger(), recorder, settings, state=worse, steps=3)
    first, second = recorder.taken
    assert first == second and first.former_flags == HEALTHY
    assert first.flags == replace(HEALTHY, status=Status.UNHEALTHY, reboot_required=True)
    silent = DaemonSilent(since=0.0, detail="gone")
    run_once(tmp_path, Ledger(), recorder, settings, state=silent, steps=2)
    assert recorder.taken[-1].flags == replace(first.flags, status=Status.UNKNOWN)


def test_a_repair_is_due_once_its_finding_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is sent on the confirmation. A daemon that is silent orders no repair."""
    monkeypatch.setattr("vitald.publish.notify.flags.WORSE_S", 0.0)
    settings = replace(SETTINGS, on=("opened", "flags"))
    begun(tmp_path, Ledger(), settings)
    recorder, ledger = Recorder(), make_storm(1)
    required = replace(STATE, status=Status.UNHEALTHY, replacement_required=True)
    run_once(tmp_path, ledger, recorder, settings, state=required)
    ledger.changes.append(make_change(2, finding=1, kind=ChangeKind.OTHER, confirmed=True))
    due = replace(required, replacement_reason="Xid79")
    run_once(tmp_path, ledger, recorder, settings, state=due, steps=2)
    silent = DaemonSilent(since=0.0, detail="gone")
    run_once(tmp_path, ledger, recorder, settings, state=silent, steps=2)
    assert [
        (*sent, each.flags.replacement_due) for sent, each in zip(recorder.sent, recorder.taken)
    ] == [
        ("opened", 1, False),
        ("flags", 0, False),
        ("flags", 0, True),
        ("flags", 0, False),
    ]
    assert describe_notification(recorder.taken[2]) == "node1: unhealthy, replacement due"


def make_repeat_due(folder: Path) -> None:
    store, name = StateStore(folder), "notify/hook"

    async def make_due() -> None:
        progress = store.read_progress(name)
        await store.write_progress(name, replace(progress, repeated_at=time.time() - 700.0))

    asyncio.run(make_due())
    store.close()


def test_a_repeat_as_a_digest_keeps_the_ends_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PagerDuty has an alert for each of them."""
    settings = replace(SETTINGS, repeat_s=600.0)
    begun(tmp_path, Ledger(), settings)
    ledger, recorder = make_storm(15), Recorder()
    run_once(tmp_path, ledger, recorder, settings)
    make_repeat_due(tmp_path)
    waits = [9.0, 0.0]  # the messages wait, the digest goes out, and nothing after it
    monkeypatch.setattr(engine.RateLimit, "take", lambda *_: waits.pop(0) if waits else 9.0)
    run_once(tmp_path, ledger, recorder, settings, steps=2)
    assert recorder.sent[15:] == [("digest", 0)]
    ledger.changes += [
        make_change(15 + n, finding=n, kind=ChangeKind.CLEARED) for n in range(1, 16)
    ]
    run_once(tmp_path, ledger, recorder, settings, steps=2)
    assert recorder.sent[16:] == [("cleared", n) for n in range(1, 16)]


def test_what_is_open_is_sent_again(tmp_path: Path) -> None:
    settings = replace(SETTINGS, repeat_s=600.0)
    ledger = make_storm(2)
    recorder = Recorder()
    run_once(tmp_path, ledger, recorder, settings, steps=3)
    assert len(recorder.taken) == 2
    make_repeat_due(tmp_path)
    run_once(tmp_path, ledger, recorder, settings, steps=3)
    assert recorder.sent == [("opened", 1), ("opened", 2)] * 2
    assert [each.key for each in recorder.taken[:2]] == [each.key for each in recorder.taken[2:]]
    assert len({each.id for each in recorder.taken}) == 4


# --- publish.db


def test_progress_is_read_as_it_was_written() -> None:
    flags = TimedFlags(HEALTHY, 1.5)
    progress = Progress(deliveries=dict(enumerate(Delivery)), pending=flags, repeated_at=2.5)
    assert parse_progress(format_progress(progress)) == progress
    of_former_version = re.sub('"(reboot|replacement)Due":false,', "", format_progress(progress))
    assert parse_progress(of_former_version) == progress
    for text in (
        "[]",
        "{}",
        "1",
        "",
        '{"deliveries": {"x": "due"}}',
        '{"deliveries": {}, "flags": 5}',
    ):
        with pytest.raises(ValueError):
            parse_progress(text)


def test_a_receiver_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        store = StateStore(tmp_path)
        for name in ("notify/a", "notify/b", "kubernetes-events"):
            await store.write_progress(name, Progress(), Cursor(position=1, at=1.0))
        await store.forget_receivers("notify/", ["notify/b"])
        store.close()

    asyncio.run(run())
    store = StateStore(tmp_path)
    assert store.read_cursor("notify/a") is None
    assert store.read_cursor("notify/b") and store.read_cursor("kubernetes-events")
    store.close()
