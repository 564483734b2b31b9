"""What `vitald diag read` prints of a report of dcgmi diag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vitald.cli import render
from vitald.cli.diag import views
from vitald.cli.table import format_table
from vitald.text import join_ranges

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.model.diagnostic import Fault, Report

_MAX_CODES, _MAX_TEXTS = 6, 2


def format_report(report: Report, level: int, catalog: Catalog) -> Iterator[str]:
    """The outcome, the GPUs at fault, the tests, and each kind of fault with what it means.

    `level`: 0 if it is not known.
    """
    yield from _format_outcome(report, level)
    yield from _format_gpus(report)
    yield from _format_tests(report)
    yield from _format_faults(report, catalog)


def _format_outcome(report: Report, level: int) -> Iterator[str]:
    from vitald.model.diagnostic import Remedy

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
