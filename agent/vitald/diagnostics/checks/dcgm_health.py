"""
DCGM's background health watches: `dcgmi health`.

The host engine watches the GPUs only after the watches were set, and its answers count about a
minute later; until then a run is inconclusive. The watches last until the engine ends, so they are
set once, and again if the engine reports that there are none.

A failing GPU can make the command stall for tens of seconds and then report that all is well, so a
stall is a fault. DCGM is known to report three complaints on healthy nodes, and they are dismissed
where they mean nothing: NVLink down on a board that has none, IMEX on a node that shares no NVLink
with others, and failed readings of the power. They stay among the tests and in the reason.

Source: DCGM 3.x and 4.x, dcgmi/Health.cpp and the texts of the health watches; output forms from
public projects.
"""

from __future__ import annotations

import asyncio
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.dcgm import short_answers
from vitald.diagnostics.dcgm.meanings import ENGINE_DOWN
from vitald.diagnostics.run import tool
from vitald.diagnostics.settings import DcgmHealthSettings, DcgmSettings
from vitald.model.diagnostic import MONITOR, TRIAGE, Fault, Measure, Report, RunRequest, Test
from vitald.model.words import ComponentKind, Outcome, Remedy
from vitald.text import clean_line
from vitald.topology.pci_inventory import NVIDIA

