"""What is observed and what is open agree: whatever closed a finding, the next look opens it again
while its fault is there.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import act, booted, catalogue, event
from tests.unit.test_pipeline import idle, running
from vitald import tomlfile
from vitald.catalog import Catalog, load_catalog
from vitald.catalog.loader import FOLDER
from vitald.catalog.threshold import Comparison as Kind
from vitald.catalog.threshold import Threshold, ThresholdGroup, read_threshold
from vitald.collectors.event_factory import EventFactory
from vitald.collectors.thresholds import Crossing, ThresholdEvaluator
from vitald.core.evaluator import DaemonEvents, Evaluator
from vitald.judge.engine import Judge
from vitald.judge.verdict import compute_verdict
from vitald.ledger.queries import PastQuery, read_events
from vitald.ledger.schema import AuditRecord
from vitald.ledger.store import LedgerEntry
from vitald.model.component import NODE, Component
from vitald.model.event import (
    ACCEPTED,
    CLEARED,
    CLOCK_STEPPED,
    REPLACED,
    SOURCE_FAILED,
    Event,
    Trust,
)
from vitald.model.finding import Finding, Transition
from vitald.model.source import Batch, Readings, Sample
from vitald.model.words import Action, ComponentKind, Status

DAY = 86400.0
KINDS = sorted(catalogue().list_kinds())
# What grew in a window is no present state: see the last test.
STATES = [
    one
    for kind in KINDS
    for one in catalogue().find_thresholds(kind)
    if (one.is_state or one.state) and not any(watch.over_s for watch in one.thresholds)
]
ASKING = [one for one in STATES if catalogue().find_rule(one.code).action is not Action.NONE]
SIBLINGS = 4
BOOT_A = "boot-a"


def told(watch: Threshold, *, holds: bool) -> dict[str, Sample]:
    """Readings for which a watch holds, or does not."""
    values: dict[str, Sample] = {name: wanted[0] for name, wanted in watch.only.items()}
    values["name"] = "model"
    if watch.times:
        values[watch.times] = 1.0
    if watch.test is Kind.DIFFERS:
        return {**values, str(watch.limit): "right", watch.of: "wrong" if holds else "right"}
    if watch.test is Kind.CHANGES:
        return {**values, watch.of: 2.0 if holds else 0.0}
    if watch.test is Kind.HAS:
        return {**values, watch.of: float(watch.values[0]) if holds else 0.0}
    if watch.test is Kind.LISTS:
        return {**values, watch.of: f"{watch.values[0]},x" if holds else ""}
    if watch.test is Kind.LISTS_OTHER:
        return {**values, watch.of: "none of these" if holds else str(watch.values[0])}
    if watch.test is Kind.IS and holds:
        return {**values, watch.of: watch.values[0]}
    if watch.test is Kind.IS:
        others = ("none of these", *map(float, range(100)))
        like = [one for one in others if isinstance(one, str) is isinstance(watch.values[0], str)]
        return {**values, watch.of: next(one for one in like if one not in watch.values)}
    limit = 50.0 if isinstance(watch.limit, str) else float(watch.limit)
    if isinstance(watch.limit, str):
        values[watch.limit] = limit
    by = 1.0 + abs(limit) + watch.min_distance
    if watch.test in (Kind.PEERS_ABOVE, Kind.PEERS_BELOW):
        limit, by = 1000.0, 1000.0 if watch.test is Kind.PEERS_BELOW else by * 100.0
    up = watch.test in (Kind.ABOVE, Kind.PEERS_ABOVE)
    return {
        **values,
        watch.of: limit + (by if up is holds else -by)
        if watch.test not in (Kind.PEERS_ABOVE, Kind.PEERS_BELOW) or holds
        else limit,
    }


@dataclass
class Story:
    """One fault of one component, looked at by its source and judged, with all that may come in
    between.
    """

    watched: ThresholdGroup
    holds: bool = False
    now: float = 1000.0  # on both clocks
    boots: int = 0
    source: str = field(init=False)

    def __post_init__(self) -> None:
        self.catalog = catalogue()
        self.component = Component(self.watched.component, "0000:65:00.0")
        self.source = self.watched.code.partition("/")[0]
        self.watcher = ThresholdEvaluator([self.watched])
        self.facts = EventFactory(self.source, BOOT_A)
        self.daemon_events = DaemonEvents(BOOT_A)
        self.evaluator = Evaluator(Judge(self.catalog), self.daemon_events, lambda _: None)
        self.ledger: list[Event] = []
        self.judge(booted(BOOT_A, self.now))
        self.unread = False

    @property
    def opened(self) -> list[Finding]:
        return [
            found
            for found in self.evaluator.judge.open_findings
            if found.code == self.watched.code and not found.is_simulated
        ]

    def judge(self, *events: Event) -> None:
        self.ledger += events
        entry = self.evaluator.evaluate_events(LedgerEntry(), *events)
        self.evaluator.remember_endings(entry.transitions)

    def look(self) -> list[Event]:
        """One look; what was made of what it contradicted."""
        values: dict[str, Sample] = {}
        for watch in reversed(self.watched.thresholds):
            values |= told(watch, holds=False)
        values |= told(self.watched.thresholds[0], holds=self.holds)
        own = self.reading(self.component, values)
        others = [
            self.reading(
                Component(self.component.kind, f"other-{number}"), {**values, **self.usual()}
            )
            for number in range(SIBLINGS)
        ]
        self.observed = self.watcher.evaluate_readings([own], self.now, [own, *others])
        said = [self.event(sign) for sign in self.observed.crossings]
        holding = tuple(self.event(sign) for sign in self.observed.holding)
        calm = frozenset(self.observed.calm)
        batch = Batch(self.source, tuple(said), holding=holding, calm=calm)
        entry = self.evaluator.reconcile(
            self.evaluator.evaluate_events(LedgerEntry(), *said), batch
        )
        self.evaluator.remember_endings(entry.transitions)
        self.ledger += entry.events
        return list(entry.events)[len(said) :]

    def usual(self) -> dict[str, Sample]:
        watch = self.watched.thresholds[0]
        return told(watch, holds=False)

    def reading(self, component: Component, values: dict[str, Sample]) -> Readings:
        fresh = frozenset[str]() if self.unread else frozenset(values)
        return Readings(
            component=component,
            identity=component.id,
            time=self.now,
            polled_at=self.now,
            values=values,
            fresh=fresh,
        )

    def event(self, sign: Crossing) -> Event:
        return replace(
            self.facts.make_event(sign.code, sign.component, sign.fields, sign.text),
            time=self.now,
            source=self.source,
        )

    def settle(self) -> list[Event]:
        """Look until what holds has held for as long as it must; and once more."""
        made = []
        wait = max(watch.for_s for watch in self.watched.thresholds) + 1.0
        for seconds in (0.0, 1.0, wait, 1.0):
            self.now += seconds
            made += self.look()
        return made

    # What may come in between.

    def clear(self) -> None:
        self.now += 1.0
        for found in self.opened:
            self.judge(act(CLEARED, found, self.now))

    def replaced(self) -> None:
        self.clear()
        self.judge(event(REPLACED, self.component, self.now, fields={"by": "alice"}))

    def device_reset(self) -> None:
        """Told by another source, which this one does not hear of."""
        self.now += 1.0
        self.judge(event("device/reset", self.component, self.now, boot=self.daemon_events.boot_id))

    def reboot(self) -> None:
        self.now += 60.0
        self.boots += 1
        boot = f"boot-{self.boots}"
        self.daemon_events.boot_id, self.facts = boot, EventFactory(self.source, boot)
        self.restart()
        self.watcher.forget_all()
        self.judge(booted(boot, self.now))

    def restart(self) -> None:
        self.watcher = ThresholdEvaluator(
            [self.watched], json.loads(json.dumps(self.watcher.memory))
        )
        self.evaluator.judge = Judge(self.catalog, self.evaluator.judge.memory)

    def change(self, catalog: Catalog, *, restarting: bool) -> None:
        """The configuration changes, at a reload or at a start."""
        self.catalog = catalog
        groups = catalog.find_thresholds(self.source)
        own = [group for group in groups if group.code == self.watched.code]
        if restarting:
            memory = json.loads(json.dumps(self.watcher.memory))
            self.watcher = ThresholdEvaluator(own, memory)
            self.evaluator.judge = Judge(catalog, self.evaluator.judge.memory)
        else:
            self.watcher.configure(own)
        self.evaluator.judge.reload_catalog(catalog, self.now)

    def begin(self) -> None:
        self.holds = True

    def end(self) -> None:
        self.holds = False

    def forget(self) -> None:
        """What the source remembers is lost."""
        self.watcher = ThresholdEvaluator([self.watched])

    def wait(self) -> None:
        """Long enough for any quiet time to be over, and for nothing else."""
        self.now += 2 * DAY
        self.evaluator.judge.expire_findings(self.now)

    def accept(self) -> None:
        """Somebody lives with it for two hours."""
        self.now += 1.0
        for found in self.opened:
            accepted = act(ACCEPTED, found, self.now)
            self.judge(replace(accepted, fields={**accepted.fields, "until": self.now + 7200.0}))
            assert all(one.is_deferred for one in self.opened)

    def not_accepted(self) -> None:
        self.now += 1.0
        for found in self.opened:
            ended = act(ACCEPTED, found, self.now)
            self.judge(replace(ended, fields={**ended.fields, "until": self.now}))
            assert not any(one.accepted for one in self.opened)

    def drill(self) -> None:
        """Of the same fault of the same device, over it or before it; it ends while the fault goes
        on as it was.
        """
        self.now += 1.0
        before = self.opened
        watch = self.watched.thresholds[0]
        held = {watch.of: told(watch, holds=True)[watch.of]}
        drill = event(
            self.watched.code,
            self.component,
            self.now,
            trust=Trust.ANNOUNCED,
            fields=held,
            simulated_until=self.now + DAY,
        )
        self.judge(replace(drill, identity=f"drill {self.now}", boot_id=self.daemon_events.boot_id))
        assert self.opened == before

    def diagnostic(self) -> None:
        """It passes at every level: what is still observed is not over."""
        self.now += 1.0
        self.judge(
            event(
                "diagnostic/passed",
                self.component,
                self.now,
                boot=self.daemon_events.boot_id,
                fields={"level": 4},
            )
        )

    def deaf(self) -> None:
        """The source could not be read for a while."""
        own = Component(ComponentKind.NODE, self.source)
        for recovered in (None, True):
            self.now += 300.0
            self.judge(
                event(
                    SOURCE_FAILED,
                    own,
                    self.now,
                    trust=Trust.DAEMON,
                    fields={"recovered": recovered} if recovered else {},
                )
            )

    def clock(self) -> None:
        """The wall clock is set forward; what was looked at before is told by the new one."""
        self.now += 5000.0
        self.judge(
            event(CLOCK_STEPPED, NODE, self.now, trust=Trust.DAEMON, fields={"seconds": 5000.0})
        )

    def hide(self) -> None:
        """It cannot be read for one look: nobody may say anything new."""
        before = [(found.id, found.is_open) for found in self.opened]
        self.unread = True
        self.look()
        self.unread = False
        assert [(found.id, found.is_open) for found in self.opened] == before

    def check(self) -> None:
        """After enough looks, what is open is what is observed."""
        self.settle()
        asks = (
            catalogue().find_rule(self.watched.code).apply_to(dict(self.values_told())).action
            is not Action.NONE
        )
        assert len(self.opened) == (self.holds and asks), self.watched.code
        assert self.settle() == [], "one event for a difference, not one a round"
        accepted = any(found.accepted for found in self.opened)
        status = compute_verdict(self.opened, [], self.now).status
        assert (status is Status.HEALTHY) == (not (self.holds and asks)), (
            "what is read and what is said agree"
        )
        assert status is not Status.UNHEALTHY or not accepted
        again = Judge(self.catalog)
        for one in self.ledger:
            again.apply_event(one)
        again.expire_findings(self.now)
        self.evaluator.judge.expire_findings(self.now)
        assert again.open_findings == self.evaluator.judge.open_findings, (
            "a replay of the ledger gives the same"
        )

    def values_told(self) -> dict[str, Sample]:
        watch = self.watched.thresholds[0]
        return {watch.of: told(watch, holds=True)[watch.of]} if self.holds else {"recovered": 1.0}


BETWEEN = (
    *("clear", "replaced", "device_reset", "reboot", "restart", "begin", "end", "forget", "wait"),
    *("hide", "accept", "not_accepted", "drill", "diagnostic", "deaf", "clock"),
)


@pytest.mark.parametrize(
    "watched",
    {one.thresholds[0].test: one for one in ASKING}.values(),
    ids=lambda one: one.thresholds[0].test.value,
)
def test_a_drill_hides_no_fault_that_stands_and_none_hides_a_drill(watched: ThresholdGroup) -> None:
    story = Story(watched, holds=True)
    story.check()
    story.drill()
    (drill,) = [found for found in story.evaluator.judge.open_findings if found.is_simulated]
    story.clear()
    assert story.opened == []
    story.now += 1.0
    assert [one.fields["again"] for one in story.look()] == ["cleared by alice: why"]
    assert len(story.opened) == 1
    story.now += 1.0
    cleared = act(CLEARED, drill, story.now)
    story.judge(replace(cleared, fields={**cleared.fields, "drill": True}))
    assert not any(found.is_simulated for found in story.evaluator.judge.open_findings)
    story.check()


@given(st.sampled_from(STATES), st.lists(st.sampled_from(BETWEEN), max_size=8))
def test_what_is_open_is_what_is_observed(watched: ThresholdGroup, between: list[str]) -> None:
    """Whatever a person, another source, a boot, a restart or a loss of memory did in between."""
    story = Story(watched)
    for name in between:
        getattr(story, name)()
        story.check()


def out_of_reach(watch: dict[str, object]) -> dict[str, object]:
    """The watch with a limit that nothing crosses."""
    far = {"above": 1e15, "below": -1e15, "peers_above": 1e9, "peers_below": 1e9, "rises": 1e15}
    words = {"is": ["never"], "has": [0], "lists": ["never"]}
    return {name: {**far, **words}.get(name, value) for name, value in watch.items()}


@cache
def changed(change: str) -> Catalog:
    """The catalogue without limits, or with limits that nothing crosses."""
    overrides = {}
    for file in FOLDER.glob("*.toml"):
        for kind, entries in tomlfile.read_toml(file)[1].items():
            for name, keys in entries.items():
                if isinstance(keys, dict) and "thresholds" in keys:
                    given = keys["thresholds"]
                    watches = given if isinstance(given, list) else [given]
                    moved = [*map(out_of_reach, watches)] if change == "raised" else []
                    overrides[f"{kind}/{name}"] = {"thresholds": moved}
    return load_catalog(overrides=overrides)


# Their limits are lists of what is expected, which the readings carry
LISTED = (Kind.CHANGES, Kind.DIFFERS, Kind.LISTS_OTHER)


@pytest.mark.parametrize("restarting", [False, True], ids=["reload", "start"])
@pytest.mark.parametrize("change", ["removed", "raised"])
def test_a_limit_that_is_removed_or_raised_ends_what_it_opened(
    change: str, restarting: bool
) -> None:
    told = 0
    for watched in (one for kind in KINDS for one in catalogue().find_thresholds(kind)):
        if change == "raised" and any(watch.test in LISTED for watch in watched.thresholds):
            continue
        story = Story(watched)
        for holds in (False, True):
            story.holds = holds
            story.settle()
        told += bool(story.opened)
        story.change(changed(change), restarting=restarting)
        story.settle()
        story.now += max(watch.clears_after_s for watch in watched.thresholds)
        story.settle()
        assert story.opened == [], watched.code
    assert told > 100


def test_an_observation_of_before_the_clear_opens_nothing() -> None:
    """The look was under way when the person cleared it."""
    story = Story(next(one for one in STATES if one.code == "nvml/row_remap_pending"), holds=True)
    story.check()
    story.look()
    late = tuple(story.event(sign) for sign in story.observed.holding)
    story.clear()
    batch = Batch("nvml", holding=late)
    assert not story.evaluator.is_contradicted(batch)
    assert story.evaluator.reconcile(LedgerEntry(), batch).events == ()


def test_what_was_told_under_a_cause_says_who_cleared_that() -> None:
    story = Story(next(one for one in STATES if one.code == "nvml/gpu_lost"), holds=True)
    story.judge(event("xid/79", story.component, story.now, boot=BOOT_A))
    story.settle()
    (cause,) = story.evaluator.judge.open_findings
    assert cause.code == "xid/79", "the loss is told under it"
    story.now += 1.0
    story.judge(act(CLEARED, cause, story.now))
    story.now += 1.0
    (again,) = story.look()
    assert again.fields["again"] == "xid/79 cleared by alice: why"
    assert [found.code for found in story.opened] == ["nvml/gpu_lost"]


def test_what_cannot_be_opened_is_a_finding_of_its_own_once_and_hides_no_other_device() -> None:
    story = Story(next(one for one in STATES if one.code == "nvml/row_remap_pending"), holds=True)
    story.check()
    story.clear()
    story.now += 1.0
    evaluator = story.evaluator
    apply, other = evaluator.judge.apply_event, Component(story.component.kind, "0000:66:00.0")

    def refuse(event: Event) -> list[Transition]:
        return [] if event.component == story.component else apply(event)

    evaluator.judge.apply_event = refuse  # type: ignore[method-assign]  # a fault of ours
    held = story.facts.make_event(
        "nvml/row_remap_pending", story.component, {"row_remap_pending": 1}, "pending"
    )
    held = replace(held, time=story.now)
    batch = Batch("nvml", holding=(held, replace(held, component=other, identity="other")))
    codes = [event.code for event in evaluator.reconcile(LedgerEntry(), batch).events]
    assert codes == ["nvml/row_remap_pending", "vitald/not_judged", "nvml/row_remap_pending"]
    assert {found.component for found in story.opened} == {other}
    assert "vitald/not_judged" in {found.code for found in evaluator.judge.open_findings}
    assert evaluator.reconcile(LedgerEntry(), batch).events == ()


def test_it_goes_through_the_ledger(tmp_path: Path) -> None:
    """Cleared, observed again, restarted: each difference is one event of the ledger, and says how
    the finding had ended.
    """
    gpu = Component(ComponentKind.GPU, "0000:65:00.0")
    facts = EventFactory("nvml", BOOT_A)

    def look() -> Batch:
        """Everything is as it was."""
        return Batch(
            "nvml",
            holding=(facts.make_event("nvml/gpu_lost", gpu, {"lost": 1}, "NVML: lost is 1"),),
        )

    async def work() -> list[str]:
        async with running(tmp_path) as pipeline:
            await pipeline.put(
                Batch(
                    "nvml",
                    (facts.make_event("nvml/gpu_lost", gpu, {"lost": 1}, "NVML: lost is 1"),),
                )
            )
            await idle(pipeline)
            for _ in range(3):
                await pipeline.put(look())
                await idle(pipeline)
            (found,) = pipeline.judge.open_findings
            audit = AuditRecord(
                time=found.last + 0.01,
                uid=0,
                pid=1,
                verb="clear",
                target=str(found.id),
                reason="reseated",
            )
            await asyncio.sleep(0.02)
            assert await pipeline.actions.clear_finding(found.id, "root (uid 0)", audit) is not None
        async with running(tmp_path) as pipeline:
            assert pipeline.judge.open_findings == ()
            for _ in range(3):
                await pipeline.put(look())
                await idle(pipeline)
            (found,) = pipeline.judge.open_findings
            assert pipeline.node_state.verdict().status.value == "unhealthy"
        return [
            stored.event.raw
            for stored in read_events(tmp_path / "ledger.db", PastQuery())
            if stored.event.code == "nvml/gpu_lost"
        ]

    assert asyncio.run(work()) == [
        "NVML: lost is 1",
        "NVML: lost is 1 (cleared by root (uid 0): reseated; still observed)",
    ]


def test_what_grew_in_a_window_is_told_again_only_if_it_goes_on() -> None:
    """A person dealt with it; the window still looks back on what was before."""
    watcher = ThresholdEvaluator(
        [
            ThresholdGroup(
                code="nvml/test",
                component=ComponentKind.GPU,
                thresholds=(read_threshold({"of": "n", "above": 1, "over": "1h", "per": "1h"}),),
            )
        ]
    )

    def look(now: float, value: float) -> tuple[int, int]:
        own = Readings(
            component=Component(ComponentKind.GPU, "a"),
            identity="a",
            time=now,
            polled_at=now,
            values={"n": value},
            fresh=frozenset({"n"}),
        )
        observed = watcher.evaluate_readings([own], now)
        return len(observed.crossings), len(observed.holding)

    assert [look(0, 0), look(10, 5), look(20, 5), look(30, 6), look(40, 6)] == [
        (0, 0),
        (1, 0),
        (0, 0),
        (0, 1),
        (0, 0),
    ]
