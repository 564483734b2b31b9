"""
What `vitald diag list` and `vitald diag show` print: the checks of this node, the queue, the last
runs, and one run in full; and the words that all of `vitald diag` uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from vitald.cli import render
from vitald.cli.render import format_table
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
EXIT = {"pass": 0, "config": 10, "not_applicable": 10, "fail": 20, "inconclusive": 30, "error": 30}
MEANINGS = {
    "config": "the hardware was not found at fault; settings or the environment were",
    "inconclusive": "nothing failed, but not everything requested was tested: this is no pass",
    "error": "it did not run, or not to its end: this is no pass",
    "not_applicable": "the node cannot be tested in its present mode",
    "preempted": "it ended early, to release the devices: this says nothing about the hardware",
}
_DISRUPTIVE = ("reset_gpu", "reboot", "replace")
ACTIONS = {
    "retry": "run it again",
    "monitor": "keep an eye on it",
    "fix_config": "correct the settings, then run it again",
    "exclusive_rerun": "run it again while nothing else uses the node",
    "investigate": "investigate by hand",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the node",
    "replace": "replace the node",
}
_MAX_FAULTS, _MAX_MEASURES = 16, 32
_MAX_NAME, _MAX_COLUMNS, _MAX_LINES = 28, 120, 8
_STATUS_COLOURS = {"pass": "green", "fail": "red", "warn": "yellow"}
_CHECK_TITLES = ("check", "level", "last", "took", "every", "next")
_RUN_TITLES = ("began", "run", "outcome", "took", "id", "requested by", "why")
_MAX_WHY = 160  # characters; the whole reason is in `vitald diag show`


def format_name(run: schema.DiagnosticRequest) -> str:
    """`dcgm level 2`, `dcgm level 2 on GPU 3`, `nccl`."""
    level = f" level {run['level']}" if run["level"] else ""
    return f"{render.escape_text(run['check'])}{level}{_format_gpus(run['gpus'])}"


def _format_gpus(gpus: Sequence[int]) -> str:
    if not gpus:
        return ""
    return f" on GPU{'s' if len(gpus) > 1 else ''} {join_ranges(gpus)}"


def format_duration(seconds: float) -> str:
    """`45 s`, `3 min 10 s`, `1 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_requester(run: schema.DiagnosticRequest) -> str:
    """The caller, and the reason given."""
    reason = f": {render.escape_text(run['reason'])}" if run["reason"] else ""
    return f"{render.escape_text(run['by'])}{reason}"


def find_outcome(run: schema.DiagnosticRun) -> str:
    return "preempted" if run["preempted"] else str(run["outcome"])


def format_outcome(outcome: str) -> str:
    """The outcome in capitals and colour."""
    word, colour = _OUTCOMES.get(outcome, (outcome.upper(), "bold"))
    return render.colour_text(word, "bold", colour)


def name_outcome(run: schema.DiagnosticRun) -> str:
    """The outcome in a row of a table."""
    outcome = find_outcome(run)
    return _OUTCOMES.get(outcome, (outcome,))[0].lower()


def format_run(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    """The outcome first, then why, then what was tested."""
    culprits = run["culprits"]
    blamed = render.colour_text(f"  GPU {join_ranges(culprits)}" if culprits else "", "bold")
    name, outcome = render.colour_text(format_name(run), "bold"), format_outcome(find_outcome(run))
    yield f"{name}  {outcome}{blamed}  took {format_duration(run['seconds'])}"
    yield from _format_reason(run)
    if run["tests"]:
        yield ""
        yield from _format_tests(run["tests"])
    faults = run["faults"]
    if faults:
        yield ""
        for fault in faults[:_MAX_FAULTS]:
            yield from _format_fault(fault)
        yield from _format_more(run, len(faults) - _MAX_FAULTS)
    measures = run["measures"]
    if measures:
        yield ""
        rows = [_build_measure_row(measure) for measure in measures[:_MAX_MEASURES]]
        yield from format_table(("  measured", "device", "value", "", "must be"), rows)
        yield from _format_more(run, len(measures) - _MAX_MEASURES)
    yield ""
    yield from _format_footer(run)


def _format_more(run: schema.DiagnosticRunInFull, count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count} more: vitald diag show {render.escape_text(run['id'])} --json"


def _format_reason(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    meaning = MEANINGS.get(find_outcome(run), "")
    if run["preempted"]:
        yield f"  for    {render.escape_text(run['preempted'])}"
    if run["why"]:
        yield from wrap_text("why", str(run["why"]), get_text_columns())
    if meaning:
        yield f"  means  {meaning}"
    faults = [fault for fault in run.get("faults", []) if fault["action"] == run["action"]]
    yield from format_action(
        str(run["action"]),
        reboot=bool(run["rebootRequired"]),
        replace=bool(run["replacementRequired"]),
        confirm=[_needs_second_run(fault) for fault in faults],
    )


def format_action(
    action: str, *, reboot: bool, replace: bool, confirm: Sequence[bool]
) -> Iterator[str]:
    """The action that one run requires. `confirm`: for each fault that requires it, whether a
    second run must find it first.
    """
    text = ACTIONS.get(action, "" if action == "none" else action)
    flags = []
    if reboot:
        flags.append("reboot required")
    if replace:
        flags.append("replacement required")
    if text or flags:
        flagged = f" ({', '.join(flags)})" if flags else ""
        confirmation = format_confirmation(action, confirm)
        yield f"  do     {render.colour_text(text, 'bold')}{confirmation}{flagged}"


def format_confirmation(action: str, confirm: Sequence[bool]) -> str:
    """A disruptive action waits for a second run if the catalogue demands that of every fault."""
    if action in _DISRUPTIVE and confirm and all(confirm):
        return ", once a second run has found it too"
    return ""


def get_text_columns() -> int:
    """Columns for text behind a label."""
    return max(40, min(render.get_width(), _MAX_COLUMNS) - 9)


def wrap_text(label: str, text: str, columns: int) -> Iterator[str]:
    """The text behind its label, on a few lines of so many columns."""
    import textwrap

    for number, line in enumerate(textwrap.wrap(render.escape_text(text), columns)[:_MAX_LINES]):
        yield f"  {label if number == 0 else '':<6} {line}"


def _format_tests(tests: Sequence[schema.DiagnosticTest]) -> Iterator[str]:
    names = [render.cut_text(render.escape_text(test["name"]), _MAX_NAME) for test in tests]
    columns = max(map(len, names))
    for name, test in zip(names, tests):
        by_kind = (_group_by_status("GPU", test["gpus"]), _group_by_status("CPU", test["cpus"]))
        statuses = "; ".join(filter(None, by_kind))
        if not statuses:
            statuses = _colour_status(str(test["status"]) or "no status")
        yield f"  {name.ljust(columns)}  {statuses}"


def _group_by_status(kind: str, statuses: Mapping[str, str]) -> str:
    """`Pass  GPU 0-7` if all agree; else the devices of each status, passes last."""
    devices: dict[str, list[int]] = {}
    for device, status in statuses.items():
        devices.setdefault(str(status), []).append(int(device) if device.isdecimal() else -1)
    if len(devices) == 1:
        ((status, numbers),) = devices.items()
        return f"{_colour_status(status)}  {kind} {join_ranges(numbers)}"
    ordered = sorted(devices.items(), key=lambda item: (item[0].lower() == "pass", len(item[1])))
    return ", ".join(
        f"{_colour_status(status)} {kind} {join_ranges(numbers)}" for status, numbers in ordered
    )


def _needs_second_run(fault: schema.DiagnosticFault) -> bool:
    """Whether a second run must find it first."""
    return fault["confirm"] and not fault["confirmed"]


def _colour_status(status: str) -> str:
    colour = _STATUS_COLOURS.get(status.strip().lower())
    text = render.escape_text(status)
    return render.colour_text(text, colour) if colour else text


def _format_fault(fault: schema.DiagnosticFault) -> Iterator[str]:
    device = render.escape_text(fault["device"]) or "node"
    if fault["gpu"] is not None:
        device = f"GPU {fault['gpu']}"
    details = _list_details(fault)
    more = f"  ({', '.join(details)})" if details else ""
    test, code = render.escape_text(fault["test"]), render.escape_text(fault["code"])
    heading = render.colour_text(device, "bold")
    yield f"  {heading}  {test}  {render.colour_text(code, 'dim')}{more}"
    yield from wrap_text("", str(fault["text"]), get_text_columns())


def _list_details(fault: schema.DiagnosticFault) -> list[str]:
    details = []
    if fault["errorId"] is not None:
        details.append(f"error {fault['errorId']}")
    if fault["severity"] is not None:
        details.append(f"severity {fault['severity']}")
    if _needs_second_run(fault):
        details.append("counts once two runs have found it")
    elif fault["confirm"]:
        details.append("found by an earlier run, too")
    return details


def _build_measure_row(measure: schema.DiagnosticMeasure) -> tuple[str, ...]:
    name, value = str(measure["name"]), measure["value"]
    least, most = measure["minimum"], measure["maximum"]
    limits = []
    if least is not None:
        limits.append(f"at least {format_value(name, least)}")
    if most is not None:
        limits.append(f"at most {format_value(name, most)}")
    shown, mark = "-", "?"
    if isinstance(value, (int, float)):
        is_bad = (least is not None and value < least) or (most is not None and value > most)
        shown, mark = format_value(name, value), "BAD" if is_bad else ""
    device = render.escape_text(measure["device"]) or "-"
    return (f"  {render.escape_text(name)}", device, shown, mark, " and ".join(limits) or "-")


def format_value(name: str, value: float) -> str:
    """With the unit that people use; the name of the measure ends in its own."""
    if name.endswith("_bytes_per_second"):
        return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.2f} MB/s"
    if name.endswith("_seconds"):
        return f"{value * 1e6:.1f} us" if value < 1e-2 else f"{value:.3f} s"
    return f"{value:.6g}"


def _format_footer(run: schema.DiagnosticRunInFull) -> Iterator[str]:
    ended = [_describe_end(run["exitCode"])]
    for title, version in (("DCGM", run["dcgmVersion"]), ("driver", run["driverVersion"])):
        if version:
            ended.append(f"{title} {render.escape_text(version)}")
    lines = [
        f"requested by {format_requester(run)}",
        f"began {render.describe_time(run['began'])}, {', '.join(ended)}",
    ]
    if run["command"]:
        lines.append(render.escape_text(run["command"]))
    if run["raw"]:
        lines.append(f"what it printed: vitald diag show {render.escape_text(run['id'])} --raw")
    for line in lines:
        yield render.colour_text(f"  {render.cut_text(line, 400)}", "dim")


def _describe_end(exit_code: int | None) -> str:
    if exit_code is None:
        return "no exit code"  # none was started, or its end is not known
    return f"exit code {exit_code}" if exit_code >= 0 else f"ended by signal {-exit_code}"


def format_overview(
    answer: schema.ApiDiagnostics, runs: Sequence[schema.DiagnosticRun]
) -> Iterator[str]:
    yield from format_table(_CHECK_TITLES, _build_check_rows(answer))
    if answer["blocked"]:
        yield ""
        yield f"what needs idle devices waits: {render.escape_text(answer['blocked'])}"
    if answer["active"]:
        yield ""
        for active in answer["active"]:
            waiting = active["stage"] == "waiting"
            name, id_ = format_name(active), render.escape_text(active["id"])
            since = f"requested {render.format_age(active['requestedAt'])} ago"
            by = format_requester(active)
            yield f"{'waits' if waiting else 'runs '}  {name}  {id_}, {since} by {by}"
            if waiting and active["waitsFor"]:
                yield f"       for {render.escape_text(active['waitsFor'])}"
    yield ""
    if not runs:
        yield "no runs yet"
        return
    yield from format_table(_RUN_TITLES, [_build_run_row(run) for run in runs])


def _build_check_rows(answer: schema.ApiDiagnostics) -> list[tuple[str, ...]]:
    last = {(run["check"], run["level"]): run for run in answer["last"]}
    due = {(run["check"], run["level"]): run for run in answer["scheduled"]}
    rows = []
    for check in answer["checks"]:
        for level in check["levels"] or [0]:
            key = (check["name"], level)
            active = next(
                (run for run in answer["active"] if (run["check"], run["level"]) == key), None
            )
            coming = _describe_next(check, level, due.get(key), active)
            rows.append(_build_check_row(check, level, last.get(key), coming))
    return rows


def _build_check_row(
    check: schema.DiagnosticCheck, level: int, last: schema.DiagnosticRun | None, coming: str
) -> tuple[str, ...]:
    every = check["every"].get(str(level), 0.0)
    ended, took = "never", "-"
    if last is not None:
        ended = f"{name_outcome(last)}, {render.format_age(last['ended'])} ago"
        took = format_duration(last["seconds"])
    return (
        render.escape_text(check["name"]),
        str(level) if level else "-",
        ended,
        took,
        format_duration(every) if every and not check["missing"] else "-",
        coming,
    )


def _describe_next(
    check: schema.DiagnosticCheck,
    level: int,
    due: schema.ScheduledDiagnostic | None,
    active: schema.ActiveDiagnostic | None,
) -> str:
    """The run that is active or queued; else when the next is due, or why there is none."""
    if active is not None and active["stage"] == "waiting":
        waits = f"waits for {render.escape_text(active['waitsFor']) or 'its turn'}"
        coming = _format_due(due["at"]) if due is not None else ""
        return f"{coming}, {waits}" if coming.startswith("in ") else waits
    if active is not None:
        expected = format_duration(active["expected"])
        return f"runs: {format_duration(active['elapsed'])} of about {expected}"
    if check["missing"]:
        return f"cannot run: {render.escape_text(check['missing'])}"
    if due is not None:
        waits = f", waits for {render.escape_text(due['waitsFor'])}" if due["waitsFor"] else ""
        return f"{_format_due(due['at'])}{waits}"
    return "not scheduled" if check["every"].get(str(level), 0.0) else "on request"


def _build_run_row(run: schema.DiagnosticRun) -> tuple[str, ...]:
    why = render.escape_text(run["why"])
    if not why and run["preempted"]:
        why = f"made room for {render.escape_text(run['preempted'])}"
    return (
        render.describe_time(run["began"]),
        format_name(run),
        name_outcome(run),
        format_duration(run["seconds"]),
        render.escape_text(run["id"]),
        render.escape_text(run["by"]),
        render.cut_text(why, _MAX_WHY),
    )


def _format_due(moment: object) -> str:
    when = render.parse_time(moment)
    if when is None:
        return "-"
    left = (when - datetime.now(timezone.utc)).total_seconds()
    return f"in {format_duration(left)}" if left > 0 else "now"
