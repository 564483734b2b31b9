"""
`vitald slurm prolog|epilog|health`: what the scripts of packaging/slurm call, as root, on the node.

    prolog   0 the job may begin, 20 it may not: the node has been drained with our reason (or somebody else had done so)
    epilog   always 0: the job's end is noted, and a diagnostic asked for where the job failed
    health   always 0: drains a node that is unfit, and resumes one that we drained and that is fit again

A refusal is 20 and never 1: a traceback exits 1, and a broken installation must not drain a whole cluster. The script turns
20 into what Slurm wants. Everything has a deadline, scontrol too; where vitald does not know, the configuration decides.

Owns     what is said to Slurm: which nodes may be touched, and with what words.
Refuses  judging, and waiting for Slurm: a node that somebody else holds is left as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from vitald import toml
from vitald.cli import client, render
from vitald.cli.render import Json

T = TypeVar("T")

_CONFIG = Path("/etc/vitald/config.toml")
RECORD = Path("/var/lib/vitald-recover/slurm-reason")  # root's own folder: the reason that we gave the node last
_RECORD_VARIABLE = "VITALD_SLURM_RECORD"  # where it is instead
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"  # slurmd gives its scripts none
_REFUSED = 20
_SCONTROL_S = 5.0
_ANSWER_S = 5.0  # where no job waits
_STARTING_S = 0.1  # what the interpreter and the script have taken of the budget already
_FOR_SCONTROL = 0.25  # of the prolog's budget
_POLL_S = 0.05
_REASON = 200
_HELD = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILG", "FAILING", "ERROR"}
_ACTION = "Action:"  # HyperPod acts on a node whose reason begins so: nobody may touch it meanwhile
_REBOOT, _REPLACE = "Action:Reboot", "Action:Replace"  # exactly: with anything around them they are not seen
_TERM = 15
_NO_JOB = "Invalid job id"
_JOB_STATE = re.compile(r" JobState=([A-Z_]+)")
_OVER = {  # PENDING: it was requeued, and is to begin anew
    *(
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PENDING",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ),
}
_UNTOLD_MOST = 16  # in one turn of the health check
_LOG, _WARNING = "/dev/log", 3 << 3 | 4  # facility daemon


class Settings(NamedTuple):
    """[slurm] of the configuration file, and where the daemon listens. A test holds the defaults to those of vitald.config, which costs too much here."""

    unknown: str = "allow"
    level_1_age_s: float = 0.0
    budget_s: float = 2.0
    level_2_after_failure: bool = True
    reason: str = "vitald"
    hyperpod: bool = False
    socket: Path | None = None
    record: Path | None = None  # where the reason that we gave last is kept; None: nowhere, and the prefix alone decides


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("edge", choices=[*_EDGES], metavar="prolog|epilog|health", help="which of Slurm's programs this is")
    parser.add_argument("--config", type=Path, default=_CONFIG, metavar="FILE", help=f"the daemon's configuration (default: {_CONFIG})")
    parser.add_argument("--socket", type=Path, default=None, metavar="PATH", help="the daemon's socket (default: as configured)")


def run(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    settings = Settings()
    edge = arguments.edge
    try:
        settings = read_settings(arguments.config)._replace(record=Path(os.environ.get(_RECORD_VARIABLE) or RECORD))
        asking = Asking(arguments.socket or settings.socket, begun + (settings.budget_s - _STARTING_S if edge == "prolog" else _ANSWER_S))
        return _EDGES[edge](settings, asking)
    except Exception as error:  # whatever is wrong with us is no reason to stop the cluster, nor to say that all is well
        said = f"{type(error).__name__}: {error}"
    return _undecided(settings, said) if edge == "prolog" else _tell(f"{edge}: not done: {said}")


def read_settings(path: Path) -> Settings:
    """What the file says. A file that is not there means the defaults; what is wrong in it is said, and the default holds."""
    if not path.exists():
        return Settings()
    try:
        tables = toml.read(path)[1]
    except ValueError as error:
        _tell(f"{error}: going by the defaults")
        return Settings()
    table, default = tables.get("slurm"), Settings()
    values = table if isinstance(table, dict) else {}

    def said(key: str, read: Callable[[object], T], otherwise: T) -> T:
        try:
            return read(values[key]) if key in values else otherwise
        except ValueError as error:
            _tell(f"{path}: [slurm] {key}: {error}: going by the default")
            return otherwise

    return Settings(
        unknown=said("unknown", _choice, default.unknown),
        level_1_age_s=said("level_1_age", _period, default.level_1_age_s),
        budget_s=said("budget", toml.duration, default.budget_s),
        level_2_after_failure=said("level_2_after_failure", _flag, default.level_2_after_failure),
        reason=said("reason", _text, default.reason),
        hyperpod=said("hyperpod", _flag, default.hyperpod),
        socket=_socket(tables),
    )


def _socket(tables: toml.Table) -> Path | None:
    for section, key, beside in (("socket", "path", ""), ("paths", "runtime", "vitald.sock")):
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            return Path(table[key]) / beside
    return None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a text, found {value!r}")
    return value


def _choice(value: object) -> str:
    if value not in ("allow", "refuse"):
        raise ValueError(f"{value!r} is none of allow, refuse")
    return str(value)


def _period(value: object) -> float:
    return 0.0 if value == "off" else toml.duration(value)


class Asking:
    """Asks the daemon until a moment on the monotonic clock, and no longer."""

    def __init__(self, socket: Path | None, end: float) -> None:
        self._socket = socket
        self._end = end

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def _within(self, share: float) -> argparse.Namespace:
        return argparse.Namespace(socket=self._socket, timeout=max(0.01, self.left * share))

    def verdict(self, share: float = 1.0) -> Any:
        """What it thinks of a job about to begin. Raises NoAnswer, Refused."""
        return client.status(self._within(share), work="prolog")

    def ask(self, path: str, body: Json | None = None, share: float = 1.0) -> Any:
        return client.ask(self._within(share), path, body)


# What is at each edge.


def prolog(settings: Settings, asking: Asking) -> int:
    """The cached verdict first: a job that may not begin need not pre-empt anything."""
    try:
        verdict = asking.verdict(1 - _FOR_SCONTROL)
    except (client.NoAnswer, client.Refused) as error:
        return _undecided(settings, str(error), asking.left)
    refused = _judged(settings, verdict, asking)
    if refused:
        return refused
    job = _job()
    if not job:
        return _tell("no SLURM_JOB_ID: not called by slurmd? The job was not noted")
    try:
        asking.ask("/v1/jobs", {"event": "begin", **job})
    except (client.NoAnswer, client.Refused) as error:
        return _tell(f"job {job['job']} may begin, but vitald did not say that the devices are free: {error}")
    if settings.level_1_age_s and _level_1(settings, asking, str(job["job"])):
        try:
            refused = _judged(settings, asking.verdict(1 - _FOR_SCONTROL), asking)
        except (client.NoAnswer, client.Refused) as error:
            return _tell(f"going by the verdict before the diagnostic: {error}")
        if refused:
            with suppress(client.NoAnswer, client.Refused):  # the epilog tells it, too
                asking.ask("/v1/jobs", {"event": "end", **job, "reason": "refused by the prolog"})
    return refused


def epilog(settings: Settings, asking: Asking) -> int:
    """How a job ended, for the record, and the diagnostic after one that failed. Nothing here is waited for."""
    job = _job()
    if not job:
        return _tell("no SLURM_JOB_ID: not called by slurmd?")
    try:
        answer = asking.ask("/v1/jobs", {"event": "end", **job, **_exit_state(str(job["job"])), "diagnose": settings.level_2_after_failure})
    except (client.NoAnswer, client.Refused) as error:
        return _tell(f"the end of job {job['job']} was not noted: {error}")
    diagnostic = answer.get("diagnostic")
    if isinstance(diagnostic, dict):
        asked = "asked for a level 2 diagnostic" if diagnostic.get("asked") else "no level 2 diagnostic"
        _tell(f"{asked}: {diagnostic.get('why')}")
    return 0


def health(settings: Settings, asking: Asking) -> int:
    """Drain what is unfit, resume what we drained, and tell the ends of jobs that nobody told."""
    try:
        _fitness(settings, asking)
    except (client.NoAnswer, client.Refused) as error:
        return _tell(f"unknown, nothing done: {error}")
    _untold(settings, asking)
    return 0


def _fitness(settings: Settings, asking: Asking) -> int:
    """Without a verdict nothing is done: silence is neither."""
    verdict = asking.verdict()
    status = verdict["status"]
    if status == "unknown":
        return _tell(f"unknown, nothing done: {_first(verdict)}")
    node = _node()
    known = look(node, _SCONTROL_S)
    if isinstance(known, str):
        return _tell(f"nothing done: {known}")
    if status == "unhealthy":
        return withdraw(settings, verdict, node, known, _SCONTROL_S)
    prefix = _prefix(settings)
    if not known.held:
        _forget_reason(settings)
    elif known.reason.startswith(prefix) and not is_ours(settings, known):
        _tell(f"{node}: not resumed: somebody changed our reason, so the node is theirs: {known.reason}")
    elif is_ours(settings, known):
        # Once more: a prolog may have drained it since we asked.
        status = asking.verdict()["status"]
        if status not in ("healthy", "degraded"):
            return _tell(f"{node}: not resumed: {status}")
        trouble = _scontrol(["update", f"nodename={node}", "state=resume"], _SCONTROL_S)[1]
        _tell(f"{node}: not resumed: {trouble}" if trouble else f"{node}: resumed: {status}; it was drained for: {known.reason}")
        if not trouble:
            _forget_reason(settings)
    if known.comment.startswith(prefix) and not known.reason.startswith(_ACTION):
        _scontrol(["update", f"nodename={node}", "comment="], _SCONTROL_S)
    return 0


def _untold(settings: Settings, asking: Asking) -> None:
    """Jobs whose epilog found no vitald to tell: a node on which one of them seems to run would never be idle again.

    One whose processes are here runs. Of the others Slurm is asked: a job may hold a node without a step.
    """
    try:
        running = [str(one["job"]) for one in cast("list[Json]", asking.ask("/v1/jobs")["running"])]
    except (client.NoAnswer, client.Refused):
        return
    if not running:
        return
    here = _steps()
    for job in [job for job in running if job.isascii() and job.isdigit() and job not in here][:_UNTOLD_MOST]:
        shown, trouble = _show_job(job, asking.left)
        state = _JOB_STATE.search(shown)
        if (trouble and _NO_JOB not in trouble) or (shown and (state is None or state[1] not in _OVER)):
            continue
        how = {"reason": "requeued"} if state is not None and state[1] == "PENDING" else exit_state_of(shown)
        body = {"event": "end", "job": job, **how, "diagnose": settings.level_2_after_failure}
        try:
            asking.ask("/v1/jobs", body)
        except (client.NoAnswer, client.Refused) as error:
            _tell(f"the end of job {job} was not noted: {error}")
        else:
            _tell(f"job {job} is over ({state[1] if state else 'Slurm does not know it any more'}), and nobody had told: noted")


_EDGES: dict[str, Callable[[Settings, Asking], int]] = {"prolog": prolog, "epilog": epilog, "health": health}


# What is done about a verdict.


def _judged(settings: Settings, verdict: Json, asking: Asking) -> int:
    """0 for a job that may begin."""
    if verdict["status"] == "unknown":
        return _undecided(settings, _first(verdict), asking.left)
    if verdict["status"] != "unhealthy":
        return 0
    _tell(f"refused: {_first(verdict)}")
    _drain(settings, verdict, asking.left)
    return _REFUSED


def _undecided(settings: Settings, why: str, left: float = _SCONTROL_S) -> int:
    """Nothing is known of the node: the configured choice."""
    if settings.unknown == "allow":
        return _tell(f"unknown, and jobs are let through then ([slurm] unknown): {why}")
    _tell(f"refused: unknown ([slurm] unknown): {why}")
    _drain(settings, {"status": "unknown", "reasons": [f"unknown: {why}"]}, left)
    return _REFUSED


def _drain(settings: Settings, verdict: Json, left: float) -> None:
    """Before Slurm drains it for the refusal, with words that say nothing. Where that fails or no time is left, Slurm's have to do."""
    try:
        node, end = _node(), time.monotonic() + left
        known = look(node, left)
        if isinstance(known, str):
            _tell(f"not drained with a reason: {known}")
        else:
            withdraw(settings, verdict, node, known, end - time.monotonic())
    except Exception as error:  # the job is refused all the same
        _tell(f"not drained with a reason: {type(error).__name__}: {error}")


