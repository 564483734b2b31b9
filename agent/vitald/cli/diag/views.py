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
MEANINGS = {
    "config": "the hardware was not found at fault; settings or the environment were",
    "inconclusive": "nothing failed, and not all that was asked for was tested: this is no pass",
    "error": "it did not run, or not to its end: this is no pass",
    "not_applicable": "the node cannot be tested in its present mode",
    "preempted": "it ended early, to give the devices back: this says nothing of the hardware",
}
_DISRUPTIVE = ("reset_gpu", "reboot", "replace")
ACTIONS = {
    "retry": "run it again",
    "monitor": "keep an eye on it",
    "fix_config": "put the settings right, then run it again",
    "exclusive_rerun": "run it again with nobody else on the node",
    "investigate": "somebody must look into it",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the node",
    "replace": "replace the node",
}
_MAX_FAULTS, _MAX_MEASURES, _MAX_NAME = 16, 32, 28


def format_name(one: schema.DiagnosticAsk) -> str:
    """`dcgm level 2`, `dcgm level 2 on GPU 3`, `nccl`."""
    level = f" level {one['level']}" if one["level"] else ""
    return f"{render.escape_text(one['check'])}{level}{_format_gpus(one['gpus'])}"


def _format_gpus(gpus: Sequence[int]) -> str:
    return f" on GPU{'s' if len(gpus) > 1 else ''} {join_ranges(gpus)}" if gpus else ""


