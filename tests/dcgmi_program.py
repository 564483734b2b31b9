"""
The stand-in for `dcgmi`, as a program. `tests/dcgmi.py` copies it into a folder, with a scenario
beside it; standard library only.

It plays the client and, where a scenario says so, what the client leaves behind. The same file
under the name `nvvs` plays the diagnostic that the engine runs: no child of the client's, in a
session of its own, holding the lock that keeps a second run out.
"""

# ruff: noqa: PTH109, PTH115, PTH119, PTH120, PTH208
# pathlib takes longer to import than all of this.

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

HERE = os.path.dirname(os.path.realpath(__file__))
_ALIASES = {
    "--run": "-r",
    "--json": "-j",
    "--list": "-l",
    "--set": "-s",
    "--check": "-c",
    "--entity-id": "-i",
    "--gpuList": "-i",
}
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_CHUNK = b"0123456789abcdef" * 4095 + b"0123456789abcd\n"


def main() -> NoReturn:
    if os.path.basename(sys.argv[0]) == "nvvs":
        time.sleep(float(sys.argv[1]))
        sys.exit(0)
    with open(f"{HERE}/scenario.json", encoding="utf-8") as file:
        scenario = json.load(file)
    words = words_of(sys.argv[1:])
    key = _matching(words, scenario["answers"])
    answer = _turn(scenario["answers"][key]) if key is not None else _unknown(words)
    begun = {
        "argv": sys.argv,
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "fds": _fds(),
        **_ids(),
    }
    _play(answer, scenario, words, begun)


