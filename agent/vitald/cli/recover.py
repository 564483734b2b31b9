"""
`vitald recover`: what vitald-recover.service runs, as root, when the daemon has asked for a reboot
or a replacement.

Every check is in agent/vitald/recovery/decision.py; here the facts are gathered, what was decided
is told, and what is to be done is done. One attempt a call: where something still runs on the node,
the daemon asks again in a few minutes.

    0   decided: refused, drained, or done (standard error, `vitald recovery` and the journal say
    which, and why) 69  what was to be done failed, or the folder of the book cannot be used 78  the
    configuration is wrong, or others than root may write it

Written to the book, and on the disk, before anything is done: a reboot that was forgotten could be
done for ever.

Owns     the order: facts, decision, record, action.
Refuses  being told by the environment or by anybody but root's own configuration what to run.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitald import tomlfile
from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, client, render
from vitald.config import DEFAULT_PATH, Config, ConfigError
from vitald.config import parse as parse_config
from vitald.recovery import action_log as books
from vitald.recovery import cluster, decision_log, files, programs
from vitald.recovery.action_log import Book, BookBroken, Clock, Entry
from vitald.recovery.cluster import Scheduler, Wish
from vitald.recovery.decision import Decision, Facts, Node, Standing, Step, Told, decide
from vitald.recovery.request import FILE, MOST_BYTES, Kind, Request, RequestBroken
from vitald.recovery.request import parse as parse_request
from vitald.timestamps import format_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

Json = dict[str, object]

_CONFIG_BYTES = 1024 * 1024
_ANSWER_S = 5.0
_OPEN = 1000


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_PATH,
        metavar="FILE",
        help=f"the daemon's configuration (default: {DEFAULT_PATH})",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and why; change nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    kept = programs.clean_environment(os.environ)
    os.environ.clear()
    os.environ.update(kept)
    os.umask(0o027)
    try:
        config = read_config(arguments.config)
    except files.Untrusted as error:
        say("error", "recovery_refused", why=f"the configuration does not count: {error}")
        return EX_CONFIG
    except ConfigError as error:
        say("error", "recovery_refused", why="the configuration is wrong", errors=error.errors)
        return EX_CONFIG
    return Recover(config, dry=arguments.dry_run).run()


def read_config(path: Path) -> Config:
    """Root's own words, and nobody else's. No file: the defaults, by which nothing is done. Raises
    Untrusted, ConfigError.
    """
    try:
        data = files.read_roots(path, _CONFIG_BYTES)
    except files.Absent:
        return Config()
    try:
        text = data.decode("utf-8")
        tables = tomlfile.parse_toml(text, str(path))
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return parse_config(text, tables, str(path))


def readers() -> int:
    """The group that may read what was decided."""
    try:
        return pwd.getpwnam(client.USER).pw_gid
    except KeyError:
        return 0


def clock(config: Config) -> Clock:
    """Raises OSError."""
    boot_id = (config.paths.procfs / "sys/kernel/random/boot_id").read_text().strip()
    return Clock(wall=time.time(), uptime=time.clock_gettime(time.CLOCK_BOOTTIME), boot_id=boot_id)


def request_of(config: Config) -> tuple[Request | None, str]:
    """The request; or why there is none that counts."""
    path, who = config.paths.runtime / FILE, client.owners()
    try:
        data = files.read(path, who, MOST_BYTES)
        files.judge_folders(path.parent.parent.resolve(strict=True) / path.parent.name, who)
        return parse_request(data), ""
    except files.Absent:
        return None, ""
    except (files.Untrusted, OSError) as error:
        return None, f"the request does not count: {error}"
    except RequestBroken as error:
        return None, f"the request is broken: {error}"


def book_of(folder: Path) -> tuple[Book | None, str]:
    """What was done; or why that is not known. No book: nothing was done yet."""
    try:
        return books.parse(files.read(folder / books.FILE, {0}, books.MOST_BYTES)), ""
    except files.Absent:
        return Book(), ""
    except files.Untrusted as error:
        return None, str(error)
    except BookBroken as error:
        return None, f"{folder / books.FILE}: {error}"


def stops(path: Path, why: str) -> str:
    said = files.stands(path)
    return f"{why}: {said}" if said else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon said: as facts, and as it said it."""

    standing: Standing | None
    trouble: str
    status: Mapping[str, object]


