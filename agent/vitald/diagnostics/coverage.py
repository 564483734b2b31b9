"""
Which GPUs a run tested, compared with those of the node.

A program reports on the GPUs that it found. How many there are is the node's own knowledge: a run
that left one out is no pass, whatever it printed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from vitald.model.component import Component
from vitald.model.diagnostic import Report, RunRequest
from vitald.model.words import Outcome, Remedy
from vitald.text import join_ranges


class DeviceLookup(Protocol):
    """Finds the components of a node."""

    def find_gpu(self, index: int, serial: str = "", address: str = "") -> Component | None:
        """By a tool's number, and the serial number and PCI address that it printed; None if it is
        unknown.
        """

    def find_number(self, gpu: Component) -> int | None:
        """The number by which tools call a GPU; None if they do not know it."""

    def list_gpus(self) -> AbstractSet[Component]:
        """All GPUs that are here, or should be."""

    def list_testable_gpus(self) -> AbstractSet[Component]:
        """Those that a run of all GPUs must test."""

    def get_identity(self, component: Component) -> str:
        """What stays with a device that is moved, and differs for one that is put in its place."""


def find_gpu(index: int, report: Report, places: DeviceLookup) -> Component | None:
    """The GPU that a report calls by this number; None if it is unknown."""
    serial, address = report.serials.get(index, ""), report.addresses.get(index, "")
    return places.find_gpu(index, serial, address)


def find_tested(
    request: RunRequest, report: Report, places: DeviceLookup
) -> AbstractSet[Component] | None:
    """The GPUs that a run tested; None if it tested all of the node, or its output names none."""
    named, many = _list_named(report), len(report.device_ids)
    if request.gpus:
        return _find_gpus(named & frozenset(request.gpus) or request.gpus, report, places)
    if not named or len(named) < many:
        return None if not many or many >= len(places.list_gpus()) else frozenset()
    tested = _find_gpus(named, report, places)
    return None if places.list_gpus() <= tested else tested


def require_coverage(
    request: RunRequest, report: Report, places: DeviceLookup, unread: str = ""
) -> Report:
    """The report; `inconclusive` if it found no fault of the hardware, but left out a requested
    GPU. The reason of a pass names the GPUs that were left out because they are out of use.

    `unread`: why the GPUs of the node are not known; "" if they are.
    """
    # Where wrong settings prevented the run, there are no tests.
    is_tested = report.outcome is Outcome.CONFIG and report.tests
    if report.outcome is not Outcome.PASS and not is_tested:
        return report
    untested = f"the GPUs of this node are not known: {unread}" if unread else ""
    if untested := untested or _describe_untested(request, report, places):
        return replace(
            report,
            outcome=Outcome.INCONCLUSIVE,
            reason=_join_reasons(untested, report.reason),
            remedy=Remedy.RETRY,
        )
    without = _describe_out_of_use(request, report, places)
    return replace(report, reason=_join_reasons(without, report.reason))


def _describe_untested(request: RunRequest, report: Report, places: DeviceLookup) -> str:
    """Which GPUs the run left out; "" if it tested all."""
    wanted = places.list_testable_gpus()
    if request.gpus:
        # By the node's own numbers: the program may have numbered its GPUs in another way.
        wanted = _drop_unknown(map(places.find_gpu, request.gpus))
    named, many = _list_named(report), len(report.device_ids)
    if not wanted:
        return ""
    if not named and not many:
        return "its output does not name the GPUs that were tested"
    if len(named) < many:
        left_out = len(wanted) - many
        return f"{left_out} of {len(wanted)} GPUs not tested" if left_out > 0 else ""
    missing = wanted - _find_gpus(named, report, places)
    return f"{_name_gpus(missing, places)} not tested" if missing else ""


def _describe_out_of_use(request: RunRequest, report: Report, places: DeviceLookup) -> str:
    """Which GPUs of the node a run of all did not test, and need not; "" if there are none."""
    tested = find_tested(request, report, places)
    if request.gpus or not tested:
        return ""
    return f"{_name_gpus(places.list_gpus() - tested, places)} not tested: out of use or excluded"


def _join_reasons(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def _list_named(report: Report) -> AbstractSet[int]:
    """The numbers of the GPUs that were tested; empty if the output does not name them."""
    named = report.serials.keys() | {
        int(index) for test in report.tests for index in test.gpus if index.isdecimal()
    }
    known = report.addresses.keys()
    return named or (known if len(report.device_ids) in (0, len(known)) else frozenset())


def _find_gpus(
    indexes: Iterable[int], report: Report, places: DeviceLookup
) -> AbstractSet[Component]:
    return _drop_unknown(find_gpu(index, report, places) for index in indexes)


def _drop_unknown(found: Iterable[Component | None]) -> AbstractSet[Component]:
    return frozenset(component for component in found if component is not None)


def _name_gpus(gpus: Collection[Component], places: DeviceLookup) -> str:
    """`GPU 4-7`; those without a number by their names."""
    numbers = {gpu: places.find_number(gpu) for gpu in gpus}
    known = [number for number in numbers.values() if number is not None]
    unknown = sorted(gpu.name for gpu, number in numbers.items() if number is None)
    return ", ".join([*([f"GPU {join_ranges(known)}"] if known else []), *unknown])