def words_of(argv: list[str]) -> list[str]:
    """With the options' short names: `--run=2` is `-r 2`."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        words += [_ALIASES.get(name, name), *([value] if equals else [])]
    return words


def _matching(words: list[str], answers: dict[str, Any]) -> str | None:
    """The answer with the most words that fits: the same first word, and each option somewhere in
    the call with the value after it.
    """
    fit = [(len(key.split()), key) for key in answers if _fits(key.split(), words)]
    return max(fit)[1] if fit else None


def _fits(wanted: list[str], words: list[str]) -> bool:
    if wanted[:1] != words[:1]:
        return False
    starts = [number for number, word in enumerate(wanted) if number == 0 or word.startswith("-")]
    parts = [wanted[start:end] for start, end in zip(starts, [*starts[1:], len(wanted)])]
    return all(
        any(words[at : at + len(part)] == part for at in range(len(words))) for part in parts
    )


def _turn(entry: dict[str, Any]) -> dict[str, Any]:
    """The next of an entry's answers; the last one stays."""
    with open(f"{HERE}/turns.json", "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        turns = json.loads(file.read() or "{}")
        number = turns.get(entry["id"], 0)
        turns[entry["id"]] = number + 1
        file.seek(0)
        file.truncate()
        file.write(json.dumps(turns))
    answer: dict[str, Any] = entry["answers"][min(number, len(entry["answers"]) - 1)]
    return answer


def _unknown(words: list[str]) -> dict[str, Any]:
    """As the tool answers to what it does not know."""
    text = (
        f"PARSE ERROR: {' '.join(words)}\n              An error occurred trying to parse the"
        " command line.\n"
    )
    return {"stderr": text, "exit_code": 254 if words[:1] == ["diag"] else 255}


def _note(what: dict[str, Any]) -> None:
    with open(f"{HERE}/calls.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), "pid": os.getpid(), **what}) + "\n")


def _fds() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _ids() -> dict[str, int]:
    return {"group": os.getpgrp(), "session": os.getsid(0), "uid": os.getuid()}


def _play(
    answer: dict[str, Any], scenario: dict[str, Any], words: list[str], begun: dict[str, Any]
) -> NoReturn:
    """The start is logged once its children run and its signal handlers are set."""
    lock = _lock() if answer.get("alone") else None
    if answer.get("alone") and lock is None:
        _note(begun)
        _print(1, scenario["busy"]["stdout"])
        _end(scenario["busy"]["exit_code"])
    diagnostic = _leave(answer, lock)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    _mind_signals(answer, scenario, diagnostic)
    _note(begun)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    _sleep(answer.get("delay_s", 0.0))
    if answer.get("flood"):
        _flood(answer["flood"])
    if answer.get("stderr"):
        _print(2, answer["stderr"])
    if answer.get("stdout"):
        _print(1, _only(answer["stdout"], words), answer.get("slow_s", 0.0))
    if answer.get("hang"):
        while True:
            signal.pause()
    _stop(diagnostic)  # the run has ended, and the engine's program with it
    if answer.get("signal"):
        (
            signal.signal(answer["signal"], signal.SIG_DFL)
            if answer["signal"]
            not in (
                signal.SIGKILL,
                signal.SIGSTOP,
            )
            else None
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [answer["signal"]])
        os.kill(os.getpid(), answer["signal"])
        time.sleep(60)
    _end(answer.get("exit_code", 0))


def _lock() -> int | None:
    """Held for as long as anybody who inherited it lives."""
    fd = os.open(f"{HERE}/lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _leave(answer: dict[str, Any], lock: int | None) -> int:
    """Start what the client leaves behind. Returns the number of the engine's diagnostic, or 0."""
    seconds = str(answer.get("leaves_s", 300.0))
    kind = answer.get("leaves", "")
    program = f"{HERE}/nvvs"
    if kind == "child":  # in the client's own group
        _fork(lambda: os.execv(program, [program, seconds]))
    elif kind == "deaf child":
        _fork(lambda: _exec_deaf(program, seconds))
    elif kind == "session":  # escapes the group and the session, and holds stdout open
        _fork(lambda: _escape(program, seconds))
    elif kind == "daemon":  # the same, as nobody's child: double fork
        os.waitpid(_fork(lambda: _escape(program, seconds, twice=True)), 0)
    elif kind == "engine":  # what the engine runs: none of the client's environment, and the lock
        reading, writing = os.pipe()

        def start() -> None:
            os.setsid()
            pid = _fork(lambda: _as_engine(program, seconds, lock, bool(answer.get("deaf_engine"))))
            os.write(writing, str(pid).encode())
            os._exit(0)

        os.waitpid(_fork(start), 0)
        return int(os.read(reading, 32))
    return 0


def _escape(program: str, seconds: str, *, twice: bool = False) -> None:
    os.setsid()
    if twice:
        _fork(lambda: _exec_deaf(program, seconds))
        os._exit(0)
    _exec_deaf(program, seconds)


def _exec_deaf(program: str, seconds: str) -> None:
    _ignore_signals()
    os.execv(program, [program, seconds])


def _ignore_signals() -> None:
    """Programs that are executed later ignore them too."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _as_engine(program: str, seconds: str, lock: int | None, deaf: bool) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if lock is not None:
        os.set_inheritable(lock, True)
    if deaf:
        _ignore_signals()
    os.execve(program, [program, seconds], {"PATH": "/usr/bin:/bin"})


def _fork(job: Any) -> int:
    """Returns once the child has executed its program, or has exited."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            job()
        finally:
            os._exit(99)
    with open(f"{HERE}/left", "a", encoding="utf-8") as file:
        file.write(f"{pid}\n")
    os.close(writing)
    os.read(reading, 1)  # executing a program closes the other end, as exiting does
    os.close(reading)
    return pid


def _mind_signals(answer: dict[str, Any], scenario: dict[str, Any], diagnostic: int) -> None:
    """SIGTERM and its like: deaf, or an error object after some time, or as any program."""

    def stopped(number: int, _frame: object) -> None:
        _note({"signal": number})
        if answer.get("ignores_term"):
            return
        for other in _STOPPING:
            signal.signal(other, lambda number, _frame: _note({"signal": number}))
        _sleep(answer["stops_s"])
        _stop(diagnostic)
        _print(1, scenario["stopped"]["stdout"])
        _end(scenario["stopped"]["exit_code"])

    if answer.get("ignores_term") or answer.get("stops_s") is not None:
        for number in _STOPPING:
            signal.signal(number, stopped)


def _stop(diagnostic: int) -> None:
    """As the engine does: it waits for the end of what it ran before it answers."""
    if diagnostic:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(diagnostic)
            os.kill(diagnostic, signal.SIGKILL)
            select.select([fd], [], [])
            os.close(fd)


def _only(text: str, words: list[str]) -> str:
    """A document of the GPUs that `-i` names. What is no document is printed as it is."""
    if "-i" not in words[:-1] or not text.startswith("{"):
        return text
    named = words[words.index("-i") + 1].split(",")
    wanted = {
        int(name.removeprefix("gpu:")) for name in named if name.removeprefix("gpu:").isdigit()
    }
    if len(wanted) != len(named):
        return text
    return printed(_pruned(json.loads(text), wanted)) + "\n"


def _pruned(value: Any, wanted: set[int]) -> Any:
    """Without the results and the devices of other GPUs."""
    if isinstance(value, dict):
        if "GPU Device IDs" in value:
            ids = [one for number, one in enumerate(value["GPU Device IDs"]) if number in wanted]
            serials = {
                number: one
                for number, one in value.get("GPU Device Serials", {}).items()
                if int(number) in wanted
            }
            value = {**value, "GPU Device IDs": ids, "GPU Device Serials": serials}
        return {key: _pruned(one, wanted) for key, one in value.items()}
    if isinstance(value, list):
        return [_pruned(one, wanted) for one in value if not _other(one, wanted)]
    return value


def _other(one: Any, wanted: set[int]) -> bool:
    if not isinstance(one, dict):
        return False
    number = one.get("gpu_id") if isinstance(one.get("gpu_id"), str) else one.get("entity_id")
    return number is not None and int(number) not in wanted


def printed(value: Any, depth: int = 0) -> str:
    """As the tool prints: tabs, a space on both sides of the colon, containers on a line of their
    own.
    """
    if not isinstance(value, (dict, list)):
        return json.dumps(value)
    tabs, ends = "\t" * depth, "{}" if isinstance(value, dict) else "[]"
    if not value:
        return ends
    inner = []
    for one in sorted(value) if isinstance(value, dict) else value:
        if isinstance(value, list):
            inner.append(f"{tabs}\t{printed(one, depth + 1)}")
        elif isinstance(value[one], (dict, list)) and value[one]:
            inner.append(f"{tabs}\t{json.dumps(one)} : \n{tabs}\t{printed(value[one], depth + 1)}")
        else:
            inner.append(f"{tabs}\t{json.dumps(one)} : {json.dumps(value[one])}")
    return ends[0] + "\n" + ",\n".join(inner) + f"\n{tabs}{ends[1]}"


def _print(fd: int, text: str, seconds: float = 0.0) -> None:
    """All of it; where `seconds` are given, in that many steps of a tenth."""
    raw = text.encode("utf-8", "surrogateescape")
    steps = max(1, round(seconds * 10))
    size = -(-len(raw) // steps)
    for number in range(steps):
        _write(fd, raw[number * size : (number + 1) * size])
        if seconds:
            _sleep(0.1)


def _write(fd: int, raw: bytes) -> None:
    while raw:
        raw = raw[os.write(fd, raw) :]


def _flood(size: int) -> None:
    for _ in range(size // len(_CHUNK)):
        _write(1, _CHUNK)
    _write(1, _CHUNK[-(size % len(_CHUNK)) :] if size % len(_CHUNK) else b"")


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def _end(code: int) -> NoReturn:
    _note({"exit_code": code})
    os._exit(code)


if __name__ == "__main__":
    main()
