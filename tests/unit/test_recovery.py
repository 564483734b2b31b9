"""A request, the action log and the decision: what is granted, what is not, and why. Nothing here touches
a machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.harness import ROOT
from tests.unit.builders import finding
from tests.unit.test_imports import MODULES, forbidden, imports
from vitald.model.finding import Finding, FindingState
from vitald.model.words import Action, Repair, When
from vitald.recovery import action_log
from vitald.recovery.action_log import DAY_S, ActionLog, ActionRecord, BootClock, InvalidActionLog
from vitald.recovery.decision import (
    CHECKS,
    MAX_AGE_S,
    USES,
    DaemonState,
    Facts,
    OpenFinding,
    Presence,
    SchedulerState,
    Step,
    decide,
    describe_presence,
)
from vitald.recovery.recovery_request import (
    MAX_BYTES,
    FindingRef,
    InvalidRequest,
    Request,
    make_finding_ref,
    parse_request,
    render_request,
    select_action,
)

GPU = "gpu/0000:65:00.0"
NOW = BootClock(wall=1_700_000_000.0, uptime=50_000.0, boot_id="boot-b")
FINDING_REF = FindingRef(
    id=7,
    component=GPU,
    code="xid/79",
    since=NOW.wall - 200,
    action="reboot_node",
    count=2,
    raw="NVRM: Xid ...",
)
REQUEST = Request(
    id="0123456789abcdef",
    boot_id=NOW.boot_id,
    time=NOW.wall - 5,
    uptime=NOW.uptime - 5,
    kind=Repair.REBOOT,
    host="node-1",
    requester="vitald 12",
    status="unhealthy",
    reasons=("gpu: fell",),
    findings=(FINDING_REF,),
)
OPEN_FINDING = OpenFinding(
    component=GPU,
    code="xid/79",
    action="reboot_node",
    state="open",
    simulated=False,
    confirmed=True,
)
OTHER = replace(OPEN_FINDING, component="nic/eth0", code="nic/down", action="inspect")
DAEMON = DaemonState(
    findings={7: OPEN_FINDING}, reboot_required=True, reboot_confirmed=True, boot_id=NOW.boot_id
)
FACTS = Facts(
    now=NOW,
    automatic=True,
    kill_switch="",
    maintenance="",
    request=REQUEST,
    action_log=ActionLog(),
    daemon=DAEMON,
    scheduler=SchedulerState(drained=True),
    reboots_per_day=1,
    replacements_per_day=1,
)
REPLACE = replace(
    FACTS,
    request=replace(
        REQUEST, kind=Repair.REPLACE, findings=(replace(FINDING_REF, action="replace_node"),)
    ),
    daemon=replace(
        DAEMON,
        findings={7: replace(OPEN_FINDING, action="replace_node")},
        reboot_required=False,
        reboot_confirmed=False,
        replacement_required=True,
        replacement_confirmed=True,
    ),
)


def done(
    ago: float,
    *,
    kind: Repair = Repair.REBOOT,
    cause: tuple[str, str] = (GPU, "xid/79"),
    boot: str = NOW.boot_id,
) -> ActionRecord:
    return ActionRecord(
        id="x" * 8,
        kind=kind,
        causes=(cause,),
        time=NOW.wall - ago,
        uptime=max(0.0, NOW.uptime - ago),
        boot_id=boot,
    )


def with_request(**changes: Any) -> Facts:
    return replace(FACTS, request=replace(REQUEST, **changes))


def with_told(**changes: Any) -> Facts:
    return replace(FACTS, daemon=replace(DAEMON, findings={7: replace(OPEN_FINDING, **changes)}))


def with_daemon(**changes: Any) -> Facts:
    return replace(FACTS, daemon=replace(DAEMON, **changes))


def with_log(*entries: ActionRecord, **changes: Any) -> Facts:
    return replace(FACTS, action_log=ActionLog(entries), **changes)


# Each check, and how it fails: the facts, and a part of what is said.
FAILS: list[tuple[str, Facts, str]] = [
    ("mode", replace(FACTS, automatic=False), "say, do not act"),
    (
        "kill_switch",
        replace(FACTS, kill_switch="kill switch: on (/x exists)"),
        "/x exists",
    ),
    (
        "maintenance",
        replace(FACTS, maintenance="maintenance: on (/y exists)"),
        "/y exists",
    ),
    (
        "request",
        replace(FACTS, request=None, request_trouble="the request is broken: no 'id'"),
        "no 'id'",
    ),
    ("request", replace(FACTS, request=None), "there is no request"),
    ("boot", with_request(boot_id="boot-a"), "another boot (boot-a)"),
    ("age", with_request(uptime=NOW.uptime - MAX_AGE_S - 1), "301 s old"),
    ("age", with_request(uptime=NOW.uptime + 1), "after this moment"),
    ("daemon", replace(FACTS, daemon=None, daemon_trouble="nobody listens"), "nobody listens"),
    ("daemon", with_daemon(boot_id="boot-a"), "another boot"),
    ("daemon", with_daemon(simulated=True), "simulated"),
    ("daemon", with_daemon(reboot_required=False), "does not say rebootRequired"),
    ("daemon", with_daemon(reboot_confirmed=False), "does not say rebootConfirmed"),
    (
        "daemon",
        replace(REPLACE, daemon=replace(DAEMON, findings=REPLACE.daemon.findings)),
        "does not say replacementRequired",
    ),
    ("findings", with_daemon(findings={}), f"finding #7 xid/79 of {GPU} is not open"),
    ("findings", with_told(code="xid/48"), "is xid/48 of"),
    ("findings", with_told(component="gpu/0000:9b:00.0"), "of gpu/0000:9b:00.0, not"),
    ("findings", with_told(simulated=True), "is a drill's"),
    ("findings", with_told(confirmed=False), "is not confirmed by a second source"),
    ("findings", with_told(action="inspect"), "asks for inspect"),
    ("findings", with_told(action="replace_node"), "asks for replace_node"),
    ("findings", with_told(action="no such action"), "asks for no such action"),
    (
        "findings",
        replace(with_told(action="reset_device"), device_reset=True),
        "asks for reset_device",
    ),
    ("findings", with_request(findings=(FINDING_REF, replace(FINDING_REF, id=8))), "finding #8"),
    ("remedy", with_told(state="in_remedy"), f"under way: #7 xid/79 of {GPU}"),
    (
        "remedy",
        with_daemon(findings={7: OPEN_FINDING, 8: replace(OTHER, state="in_remedy")}),
        "under way: #8 nic/down of nic/eth0",
    ),
    ("released", with_daemon(released="all GPUs released until 12:00"), "all GPUs released"),
    (
        "uptime",
        replace(FACTS, min_uptime_s=NOW.uptime + 3600),
        "booted 13.9 h ago, and [recovery] min_uptime is 14.9 h",
    ),
    ("action_log", replace(FACTS, action_log=None, action_log_trouble="not JSON"), "not JSON"),
    ("action_log", with_log(done(-120, cause=("node", "x/y"))), "lies in the future"),
    ("action_log", with_log(replace(done(0), uptime=NOW.uptime + 1)), "lies in the future"),
    ("effect", with_log(done(3600, cause=("node", "x/y"))), "begun 1.0 h ago, and the node is"),
    ("cause", with_log(done(3600, boot="boot-a"), reboots_per_day=9), "1.0 h ago"),
    ("cause", with_log(done(DAY_S - 1, boot="boot-a"), reboots_per_day=9), "once a day"),
    # The wall clock may say what it likes: this boot is not a day old, and what was before it may
    # be younger than a day.
    ("cause", with_log(done(9 * DAY_S, boot="boot-a"), reboots_per_day=9), "once a day"),
    # In a container the clock that counts from the boot may be the host's: then the wall clock has
    # to do.
    (
        "cause",
        with_log(
            replace(done(3600, boot="boot-a"), uptime=0.0),
            reboots_per_day=9,
            now=replace(NOW, uptime=9 * DAY_S),
            request=replace(REQUEST, uptime=9 * DAY_S),
        ),
        "1.0 h ago",
    ),
    (
        "budget",
        with_log(done(60, cause=("node", "other/1"), boot="boot-a")),
        "reboots_per_day is 1",
    ),
    ("budget", replace(FACTS, reboots_per_day=0), "0 reboots within a day"),
    ("budget", replace(REPLACE, replacements_per_day=0), "replacements_per_day is 0"),
    ("means", replace(FACTS, method_trouble="HyperPod reboots this node"), "HyperPod"),
    (
        "node",
        replace(FACTS, scheduler=SchedulerState(trouble="scontrol did not answer")),
        "scontrol did not answer",
    ),
    (
        "node",
        replace(
            FACTS,
            scheduler=SchedulerState(drained=True, held="somebody else holds it: ticket 4711"),
        ),
        "ticket 4711",
    ),
    ("brake", replace(FACTS, brake="3 other nodes are out of service"), "3 other nodes"),
]


def test_nothing_stands_against_it() -> None:
    for facts, kind in ((FACTS, Repair.REBOOT), (REPLACE, Repair.REPLACE)):
        decision = decide(facts)
        assert (decision.step, decision.kind, decision.reasons) == (Step.ACT, kind, ())
    old = with_log(
        done(9 * DAY_S, boot="boot-a"),
        now=replace(NOW, uptime=DAY_S),
        request=replace(REQUEST, uptime=DAY_S),
    )
    assert decide(old).step is Step.ACT
    assert decide(replace(FACTS, min_uptime_s=NOW.uptime)).step is Step.ACT
    drilled = replace(OTHER, state="in_remedy", simulated=True)
    assert decide(with_daemon(findings={7: OPEN_FINDING, 8: drilled})).step is Step.ACT
    assert decide(with_log(done(60, kind=Repair.REPLACE))).step is Step.ACT, (
        "a replacement is not a reboot"
    )
    assert decide(with_told(action="reset_device")).step is Step.ACT, (
        "a reset that the site does not do itself"
    )


@pytest.mark.parametrize(
    ("name", "facts", "said"),
    FAILS,
    ids=[f"{name}-{number}" for number, (name, _, _) in enumerate(FAILS)],
)
def test_one_check_that_fails_is_enough(name: str, facts: Facts, said: str) -> None:
    decision = decide(facts)
    assert decision.step is Step.REFUSED
    assert said in dict(decision.reasons)[name], decision
    assert [
        one for one, _ in decision.reasons if one not in (name, "effect", "cause", "budget")
    ] == [], "and only that one"


def test_every_check_has_a_case_here_and_is_documented() -> None:
    assert {name for name, _, _ in FAILS} == set(CHECKS)
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs/recovery.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    documented = {name for row in rows for name in re.findall("`([a-z_]+)`", row)}
    assert {*CHECKS, *USES} <= documented


def test_first_new_work_is_kept_away_and_then_what_runs_is_waited_for() -> None:
    assert decide(replace(FACTS, scheduler=SchedulerState())).step is Step.DRAIN
    waits = decide(replace(FACTS, scheduler=SchedulerState(drained=True, busy="Slurm says MIXED")))
    assert (waits.step, waits.why) == (Step.WAIT, "Slurm says MIXED")
    decision = decide(with_daemon(jobs=("job 1", "job 2", "job 3", "job 4", "job 5")))
    assert (decision.step, decision.why) == (
        Step.WAIT,
        "job 1, job 2, job 3 and 2 more still run here",
    )
    in_use = replace(
        with_daemon(diagnostic="a diagnostic runs"), device_users=("python3 has nvidia0 open",)
    )
    decision = decide(in_use)
    assert (decision.step, decision.reasons) == (
        Step.WAIT,
        (("diagnostic", "a diagnostic runs"), ("devices", "python3 has nvidia0 open")),
    )
    assert decide(replace(in_use, scheduler=SchedulerState())).step is Step.DRAIN


def test_who_is_at_work_where_another_program_waits_for_the_jobs() -> None:
    assert describe_presence(with_daemon(jobs=("job 1",))) == ""
    daemon = replace(
        DAEMON,
        findings={8: replace(OTHER, state="in_remedy")},
        released="gpu 3 until 12:00",
        diagnostic="a diagnostic runs",
    )
    presence = Presence(
        now=NOW,
        min_uptime_s=NOW.uptime + 3600,
        daemon=daemon,
        device_users=("python3 has nvidia0 open",),
    )
    assert describe_presence(presence).split("; ") == [
        "a remedy is under way: #8 nic/down of nic/eth0",
        "somebody has the devices: gpu 3 until 12:00",
        "the node was booted 13.9 h ago, and [recovery] min_uptime is 14.9 h",
        "a diagnostic runs",
        "python3 has nvidia0 open",
    ]


@given(
    st.lists(st.sampled_from([(name, facts) for name, facts, _ in FAILS]), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_it_never_acts_when_any_check_fails(
    failing: list[tuple[str, Facts]], drained: bool, busy: bool
) -> None:
    """Whatever else holds: the failed ones are laid over each other."""
    facts = replace(FACTS, scheduler=SchedulerState(drained=drained, busy="busy" if busy else ""))
    for _, other in failing:
        changed = {
            name: getattr(other, name)
            for name in Facts.__dataclass_fields__
            if getattr(other, name) != getattr(FACTS, name)
        }
        facts = replace(facts, **changed)
    # Laid over each other they may cancel out (two boots that agree); what every check says is then
    # the measure.
    if any(check(facts) for check in CHECKS.values()):
        assert decide(facts).step is Step.REFUSED
    else:
        assert decide(facts).step in (Step.ACT, Step.WAIT, Step.DRAIN)


# --- no two reboots for one cause within a day


@dataclass
class World:
    """A node: true time, and the clocks that it shows. The action log is kept as `vitald recovery run` keeps
    it.
    """

    true: float = 0.0
    booted: float = 0.0
    boots: int = 0
    wall_is_off: float = 1_700_000_000.0
    log_bytes: bytes = field(default_factory=lambda: action_log.render_action_log(ActionLog()))
    done: list[tuple[float, Repair, tuple[str, str]]] = field(default_factory=list)

    @property
    def clock(self) -> BootClock:
        return BootClock(
            wall=max(0.0, self.true + self.wall_is_off),
            uptime=self.true - self.booted,
            boot_id=f"boot-{self.boots}",
        )

    def boot(self, down: float) -> None:
        self.true += down
        self.booted, self.boots = self.true, self.boots + 1

    def ask(self, cause: tuple[str, str], kind: Repair) -> None:
        now = self.clock
        action = "reboot_node" if kind is Repair.REBOOT else "replace_node"
        finding_ref = replace(FINDING_REF, component=cause[0], code=cause[1], action=action)
        facts = replace(
            FACTS,
            now=now,
            request=replace(
                REQUEST, kind=kind, boot_id=now.boot_id, uptime=now.uptime, findings=(finding_ref,)
            ),
            daemon=DaemonState(
                findings={
                    7: OpenFinding(
                        component=cause[0],
                        code=cause[1],
                        action=action,
                        state="open",
                        simulated=False,
                        confirmed=True,
                    )
                },
                reboot_required=True,
                replacement_required=True,
                reboot_confirmed=True,
                replacement_confirmed=True,
                boot_id=now.boot_id,
            ),
            action_log=action_log.parse_action_log(self.log_bytes),
            reboots_per_day=1000,
            replacements_per_day=1000,
        )
        if decide(facts).step is Step.ACT:
            entry = ActionRecord(
                id="x",
                kind=kind,
                causes=(cause,),
                time=now.wall,
                uptime=now.uptime,
                boot_id=now.boot_id,
            )
            self.log_bytes = action_log.render_action_log(
                action_log.parse_action_log(self.log_bytes).with_entry(entry, now)
            )
            self.done.append((self.true, kind, cause))
            if kind is Repair.REBOOT:
                self.boot(120.0)


HOUR_S = 3600.0
STEPS = st.one_of(
    st.tuples(
        st.just("wait"),
        st.sampled_from([60.0, 6 * HOUR_S, 20 * HOUR_S, DAY_S - 1, DAY_S, 40 * DAY_S])
        | st.floats(1.0, 2 * DAY_S),
    ),
    st.tuples(
        st.just("clock"),
        st.sampled_from([-DAY_S, -HOUR_S, HOUR_S, DAY_S, 2 * DAY_S])
        | st.floats(-40 * DAY_S, 40 * DAY_S),
    ),
    st.tuples(st.just("clock begins at nought"), st.just(0.0)),
    st.tuples(st.just("boot"), st.floats(1.0, 3600.0)),
    *[st.tuples(st.just("ask"), st.sampled_from([0, 0, 1, 1, 2]))] * 3,
)


@settings(max_examples=600)
@example(
    [("wait", DAY_S), ("ask", 1), ("clock", DAY_S), ("ask", 1)]
)  # set forward in the same boot
@example(
    [("ask", 0), ("clock", 40 * DAY_S), ("ask", 2), ("ask", 0)]
)  # set forward by so much that old entries make room
@example([("ask", 0), ("clock begins at nought", 0.0), ("ask", 0), ("wait", HOUR_S), ("ask", 0)])
@given(st.lists(STEPS, max_size=30))
def test_never_two_for_one_cause_within_a_day_whatever_the_clocks_do(
    steps: list[tuple[str, float]],
) -> None:
    world = World()
    for what, amount in steps:
        if what == "wait":
            world.true += amount
        elif what == "clock":
            world.wall_is_off += amount
        elif what == "clock begins at nought":
            world.wall_is_off = -world.true
        elif what == "boot":
            world.boot(amount)
        else:
            world.ask(
                (GPU, f"xid/{int(amount) // 2}"), [Repair.REBOOT, Repair.REPLACE][int(amount) % 2]
            )
    for number, (at, kind, cause) in enumerate(world.done):
        for later, other, again in world.done[number + 1 :]:
            assert (other, again) != (kind, cause) or later - at >= DAY_S


def test_a_day_later_it_is_done_again() -> None:
    """Else the test above would hold for what never acts."""
    world = World()
    for hours in (0, 1, 23, 25, 26, 51):
        world.true = max(world.true, hours * 3600.0)
        world.ask((GPU, "xid/79"), Repair.REBOOT)
    assert [round(at / 3600) for at, _, _ in world.done] == [0, 25, 51]


# --- what is asked for


def test_replacing_outranks_rebooting_and_is_waited_for() -> None:
    reboot, replaced = finding(Action.REBOOT_NODE, number=1), finding(Action.REPLACE_NODE, number=2)
    assert select_action([reboot], lambda _: True, device_reset=False) == (Repair.REBOOT, (reboot,))
    assert select_action([reboot, replaced], lambda _: True, device_reset=False) == (
        Repair.REPLACE,
        (replaced,),
    )
    assert select_action([reboot, replaced], lambda one: one is reboot, device_reset=False) is None
    assert select_action(
        [reboot, finding(number=3)], lambda one: one is reboot, device_reset=False
    ) == (
        Repair.REBOOT,
        (reboot,),
    )
    assert select_action([reboot], lambda _: False, device_reset=False) is None


@pytest.mark.parametrize(
    "found",
    [
        finding(simulated_until=1e12),
        finding(state=FindingState.IN_REMEDY),
        finding(Action.INSPECT),
        finding(Action.RESTART_WORKLOAD),
        finding(Action.OBSERVE),
    ],
)
def test_what_asks_for_nothing(found: Finding) -> None:
    assert select_action([found], lambda _: True, device_reset=False) is None


def test_nothing_while_somebody_works_on_one_of_them() -> None:
    begun = finding(number=2, state=FindingState.IN_REMEDY)
    assert select_action([finding(number=1), begun], lambda _: True, device_reset=False) is None
    drill = finding(number=2, state=FindingState.IN_REMEDY, simulated_until=1e12)
    assert select_action([finding(number=1), drill], lambda _: True, device_reset=False) is not None


def test_a_reset_is_a_reboot_where_the_site_does_not_reset() -> None:
    assert Action.RESET_DEVICE.choose_repair(device_reset=False) is Repair.REBOOT
    assert Action.RESET_DEVICE.choose_repair(device_reset=True) is None
    later = finding(Action.RESET_DEVICE, When.AFTER_JOB)
    assert select_action([later], lambda _: True, device_reset=False) == (
        Repair.REBOOT,
        (later,),
    ), "root waits for the job"


# --- the file


TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp", "Zs"]),
    min_size=1,
    max_size=60,
)
NUMBER = st.floats(0, 2**40)
FINDING_REFS = st.builds(
    FindingRef,
    id=st.integers(0, 2**53),
    component=TEXT,
    code=TEXT,
    since=NUMBER,
    action=TEXT,
    count=st.integers(0, 2**53),
    raw=TEXT,
)
REQUESTS = st.builds(
    Request,
    id=st.text("0123456789abcdef", min_size=8, max_size=64),
    boot_id=TEXT,
    time=NUMBER,
    uptime=NUMBER,
    kind=st.sampled_from(Repair),
    host=TEXT,
    requester=TEXT,
    status=TEXT,
    reasons=st.lists(TEXT, max_size=8).map(tuple),
    findings=st.lists(FINDING_REFS, min_size=1, max_size=16).map(tuple),
)


@given(REQUESTS)
def test_what_is_written_is_read(request_: Request) -> None:
    assert parse_request(render_request(request_)) == request_


def test_the_longest_request_fits() -> None:
    long = "\U00020000" * 5000
    finding_ref = replace(
        make_finding_ref(finding(raw=long, number=2**53), str),
        component=long[:256],
        code=long[:256],
    )
    data = render_request(
        replace(REQUEST, host=long, reasons=(long,) * 20, findings=(finding_ref,) * 16)
    )
    assert parse_request(data).findings == (finding_ref,) * 16


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_request(data)
    with pytest.raises(InvalidActionLog):
        action_log.parse_action_log(data)


def _with(path: tuple[str | int, ...], value: object) -> bytes:
    document = json.loads(render_request(REQUEST))
    at = document
    for step in path[:-1]:
        at = at[step]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_with(("version",), 2), "version 2"),
        (_with(("version",), True), "version"),
        (_with(("id",), ...), "no 'id'"),
        (_with(("extra",), 1), "unknown key 'extra'"),
        (_with(("id",), "short"), "id: expected 8 to 64"),
        (_with(("id",), "x" * 65), "id: expected"),
        (_with(("action",), "shutdown"), "must be one of reboot, replace"),
        (_with(("action",), ["reboot"]), "must be one of reboot, replace"),
        (_with(("uptime",), "1"), "uptime: expected a number"),
        (_with(("uptime",), -1), "uptime: expected a number"),
        (_with(("uptime",), True), "uptime: expected a number"),
        (_with(("time",), 10**400), "time: expected a number"),
        (_with(("findings",), []), "findings: expected a list"),
        (_with(("findings",), [{}] * 17), "findings: expected a list"),
        (_with(("findings", 0, "id"), 1.5), "id: expected a whole number"),
        (_with(("findings", 0, "raw"), "\x1b[2J"), "raw: expected"),
        (_with(("findings", 0, "raw"), "x" * 513), "raw: expected"),
        (_with(("findings", 0), []), "a finding is not a JSON object"),
        (_with(("reasons",), ["x"] * 9), "reasons: expected"),
        (_with(("reasons",), [5]), "reasons: expected"),
        (b'{"version": 1, "version": 1}', "twice"),
        (b'{"uptime": NaN}', "NaN"),
        (b"[" * 30000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (b" " * (MAX_BYTES + 1), "longer than"),
    ],
)
def test_what_is_no_request(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said.replace("(", r"\(")):
        parse_request(data)


def test_a_partially_valid_action_log_is_rejected() -> None:
    whole = action_log.render_action_log(ActionLog((done(10), done(20, kind=Repair.REPLACE))))
    assert len(action_log.parse_action_log(whole).entries) == 2
    for end in range(len(whole) - 1):
        with pytest.raises(InvalidActionLog):
            action_log.parse_action_log(whole[:end])
    for wrong in (
        whole.replace(b'"reboot"', b'"shutdown"'),
        whole.replace(b'"version": 1', b'"version": 2'),
        b'{"version": 1, "actions": [{}]}',
    ):
        with pytest.raises(InvalidActionLog):
            action_log.parse_action_log(wrong)


def test_old_entries_make_room_but_none_that_counts() -> None:
    now = replace(NOW, uptime=40 * DAY_S)
    many = tuple(
        ActionRecord(
            id="x",
            kind=Repair.REBOOT,
            causes=(("c", str(n)),),
            time=now.wall - n,
            uptime=now.uptime - n,
            boot_id="boot-b",
        )
        for n in range(1000)
    )
    with pytest.raises(InvalidActionLog):
        ActionLog(many).with_entry(done(0), now)
    old = tuple(replace(one, time=now.wall - 31 * DAY_S, uptime=DAY_S) for one in many)
    assert ActionLog(old).with_entry(done(0), now).entries == (done(0),)


def test_the_deciding_parts_touch_no_machine() -> None:
    for module in ("recovery_request", "action_log", "decision"):
        assert (
            forbidden(
                imports(MODULES[f"vitald.recovery.{module}"]),
                "os",
                "time",
                "pathlib",
                "subprocess",
                "socket",
                "asyncio",
                "structlog",
                "random",
            )
            == []
        )
