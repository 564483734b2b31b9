"""
Faults from the complaints of DCGM's health watches: a code, a device, and what is set aside.

The system names the code, unless the catalogue's entries (`diagnostic.words`) name another one by
the text: a watch reports link errors, a link that is down and IMEX under the same system. A link
that is down has another code where it may never have had a bridge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from vitald.collectors.small_files import presentable
from vitald.diagnostics.dcgm.health_answer import NAME, Complaint, HealthAnswer
from vitald.diagnostics.dcgm.health_scope import (
    FAILED_READING,
    BoardTraits,
    find_dismissal_reason,
    may_lack_bridge,
)
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.model.diagnostic import Fault, Outcome, Remedy, Report, Test

_UNBRIDGED = f"{NAME}/nvlink_unbridged"
_MONITOR, _TRIAGE = 1, 4  # DCGM's error severities, for `Fault.severity`
# DCGM_FR_PCI_REPLAY_RATE of dcgm_errors.h: the limit, the GPU and the figure.
_PCIE_REPLAYS = re.compile(
    r"Detected more than ([0-9]{1,9}) PCIe replays per minute for GPU [0-9]{1,9} ?: ?([0-9]{1,12})"
)


def judge_answer(
    answer: HealthAnswer, traits: BoardTraits, meanings: Meanings | None = None
) -> Report:
    """The report on an answer that counts. Without `meanings`, systems name the codes."""
    incidents = [
        incident for complaint in answer.complaints for incident in complaint.split_incidents()
    ]
    reasons = {incident: find_dismissal_reason(incident, traits) for incident in incidents}
    aside = {complaint: reason for complaint, reason in reasons.items() if reason}
    notes = [
        f"set aside: {complaint.where} {complaint.system}: {complaint.text or complaint.value}"
        f" ({reason})"
        for complaint, reason in aside.items()
    ]
    tests = list_tests(answer)
    standing = [incident for incident in incidents if incident not in aside]
    if standing:
        faults = [
            _make_fault(incident, _find_code(incident, traits, meanings)) for incident in standing
        ]
        return _report_faults(faults, notes, tests)
    if (doubt := _find_doubt(answer, aside)) is not None:
        return Report(
            outcome=Outcome.INCONCLUSIVE,
            reason=presentable("; ".join([*doubt, *notes])),
            remedy=Remedy.RETRY,
            tests=tests,
        )
    return Report(outcome=Outcome.PASS, reason=presentable("; ".join(notes)), tests=tests)


def _report_faults(
    faults: Sequence[Fault], notes: Iterable[str], tests: tuple[Test, ...]
) -> Report:
    return Report(
        outcome=Outcome.FAIL,
        reason=presentable("; ".join([*(fault.text for fault in faults), *notes])),
        remedy=max((fault.remedy for fault in faults), key=lambda remedy: remedy.rank),
        tests=tests,
        faults=tuple(faults),
        culprits=list_culprits(faults),
    )


def list_culprits(faults: Iterable[Fault]) -> tuple[int, ...]:
    return tuple(sorted({fault.gpu for fault in faults if fault.gpu is not None}))


def _find_doubt(answer: HealthAnswer, aside: Mapping[Complaint, str]) -> list[str] | None:
    """Why an answer without a remaining complaint is no pass: the reasons other than the notes, if
    any. None if it is a pass.
    """
    if answer.unread:
        return [f"DCGM's answer is not understood: {', '.join(answer.unread[:3])}"]
    if FAILED_READING in aside.values():
        return []
    if answer.overall != "Healthy" and not aside:
        return [f"DCGM says {answer.overall or 'nothing'} of all the devices together"]
    return None


def _find_code(complaint: Complaint, traits: BoardTraits, meanings: Meanings | None) -> str:
    if may_lack_bridge(complaint, traits):
        return _UNBRIDGED
    meaning = meanings.find_by_text(complaint.text) if meanings is not None else None
    return meaning.code if meaning is not None else complaint.code


def _make_fault(complaint: Complaint, code: str) -> Fault:
    failed = complaint.value == "Failure"
    what = complaint.system or "health"
    return Fault(
        code=code,
        test=what,
        text=presentable(
            ": ".join(
                part
                for part in (f"{complaint.where} {what} {complaint.value}".strip(), complaint.text)
                if part
            )
        ),
        gpu=complaint.gpu,
        device="" if complaint.gpu is not None else _device_name(complaint),
        severity=_TRIAGE if failed else _MONITOR,
        remedy=Remedy.INVESTIGATE if failed else Remedy.MONITOR,
        times_limit=_compare_replays(complaint.text),
    )


def _compare_replays(text: str) -> float | None:
    """How many times the limit the PCIe replays are; None if it is not about these."""
    found = _PCIE_REPLAYS.search(text)
    if found is None or not int(found[1]):
        return None
    return round(int(found[2]) / int(found[1]), 1)


def _device_name(complaint: Complaint) -> str:
    if complaint.group.upper() == "CPU" and complaint.entity.isdecimal():
        return f"cpu/{complaint.entity}"
    return complaint.where


def list_tests(answer: HealthAnswer) -> tuple[Test, ...]:
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