class Known(NamedTuple):
    """A node as Slurm has it."""

    states: frozenset[str]
    reason: str
    comment: str = ""

    @property
    def held(self) -> bool:
        """Whether somebody has taken it out of service."""
        return bool(self.states & _HELD)


def withdraw(settings: Settings, verdict: Json, node: str, known: Known, seconds: float) -> int:
    """Take a node out of service with our reason. One that somebody else took out, or that HyperPod acts on, is left as it is."""
    ours = is_ours(settings, known)
    state = "+".join(sorted(known.states))
    if known.reason.startswith(_ACTION):
        return _tell(f"{node}: left alone: {known.reason} is under way")
    if known.held and not ours:
        return _tell(f"{node}: left alone: it is {state} already, for: {known.reason or 'no reason given'}")
    action = hyperpod_action(verdict) if settings.hyperpod else ""
    why = reason_of(settings, verdict)
    end, comment = time.monotonic() + seconds, list[str]()
    if action:
        # The reason must be these words and no others: what happened goes into the comment.
        change = ["state=fail", f"reason={action}"]
        if not known.comment or known.comment.startswith(_prefix(settings)):
            comment = [f"comment={why}"]
    elif not known.held:
        change = ["state=drain", f"reason={why}"]
    elif known.reason != why:
        change = [f"reason={why}"]
    else:
        return 0
    if not action:
        _keep_reasons(settings, known.reason, why)  # both, until Slurm has taken the new one
    # One call, and at once: between a look and this nothing keeps others from changing the node.
    trouble = _scontrol(["update", f"nodename={node}", *change, *comment], seconds / 2 if comment else seconds)[1]
    if trouble and comment:
        _tell(f"{node}: not with a comment: {trouble}")
        trouble = _scontrol(["update", f"nodename={node}", *change], end - time.monotonic())[1]
    if not trouble and not action:
        _keep_reasons(settings, why)
    return _tell(f"{node}: not drained: {trouble}" if trouble else f"{node}: {' '.join(change)}" + (f" ({why})" if action else ""))


