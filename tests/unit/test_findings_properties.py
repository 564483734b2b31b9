"""What holds for any stream of events: one answer, no order between devices, nothing weaker by more
evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import booted, catalogue, event, gpu
from vitald.judge.engine import Judge
from vitald.judge.lifecycle import SUPPRESSED
from vitald.judge.verdict import compute_verdict
from vitald.model.component import NODE
from vitald.model.event import ACCEPTED, BOOT, CLOCK_STEPPED, Event, Trust
from vitald.model.finding import Finding, Transition
from vitald.model.words import Action

DEVICES = 3
HOUR = 3600.0

# Codes and contexts of every strength, with cases, state rules, quiet times and ones that ask for
# nothing.
KINDS: list[tuple[str, dict[str, object]]] = [
    ("xid/79", {}),
    ("xid/31", {}),
    ("xid/44", {}),
    ("xid/45", {}),
    ("xid/63", {}),
    ("nvml/retired_pages", {}),
    ("xid/999", {}),
    ("xid/94", {"rst": False, "drst": False}),
    ("xid/94", {"rst": True, "drst": False}),
    ("xid/94", {"rst": False, "drst": True}),
    ("xid/74", {"r1_bits": [0]}),
    ("xid/74", {"r1_bits": [0, 8]}),
    ("sxid/20034", {"fatal": False}),
    ("sxid/20034", {"fatal": True}),
    ("aer/correctable", {}),
    # Devices that cannot be used, what waits for maintenance, and states that escalate or come
    # and go.
    ("nvml/no_call_succeeds", {}),
    ("nvml/reset_required", {}),
    ("nvml/row_remap_pending", {"row_remap_pending": 1}),
    ("nvml/gpu_lost", {"lost": 1}),
    ("ib/port_failed", {}),
    ("xid/48", {}),
    ("xid/119", {}),
    ("xid/157", {}),
]
STATE = [("xid/154", {"recovery": value}) for value in range(7)]

LASTING: list[tuple[str, dict[str, object]]] = [
    ("xid/79", {}),
    ("xid/63", {}),
    ("nvml/gpu_missing", {"missing": 1}),
    ("nvml/gpu_missing", {"recovered": True}),
    ("neuron/unhealthy", {}),
]


def steps(
    kinds: list[tuple[str, dict[str, object]]],
) -> st.SearchStrategy[tuple[int, tuple[str, dict[str, object]], bool, bool]]:
    """Device, what it reports, whether it is a drill, whether it is believed."""
    drill = st.sampled_from([False, False, False, True])
    return st.tuples(
        st.integers(0, DEVICES - 1),
        st.sampled_from(kinds),
        drill,
        st.sampled_from([True, True, True, False]),
    )


Step = tuple[int, tuple[str, dict[str, object]], bool, bool]


def at(step: Step, time: float, boot: str = "boot-a", number: int = 0) -> Event:
    device, (code, fields), drill, believed = step
    return event(
        code,
        gpu(device),
        time,
        identity=f"event {number}",
        boot=boot,
        fields=fields,
        trust=Trust.ANNOUNCED if drill else Trust.KERNEL if believed else Trust.UNTRUSTED,
        simulated_until=time + 2 * HOUR if drill else None,
    )


GAPS = (0.0, 1.0, 600.0, HOUR, 30 * HOUR)


@st.composite
def streams(
    draw: st.DrawFn,
    kinds: list[tuple[str, dict[str, object]]] = KINDS + STATE,
    reboots: bool = True,
    gaps_s: tuple[float, ...] = GAPS,
) -> list[Event]:
    """Events in the order of their times, with reboots between them; minutes to days apart."""
    gaps = st.sampled_from(gaps_s)
    time, boot, stream = 0.0, 0, []
    for number, (gap, step) in enumerate(
        draw(
            st.lists(
                st.tuples(
                    gaps, st.one_of(steps(kinds), st.just(None) if reboots else steps(kinds))
                ),
                max_size=14,
            )
        )
    ):
        time += gap
        if step is None:
            boot += 1
            stream.append(replace(booted(f"boot-{boot}", time), identity=f"event {number}"))
        else:
            stream.append(at(step, time, f"boot-{boot}", number))
    return stream


def folded(events: Iterable[Event]) -> tuple[Judge, list[Transition]]:
    findings = Judge(catalogue())
    return findings, [change for one in events for change in findings.apply_event(one)]


def standing(findings: Judge) -> set[tuple[object, ...]]:
    """What is open, without when and in which order it came."""
    return {
        (one.component, one.code, one.is_simulated, one.action, one.when, one.count, one.boot_id)
        for one in findings.open_findings
    }


def asked_of_devices(findings: Judge) -> dict[tuple[object, bool], tuple[int, int, bool]]:
    """The strongest action of each device, how soon it is due, and whether the device cannot be
    used.
    """
    asked: dict[tuple[object, bool], tuple[int, int, bool]] = {}
    for one in findings.open_findings:
        if one.action.makes_unfit or one.unusable:
            rank, urgency, unusable = asked.get((one.component, one.is_simulated), (0, 0, False))
            strongest = max((rank, urgency), (one.action.rank, one.when.urgency))
            asked[one.component, one.is_simulated] = (*strongest, unusable or one.unusable)
    return asked


def worst(opened: Iterable[Finding]) -> int:
    return compute_verdict(list(opened), [], 0.0).action.rank


@given(streams())
def test_the_same_events_give_the_same_findings(stream: list[Event]) -> None:
    first, second = folded(stream), folded(stream)
    assert first[0].open_findings == second[0].open_findings
    assert first[1] == second[1]


@given(streams())
def test_the_transitions_tell_the_whole_story(stream: list[Event]) -> None:
    """Applying what changed, one after the other, gives what is open: nothing changes unsaid."""
    findings, changes = folded(stream)
    told: dict[int, Finding] = {}
    for change in changes:
        assert change.opened is (change.finding.id not in told)
        told[change.finding.id] = change.finding
        assert change.cause or change.finding.state.value == "open"
    assert {id_: one for id_, one in told.items() if one.state.value == "open"} == {
        one.id: one for one in findings.open_findings
    }
    assert [change.time for change in changes] == sorted(change.time for change in changes)


@given(streams(), st.integers(0, 14))
def test_a_restart_in_between_changes_nothing(stream: list[Event], cut: int) -> None:
    """The table of open findings is all that has to be remembered."""
    whole, changes = folded(stream)
    before, first = folded(stream[:cut])
    after = Judge(catalogue(), before.memory)
    second = [change for one in stream[cut:] for change in after.apply_event(one)]
    assert after.open_findings == whole.open_findings
    assert after.incidents == whole.incidents
    assert first + second == changes


@given(streams())
def test_due_is_never_late(stream: list[Event]) -> None:
    """Before `due` there is nothing to end; so a sleeper that wakes then misses nothing."""
    findings, _ = folded(stream)
    due = findings.next_due
    if due != float("inf"):
        assert findings.expire_findings(due - 0.001) == []
        assert all(change.time >= due for change in findings.expire_findings(due + 1.0))


@given(st.lists(steps(KINDS + STATE), max_size=16), st.randoms(use_true_random=False))
def test_the_order_between_devices_does_not_matter(order: list[Step], chance: object) -> None:
    """Each device's own events keep their order; the others come in between as they like.

    What is asked of a device is the same. Which line tells it need not be: a suppressed
    consequence on another device (an NVLink error of a peer) is told under its cause where that
    came first, and is a finding of its own where it did not.
    """
    queues = [[step for step in order if step[0] == device] for device in range(DEVICES)]
    shuffled = []
    while any(queues):
        queue = chance.choice([one for one in queues if one])  # type: ignore[attr-defined]
        shuffled.append(queue.pop(0))
    one, other = (folded(at(step, 1.0) for step in each)[0] for each in (order, shuffled))
    assert asked_of_devices(one) == asked_of_devices(other)


@given(streams(KINDS, reboots=False), st.integers(0, 14), steps(KINDS))
def test_more_evidence_never_makes_it_better(stream: list[Event], where: int, extra: Step) -> None:
    """An event that is neither a reboot nor the driver's own all-clear leaves the worst action as
    bad or worse than it is then without.
    """
    where = min(where, len(stream))
    time = stream[where].time if where < len(stream) else stream[-1].time if stream else 0.0
    more = [*stream[:where], at(extra, time, "boot-0", 99), *stream[where:]]
    for end in range(where, len(stream) + 1):
        without, _ = folded(stream[:end])
        without.expire_findings(more[end].time)
        assert worst(folded(more[: end + 1])[0].open_findings) >= worst(without.open_findings)


@given(streams())
def test_only_evidence_lowers(stream: list[Event]) -> None:
    """From one event to the next a finding keeps or raises what it asks for, unless the driver says
    otherwise; it ends only by its rule or as a suppressed consequence.
    """
    findings = Judge(catalogue())
    for one in stream:
        before = {found.key: found for found in findings.open_findings}
        ended = {
            change.finding.key: change
            for change in findings.apply_event(one)
            if not change.finding.is_open
        }
        now = {found.key: found for found in findings.open_findings}
        for key, old in before.items():
            new = now.get(key)
            if new is not None and new.id == old.id:
                assert new.action.rank >= old.action.rank or one.code == "xid/154"
                assert new.count >= old.count
            else:
                change = ended[key]
                told = change.cause.startswith(SUPPRESSED) and any(
                    found.action.rank >= old.action.rank for found in now.values()
                )
                quiet = change.time <= one.time and change.cause in (
                    "quiet for as long as its rule requires",
                    "the drill is over",
                )
                assert told or quiet or one.code == BOOT or old.code == "xid/154"


@given(streams())
def test_a_drill_never_changes_what_is_real(stream: list[Event]) -> None:
    with_drills, _ = folded(stream)
    without, _ = folded(one for one in stream if not one.is_simulated)
    if stream:
        without.expire_findings(stream[-1].time)  # a drill may be the last that was heard
    assert {one for one in standing(with_drills) if not one[2]} == standing(without)


@given(streams())
def test_what_nobody_believes_changes_nothing(stream: list[Event]) -> None:
    believed, _ = folded(one for one in stream if one.is_trusted)
    if stream:
        believed.expire_findings(stream[-1].time)
    assert standing(folded(stream)[0]) == standing(believed)


@st.composite
def lived_with(draw: st.DrawFn) -> list[Event]:
    """Such a stream, in which a person accepts each fault as it is seen, and the clock may be
    stepped before a boot.
    """
    told: list[Event] = []
    # Long enough for a finding to have waited too long for maintenance
    for number, one in enumerate(draw(streams(LASTING, gaps_s=(*GAPS, 31 * 24 * HOUR)))):
        if one.code == BOOT and draw(st.booleans()):
            told.append(
                event(
                    CLOCK_STEPPED,
                    NODE,
                    one.time,
                    identity=f"step {number}",
                    boot=one.boot_id,
                    fields={"seconds": 0.5},
                )
            )
        told.append(one)
        if one.code != BOOT and one.is_trusted and not one.is_simulated and draw(st.booleans()):
            fields = {
                "code": one.code,
                "by": "alice",
                "reason": "known",
                "until": one.time + draw(st.sampled_from([HOUR, 100 * HOUR, 1000 * HOUR])),
            }
            told.append(
                event(
                    ACCEPTED,
                    one.component,
                    one.time,
                    identity=f"accept {number}",
                    boot=one.boot_id,
                    fields=fields,
                )
            )
    return told


@given(lived_with(), st.integers(0, 30))
def test_what_is_accepted_is_so_after_a_restart_and_a_replay(stream: list[Event], cut: int) -> None:
    """Over boots and steps of the clock; and none outlasts its time, or counts while it asks for
    more than when it was accepted.
    """
    whole, changes = folded(stream)
    before, first = folded(stream[:cut])
    after = Judge(catalogue(), before.memory)
    second = [change for one in stream[cut:] for change in after.apply_event(one)]
    assert (after.open_findings, after.memory.marks, first + second) == (
        whole.open_findings,
        whole.memory.marks,
        changes,
    )
    for change in changes:
        accepted = change.finding.accepted
        if accepted is not None and change.finding.is_open:
            assert change.time < accepted.until
    for finding in (*before.open_findings, *whole.open_findings):
        if finding.accepted is not None:
            assert not finding.requirement.is_stronger_than(finding.accepted.required)


@given(st.one_of(streams(), lived_with()), st.lists(st.floats(0.0, 2000 * HOUR), max_size=6))
def test_when_time_is_noticed_changes_nothing(stream: list[Event], times: list[float]) -> None:
    """Ends are computed: it does not matter when, or whether, time is noticed in between."""
    plain, changes = folded(stream)
    noticing = Judge(catalogue())
    noticed: list[Transition] = []
    for one in stream:
        # Until its events are stepped, time runs by the old clock
        now = one.time - (0.5 if one.code == CLOCK_STEPPED else 0.0)
        for time in sorted(times):
            if time <= now:
                noticed += noticing.expire_findings(time)
        noticed += noticing.apply_event(one)
    assert noticing.open_findings == plain.open_findings
    assert noticed == changes


@given(streams())
def test_text_confirms_nothing(stream: list[Event]) -> None:
    """However much of it there is, of however many codes."""
    assert not any(change.finding.is_confirmed for change in folded(stream)[1])


def _written(one: Event) -> Event:
    """The same by a process."""
    said = {**one.fields, "facility": 1, "vouched": False}
    return replace(
        one,
        identity=f"{one.identity} written",
        trust=Trust.ACCEPTED,
        fields=said,
        simulated_until=None,
    )


@given(streams(), streams(reboots=False))
def test_what_a_process_writes_changes_nothing_that_others_saw(
    stream: list[Event], written: list[Event]
) -> None:
    """Neither for better nor for worse, whatever it writes when: it only has findings of its own
    beside them.
    """
    boots = [(one.time, one.boot_id) for one in stream if one.code == BOOT]
    beside = [
        replace(
            _written(one),
            boot_id=next((boot for time, boot in reversed(boots) if time <= one.time), "boot-0"),
        )
        for one in written
    ]
    both = sorted([*stream, *beside], key=lambda one: one.time)
    alone, together = folded(stream)[0], folded(both)[0]
    alone.expire_findings(both[-1].time if both else 0.0)
    theirs = {one.key: one for one in together.open_findings if not one.is_hearsay}
    assert theirs.keys() == {one.key for one in alone.open_findings}
    for one in alone.open_findings:
        assert (theirs[one.key].is_confirmed, theirs[one.key].action.rank >= one.action.rank) == (
            one.is_confirmed,
            True,
        )
    assert not any(one.is_confirmed for one in together.open_findings if one.is_hearsay)


def test_every_strength_occurs_in_these_streams() -> None:
    """Otherwise the properties above would say little."""
    said = {catalogue().find_rule(code).apply_to(fields).action for code, fields in KINDS + STATE}  # type: ignore[arg-type]
    assert said == set(Action)