class Recover:
    """One attempt."""

    def __init__(self, config: Config, *, dry: bool) -> None:
        self._config = config
        self._settings = config.recovery
        self._dry = dry
        self._drain: Scheduler = cluster.of(config.recovery.drain, config)

    def run(self) -> int:
        request, trouble = request_of(self._config)
        if request is None and not trouble:
            if self._dry:
                print("would do nothing: there is no request")
            else:
                say("info", "recovery_idle", why="there is no request")
            return 0
        with ExitStack() as stack:
            if not self._dry:
                try:
                    files.prepare(self._settings.state, readers())
                    stack.enter_context(files.held(self._settings.state))
                except files.Untrusted as error:
                    say(
                        "error",
                        "recovery_refused",
                        why=f"the folder of the book cannot be used: {error}",
                    )
                    return EX_UNAVAILABLE
            facts, wish = self._facts(request, trouble)
            decision = decide(facts)
            if decision.step is Step.DRAIN and not self._dry:
                say("warning", "recovery_draining", **_about(request), by=str(self._settings.drain))
                # All is asked once more: it may have taken its time, and somebody may have thrown
                # the switch.
                facts, wish = self._facts(request, trouble, drained=self._drain.drain(wish))
                decision = decide(facts)
            if decision.step is not Step.ACT or self._dry or request is None or facts.book is None:
                self._tell(decision, request, facts.now)
                return 0
            return self._act(decision, request, facts.book, facts.now, wish)

    def _facts(
        self, request: Request | None, trouble: str, drained: Node | None = None
    ) -> tuple[Facts, Wish]:
        settings = self._settings
        now, clock_trouble = self._clock()
        answer = self._ask()
        wish = Wish(
            action=request.kind.value if request is not None else "",
            request=request.id if request is not None else "",
            verdict=answer.status,
            boot_id=now.boot_id,
        )
        book, book_trouble = book_of(settings.state)
        if book is not None and (forgets := files.forgets(nearest(settings.state))):
            book, book_trouble = None, forgets
        standing = answer.standing
        if standing is not None:
            standing = replace(
                standing,
                jobs=tuple(
                    dict.fromkeys((*standing.jobs, *cluster.steps(self._config.paths.procfs)))
                ),
            )
        automatic = settings.mode == "automatic"
        facts = Facts(
            now=now,
            automatic=automatic,
            kill_switch=clock_trouble or stops(settings.kill_switch, "the kill switch is thrown"),
            maintenance=stops(settings.maintenance, "the node is under maintenance"),
            request=request,
            request_trouble=trouble,
            book=book,
            book_trouble=book_trouble,
            standing=standing,
            standing_trouble=answer.trouble,
            # Who is not to act need not ask the scheduler either.
            node=drained or (self._look(wish) if automatic and request is not None else Node()),
            reboots_per_day=settings.reboots_per_day,
            replacements_per_day=settings.replacements_per_day,
            device_reset=self._config.policy.device_reset,
            replaceable=settings.replace.word != "none",
            elsewhere="[slurm] hyperpod = true: HyperPod reboots this node"
            if self._config.slurm.hyperpod
            else "",
        )
        return facts, wish

    def _look(self, wish: Wish) -> Node:
        trouble = cluster.cut_off(self._settings.drain, self._settings.replace)
        return Node(trouble=trouble) if trouble else self._drain.look(wish)

    def _clock(self) -> tuple[Clock, str]:
        try:
            return clock(self._config), ""
        except OSError as error:
            return Clock(
                wall=time.time(), uptime=0.0, boot_id=""
            ), f"which boot this is cannot be told: {error.strerror}"

    def _ask(self) -> Answer:
        """The daemon's own word, over a socket that only it and root can have put there."""
        path = self._config.socket_path
        asking = argparse.Namespace(socket=path, timeout=_ANSWER_S)
        try:
            place = path.parent.resolve(strict=True)
            files.judge_folders(place, client.owners())
            found = (place / path.name).lstat()
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in client.owners():
                return Answer(None, f"{path} is not the daemon's socket", {})
            status = client.status(asking)
            findings = client.ask(asking, "/v1/findings", limit=_OPEN)
            jobs = client.ask(asking, "/v1/jobs", limit=_OPEN)
            return Answer(standing_of(status, findings, jobs), "", status)
        except (client.NoAnswer, client.Refused, files.Untrusted) as error:
            return Answer(None, str(error), {})
        except OSError as error:
            return Answer(None, f"{path}: {error.strerror}", {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return Answer(
                None, f"its answer is not understood: {type(error).__name__}: {error}", {}
            )

    def _act(self, decision: Decision, request: Request, book: Book, now: Clock, wish: Wish) -> int:
        entry = Entry(
            id=request.id,
            kind=request.kind,
            causes=request.causes,
            time=now.wall,
            uptime=now.uptime,
            boot_id=now.boot_id,
        )
        try:
            fresh = book.with_entry(entry, now)
            files.write_durably(self._settings.state / books.FILE, books.render(fresh), readers())
        except (OSError, BookBroken) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            refused = replace(
                decision,
                step=Step.REFUSED,
                because=(("book", f"it cannot be written down: {said}"),),
            )
            self._tell(refused, request, now)
            return EX_UNAVAILABLE
        self._tell(decision, request, now, decision_log.BEGUN)
        if request.kind is Kind.REPLACE:
            trouble = cluster.of(self._settings.replace, self._config).mark(wish)
        else:
            trouble = programs.run(
                self._settings.reboot.argv,
                self._settings.deadline_s,
                wish.told(cluster.name_of(self._config)),
            ).trouble
        self._tell(decision, request, now, f"failed: {trouble}" if trouble else "done")
        return EX_UNAVAILABLE if trouble else 0

    def _tell(
        self, decision: Decision, request: Request | None, now: Clock, outcome: str = ""
    ) -> None:
        """In the log, and where `vitald recovery` finds it."""
        told = decision_log.told(decision, request, now.boot_id, now.wall, outcome)
        if self._dry:  # for a person, who reads no log
            print(in_words(told, would=True))
            return
        level = (
            "error"
            if outcome.startswith("failed")
            else "info"
            if decision.step is Step.REFUSED
            else "warning"
        )
        say(
            level,
            "recovery_decided",
            **{key: told[key] for key in ("action", "step", "why", "outcome", "checks", "request")},
            **_about(request),
        )
        try:
            decision_log.add(self._settings.state, told, readers())
        except OSError as error:
            say("error", "recovery_not_recorded", why=error.strerror)


def standing_of(
    status: schema.NodeStatus, findings: schema.Findings, jobs: schema.Jobs
) -> Standing:
    """What the daemon's answers say. Raises KeyError, TypeError, ValueError, AttributeError for
    what is none.
    """
    found = {
        _int(one["id"]): Told(
            component=str(one["component"]),
            code=str(one["code"]),
            action=str(one["action"]),
            state=str(one["state"]),
            # Only a plain no is one.
            simulated=one["simulated"] is not False,
            deferred=one["accepted"] is not None
            or (one["when"] == "maintenance" and one["unusable"] is not True),
            confirmed=one.get("confirmed") is True,
        )
        for one in findings["findings"]
    }
    drills = any(one.simulated for one in found.values())
    released = [
        str(one["detail"] or "released") for one in status["sources"] if one["state"] == "released"
    ]
    running = [
        f"job {one['job']}" + (f" of {one['user']}" if one["user"] else "")
        for one in jobs["running"]
    ]
    return Standing(
        findings=found,
        reboot_required=status["rebootRequired"] is True,
        replacement_required=status["replacementRequired"] is True,
        reboot_confirmed=status.get("rebootConfirmed") is True,
        replacement_confirmed=status.get("replacementConfirmed") is True,
        # Where no finding is a drill's, it is what is read that is not real.
        simulated=status["simulated"] is not False and not drills,
        released="; ".join(released),
        jobs=tuple(running),
        boot_id=str(status["bootId"]),
    )


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def nearest(folder: Path) -> Path:
    """The folder, or that in which it will be made."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())


def _about(request: Request | None) -> Json:
    if request is None:
        return {}
    return {"findings": [one.words for one in request.grounds[:8]], "asked_by": request.who}


def in_words(told: Json, *, would: bool = False) -> str:
    """A decision on one line, for people."""
    action, why, outcome = told.get("action"), told.get("why"), told.get("outcome")
    what = {"reboot": "reboot the node", "replace": "have the node replaced"}.get(
        str(action), "nothing that can be read was asked for"
    )
    step = str(told.get("step"))
    if step == Step.ACT.value:
        said = f"would {what}" if would else f"{what}: {outcome}"
    elif step == Step.DRAIN.value:
        said = (
            f"would keep new work away, and then {what} once nothing runs here"
            if would
            else f"drain, to {what}"
        )
    elif step == Step.WAIT.value:
        said = f"{what}: waits: {why}"
    else:
        said = f"{'would refuse' if would else 'refused'} to {what}: {why}"
    times = told.get("times")
    return render.safe(said + (f" ({times} times)" if isinstance(times, int) and times > 1 else ""))


def say(level: str, event: str, **pairs: object) -> None:
    """A line of log as the daemon writes them. Not by its library: what runs as root imports
    nothing that is not ours or Python's.
    """
    told = {"event": event, **pairs, "level": level, "timestamp": format_rfc3339(time.time())}
    print(json.dumps(told, default=str), file=sys.stderr, flush=True)