def is_ours(settings: Settings, known: Known) -> bool:
    """Whether a node's reason is the one that we gave it. Where a person added a note to it, or put another behind our prefix, it is theirs.

    Where nothing was recorded, as after a boot without a disk, the prefix decides.
    """
    if not known.reason.startswith(_prefix(settings)):
        return False
    recorded = _recorded_reasons(settings)
    return not recorded or known.reason in recorded


def _recorded_reasons(settings: Settings) -> list[str]:
    if settings.record is None:
        return []
    try:
        return settings.record.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        _tell(f"{settings.record}: not read, going by the prefix: {error}")
        return []


def _keep_reasons(settings: Settings, *reasons: str) -> None:
    if settings.record is None:
        return
    try:
        settings.record.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        spare = settings.record.with_suffix(f".{os.getpid()}")
        spare.write_text("".join(f"{reason}\n" for reason in reasons if reason), encoding="utf-8")
        spare.replace(settings.record)
    except OSError as error:
        _tell(f"{settings.record}: not kept, so a note that somebody adds to our reason will not be noticed: {error}")


def _forget_reason(settings: Settings) -> None:
    if settings.record is not None:
        with suppress(OSError):
            settings.record.unlink(missing_ok=True)


def hyperpod_action(verdict: Json) -> str:
    """What HyperPod is to do; nothing for what asks for neither, or rests on the text of a log alone, and nothing for a drill: an
    instance is not replaced for one."""
    replace, reboot = verdict.get("replacementConfirmed") is True, verdict.get("rebootConfirmed") is True
    if verdict.get("simulated"):
        findings = cast("list[Json]", verdict.get("findings") or [])
        # Where no finding is a drill's, what is read is simulated: then nothing here is real.
        drills = any(one["simulated"] for one in findings)
        real = [one["action"] for one in findings if drills and one.get("confirmed") and not one["simulated"]]
        replace, reboot = replace and "replace_node" in real, reboot and "reboot_node" in real
    return _REPLACE if replace else _REBOOT if reboot else ""


