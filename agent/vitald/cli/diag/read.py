"""
`vitald diag read FILE|-`: explain what dcgmi printed, on this machine or another. Needs no daemon.

The output is read as the daemon reads that of its own runs. Besides `dcgmi diag -j` it may be that
of `health -c -j`, `discovery -l`, `--version` or `-v`. Exit codes:

    0     pass
    10    correct the settings of the node first (config, not_applicable)
    20    fail
    30    no verdict: inconclusive, error
    2, 66, 78    wrong arguments, a file that cannot be read, a wrong configuration
"""

from __future__ import annotations

import argparse
import errno
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_NOINPUT, argument_types, config_options, render
from vitald.cli.diag import views
from vitald.cli.render import Json, format_table
from vitald.model.words import Remedy
from vitald.text import join_ranges

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.model.diagnostic import Fault, Report


_HEALTH_EXIT = {"Healthy": 0, "Warning": 10, "Failure": 20}
_MAX_BYTES = 64 * 1024 * 1024
_MAX_REASONS = 3
_HEALTH_COLOURS = {"Healthy": "green", "Warning": "yellow", "Failure": "red"}
_NO_VALUES: dict[str, Json] = {
    "health": {"health": None},
    "no engine": {"health": None, "gpu_count": None},
}
_COLOUR_CODES = re.compile(rb"\x1b\[[0-9;]{0,32}m")
_MAX_CODES, _MAX_TEXTS = 6, 2


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="its standard output, may be compressed; - is standard input",
    )
    parser.add_argument(
        "--exit-code",
        type=argument_types.parse_number(-64, 255),
        default=None,
        metavar="N",
        help="its exit code; negative: the signal that ended it",
    )
    parser.add_argument(
        "--level",
        type=argument_types.parse_number(1, 4),
        choices=(1, 2, 3, 4),
        default=None,
        help="the requested level (default: by the tests in the document)",
    )
    parser.add_argument(
        "--stderr",
        type=Path,
        default=None,
        metavar="FILE",
        help="its standard error",
    )
    parser.add_argument(
        "--of",
        choices=("diag", "health", "discovery", "version"),
        default=None,
        help="which command it was (default: detected)",
    )
    config_options.add_catalog_options(
        parser,
        config="take profile and overrides of the catalogue from this file",
        profile="read by another profile",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from vitald.config.file import find_default_file

    path = arguments.config or find_default_file()
    _, catalog = config_options.load_catalog(path, arguments.profile)
    try:
        printed = _read_content(arguments.file)
        stderr = _read_content(str(arguments.stderr)) if arguments.stderr is not None else b""
    except OSError as error:
        print(
            f"vitald: {render.escape_text(error.filename or arguments.file)}: {error.strerror}",
            file=sys.stderr,
        )
        return EX_NOINPUT
    kind = arguments.of or _detect_command(printed, arguments)
    if kind != "diag":
        return _report_answer(kind, printed.decode("utf-8", "replace"), arguments)
    return _report_diagnostic(printed, stderr, arguments, catalog)


def _read_content(file: str) -> bytes:
    """The output, unpacked, without colour codes."""
    from vitald.scan.opened_log import DAMAGED, open_log

    with open_log(file) as opened:
        try:
            return _COLOUR_CODES.sub(b"", opened.stream.read(_MAX_BYTES))
        except DAMAGED as error:
            raise OSError(errno.EIO, f"cut short or damaged ({error})", file) from error


def _detect_command(printed: bytes, arguments: argparse.Namespace) -> str:
    """Which command of dcgmi printed it."""
    from vitald.diagnostics.dcgm import dcgmi_output, short_answers
    from vitald.diagnostics.run import tool

    if arguments.level is not None:
        return "diag"
    text = printed[:1_000_000].decode("utf-8", "replace")
    if "body" in (tool.find_document(text) or {}) or short_answers.has_no_watches(text):
        return "health"
    found = dcgmi_output.read_output(printed)
    if found.documents or found.broken:
        return "diag"
    if short_answers.find_gpu_count(text) is not None:
        return "discovery"
    if short_answers.find_version(text):
        return "version"
    # health and discovery report a missing engine in the same two lines; diag does not.
    return (
        "no engine"
        if short_answers.has_no_engine(text) and "the specified host" in text
        else "diag"
    )


# --- the short answers


def _report_answer(kind: str, text: str, arguments: argparse.Namespace) -> int:
    answer, lines, code = _read_answer(kind, text)
    if arguments.json:
        render.emit_json(answer)
        return code
    if "error" in answer or not lines:
        word = render.colour_text("NO ANSWER", "bold", "magenta")
        lines = [f"{word}  {render.escape_text(answer['reason'])}"]
    print("\n".join(lines))
    return code


def _read_answer(kind: str, text: str) -> tuple[Json, list[str], int]:
    """A short answer as JSON, as lines for people, and the exit code."""
    from vitald.diagnostics.dcgm import short_answers

    if kind == "version":
        version = short_answers.find_version(text)
        reason = "" if version else "no version in it"
        lines = [f"dcgmi {render.escape_text(version)}"]
        return {"version": version or None, "reason": reason}, lines, 0 if version else 30
    if kind == "no engine" or short_answers.has_no_engine(text):
        reason = "nothing answers where DCGM's host engine should: systemctl start nvidia-dcgm"
        unreachable = {"error": "engine unreachable", "reason": reason}
        return {**_NO_VALUES.get(kind, {"gpu_count": None}), **unreachable}, [], 30
    if kind == "discovery":
        count = short_answers.find_gpu_count(text)
        lines = [f"{count} GPU{'' if count == 1 else 's'}"]
        reason = "" if count else "no GPU is listed"
        error: Json = {} if count is not None else {"error": "not understood"}
        return {"gpu_count": count, **error, "reason": reason}, lines, 0 if count else 30
    answer, lines = _read_health(text)
    return answer, lines, _HEALTH_EXIT.get(str(answer["health"]), 30)


def _read_health(text: str) -> tuple[Json, list[str]]:
    from vitald.diagnostics.checks import dcgm_health
    from vitald.diagnostics.dcgm import short_answers

    if short_answers.has_no_watches(text):
        reason = "DCGM's watches are not set: dcgmi health -g 0 -s a, and ask again after a minute"
        return {"health": None, "error": "watches not set", "reason": reason}, []
    answer = dcgm_health.read_answer(text)
    if answer is None or answer.overall not in _HEALTH_EXIT:
        reason = "it is no whole answer of dcgmi health"
        return {"health": None, "error": "not understood", "reason": reason}, []
    complaints = answer.complaints
    reason = "; ".join(
        f"{complaint.where} {complaint.system}: {complaint.text or complaint.value}".strip()
        for complaint in complaints[:_MAX_REASONS]
    )
    blamed: Json = {}
    if answer.overall != "Healthy":
        gpus = {complaint.gpu for complaint in complaints if complaint.gpu is not None}
        blamed = {"culprit_gpus": sorted(gpus)}
    word = render.colour_text(answer.overall.upper(), "bold", _HEALTH_COLOURS[answer.overall])
    lines = [f"{word}  dcgmi health"]
    for complaint in complaints:
        where, system = render.escape_text(complaint.where) or "-", complaint.system
        value, said = render.escape_text(complaint.value), render.escape_text(complaint.text)
        lines.append(f"  {where}  {render.escape_text(system)}: {value}  {said}")
    return {"health": answer.overall, **blamed, "reason": render.escape_text(reason)}, lines


# --- diag


def _report_diagnostic(
    printed: bytes, stderr: bytes, arguments: argparse.Namespace, catalog: Catalog
) -> int:
    from vitald.diagnostics.dcgm import reading
    from vitald.diagnostics.dcgm.meanings import Meanings

    report = reading.read_report(
        printed,
        Meanings(catalog),
        exit_code=arguments.exit_code,
        level=arguments.level,
        stderr=stderr,
    )
    notes = list(_list_notes(report, printed, arguments))
    if arguments.json:
        render.emit_json({**serialize_report(report), **({"notes": notes} if notes else {})})
        return views.EXIT[report.outcome.value]
    level = (arguments.level or _detect_level(report)) if report.tests else 0
    for line in format_report(report, level, catalog):
        print(line)
    if notes:
        print()
    for note in notes:
        print(render.colour_text(f"  note: {note}", "dim"))
    return views.EXIT[report.outcome.value]


def _detect_level(report: Report) -> int:
    """By the tests that are there; 0 if they are not those of any level."""
    from vitald.diagnostics.dcgm import run_context

    names = [test.name for test in report.tests]
    version = report.dcgm_version or ("4" if "software" in names else "3")
    if names and run_context.is_whole_level(names, version):
        return run_context.find_level(names)
    return 0


def serialize_report(report: Report) -> Json:
    """The report as JSON. Faults that were only concluded are not among its errors."""
    return {
        "outcome": report.outcome.value,
        "action": report.remedy.value,
        "reboot_required": report.reboot_required,
        "replacement_required": report.replacement_required,
        "dcgm_version": report.dcgm_version or None,
        "driver_version": report.driver_version or None,
        "device_ids": list(report.device_ids),
        "tests": {
            test.name: {
                "category": test.category or None,
                "status": test.status or None,
                "gpus": dict(test.gpus),
                "cpus": dict(test.cpus),
            }
            for test in report.tests
        },
        "errors": [
            {
                "test": fault.test,
                "gpu": None if fault.by_text else fault.gpu,
                "error_id": fault.error_id,
            }
            for fault in list_printed_faults(report)
        ],
        "culprit_gpus": list(report.culprits),
        "reason": report.reason,
    }


def list_printed_faults(report: Report) -> list[Fault]:
    """Each warning once, also where it names several GPUs."""
    found: dict[tuple[object, ...], Fault] = {}
    for fault in report.faults:
        if not fault.implied:
            gpu = None if fault.by_text else fault.gpu
            found.setdefault((fault.test, gpu, fault.device, fault.error_id, fault.text), fault)
    return list(found.values())


def _list_notes(report: Report, printed: bytes, arguments: argparse.Namespace) -> Iterator[str]:
    """The limits of this reading."""
    from vitald.diagnostics.dcgm import dcgmi_output, short_answers

    if report.tests and short_answers.has_no_engine(dcgmi_output.read_output(printed).outside):
        yield (
            "the requested host engine did not answer: this ran in a private engine, on the node"
            " where dcgmi was called"
        )
    if arguments.exit_code is None:
        yield "without --exit-code, a failure that the document does not show is missed"
    if report.tests and arguments.level is None:
        yield (
            "without --level, the level is derived from the tests in the document: a missing test"
            " is not noticed"
        )


def format_report(report: Report, level: int, catalog: Catalog) -> Iterator[str]:
    """The outcome, the GPUs at fault, the tests, and each kind of fault with what it means.

    `level`: 0 if it is not known.
    """
    yield from _format_outcome(report, level)
    yield from _format_gpus(report)
    yield from _format_tests(report)
    yield from _format_faults(report, catalog)


def _format_outcome(report: Report, level: int) -> Iterator[str]:
    about = [_name_run(report, level)]
    if report.dcgm_version:
        about.append(f"DCGM {report.dcgm_version}")
    if report.driver_version:
        about.append(f"driver {report.driver_version}")
    models = dict.fromkeys(report.device_ids)
    if models:
        about.append(", ".join(f"{report.device_ids.count(model)} x {model}" for model in models))
    outcome = report.outcome.value
    yield f"{views.format_outcome(outcome)}  {render.escape_text(', '.join(about))}"
    columns = views.get_text_columns()
    yield from views.wrap_text("why", report.reason, columns)
    yield from views.wrap_text("means", views.MEANINGS.get(outcome, ""), columns)
    certain = {fault.remedy for fault in report.faults if fault.is_certain}
    yield from views.format_action(
        report.remedy.value,
        reboot=report.reboot_required and bool(certain & {Remedy.RESET_GPU, Remedy.REBOOT}),
        replace=report.replacement_required and Remedy.REPLACE in certain,
        confirm=[fault.confirm for fault in report.faults if fault.remedy is report.remedy],
    )


def _name_run(report: Report, level: int) -> str:
    if level:
        return f"dcgmi diag level {level}"
    return "dcgmi diag, some tests only" if report.tests else "dcgmi diag"


def _format_gpus(report: Report) -> Iterator[str]:
    """The GPUs at fault, by their errors, and the others."""
    if not report.culprits:
        return
    yield ""
    groups: dict[str, list[int]] = {}
    for gpu in report.culprits:
        codes = dict.fromkeys(_name_fault(fault) for fault in report.faults if fault.gpu == gpu)
        text = f"to blame: {', '.join([*codes][:_MAX_CODES])}"
        groups.setdefault(text, []).append(gpu)
    tested = {int(gpu) for test in report.tests for gpu in test.gpus}
    without_fault = sorted(tested - set(report.culprits))
    if without_fault:
        groups["not to blame"] = without_fault
    for text, gpus in groups.items():
        name = render.colour_text(f"GPU {join_ranges(gpus)}".ljust(14), "bold")
        yield f"  {name} {render.escape_text(text)}"


def _name_fault(fault: Fault) -> str:
    if fault.error_id is not None:
        return f"error {fault.error_id}"
    return f"{fault.code}, by its status"


def _format_tests(report: Report) -> Iterator[str]:
    if not report.tests:
        return
    yield ""
    rows = [
        (
            f"  {render.escape_text(test.name)}",
            render.escape_text(test.category) or "-",
            render.escape_text(test.status) or "-",
            _group_by_status(test.gpus, test.cpus),
        )
        for test in report.tests
    ]
    yield from format_table(("  test", "category", "status", "by device, as printed"), rows)


def _group_by_status(gpus: Mapping[str, str], cpus: Mapping[str, str]) -> str:
    """`Fail GPU 3, Pass GPU 0-2,4-7`: passes last."""
    parts = []
    for kind, statuses in (("GPU", gpus), ("CPU", cpus)):
        devices: dict[str, list[int]] = {}
        for index, status in statuses.items():
            devices.setdefault(str(status), []).append(int(index))
        worst_first = sorted(devices.items(), key=lambda item: item[0].lower() == "pass")
        for status, numbers in worst_first:
            parts.append(f"{render.escape_text(status)} {kind} {join_ranges(numbers)}")
    return ", ".join(parts) or "-"


def _format_faults(report: Report, catalog: Catalog) -> Iterator[str]:
    """Each kind of fault once, with what it means."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in report.faults:
        groups.setdefault((fault.code, fault.test), []).append(fault)
    for (code, test), faults in sorted(groups.items(), key=lambda item: -item[1][0].remedy.rank):
        yield ""
        yield from _format_kind(code, test, faults, catalog)


def _format_kind(code: str, test: str, faults: list[Fault], catalog: Catalog) -> Iterator[str]:
    columns, rule = views.get_text_columns(), catalog.find_rule(code)
    gpus = [fault.gpu for fault in faults if fault.gpu is not None]
    devices = f"GPU {join_ranges(gpus)}: " if gpus else _name_devices(faults)
    heading = render.colour_text(render.escape_text(devices) + rule.title, "bold")
    origin = render.colour_text(f"{code} {render.escape_text(test)}", "dim")
    yield f"  {heading}  {origin}"
    yield from views.wrap_text("means", rule.meaning, columns)
    yield from views.wrap_text("hint", rule.advice, columns)
    remedy = faults[0].remedy.value
    action = views.ACTIONS.get(remedy, "")
    if action:
        confirm = [fault.confirm for fault in faults]
        yield f"  do     {action}{views.format_confirmation(remedy, confirm)}"
    texts = list(dict.fromkeys(fault.text for fault in faults))
    for text in texts[:_MAX_TEXTS]:
        yield f"  says   {render.cut_text(render.escape_text(text), columns)}"
    if len(texts) > _MAX_TEXTS:
        yield f"         and {len(texts) - _MAX_TEXTS} more like this"


def _name_devices(faults: list[Fault]) -> str:
    """`CPU 1: `"""
    devices = sorted({fault.device for fault in faults if fault.device})
    return "".join(f"{device.replace('cpu/', 'CPU ')}: " for device in devices)
