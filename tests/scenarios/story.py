"""
What a `*.scenario` file is told to: one node, from kernel lines and other facts to findings,
incidents and a verdict.

Every story is told through a real ledger. With `restarting`, the daemon's memory goes through it
after every line: the verdict must not notice. At the end all events are judged once more by a fresh
judge: that must give the same findings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.builders import booted, catalogue, interpreter
from vitald import tomlfile
from vitald.collectors.kernel_log.lines import DOUBT, Line, strip_prefix
from vitald.judge.engine import Judge
from vitald.judge.verdict import compute_verdict
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.component import NODE, Component
from vitald.model.event import (
    ACCEPTED,
    CLEARED,
    CLOCK_STEPPED,
    REMEDY_BEGUN,
    REPLACED,
    SOURCE_FAILED,
    Event,
    Trust,
    Value,
)
from vitald.model.finding import Finding, Incident, Requirement, Transition, Verdict
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import ComponentKind, When, WorkPhase

VERBS = (
    *(
        "at",
        "line",
        "times",
        "old",
        "doubt",
        "drill",
        "fact",
        "reboot",
        "restart",
        "clear",
        "replaced",
        "remedy",
        "accept",
        "deaf",
        "hears",
        "step",
    ),
    *("expect", "because", "told"),
)
_DIFFERENT = {"running": WorkPhase.RUNNING, "prolog": WorkPhase.PROLOG, "epilog": WorkPhase.EPILOG}


class Node:
    """The verbs of a story are this class's methods."""

    def __init__(
        self,
        folder: Path,
        profile: str,
        *,
        userspace: str,
        device_reset: bool,
        overrides: str = "",
        restarting: bool = False,
    ) -> None:
        self.catalog = catalogue(profile, overrides)
        self.interpreter = interpreter(profile, userspace=userspace, overrides=overrides)
        self.ledger = Ledger(folder)
        self.ledger.open()
        self.judge = Judge(self.catalog)
        self.device_reset = device_reset
        self.restarting = restarting
        (
            self.now,
            self.stepped,
            self.looked,
            self.hearing,
            self.boots,
            self.booted_at,
            self.serial,
        ) = (
            0.0,
            0.0,
            0.0,
            True,
            1,
            0.0,
            0,
        )
        self.events: list[Event] = []
        self.unsaved: list[LedgerEntry] = []
        self.causes: list[str] = []  # why anything changed since the last `expect`

    def tell(self, verb: str, rest: str) -> None:
        assert verb in VERBS, "no such word"
        getattr(self, verb)(rest)
        if self.restarting and verb not in ("expect", "because", "told"):
            self.restart("")

    # What happens.

    def at(self, duration: str) -> None:
        before, self.now = self.now, tomlfile.parse_duration(duration)
        assert before <= self.now, "time does not go back"
        self._save((), self.judge.expire_findings(self._wall()))

    def line(self, text: str) -> None:
        line = strip_prefix(text.encode())
        if line is not None:
            self._record(line, self.now)

    def times(self, rest: str) -> None:
        """The same line so many times, a millisecond apart; `{n}` is its number."""
        count, _, text = rest.partition(" ")
        for number in range(int(count)):
            self.line(text.replace("{n}", str(number)))
            self.now += 0.001

    def old(self, rest: str) -> None:
        """A line that was written so long ago and is read only now."""
        ago, _, text = rest.partition(" ")
        line = strip_prefix(text.encode())
        assert line is not None
        self._record(line, self.now - tomlfile.parse_duration(ago))

    def doubt(self, rest: str) -> None:
        """A line with the stamp of the line before it."""
        line = strip_prefix(rest.encode())
        assert line is not None
        self._record(line, self.now, doubt=DOUBT)

    def drill(self, rest: str) -> None:
        hold, _, text = rest.partition(" ")
        self.interpreter.drills.announce_drill(text, self._wall(), tomlfile.parse_duration(hold))
        self._record(Line(text.encode(), 1), self.now)

    def fact(self, rest: str) -> None:
        """What another source says: CODE COMPONENT [FIELD=VALUE ...]."""
        code, component, *said = rest.split()
        self._apply(
            self._event(
                code,
                Component.parse_name(component),
                {name: _value(value) for name, _, value in (one.partition("=") for one in said)},
            )
        )

    def reboot(self, _: str) -> None:
        self.boots += 1
        self.booted_at = self.now
        self._apply(booted(f"boot-{self.boots}", self._wall()))

    def restart(self, _: str) -> None:
        """The daemon is killed and started again: it knows what its ledger holds."""
        self.ledger.commit(self.unsaved)
        self.unsaved = []
        self.judge = Judge(self.catalog, self.ledger.read_state().memory)
        self.judge.reload_catalog(self.catalog, self._wall())

    def clear(self, rest: str) -> None:
        self._act(CLEARED, rest)

    def replaced(self, rest: str) -> None:
        component = self._act(CLEARED, rest)
        self._apply(self._event(REPLACED, component, {"by": "alice"}))

    def remedy(self, rest: str) -> None:
        self._act(REMEDY_BEGUN, rest)

    def accept(self, rest: str) -> None:
        name, length, reason = rest.split(" ", 2)
        self._act(
            ACCEPTED, f"{name} {reason}", until=self._wall() + tomlfile.parse_duration(length)
        )

    def deaf(self, _: str) -> None:
        self.hearing = False
        self._apply(
            self._event(
                SOURCE_FAILED, Component(ComponentKind.NODE, "kernel_log"), {"recovered": False}
            )
        )

    def hears(self, _: str) -> None:
        self.hearing = True
        self._apply(
            self._event(
                SOURCE_FAILED, Component(ComponentKind.NODE, "kernel_log"), {"recovered": True}
            )
        )

    def step(self, duration: str) -> None:
        """Somebody sets the clock."""
        seconds = (
            -tomlfile.parse_duration(duration[1:])
            if duration.startswith("-")
            else tomlfile.parse_duration(duration)
        )
        self.stepped += seconds
        self._apply(self._event(CLOCK_STEPPED, NODE, {"seconds": seconds}))

    # What must be so.

    @property
    def standing(self) -> list[Finding]:
        """The open findings, but for what is said of deafness."""
        return [found for found in self.judge.open_findings if found.code != SOURCE_FAILED]

    def verdicts(self) -> dict[str, Verdict]:
        """What would be answered now, by the work that it is asked for."""
        looked = self.now if self.hearing else self.looked
        source = SourceHealth(
            name="kernel_log",
            state=SourceState.OK,
            deadline=30.0,
            last_seen=looked,
            polled_at=looked,
        )
        incidents = {one.id: one for one in self.judge.incidents}
        return {
            name: compute_verdict(
                self.standing,
                [source],
                self.now,
                incidents,
                device_reset=self.device_reset,
                work=work,
            )
            for name, work in _DIFFERENT.items()
        }

    def expect(self, rest: str) -> None:
        verdicts = self.verdicts()
        self.looked = self.now if self.hearing else self.looked
        standing = self.standing
        incidents = {one.id: one for one in self.judge.incidents}
        verdict = verdicts["running"]
        got = {
            "status": verdict.status.value,
            "action": verdict.action.value,
            **{name: one.status.value for name, one in verdicts.items()},
        }
        flags = {
            "reboot": verdict.reboot_required,
            "replace": verdict.replacement_required,
            "simulated": verdict.simulated,
        }
        flags |= {
            "reboot_confirmed": verdict.reboot_confirmed,
            "replace_confirmed": verdict.replacement_confirmed,
        }
        got |= {name: str(flag).lower() for name, flag in flags.items()}
        got["findings"] = _listed(map(shown, standing))
        got["confirmed"] = _listed(named(found) for found in standing if found.is_confirmed)
        got["incidents"] = _listed(
            story(one)
            for one in incidents.values()
            if one.closed_at is None and one.root.code != SOURCE_FAILED
        )
        got["over"] = _listed(story(one) for one in incidents.values() if one.closed_at is not None)
        got["lines"] = str(len(verdict.reasons))
        scores = self.judge.score_devices(self._wall())
        got["scores"] = _listed(f"{device}:{score:g}" for device, (score, _) in scores.items())
        wanted = dict(word.split("=", 1) for word in rest.split())
        assert {name: got[name] for name in wanted} == {
            name: ",".join(sorted(value.split(","))) for name, value in wanted.items()
        }
        self.causes.clear()

    def because(self, rest: str) -> None:
        """CODE@ID TEXT: what it asks for has this reason."""
        name, _, text = rest.partition(" ")
        (asked,) = [found.requirement for found in self.judge.open_findings if named(found) == name]
        assert isinstance(asked, Requirement)
        assert text in asked.reason, f"the reason is {asked.reason!r}"

    def told(self, text: str) -> None:
        """Something that changed since the last `expect` had this cause."""
        assert any(text in cause for cause in self.causes), f"the causes are {self.causes}"

    def end(self) -> None:
        """A fresh judge over the same events comes to the same findings."""
        fresh = Judge(self.catalog)
        for event in self.events:
            fresh.apply_event(event)
        fresh.expire_findings(self._wall())
        told, remembered = (
            [(shown(found), found.confirmed_by) for found in one.open_findings]
            for one in (fresh, self.judge)
        )
        assert told == remembered
        self.ledger.close()

    # How.

    def _record(self, line: Line, when: float, doubt: str = "") -> None:
        self.serial += 1
        sighting = self.interpreter.parse_record(line.message)
        if sighting is not None:
            usec = int((when - self.booted_at) * 1e6)
            record: dict[str, Any] = {
                "identity": f"record {self.serial}",
                "time": when + self.stepped,
                "boot_id": f"boot-{self.boots}",
                "usec": usec if usec >= 0 else None,
                "doubt": doubt,
            }
            self._apply(
                self.interpreter.make_event(sighting, line.message, line.facility, **record)
            )

    def _event(self, code: str, component: Component, fields: dict[str, Value]) -> Event:
        self.serial += 1
        return Event(
            identity=f"fact {self.serial}",
            time=self._wall(),
            source=str(fields.get("witness") or code.partition("/")[0]),
            kind=code.partition("/")[0],
            code=code,
            component=component,
            boot_id=f"boot-{self.boots}",
            trust=Trust.DAEMON,
            fields=fields,
        )

    def _act(self, code: str, rest: str, **more: Value) -> Component:
        name, _, reason = rest.partition(" ")
        (found,) = [found for found in self.judge.open_findings if named(found) == name]
        fields: dict[str, Value] = {"code": found.code, "by": "alice", "reason": reason, **more}
        self._apply(
            self._event(
                code, found.component, {**fields, **({"drill": True} if found.is_simulated else {})}
            )
        )
        return found.component

    def _apply(self, event: Event) -> None:
        self.events.append(event)
        self._save((event,), self.judge.apply_event(event))

    def _save(self, events: tuple[Event, ...], transitions: list[Transition]) -> None:
        self.causes += [transition.cause for transition in transitions]
        self.unsaved.append(
            LedgerEntry(
                events=events, transitions=tuple(transitions), changes=self.judge.take_changes()
            )
        )

    def _wall(self) -> float:
        return self.now + self.stepped