def reason_of(settings: Settings, verdict: Json) -> str:
    """The strongest reason in one short line that Slurm prints as it is; it names the device and the finding."""
    plain = re.sub(r"[^\x20-\x7e]+", " ", _first(verdict))
    return f"{_prefix(settings)}{' '.join(plain.split())}"[:_REASON].rstrip(' "')  # scontrol takes a quote at the end for one of its own


def _prefix(settings: Settings) -> str:
    return f"{settings.reason}: "


def _first(verdict: Json) -> str:
    reasons = cast("list[str]", verdict["reasons"])
    return reasons[0] if reasons else str(verdict["status"])


def _level_1(settings: Settings, asking: Asking, job: str) -> bool:
    """Run a level 1 diagnostic where the last one is too old and there is time. Whether one ended."""
    from datetime import datetime, timezone

    try:
        shown = asking.ask("/v1/diagnostics")
        runs = cast("list[Json]", shown["last"])
        last = next((one for one in runs if (one["check"], one["level"]) == ("dcgm", 1)), None)
        going = _going(shown)
        # What one that has just ended found is in the verdict once it is going no more.
        if going is None or going["stage"] != "ending":
            ended = render.parse(last["ended"]) if last is not None else None
            if ended is not None and (datetime.now(timezone.utc) - ended).total_seconds() <= settings.level_1_age_s:
                return False
            time_left = asking.left - settings.budget_s * _FOR_SCONTROL
            if last is not None and cast("float", last["seconds"]) > time_left:
                _tell(f"no time for a level 1 diagnostic: the last one took {last['seconds']} s, and {max(0.0, time_left):.1f} s are left")
                return False
        going = going or _ask_level_1(asking, job)
        while asking.left > settings.budget_s * _FOR_SCONTROL:
            if all(one["id"] != going["id"] for one in cast("list[Json]", asking.ask("/v1/diagnostics")["going"])):
                return True
            time.sleep(_POLL_S)
        _tell("the level 1 diagnostic has not ended in time: going by the verdict before it")
    except (client.NoAnswer, client.Refused, KeyError, TypeError, ValueError) as error:
        _tell(f"no level 1 diagnostic: {error}")
    return False


