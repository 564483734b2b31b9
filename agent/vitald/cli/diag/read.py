"""
`vitald diag read FILE|-`: explain what dcgmi printed, wherever it ran. Asks nobody; the daemon need
not run.

It is read as the daemon reads its own runs. Beside `dcgmi diag -j` it knows the answers of `health
-c -j`, `discovery -l`, `--version` and `-v`. Exit codes:

    0 pass   10 the node must first be set right (config, not_applicable)   20 fail   30 no verdict:
    inconclusive, error 2, 66, 78   wrong arguments, a file that cannot be read, a wrong
    configuration
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, EX_NOINPUT, render, words
from vitald.cli.diag import views
from vitald.cli.render import Json
from vitald.text import join_ranges

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.model.diagnostic import Fault, Report

EXIT = {"pass": 0, "config": 10, "not_applicable": 10, "fail": 20, "inconclusive": 30, "error": 30}
_HEALTH_EXIT = {"Healthy": 0, "Warning": 10, "Failure": 20}
_MAX_BYTES = 64 * 1024 * 1024
_MAX_COLUMNS = 120
_COLOUR_CODES = re.compile(rb"\x1b\[[0-9;]{0,32}m")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="what it printed on standard output, may be packed; - is standard input",
    )
    parser.add_argument(
        "--exit-code",
        type=words.parse_number(-64, 255),
        default=None,
        metavar="N",
        help="how it ended; below 0: the signal",
    )
    parser.add_argument(
        "--level",
        type=words.parse_number(1, 4),
        choices=(1, 2, 3, 4),
        default=None,
        help="that was asked for (default: by the tests that are there)",
    )
    parser.add_argument(
        "--stderr",
        type=Path,
        default=None,
        metavar="FILE",
        help="what it printed on standard error",
    )
    parser.add_argument(
        "--of",
        choices=("diag", "health", "discovery", "version"),
        default=None,
        help="which command it was (default: as it looks)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="take profile and overrides of the catalogue from this file",
    )
    parser.add_argument(
        "--profile",
        type=words.parse_profile,
        metavar="NAME",
        default=None,
        help="read by another profile",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from vitald import catalog as catalogs
    from vitald import config as configs
    from vitald.collectors.kernel_log.unpack import CannotUnpack

    try:
        path = arguments.config or (configs.DEFAULT_PATH if configs.DEFAULT_PATH.exists() else None)
        config = configs.load(path)
        catalog = catalogs.load(
            arguments.profile or config.catalog.profile, config.catalog.overrides
        )
    except (configs.ConfigError, catalogs.CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        return EX_CONFIG
    try:
        printed = _read_content(arguments.file)
        stderr = _read_content(str(arguments.stderr)) if arguments.stderr is not None else b""
    except OSError as error:
        print(
            f"vitald: {render.escape_text(error.filename or arguments.file)}: {error.strerror}",
            file=sys.stderr,
        )
        return EX_NOINPUT
    except CannotUnpack as error:
        print(f"vitald: {render.escape_text(arguments.file)}: {error}", file=sys.stderr)
        return EX_NOINPUT
    kind = arguments.of or _detect_command(printed, arguments)
    if kind != "diag":
        return _report_answer(kind, printed.decode("utf-8", "replace"), arguments)
    return _report_diagnostic(printed, stderr, arguments, catalog)


def _read_content(file: str) -> bytes:
    """As it was printed: unpacked, from UTF-16 where another system saved it, without a viewer's
    colours.
    """
    from vitald.collectors.kernel_log.unpack import Unpacked

    with (
        sys.stdin.buffer if file == "-" else Path(file).open("rb") as stream,
        io.BufferedReader(Unpacked(stream)) as unpacked,
    ):
        return _COLOUR_CODES.sub(b"", unpacked.read(_MAX_BYTES))


def _detect_command(printed: bytes, arguments: argparse.Namespace) -> str:
    """What it is an answer to."""
    from vitald.diagnostics import tool
    from vitald.diagnostics.dcgm import answers, document

    found = document.read(printed)
    if found.documents or found.broken or arguments.level is not None:
        return "diag"
    text = printed[:1_000_000].decode("utf-8", "replace")
    if "body" in (tool.document(text) or {}) or answers.no_watches(text):
        return "health"
    if answers.gpus_found(text) is not None:
        return "discovery"
    if answers.version_found(text):
        return "version"
    # In the same two lines health and discovery say that there is no engine; diag has other words
    # for it.
    return "no engine" if answers.no_engine(text) and "the specified host" in text else "diag"


# --- the short answers


def _report_answer(kind: str, text: str, arguments: argparse.Namespace) -> int:
    from vitald.diagnostics.dcgm import answers

    said: Json
    lines: list[str] = []
    if kind == "version":
        version = answers.version_found(text)
        said, code = (
            {"version": version or None, "reason": "" if version else "no version in it"},
            0 if version else 30,
        )
        lines = [f"dcgmi {render.escape_text(version)}"]
    elif answers.no_engine(text) or kind == "no engine":
        values: Json = {"health": None} if kind == "health" else {"gpu_count": None}
        values = {"health": None, "gpu_count": None} if kind == "no engine" else values
        reason = "nothing answers where DCGM's host engine should: systemctl start nvidia-dcgm"
        said, code = {**values, "error": "engine unreachable", "reason": reason}, 30
    elif kind == "discovery":
        count = answers.gpus_found(text)
        error: Json = {} if count is not None else {"error": "not understood"}
        said, code = (
            {"gpu_count": count, **error, "reason": "" if count else "no GPU is listed"},
            0 if count else 30,
        )
        lines = [f"{count} GPU{'' if count == 1 else 's'}"]
    else:
        said, lines = _read_health(text)
        code = _HEALTH_EXIT.get(str(said["health"]), 30)
    if arguments.json:
        render.emit_json(said)
        return code
    if "error" in said or not lines:
        lines = [
            f"{render.colour_text('NO ANSWER', 'bold', 'magenta')}  {render.escape_text(said['reason'])}"
        ]
    print("\n".join(lines))
    return code


def _read_health(text: str) -> tuple[Json, list[str]]:
    from vitald.diagnostics.checks import dcgm_health
    from vitald.diagnostics.dcgm import answers

    if answers.no_watches(text):
        reason = "DCGM's watches are not set: dcgmi health -g 0 -s a, and ask again after a minute"
        return {"health": None, "error": "watches not set", "reason": reason}, []
    answer = dcgm_health.read(text)
    if answer is None or answer.overall not in _HEALTH_EXIT:
        return {
            "health": None,
            "error": "not understood",
            "reason": "it is no whole answer of dcgmi health",
        }, []
    gpus = sorted({one.gpu for one in answer.complaints if one.gpu is not None})
    reason = "; ".join(
        f"{one.where} {one.system}: {one.text or one.value}".strip()
        for one in answer.complaints[:3]
    )
    blamed: Json = {"culprit_gpus": gpus} if answer.overall != "Healthy" else {}
    colours = {"Healthy": "green", "Warning": "yellow", "Failure": "red"}
    lines = [
        f"{render.colour_text(answer.overall.upper(), 'bold', colours[answer.overall])}  dcgmi health"
    ]
    lines += [
        f"  {render.escape_text(one.where) or '-'}  {render.escape_text(one.system)}: {render.escape_text(one.value)} "
        f" {render.escape_text(one.text)}"
        for one in answer.complaints
    ]
    return {"health": answer.overall, **blamed, "reason": render.escape_text(reason)}, lines


# --- diag


def _report_diagnostic(
    printed: bytes, stderr: bytes, arguments: argparse.Namespace, catalog: Catalog
) -> int:
    from vitald.diagnostics.dcgm import reading
    from vitald.diagnostics.dcgm.meanings import Meanings

    report = reading.read(
        printed,
        Meanings(catalog),
        exit_code=arguments.exit_code,
        level=arguments.level,
        stderr=stderr,
    )
    if arguments.json:
        notes = list(_list_notes(report, printed, arguments))
        render.emit_json({**serialize_report(report), **({"notes": notes} if notes else {})})
    else:
        level = (arguments.level or _detect_level(report)) if report.tests else 0
        for line in (
            *_format_outcome(report, level),
            *_format_gpus(report),
            *_format_tests(report),
            *_format_faults(report, catalog),
        ):
            print(line)
        notes = list(_list_notes(report, printed, arguments))
        print(
            (
                "\n".join(["", *(render.colour_text(f"  note: {note}", "dim") for note in notes)])
                if notes
                else ""
            ),
            end="\n" if notes else "",
        )
    return EXIT[report.outcome.value]


def _detect_level(report: Report) -> int:
    """By the tests that are there; 0 where they are not those of any level."""
    from vitald.diagnostics.dcgm import reading

    names = [test.name for test in report.tests]
    new = any(name == "software" for name in names)
    return (
        reading.level_of(names)
        if names and reading.whole_level(names, report.dcgm_version or ("4" if new else "3"))
        else 0
    )


def serialize_report(report: Report) -> Json:
    """What was found, as it was printed: findings that were only concluded are in the outcome, not
    among the errors.
    """
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


def _format_outcome(report: Report, level: int) -> Iterator[str]:
    known = [
        f"DCGM {report.dcgm_version}" if report.dcgm_version else "",
        f"driver {report.driver_version}" if report.driver_version else "",
    ]
    models = ", ".join(
        f"{report.device_ids.count(one)} x {one}" for one in dict.fromkeys(report.device_ids)
    )
    ran = (
        f"dcgmi diag level {level}"
        if level
        else "dcgmi diag, some tests only"
        if report.tests
        else "dcgmi diag"
    )
    about = [ran, *known, models]
    yield (
        f"{views.format_outcome(report.outcome.value)}  {render.escape_text(', '.join(filter(None, about)))}"
    )
    columns = max(40, min(render.get_width(), _MAX_COLUMNS) - 9)
    yield from _wrap_text("why", report.reason, columns)
    yield from _wrap_text("means", views.MEANINGS.get(report.outcome.value, ""), columns)
    asking = [fault.confirm for fault in report.faults if fault.remedy is report.remedy]
    from vitald.model.diagnostic import Remedy

    certain = {fault.remedy for fault in report.faults if fault.certain}
    flags = {
        "reboot": report.reboot_required and bool(certain & {Remedy.RESET_GPU, Remedy.REBOOT}),
        "replace": report.replacement_required and Remedy.REPLACE in certain,
    }
    yield from views.format_action(report.remedy.value, **flags, confirm=asking)


def _format_gpus(report: Report) -> Iterator[str]:
    """Who is to blame for what, and who is not."""
    there = sorted({int(gpu) for test in report.tests for gpu in test.gpus} | set(report.culprits))
    if not report.culprits:
        return
    yield ""
    said: dict[str, list[int]] = {}
    for gpu in report.culprits:
        own = [fault for fault in report.faults if fault.gpu == gpu]
        words = (
            (
                f"error {fault.error_id}"
                if fault.error_id is not None
                else f"{fault.code}, by its status"
            )
            for fault in own
        )
        numbers = list(dict.fromkeys(words))
        said.setdefault(f"to blame: {', '.join(numbers[:6])}", []).append(gpu)
    well = [gpu for gpu in there if gpu not in report.culprits]
    for what, gpus in [*said.items(), *([("not to blame", well)] if well else [])]:
        yield f"  {render.colour_text(f'GPU {join_ranges(gpus)}'.ljust(14), 'bold')} {render.escape_text(what)}"


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
    yield from views.format_table(("  test", "category", "status", "by device, as printed"), rows)


def _group_by_status(gpus: Mapping[str, str], cpus: Mapping[str, str]) -> str:
    parts = []
    for kind, statuses in (("GPU", gpus), ("CPU", cpus)):
        by: dict[str, list[int]] = {}
        for index, status in statuses.items():
            by.setdefault(str(status), []).append(int(index))
        worst_first = sorted(by.items(), key=lambda one: one[0].lower() == "pass")
        parts += [
            f"{render.escape_text(status)} {kind} {join_ranges(numbers)}"
            for status, numbers in worst_first
        ]
    return ", ".join(parts) or "-"


def _format_faults(report: Report, catalog: Catalog) -> Iterator[str]:
    """Each kind of finding once, with what it means."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in report.faults:
        groups.setdefault((fault.code, fault.test), []).append(fault)
    columns = max(40, min(render.get_width(), _MAX_COLUMNS) - 9)
    for (code, test), faults in sorted(groups.items(), key=lambda one: -one[1][0].remedy.rank):
        rule = catalog.rule(code)
        gpus = [fault.gpu for fault in faults if fault.gpu is not None]
        who = f"GPU {join_ranges(gpus)}: " if gpus else _name_devices(faults)
        yield ""
        yield (
            f"  {render.colour_text(render.escape_text(who) + rule.title, 'bold')} "
            f" {render.colour_text(f'{code} {render.escape_text(test)}', 'dim')}"
        )
        yield from _wrap_text("means", rule.meaning, columns)
        yield from _wrap_text("hint", rule.advice, columns)
        asks = views.ACTIONS.get(faults[0].remedy.value, "")
        if asks:
            yield (
                "  do    "
                f" {asks}{views.format_confirmation(str(faults[0].remedy.value), [fault.confirm for fault in faults])}"
            )
        texts = list(dict.fromkeys(fault.text for fault in faults))
        for text in texts[:2]:
            yield f"  says   {render.cut_text(render.escape_text(text), columns)}"
        if len(texts) > 2:
            yield f"         and {len(texts) - 2} more like this"


def _name_devices(faults: list[Fault]) -> str:
    """`CPU 1: `"""
    return "".join(
        f"{one.replace('cpu/', 'CPU ')}: "
        for one in sorted({fault.device for fault in faults if fault.device})
    )


def _list_notes(report: Report, printed: bytes, arguments: argparse.Namespace) -> Iterator[str]:
    """What a reader should know of how far this goes."""
    from vitald.diagnostics.dcgm import answers, document

    if report.tests and answers.no_engine(document.read(printed).outside):
        yield (
            "the host engine that was asked for did not answer: this ran in a private engine, on"
            " the node where dcgmi was called"
        )
    if arguments.exit_code is None:
        yield "without --exit-code a failure that the document does not show is not seen"
    if report.tests and arguments.level is None:
        yield (
            "without --level the level is taken from the tests that are there: one that is missing"
            " altogether is not noticed"
        )


def _wrap_text(label: str, text: str, columns: int) -> Iterator[str]:
    import textwrap

    for number, line in enumerate(textwrap.wrap(render.escape_text(text), columns)[:8]):
        yield f"  {label if number == 0 else '':<6} {line}"