NAME = "dcgm_health"
STALLED = f"{NAME}/stalled"
_SETTLE_S = 60.0  # from setting the watches to answers that count
_ON_ALL_GPUS = ("health", "-g", "0")
_UNSPECIFIED = 253  # exit code, also without watches
_MAX_COMPLAINTS = 256  # in one answer
_VALUES = ("Healthy", "Warning", "Failure")
_FAILED_READING = "a reading that failed says nothing"
_SYSTEMS = {
    "pcie system": "pcie",
    "nvlink system": "nvlink",
    "pmu": "pmu",
    "mcu": "mcu",
    "memory system": "memory",
    "sm": "sm",
    "inforom system": "inforom",
    "thermal system": "thermal",
    "power system": "power",
    "driver": "driver",
    "connectx system": "connectx",
}
# PCI device ids of boards that have no NVLink: T4, A2 and A16, A10, A10G, L4, L40, L40S, L20, RTX
# PRO 6000 Server (pci.ids).
_NO_NVLINK = {0x1EB8, 0x25B6, 0x2236, 0x2237, 0x27B8, 0x26B5, 0x26B9, 0x26BA, 0x2BB5}
_LINK_DOWN = re.compile(r"nvlink.{0,40}\bdown\b", re.IGNORECASE)
_IMEX = re.compile(r"\bimex\b", re.IGNORECASE)
_UNREAD = re.compile(
    r"cannot (?:reliably )?(?:read|retrieve)|unable to (?:read|retrieve)|could not"
    r" (?:read|retrieve)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """The state of one watch of one device. `entity` is empty if DCGM names none."""

    group: str  # as DCGM writes it: `GPU`, `NvSwitch`, `CPU`
    entity: str
    system: str
    value: str
    text: str = ""

    @property
    def gpu(self) -> int | None:
        return (
            int(self.entity)
            if self.group.upper() == "GPU" and re.fullmatch(r"[0-9]{1,4}", self.entity)
            else None
        )

    @property
    def where(self) -> str:
        return f"{self.group} {self.entity}".strip()

    @property
    def code(self) -> str:
        name = (
            _SYSTEMS.get(self.system.lower())
            or re.sub(r"[^a-z0-9]+", "_", self.system.lower()).strip("_")[:40]
        )
        return f"{NAME}/{name or 'other'}"


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """`overall`: DCGM's value for all devices together, "" if there is none. `unread`: parts in an
    unknown form.
    """

    overall: str
    complaints: tuple[Complaint, ...] = ()
    unread: tuple[str, ...] = ()


def read_answer(text: str) -> HealthAnswer | None:
    """Reads the output of `dcgmi health -c -j`. None if it holds no complete document."""
    found = tool.find_document(text)
    body = found.get("body") if found is not None else None
    if not isinstance(body, dict):
        return None
    overall = _get_value(body.get("Overall Health"))
    complaints: list[Complaint] = []
    unread: list[str] = []
    for group, entities in body.items():
        if group == "Overall Health":
            continue
        for entity, node in _get_children(entities).items():
            watches = list(_list_watches(clean_line(group), clean_line(entity), node))
            complaints += (watch for watch in watches if watch.value in ("Warning", "Failure"))
            unread += (
                f"{watch.where} {watch.system}: {watch.value or 'nothing'}"
                for watch in watches
                if watch.value not in _VALUES
            )
        if not _get_children(entities):
            unread.append(clean_line(group))
        if len(complaints) > _MAX_COMPLAINTS:
            unread.append(f"more than {_MAX_COMPLAINTS} complaints")
            break
    if overall in ("Warning", "Failure") and not complaints:
        complaints.append(Complaint("", "", "", overall, "DCGM names no device"))
    return HealthAnswer(
        overall, tuple(complaints[:_MAX_COMPLAINTS]), tuple(unread[:_MAX_COMPLAINTS])
    )


def _list_watches(group: str, entity: str, node: object) -> Iterator[Complaint]:
    """All watches of one device; the device itself if it names none."""
    systems = _get_children(_get_children(node).get("Errors"))
    for system, watch in systems.items():
        yield Complaint(group, entity, clean_line(system), _get_value(watch), _join_text(watch))
    value = _get_value(node)
    if not systems and value != "Healthy":
        yield Complaint(group, entity, "", value, "DCGM names no watch")


def _get_children(node: object) -> Mapping[str, object]:
    children = node.get("children") if isinstance(node, dict) else None
    return children if isinstance(children, dict) else {}


def _get_value(node: object) -> str:
    value = node.get("value") if isinstance(node, dict) else node
    return clean_line(value).strip().capitalize() if isinstance(value, str) else ""


def _join_text(node: object) -> str:
    """Joins the pieces into which DCGM cuts a text to fit its table."""
    pieces = node.get("overflow") if isinstance(node, dict) else None
    pieces = [pieces] if isinstance(pieces, str) else pieces
    if not isinstance(pieces, list):
        return ""
    return clean_line(
        " ".join(piece.strip() for piece in pieces[:64] if isinstance(piece, str)).strip()
    )


@dataclass(frozen=True, slots=True)
class BoardTraits:
    """Traits of the node that decide whether a complaint means anything."""

    has_nvlink: bool = True  # some GPU may have NVLink
    shares_nvlink: bool = True  # NVLink may reach other nodes


def inspect_board(sysfs: Path, machine: str) -> BoardTraits:
    """Reads the traits from PCI. Only Grace machines (arm64) are sold with NVLink between nodes."""
    inventory = tool.scan_pci(sysfs)
    gpus = [device for device in inventory.devices.values() if device.kind is ComponentKind.GPU]
    switches = any(device.kind is ComponentKind.NVSWITCH for device in inventory.devices.values())
    plain = bool(gpus) and all(
        device.vendor == NVIDIA and device.device in _NO_NVLINK for device in gpus
    )
    return BoardTraits(has_nvlink=switches or not plain, shares_nvlink=machine == "aarch64")


def find_dismissal_reason(complaint: Complaint, traits: BoardTraits) -> str:
    """Why a complaint means nothing on this node; "" if it counts."""
    if not traits.has_nvlink and (
        complaint.code == f"{NAME}/nvlink" or _LINK_DOWN.search(complaint.text)
    ):
        return "these boards have no NVLink"
    if not traits.shares_nvlink and _IMEX.search(complaint.text):
        return "this node shares no NVLink with others"
    if complaint.code == f"{NAME}/power" and _UNREAD.search(complaint.text):
        return _FAILED_READING
    return ""


def judge_answer(answer: HealthAnswer, traits: BoardTraits) -> Report:
    """The report on an answer that counts."""
    reasons = {
        complaint: find_dismissal_reason(complaint, traits) for complaint in answer.complaints
    }
    aside = {complaint: reason for complaint, reason in reasons.items() if reason}
    notes = [
        f"set aside: {complaint.where} {complaint.system}: {complaint.text or complaint.value}"
        f" ({reason})"
        for complaint, reason in aside.items()
    ]
    tests = _list_tests(answer)
    standing = [complaint for complaint in answer.complaints if complaint not in aside]
    if standing:
        return _report_complaints(standing, notes, tests)
    if (doubt := _find_doubt(answer, aside)) is not None:
        return Report(
            outcome=Outcome.INCONCLUSIVE,
            reason=clean_line("; ".join([*doubt, *notes])),
            remedy=Remedy.RETRY,
            tests=tests,
        )
    return Report(outcome=Outcome.PASS, reason=clean_line("; ".join(notes)), tests=tests)


def _report_complaints(
    complaints: Iterable[Complaint], notes: Iterable[str], tests: tuple[Test, ...]
) -> Report:
    faults = tuple(map(_make_fault, complaints))
    return Report(
        outcome=Outcome.FAIL,
        reason=clean_line("; ".join([*(fault.text for fault in faults), *notes])),
        remedy=max((fault.remedy for fault in faults), key=lambda remedy: remedy.rank),
        tests=tests,
        faults=faults,
        culprits=_list_culprits(faults),
    )


def _list_culprits(faults: Iterable[Fault]) -> tuple[int, ...]:
    return tuple(sorted({fault.gpu for fault in faults if fault.gpu is not None}))


def _find_doubt(answer: HealthAnswer, aside: Mapping[Complaint, str]) -> list[str] | None:
    """Why an answer without a remaining complaint is no pass: the reasons other than the notes, if
    any. None if it is a pass.
    """
    if answer.unread:
        return [f"DCGM's answer is not understood: {', '.join(answer.unread[:3])}"]
    if _FAILED_READING in aside.values():
        return []
    if answer.overall != "Healthy" and not aside:
        return [f"DCGM says {answer.overall or 'nothing'} of all the devices together"]
    return None


def _make_fault(complaint: Complaint) -> Fault:
    failed = complaint.value == "Failure"
    what = complaint.system or "health"
    return Fault(
        code=complaint.code,
        test=what,
        text=clean_line(
            ": ".join(
                part
                for part in (f"{complaint.where} {what} {complaint.value}".strip(), complaint.text)
                if part
            )
        ),
        gpu=complaint.gpu,
        device="" if complaint.gpu is not None else _device_name(complaint),
        severity=TRIAGE if failed else MONITOR,
        remedy=Remedy.INVESTIGATE if failed else Remedy.MONITOR,
    )


def _device_name(complaint: Complaint) -> str:
    if complaint.group.upper() == "CPU" and complaint.entity.isdecimal():
        return f"cpu/{complaint.entity}"
    return complaint.where


def _list_tests(answer: HealthAnswer) -> tuple[Test, ...]:
    """The overall value, and a test for each watch that complained."""
    systems: dict[str, dict[str, str]] = {}
    for complaint in answer.complaints:
        device = complaint.where if complaint.gpu is None else str(complaint.gpu)
        systems.setdefault(complaint.system or "health", {})[device] = complaint.value
    overall = Test(name="health", category=NAME, status=answer.overall)
    return (overall, *(_make_test(system, values) for system, values in systems.items()))


def _make_test(system: str, values: Mapping[str, str]) -> Test:
    """`values` by device: the index of a GPU, or `CPU 1`."""
    return Test(
        name=system,
        category=NAME,
        gpus={device: value for device, value in values.items() if device.isdecimal()},
        cpus={
            device.split()[-1]: value
            for device, value in values.items()
            if device.upper().startswith("CPU ")
        },
    )


def _add_watched_gpus(report: Report, addresses: Mapping[int, str]) -> Report:
    """The report with all GPUs of the host engine, which watches each of them: its answer names
    only those with a complaint.
    """
    complaints = {gpu for test in report.tests for gpu in test.gpus}
    healthy = {str(gpu): "Healthy" for gpu in addresses if str(gpu) not in complaints}
    overall, *watches = report.tests
    return replace(report, addresses=addresses, tests=(replace(overall, gpus=healthy), *watches))


def _report_unreadable(output: Output) -> Report:
    """The report on an answer without a complete document."""
    problem = f"dcgmi health ended with {output.exit_code}"
    if output.dropped or "{" in output.stdout:
        problem = "its answer is incomplete"
    last = tool.find_last_line(output.stdout, output.stderr) or "it printed nothing"
    outcome = Outcome.INCONCLUSIVE if output.exit_code == 0 else Outcome.ERROR
    return Report(outcome=outcome, reason=f"{problem}: {last}", remedy=Remedy.RETRY)


class DcgmHealthCheck:
    """Sets the watches, and reads what they report."""

    name = NAME
    title = "DCGM's background watches"
    levels: tuple[int, ...] = (0,)
    covers_gpus = True

    def __init__(
        self, config: Config, now: Callable[[], float] = time.monotonic, machine: str = ""
    ) -> None:
        self._settings = config[DcgmHealthSettings]
        self._program = config[DcgmSettings].program
        self._sysfs = config[Paths].sysfs
        self._machine = machine or platform.machine()
        self._now = now
        self._set_at: float | None = None  # None: the engine may have no watches

    def find_obstacle(self) -> str:
        if not self._settings.enabled:
            return "[dcgm_health] enabled = false"
        if not tool.find_program(self._program):
            return tool.explain_absence(self._program)
        count, error = tool.count_gpus(self._sysfs)
        return "" if count else error or tool.NO_GPU

    def every_s(self, level: int) -> float:
        del level
        return self._settings.every_s

    def needs_idle(self, level: int) -> bool:
        del level
        return False

    def expected_s(self, level: int) -> float:
        del level
        return 2.0

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        if self._set_at is None:
            return await self._set_watches(execute, "DCGM's watches were set just now")
        engine = await execute(self._build_command(*short_answers.LIST_GPUS))
        if (report := self._report_no_answer(engine)) is not None:
            return report
        output = await execute(self._build_command(*_ON_ALL_GPUS, "-c", "-j"))
        if (report := self._report_no_answer(output)) is not None:
            return report
        if output.exit_code == _UNSPECIFIED or short_answers.has_no_watches(output.stdout):
            return await self._set_watches(
                execute, "the host engine had no watches, as after a restart: they were set again"
            )
        answer = read_answer(output.stdout) if not output.dropped else None
        if answer is None:
            return _report_unreadable(output)
        since = self._now() - self._set_at
        if since < _SETTLE_S:
            reason = (
                f"DCGM says {answer.overall or 'nothing'}, but its watches were set {since:.0f} s"
                f" ago: answers count after {_SETTLE_S:.0f} s"
            )
            return Report(
                outcome=Outcome.INCONCLUSIVE,
                reason=reason,
                remedy=Remedy.RETRY,
                tests=_list_tests(answer),
            )
        traits = BoardTraits()
        if answer.complaints:
            traits = await asyncio.to_thread(inspect_board, self._sysfs, self._machine)
        report = self._restrict_report(judge_answer(answer, traits), request, output)
        return _add_watched_gpus(report, short_answers.list_addresses(engine.stdout))

    def _restrict_report(self, report: Report, request: RunRequest, output: Output) -> Report:
        """Keep only the requested GPUs, and report no pass if the command itself failed."""
        measures = (
            Measure(name="answer_seconds", value=output.seconds, maximum=self._settings.deadline_s),
        )
        outcome, reason, faults = report.outcome, report.reason, report.faults
        if request.gpus:
            faults = tuple(
                fault for fault in faults if fault.gpu is None or fault.gpu in request.gpus
            )
            if outcome is Outcome.FAIL and not faults:
                outcome, reason = (
                    Outcome.PASS,
                    f"of others than GPU {', '.join(map(str, request.gpus))}: {reason}",
                )
        if outcome is Outcome.PASS and output.exit_code != 0:
            outcome, reason = (
                Outcome.INCONCLUSIVE,
                f"DCGM says that all is well, but ended with {output.exit_code}",
            )
        return Report(
            outcome=outcome,
            reason=clean_line(reason),
            remedy=report.remedy if faults or outcome is not Outcome.PASS else Remedy.NONE,
            tests=report.tests,
            faults=faults,
            culprits=_list_culprits(faults),
            measures=measures,
        )

    async def _set_watches(self, execute: Execute, reason: str) -> Report:
        self._set_at = None
        output = await execute(self._build_command(*_ON_ALL_GPUS, "-s", "a"))
        if (report := self._report_no_answer(output)) is not None:
            return report
        if output.exit_code != 0:
            last = tool.find_last_line(output.stdout, output.stderr)
            return Report(
                outcome=Outcome.ERROR,
                reason=f"DCGM's watches could not be set (exit {output.exit_code}): {last}",
                remedy=Remedy.FIX_CONFIG,
            )
        self._set_at = self._now()
        return Report(
            outcome=Outcome.INCONCLUSIVE,
            reason=f"{reason}; their answers count after {_SETTLE_S:.0f} s",
            remedy=Remedy.RETRY,
        )

    def _report_no_answer(self, output: Output) -> Report | None:
        """The report if the command did not end by itself, or found no engine; else None."""
        if (report := tool.report_not_run("dcgmi", output)) is not None:
            return report
        if output.ended is ProgramEnd.DEADLINE:
            left = (
                f"; {', '.join(map(str, output.left[:3]))} could not be ended"
                if output.left
                else ""
            )
            problem = f"dcgmi did not answer within {self._settings.deadline_s:g} s{left}"
            fault = Fault(
                code=STALLED, test="health", text=f"{problem}: DCGM, the driver or a GPU may hang"
            )
            return Report(
                outcome=Outcome.ERROR, reason=problem, remedy=Remedy.INVESTIGATE, faults=(fault,)
            )
        if short_answers.is_engine_down(output.exit_code, f"{output.stdout}\n{output.stderr}"):
            self._set_at = None  # the watches end with the engine
            problem = "the host engine (nv-hostengine) does not answer: systemctl start nvidia-dcgm"
            fault = Fault(code=ENGINE_DOWN, test="health", text=problem, remedy=Remedy.FIX_CONFIG)
            return Report(
                outcome=Outcome.ERROR, reason=problem, remedy=Remedy.FIX_CONFIG, faults=(fault,)
            )
        return None

    def _build_command(self, *words: str) -> Command:
        program = tool.find_program(self._program) or self._program
        return Command(argv=(program, *words), deadline_s=self._settings.deadline_s)


def build_check(config: Config) -> Check:
    return DcgmHealthCheck(config)
