"""What `vitald diag` prints: all checks at a glance, and one run in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from vitald.cli import render
from vitald.text import join_ranges

if TYPE_CHECKING:
    from vitald.server import schema

_OUTCOMES = {
    "pass": ("PASS", "green"),
    "fail": ("FAIL", "red"),
    "config": ("SETTINGS ARE WRONG", "yellow"),
    "inconclusive": ("NO VERDICT", "magenta"),
    "error": ("DID NOT RUN", "magenta"),
    "not_applicable": ("NOT APPLICABLE", "yellow"),
    "preempted": ("MADE ROOM", "magenta"),
}
MEANING = {
    "config": "the hardware was not found at fault; settings or the environment were",
    "inconclusive": "nothing failed, and not all that was asked for was tested: this is no pass",
    "error": "it did not run, or not to its end: this is no pass",
    "not_applicable": "the node cannot be tested in its present mode",
    "preempted": "it ended early, to give the devices back: this says nothing of the hardware",
}
_DRASTIC = ("reset_gpu", "reboot", "replace")
TODO = {
    "retry": "run it again",
    "monitor": "keep an eye on it",
    "fix_config": "put the settings right, then run it again",
    "exclusive_rerun": "run it again with nobody else on the node",
    "investigate": "somebody must look into it",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the node",
    "replace": "replace the node",
}
_FAULTS, _MEASURES, _NAME = 16, 32, 28


def words(one: schema.DiagnosticAsk) -> str:
    """`dcgm level 2`, `dcgm level 2 on GPU 3`, `nccl`."""
    level = f" level {one['level']}" if one["level"] else ""
    return f"{render.safe(one['check'])}{level}{_on(one['gpus'])}"


def _on(gpus: Sequence[int]) -> str:
    return f" on GPU{'s' if len(gpus) > 1 else ''} {join_ranges(gpus)}" if gpus else ""


def span(seconds: float) -> str:
    """`45 s`, `3 min 10 s`, `1 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min{f' {whole % 60} s' if whole % 60 else ''}"
    minutes = whole % 3600 // 60
    return f"{whole // 3600} h{f' {minutes} min' if minutes else ''}"


def _asked(one: schema.DiagnosticAsk) -> str:
    """By whom, and what for."""
    reason = f": {render.safe(one['reason'])}" if one["reason"] else ""
    return f"{render.safe(one['by'])}{reason}"


def outcome(run: schema.DiagnosticRun) -> str:
    return "preempted" if run["preempted"] else str(run["outcome"])


def outcome_word(outcome: str, columns: int = 0) -> str:
    word, colour = _OUTCOMES.get(outcome, (outcome.upper(), "bold"))
    return render.colour(word.ljust(columns), "bold", colour)


# --- all of them


def overview(answer: schema.Diagnostics, runs: Sequence[schema.DiagnosticRun]) -> Iterator[str]:
    checks = answer["checks"]
    going = answer["going"]
    last = {(one["check"], one["level"]): one for one in answer["last"]}
    due = {(one["check"], one["level"]): one for one in answer["due"]}
    rows = []
    for check in checks:
        for level in check["levels"] or [0]:
            key = (check["name"], level)
            mine = next((one for one in going if (one["check"], one["level"]) == key), None)
            rows.append(_check_row(check, level, last.get(key), due.get(key), mine))
    yield from table(("check", "level", "last", "took", "every", "next"), rows)
    if answer["blocked"]:
        yield ""
        yield f"what needs idle devices waits: {render.safe(answer['blocked'])}"
    if going:
        yield ""
        for one in going:
            stage = "waits" if one["stage"] == "waiting" else "runs "
            yield f"{stage}  {words(one)}  {render.safe(one['id'])}, asked by {_asked(one)}"
    yield ""
    if not runs:
        yield "no run is remembered"
        return
    titles = ("began", "run", "outcome", "took", "why", "asked by", "id")
    yield from table(titles, [_run_row(run) for run in runs])


def _check_row(
    check: schema.DiagnosticCheck,
    level: int,
    last: schema.DiagnosticRun | None,
    due: schema.DiagnosticDue | None,
    going: schema.DiagnosticGoing | None,
) -> tuple[str, ...]:
    every = check["every"].get(str(level), 0.0)
    if going is not None and going["stage"] != "waiting":
        coming = f"runs: {span(going['elapsed'])} of about {span(going['expected'])}"
    elif going is not None:
        coming = f"waits for {render.safe(going['waitsFor']) or 'its turn'}"
    elif check["missing"]:
        coming = f"cannot run: {render.safe(check['missing'])}"
    elif due is not None:
        coming = _when(due["at"]) + (
            f", waits for {render.safe(due['waitsFor'])}" if due["waitsFor"] else ""
        )
    else:
        coming = "not scheduled" if every else "on request"
    return (
        render.safe(check["name"]),
        str(level) if level else "-",
        (
            f"{_OUTCOMES.get(outcome(last), (outcome(last),))[0].lower()},"
            f" {render.age(last['ended'])} ago"
            if last is not None
            else "never"
        ),
        span(last["seconds"]) if last is not None else "-",
        span(every) if every and not check["missing"] else "-",
        coming,
    )


def _run_row(run: schema.DiagnosticRun) -> tuple[str, ...]:
    why = render.safe(run["why"]) or (
        f"made room for {render.safe(run['preempted'])}" if run["preempted"] else ""
    )
    took = span(run["seconds"])
    return (
        render.clock(run["began"]),
        words(run),
        _OUTCOMES.get(outcome(run), (outcome(run),))[0].lower(),
        took,
        render.cut(why, 60),
        render.cut(render.safe(run["by"]), 24),
        render.safe(run["id"]),
    )


def _when(moment: object) -> str:
    when = render.parse(moment)
    if when is None:
        return "-"
    left = (when - datetime.now(timezone.utc)).total_seconds()
    return f"in {span(left)}" if left > 0 else "now"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The last column is as long as it is."""
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    for number, row in enumerate((titles, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        yield render.colour(line, "dim") if number == 0 else line


# --- one of them


def full(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    """The outcome first, then why, then what was tested."""
    culprits = run["culprits"]
    blamed = f"  GPU {join_ranges(culprits)}" if culprits else ""
    yield (
        f"{render.colour(words(run), 'bold')} "
        f" {outcome_word(outcome(run))}{render.colour(blamed, 'bold')}  took {span(run['seconds'])}"
    )
    yield from _told(run)
    tests = run["tests"]
    if tests:
        yield ""
        yield from _tests(tests)
    faults = run["faults"]
    if faults:
        yield ""
        for fault in faults[:_FAULTS]:
            yield from _fault(fault)
        if len(faults) > _FAULTS:
            yield (
                f"  and {len(faults) - _FAULTS} more: vitald diag show {render.safe(run['id'])}"
                " --json"
            )
    measures = run["measures"]
    if measures:
        yield ""
        yield from table(
            ("  measured", "device", "value", "", "must be"),
            [_measure(one) for one in measures[:_MEASURES]],
        )
        if len(measures) > _MEASURES:
            yield (
                f"  and {len(measures) - _MEASURES} more: vitald diag show {render.safe(run['id'])}"
                " --json"
            )
    yield ""
    yield from _footer(run)


def _told(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    meaning = MEANING.get(outcome(run), "")
    columns = max(40, min(render.width(), 120) - 9)
    if run["preempted"]:
        yield f"  for    {render.safe(run['preempted'])}"
    if run["why"]:
        yield from _wrapped("why", str(run["why"]), columns)
    if meaning:
        yield f"  means  {meaning}"
    asking = [_waits(fault) for fault in run.get("faults", []) if fault["action"] == run["action"]]
    yield from todo(
        str(run["action"]),
        reboot=bool(run["rebootRequired"]),
        replace=bool(run["replacementRequired"]),
        confirm=asking,
    )


def todo(action: str, *, reboot: bool, replace: bool, confirm: Sequence[bool]) -> Iterator[str]:
    """What a run by itself asks for. `confirm`: of each fault that asks for it, whether it must be
    found twice.
    """
    words = TODO.get(action, "" if action == "none" else action)
    flags = [
        word for word, on in (("reboot required", reboot), ("replacement required", replace)) if on
    ]
    also = f" ({', '.join(flags)})" if flags else ""
    if words or flags:
        yield f"  do     {render.colour(words, 'bold')}{once(action, confirm)}{also}"


def once(action: str, confirm: Sequence[bool]) -> str:
    """Nothing drastic is done for what one run has found, where the catalogue wants to see it
    twice.
    """
    return (
        ", once a second run has found it too"
        if action in _DRASTIC and confirm and all(confirm)
        else ""
    )


def _wrapped(label: str, text: str, columns: int) -> Iterator[str]:
    import textwrap

    for number, line in enumerate(textwrap.wrap(render.safe(text), columns)[:8]):
        yield f"  {label if number == 0 else '':<6} {line}"


def _tests(tests: Sequence[schema.DiagnosticTest]) -> Iterator[str]:
    columns = max(len(render.cut(render.safe(test["name"]), _NAME)) for test in tests)
    for test in tests:
        name = render.cut(render.safe(test["name"]), _NAME).ljust(columns)
        parts = [
            part
            for part in (_by_status("GPU", test["gpus"]), _by_status("CPU", test["cpus"]))
            if part
        ]
        yield f"  {name}  {'; '.join(parts) or _status(str(test['status']) or 'no status')}"


def _by_status(kind: str, statuses: Mapping[str, str]) -> str:
    """`Pass` where all agree; else who has which, the most frequent last."""
    by: dict[str, list[int]] = {}
    for device, status in statuses.items():
        by.setdefault(str(status), []).append(int(device) if device.isdecimal() else -1)
    if not by:
        return ""
    if len(by) == 1:
        ((status, devices),) = by.items()
        return f"{_status(status)}  {kind} {join_ranges(devices)}"
    ordered = sorted(by.items(), key=lambda one: (one[0].lower() == "pass", len(one[1])))
    return ", ".join(
        f"{_status(status)} {kind} {join_ranges(devices)}" for status, devices in ordered
    )


def _waits(fault: schema.DiagnosticFault) -> bool:
    """Whether a second run must find it first. A daemon that is older says nothing of an earlier
    run.
    """
    return bool(fault["confirm"]) and not fault.get("confirmed")


def _status(status: str) -> str:
    colours = {"pass": "green", "fail": "red", "warn": "yellow"}
    return render.colour(render.safe(status), *filter(None, [colours.get(status.strip().lower())]))


def _fault(fault: schema.DiagnosticFault) -> Iterator[str]:
    who = (
        f"GPU {fault['gpu']}"
        if fault["gpu"] is not None
        else render.safe(fault["device"]) or "node"
    )
    known = [f"error {fault['errorId']}" if fault["errorId"] is not None else ""]
    known += [f"severity {fault['severity']}" if fault["severity"] is not None else ""]
    known += [
        (
            "counts once two runs have found it"
            if _waits(fault)
            else "found by an earlier run, too"
            if fault["confirm"]
            else ""
        )
    ]
    more = f"  ({', '.join(filter(None, known))})" if any(known) else ""
    yield (
        f"  {render.colour(who, 'bold')}  {render.safe(fault['test'])} "
        f" {render.colour(render.safe(fault['code']), 'dim')}{more}"
    )
    yield from _wrapped("", str(fault["text"]), max(40, min(render.width(), 120) - 9))


def _measure(measure: schema.DiagnosticMeasure) -> tuple[str, ...]:
    name, value = str(measure["name"]), measure["value"]
    least, most = measure["least"], measure["most"]
    limits = [
        f"at least {figure(name, least)}" if least is not None else "",
        f"at most {figure(name, most)}" if most is not None else "",
    ]
    if not isinstance(value, (int, float)):
        mark = "?"
    elif (least is not None and value < least) or (most is not None and value > most):
        mark = "BAD"
    else:
        mark = ""
    shown = figure(name, value) if isinstance(value, (int, float)) else "-"
    return (
        f"  {render.safe(name)}",
        render.safe(measure["device"]) or "-",
        shown,
        mark,
        " and ".join(filter(None, limits)) or "-",
    )


def figure(name: str, value: float) -> str:
    """In the unit that people use, by the name's own."""
    if name.endswith("_bytes_per_second"):
        return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.2f} MB/s"
    if name.endswith("_seconds"):
        return f"{value * 1e6:.1f} us" if value < 1e-2 else f"{value:.3f} s"
    return f"{value:.6g}"


def _footer(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    versions = [
        f"{title} {render.safe(said)}"
        for title, said in (("DCGM", run["dcgmVersion"]), ("driver", run["driverVersion"]))
        if said
    ]
    code = run["exitCode"]
    ended = (
        "no program was started"
        if code is None
        else f"exit code {code}"
        if code >= 0
        else f"ended by signal {-code}"
    )
    lines = [
        f"asked by {_asked(run)}",
        f"began {render.clock(run['began'])}, {', '.join([ended, *versions])}",
        f"{render.safe(run['command'])}" if run["command"] else "",
        f"what it printed: vitald diag show {render.safe(run['id'])} --raw" if run["raw"] else "",
    ]
    for line in filter(None, lines):
        yield render.colour(f"  {render.cut(line, 400)}", "dim")