def _ask_level_1(asking: Asking, job: str) -> Json:
    try:
        return cast("Json", asking.ask("/v1/diagnostics/run", {"check": "dcgm", "level": 1, "reason": f"the prolog of job {job}"})["going"])
    except client.Refused:
        going = _going(asking.ask("/v1/diagnostics"))  # the prolog of a job beside this one was quicker
        if going is None:
            raise
        return going


def _going(shown: Json) -> Json | None:
    """The level 1 that is asked for or runs already, whoever wanted it."""
    going = cast("list[Json]", shown["going"])
    return next((one for one in going if (one["check"], one["level"], one["gpus"]) == ("dcgm", 1, [])), None)


# What Slurm says.


def _node() -> str:
    import socket

    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def _job() -> Json:
    """The job that slurmd speaks of; empty where there is none."""
    environment = os.environ
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        return {}
    told: Json = {"job": job, "user": environment.get("SLURM_JOB_USER", "")}
    uid = environment.get("SLURM_JOB_UID", "")
    return {**told, "uid": int(uid)} if uid.isascii() and uid.isdigit() else told


def _exit_state(job: str) -> Json:
    """From the environment; slurmd 22.05 and later tell it there, and 0:0 for what was cancelled or ran out of time."""
    environment = os.environ
    found = re.fullmatch(r"([0-9]{1,3}):([0-9]{1,3})", environment.get("SLURM_JOB_EXIT_CODE2", ""))
    if found:
        return {"exitCode": int(found[1]), "signal": int(found[2])}
    status = environment.get("SLURM_JOB_EXIT_CODE", "")
    if status.isascii() and status.isdigit():
        return {"exitCode": int(status) >> 8 & 0xFF, "signal": int(status) & 0x7F}
    return exit_state_of(_show_job(job, 1.0)[0])