def format_duration(seconds: float) -> str:
    """`45 s`, `3 min 10 s`, `1 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min{f' {whole % 60} s' if whole % 60 else ''}"
    minutes = whole % 3600 // 60
    return f"{whole // 3600} h{f' {minutes} min' if minutes else ''}"


def _format_requester(one: schema.DiagnosticAsk) -> str:
    """By whom, and what for."""
    reason = f": {render.escape_text(one['reason'])}" if one["reason"] else ""
    return f"{render.escape_text(one['by'])}{reason}"


def find_outcome(run: schema.DiagnosticRun) -> str:
    return "preempted" if run["preempted"] else str(run["outcome"])


def format_outcome(outcome: str, columns: int = 0) -> str:
    word, colour = _OUTCOMES.get(outcome, (outcome.upper(), "bold"))
    return render.colour_text(word.ljust(columns), "bold", colour)


# --- all of them


def format_overview(
    answer: schema.Diagnostics, runs: Sequence[schema.DiagnosticRun]
) -> Iterator[str]:
    checks = answer["checks"]
    going = answer["going"]
    last = {(one["check"], one["level"]): one for one in answer["last"]}
    due = {(one["check"], one["level"]): one for one in answer["due"]}
    rows = []
    for check in checks:
        for level in check["levels"] or [0]:
            key = (check["name"], level)
            mine = next((one for one in going if (one["check"], one["level"]) == key), None)
            rows.append(_build_check_row(check, level, last.get(key), due.get(key), mine))
    yield from format_table(("check", "level", "last", "took", "every", "next"), rows)
    if answer["blocked"]:
        yield ""
        yield f"what needs idle devices waits: {render.escape_text(answer['blocked'])}"
    if going:
        yield ""
        for one in going:
            stage = "waits" if one["stage"] == "waiting" else "runs "
            yield f"{stage}  {format_name(one)}  {render.escape_text(one['id'])}, asked by {_format_requester(one)}"
    yield ""
    if not runs:
        yield "no run is remembered"
        return
    titles = ("began", "run", "outcome", "took", "why", "asked by", "id")
    yield from format_table(titles, [_build_run_row(run) for run in runs])


def _build_check_row(
    check: schema.DiagnosticCheck,
    level: int,
    last: schema.DiagnosticRun | None,
    due: schema.DiagnosticDue | None,
    going: schema.DiagnosticGoing | None,
) -> tuple[str, ...]:
    every = check["every"].get(str(level), 0.0)
    if going is not None and going["stage"] != "waiting":
        coming = f"runs: {format_duration(going['elapsed'])} of about {format_duration(going['expected'])}"
    elif going is not None:
        coming = f"waits for {render.escape_text(going['waitsFor']) or 'its turn'}"
    elif check["missing"]:
        coming = f"cannot run: {render.escape_text(check['missing'])}"
    elif due is not None:
        coming = _format_due(due["at"]) + (
            f", waits for {render.escape_text(due['waitsFor'])}" if due["waitsFor"] else ""
        )
    else:
        coming = "not scheduled" if every else "on request"
    return (
        render.escape_text(check["name"]),
        str(level) if level else "-",
        (
            f"{_OUTCOMES.get(find_outcome(last), (find_outcome(last),))[0].lower()},"
            f" {render.format_age(last['ended'])} ago"
            if last is not None
            else "never"
        ),
        format_duration(last["seconds"]) if last is not None else "-",
        format_duration(every) if every and not check["missing"] else "-",
        coming,
    )


def _build_run_row(run: schema.DiagnosticRun) -> tuple[str, ...]:
    why = render.escape_text(run["why"]) or (
        f"made room for {render.escape_text(run['preempted'])}" if run["preempted"] else ""
    )
    took = format_duration(run["seconds"])
    return (
        render.format_time(run["began"]),
        format_name(run),
        _OUTCOMES.get(find_outcome(run), (find_outcome(run),))[0].lower(),
        took,
        render.cut_text(why, 60),
        render.cut_text(render.escape_text(run["by"]), 24),
        render.escape_text(run["id"]),
    )


def _format_due(moment: object) -> str:
    when = render.parse_time(moment)
    if when is None:
        return "-"
    left = (when - datetime.now(timezone.utc)).total_seconds()
    return f"in {format_duration(left)}" if left > 0 else "now"


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The last column is as long as it is."""
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    for number, row in enumerate((titles, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        yield render.colour_text(line, "dim") if number == 0 else line


# --- one of them


def format_run(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    """The outcome first, then why, then what was tested."""
    culprits = run["culprits"]
    blamed = f"  GPU {join_ranges(culprits)}" if culprits else ""
    yield (
        f"{render.colour_text(format_name(run), 'bold')} "
        f" {format_outcome(find_outcome(run))}{render.colour_text(blamed, 'bold')}  took {format_duration(run['seconds'])}"
    )
    yield from _format_reason(run)
    tests = run["tests"]
    if tests:
        yield ""
        yield from _format_tests(tests)
    faults = run["faults"]
    if faults:
        yield ""
        for fault in faults[:_MAX_FAULTS]:
            yield from _format_fault(fault)
        if len(faults) > _MAX_FAULTS:
            yield (
                f"  and {len(faults) - _MAX_FAULTS} more: vitald diag show {render.escape_text(run['id'])}"
                " --json"
            )
    measures = run["measures"]
    if measures:
        yield ""
        yield from format_table(
            ("  measured", "device", "value", "", "must be"),
            [_build_measure_row(one) for one in measures[:_MAX_MEASURES]],
        )
        if len(measures) > _MAX_MEASURES:
            yield (
                f"  and {len(measures) - _MAX_MEASURES} more: vitald diag show {render.escape_text(run['id'])}"
                " --json"
            )
    yield ""
    yield from _format_footer(run)


def _format_reason(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    meaning = MEANINGS.get(find_outcome(run), "")
    columns = max(40, min(render.get_width(), 120) - 9)
    if run["preempted"]:
        yield f"  for    {render.escape_text(run['preempted'])}"
    if run["why"]:
        yield from wrap_text("why", str(run["why"]), columns)
    if meaning:
        yield f"  means  {meaning}"
    asking = [
        _needs_second_run(fault)
        for fault in run.get("faults", [])
        if fault["action"] == run["action"]
    ]
    yield from format_action(
        str(run["action"]),
        reboot=bool(run["rebootRequired"]),
        replace=bool(run["replacementRequired"]),
        confirm=asking,
    )


def format_action(
    action: str, *, reboot: bool, replace: bool, confirm: Sequence[bool]
) -> Iterator[str]:
    """What a run by itself asks for. `confirm`: of each fault that asks for it, whether it must be
    found twice.
    """
    words = ACTIONS.get(action, "" if action == "none" else action)
    flags = [
        word for word, on in (("reboot required", reboot), ("replacement required", replace)) if on
    ]
    also = f" ({', '.join(flags)})" if flags else ""
    if words or flags:
        yield f"  do     {render.colour_text(words, 'bold')}{format_confirmation(action, confirm)}{also}"


def format_confirmation(action: str, confirm: Sequence[bool]) -> str:
    """Nothing drastic is done for what one run has found, where the catalogue wants to see it
    twice.
    """
    return (
        ", once a second run has found it too"
        if action in _DISRUPTIVE and confirm and all(confirm)
        else ""
    )


def wrap_text(label: str, text: str, columns: int) -> Iterator[str]:
    import textwrap

    for number, line in enumerate(textwrap.wrap(render.escape_text(text), columns)[:8]):
        yield f"  {label if number == 0 else '':<6} {line}"


def _format_tests(tests: Sequence[schema.DiagnosticTest]) -> Iterator[str]:
    columns = max(
        len(render.cut_text(render.escape_text(test["name"]), _MAX_NAME)) for test in tests
    )
    for test in tests:
        name = render.cut_text(render.escape_text(test["name"]), _MAX_NAME).ljust(columns)
        parts = [
            part
            for part in (
                _group_by_status("GPU", test["gpus"]),
                _group_by_status("CPU", test["cpus"]),
            )
            if part
        ]
        yield f"  {name}  {'; '.join(parts) or _colour_status(str(test['status']) or 'no status')}"


def _group_by_status(kind: str, statuses: Mapping[str, str]) -> str:
    """`Pass` where all agree; else who has which, the most frequent last."""
    by: dict[str, list[int]] = {}
    for device, status in statuses.items():
        by.setdefault(str(status), []).append(int(device) if device.isdecimal() else -1)
    if not by:
        return ""
    if len(by) == 1:
        ((status, devices),) = by.items()
        return f"{_colour_status(status)}  {kind} {join_ranges(devices)}"
    ordered = sorted(by.items(), key=lambda one: (one[0].lower() == "pass", len(one[1])))
    return ", ".join(
        f"{_colour_status(status)} {kind} {join_ranges(devices)}" for status, devices in ordered
    )


def _needs_second_run(fault: schema.DiagnosticFault) -> bool:
    """Whether a second run must find it first. A daemon that is older says nothing of an earlier
    run.
    """
    return bool(fault["confirm"]) and not fault.get("confirmed")


def _colour_status(status: str) -> str:
    colours = {"pass": "green", "fail": "red", "warn": "yellow"}
    return render.colour_text(
        render.escape_text(status), *filter(None, [colours.get(status.strip().lower())])
    )


def _format_fault(fault: schema.DiagnosticFault) -> Iterator[str]:
    who = (
        f"GPU {fault['gpu']}"
        if fault["gpu"] is not None
        else render.escape_text(fault["device"]) or "node"
    )
    known = [f"error {fault['errorId']}" if fault["errorId"] is not None else ""]
    known += [f"severity {fault['severity']}" if fault["severity"] is not None else ""]
    known += [
        (
            "counts once two runs have found it"
            if _needs_second_run(fault)
            else "found by an earlier run, too"
            if fault["confirm"]
            else ""
        )
    ]
    more = f"  ({', '.join(filter(None, known))})" if any(known) else ""
    yield (
        f"  {render.colour_text(who, 'bold')}  {render.escape_text(fault['test'])} "
        f" {render.colour_text(render.escape_text(fault['code']), 'dim')}{more}"
    )
    yield from wrap_text("", str(fault["text"]), max(40, min(render.get_width(), 120) - 9))


def _build_measure_row(measure: schema.DiagnosticMeasure) -> tuple[str, ...]:
    name, value = str(measure["name"]), measure["value"]
    least, most = measure["least"], measure["most"]
    limits = [
        f"at least {format_value(name, least)}" if least is not None else "",
        f"at most {format_value(name, most)}" if most is not None else "",
    ]
    if not isinstance(value, (int, float)):
        mark = "?"
    elif (least is not None and value < least) or (most is not None and value > most):
        mark = "BAD"
    else:
        mark = ""
    shown = format_value(name, value) if isinstance(value, (int, float)) else "-"
    return (
        f"  {render.escape_text(name)}",
        render.escape_text(measure["device"]) or "-",
        shown,
        mark,
        " and ".join(filter(None, limits)) or "-",
    )


def format_value(name: str, value: float) -> str:
    """In the unit that people use, by the name's own."""
    if name.endswith("_bytes_per_second"):
        return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.2f} MB/s"
    if name.endswith("_seconds"):
        return f"{value * 1e6:.1f} us" if value < 1e-2 else f"{value:.3f} s"
    return f"{value:.6g}"


def _format_footer(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    versions = [
        f"{title} {render.escape_text(said)}"
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
        f"asked by {_format_requester(run)}",
        f"began {render.format_time(run['began'])}, {', '.join([ended, *versions])}",
        f"{render.escape_text(run['command'])}" if run["command"] else "",
        f"what it printed: vitald diag show {render.escape_text(run['id'])} --raw"
        if run["raw"]
        else "",
    ]
    for line in filter(None, lines):
        yield render.colour_text(f"  {render.cut_text(line, 400)}", "dim")