def tell_story(
    path: Path,
    folder: Path,
    *,
    restarting: bool = False,
    look: Callable[[Node, str], None] | None = None,
) -> Node:
    """Tell a node, whose ledger lies in `folder`, what a scenario file says, and return it.

    `look` is called after each line that the node was told. Raises AssertionError that names the
    line where something is not as the file says, or where the file does not end with that.
    """
    profile, userspace, flags, overrides = "nvidia", "unconfirmed", set[str](), ""
    node, verb = None, ""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        verb, _, rest = text.partition(" ")
        if not verb or verb.startswith("#"):
            continue
        if node is None and verb in ("profile", "userspace", "device_reset", "override"):
            userspace = rest if verb == "userspace" else userspace
            profile, flags = (rest, flags) if verb == "profile" else (profile, flags | {verb})
            if verb == "override":
                code, _, keys = rest.partition(" ")
                overrides += f'"{code}" = {{ {keys} }}\n'
            continue
        node = node or Node(
            folder,
            profile,
            userspace=userspace,
            device_reset="device_reset" in flags,
            overrides=overrides,
            restarting=restarting,
        )
        try:
            node.tell(verb, rest)
        except Exception as error:
            raise AssertionError(f"{path.name}:{number}: {text}\n{error}") from error
        if look is not None:
            look(node, text)
    assert verb in ("expect", "because", "told"), "a story ends with what must be so"
    assert node is not None
    return node


def named(found: Finding) -> str:
    return f"{'~' if found.is_simulated else ''}{found.code}@{found.component.id or found.component.name}"


def times(count: int) -> str:
    """*N of what was printed N times."""
    return f"*{count}" if count > 1 else ""


def shown(found: Finding) -> str:
    later = "" if found.when is When.NOW else f"/{found.when.value}"
    remedy = "/in_remedy" if found.state.value == "in_remedy" else ""
    accepted = "/accepted" if found.accepted is not None else ""
    unusable = "/unusable" if found.unusable else ""
    marks = f"{later}{unusable}{remedy}{accepted}{times(found.count)}"
    return f"{named(found)}:{found.action.value}{marks}"


def story(incident: Incident) -> str:
    """ROOT+CONSEQUENCE+..., each CODE@ID and *N if it was printed N times."""
    members = [
        f"{member.code}@{member.component.id or member.component.name}{times(member.count)}"
        for member in incident.members
    ]
    return "+".join([f"{'~' if incident.simulated else ''}{members[0]}", *sorted(members[1:])])


def _listed(words: object) -> str:
    return ",".join(sorted(words)) or "none"  # type: ignore[call-overload]


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text