def _show_job(job: str, seconds: float) -> tuple[str, str]:
    """What `scontrol show job -o` says of it, and why it says nothing. By the number of an array or of a job of
    several components it prints them all, a line each."""
    shown, trouble = _scontrol(["show", "job", job, "-o"], seconds)
    return next((line for line in shown.splitlines() if line.startswith(f"JobId={job} ")), ""), trouble


def _steps() -> set[str]:
    """The jobs that have a process of Slurm's on this node."""
    found: set[str] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib costs twice as much
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/comm") as comm:
                if comm.read() != "slurmstepd\n":
                    continue
                with open(f"/proc/{name}/cmdline", "rb") as line:
                    match = re.match(rb"slurmstepd: \[([0-9]+)", line.read(64))
                    found |= {match[1].decode()} if match else set()
    return found


def exit_state_of(shown: str) -> Json:
    """The same of what `scontrol show job -o` prints; nothing where that says nothing."""
    found = re.search(r" ExitCode=([0-9]{1,3}):([0-9]{1,3})( |$)", shown)
    if not found:
        return {}
    reason = re.search(r" JobState=(\w+) Reason=(\w+)", shown)
    exit_code, signal = int(found[1]), int(found[2])
    words = {"reason": reason[2]} if reason and reason[2] != "None" else {}
    if signal == _TERM and not (reason and reason[2] in ("JobLaunchFailure", "NonZeroExitCode")):
        return {"exitCode": 0, "signal": 0, **words}  # scancel, or the time limit: no failure
    return {"exitCode": exit_code, "signal": signal, **words}


def look(node: str, seconds: float) -> Known | str:
    """A node's state and reason; or why they are not known."""
    shown, trouble = _scontrol(["show", "node", node], seconds)
    return trouble or read_node(shown) or f"scontrol shows no state of node {node}"


def read_node(shown: str) -> Known | None:
    """What `scontrol show node` prints. Behind the reason stands who set it, and when."""
    state = re.search(r"^\s+State=(\S+)", shown, re.MULTILINE)
    if state is None:
        return None
    reason, comment = (re.search(rf"^ +{word}=(.*)$", shown, re.MULTILINE) for word in ("Reason", "Comment"))
    told = re.sub(r" \[[^\[\]]*@[^\[\]]*\]$", "", reason[1]) if reason else ""
    return Known(frozenset(re.findall(r"[A-Z_]+", state[1])), told, comment[1] if comment else "")


def _scontrol(arguments: list[str], seconds: float) -> tuple[str, str]:
    """What it printed, and why it failed; empty where it did not."""
    import subprocess

    if seconds <= 0.0:
        return "", f"no time left to ask scontrol to {arguments[0]}"
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_PATH}".lstrip(":"), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["scontrol", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"scontrol did not answer within {seconds:.1f} s"
    except OSError as error:
        return "", f"scontrol cannot be run: {error.strerror}"
    shown = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace") or shown).strip().splitlines()
        return "", f"scontrol {arguments[0]} failed: {said[-1][:300] if said else f'exit {done.returncode}'}"
    return shown, ""


def _tell(text: str) -> int:
    """One line, on standard error and in the system's log: slurmd keeps only what a failed script printed. Returns 0, for what is no refusal."""
    import socket

    said = render.safe(text)
    print(f"vitald: {said}", file=sys.stderr, flush=True)
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)  # as syslog(3) does not: a log that hangs must not hold up a job
        log.connect(_LOG)
        log.send(f"<{_WARNING}>{time.strftime('%b %e %H:%M:%S')} vitald-slurm[{os.getpid()}]: {said}".encode())
    return 0
