"""The faults that the documents of a run report, and those that follow from a bare failure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vitald.diagnostics.dcgm.document import (
    GPU,
    DcgmTest,
    DeviceResult,
    Message,
)
from vitald.diagnostics.dcgm.meanings import KIND, UNCLEAR, Meaning
from vitald.diagnostics.dcgm.run_context import FAILING, SKIPPED, RunContext, get_device_name
from vitald.model.diagnostic import Fault, Remedy

_NAMED = re.compile(r"\bGPU(?: ID)?[ :#]+(\d{1,3})(?![\dA-Za-z]|:[\dA-Fa-f]{2}:|\.\d)")
_NAMED_ALL = re.compile(
    r"\bGPUs[ :]+(\d{1,3}(?:(?:, ?(?:and )?| and | ?&"
    r" ?)\d{1,3})*)(?![\dA-Za-z]|:[\dA-Fa-f]{2}:|\.\d)"
)
_MAX_ERRORS = 32  # of a response in 4.x: those that come later are lost


@dataclass(frozen=True, slots=True)
class FoundFault:
    """A warning and what it means."""

    fault: Fault
    meaning: Meaning


class FaultFinder:
    """Reads the faults of one run."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def find_faults(self) -> list[FoundFault]:
        """Every distinct one. From 4.5 on a test's summary repeats those of its devices."""
        found: list[FoundFault] = []
        for test in self._run.tests.values():
            seen: set[tuple[str, int | None, str, int | None]] = set()
            said = {
                (message.text, message.error_id)
                for result in test.results
                for message in result.messages
            }
            devices = [(result, message) for result in test.results for message in result.messages]
            nobody = DeviceResult(status=test.status)
            alone = [
                (nobody, message)
                for message in test.messages
                if (message.text, message.error_id) not in said
            ]
            for result, message in [*devices, *alone]:
                key = (result.group, result.index, message.text, message.error_id)
                if key not in seen and not self._only_why_skipped(result, message):
                    seen.add(key)
                    found += self._make_faults(test, result, message)
        return found

    def _make_faults(
        self, test: DcgmTest, result: DeviceResult, message: Message
    ) -> Iterable[FoundFault]:
        meaning = self._run.meanings.find_meaning(message)
        row = self._run.tables.find_test(test.name)
        if (
            meaning.code == UNCLEAR
            and message.severity is None
            and row is not None
            and row.stands_for is not None
        ):
            meaning = self._run.meanings.get_entry(f"{KIND}/{row.stands_for}")
        if self._run.rejected:
            # What stands in a document of no known shape is worth a look, and no more.
            meaning = replace(
                meaning,
                code=UNCLEAR,
                remedy=min(meaning.remedy, Remedy.INVESTIGATE, key=lambda one: one.rank),
            )
        fault = Fault(
            code=meaning.code,
            test=test.name,
            text=message.text or meaning.title,
            gpu=result.index if result.group == GPU else None,
            device=get_device_name(result),
            error_id=message.error_id,
            category=message.category,
            severity=message.severity,
            remedy=meaning.remedy,
            confirm=meaning.confirm,
        )
        named = _list_named_gpus(message.text) if not result.group else []
        if not named:
            return [FoundFault(fault, meaning)]
        return [FoundFault(replace(fault, gpu=gpu, by_text=True), meaning) for gpu in named]

    def _only_why_skipped(self, result: DeviceResult, message: Message) -> bool:
        """A text beside `Skip` says why, unless it is an error that is known."""
        if result.status.lower() not in SKIPPED or message.error_id is not None:
            return False
        meaning = self._run.meanings.find_by_text(message.text)
        return meaning is None or not meaning.of_hardware

    def find_implied(self, found: list[FoundFault]) -> list[FoundFault]:
        """Failures without a finding: old versions print none, and of more than 32 the later ones
        are lost.
        """
        faults = [one.fault for one in found]
        printed = len({(fault.test, fault.gpu, fault.text) for fault in faults})
        implied: list[FoundFault] = []
        for test in self._run.tests.values():
            failing = [result for result in test.results if result.status.lower() in FAILING]
            if not failing and test.status.lower() not in FAILING:
                continue
            own = [one for one in found if one.fault.test == test.name]
            if not own:
                implied += self._imply_test_failure(test, failing)
                continue
            named = {one.fault.gpu for one in own}
            silent = [
                result for result in failing if result.group == GPU and result.index not in named
            ]
            row = self._run.tables.find_test(test.name)
            if (
                self._run.entities
                and printed >= _MAX_ERRORS
                and not (row is not None and row.one_status)
            ):
                meaning = (
                    own[0].meaning
                    if len({one.meaning.code for one in own}) == 1
                    else self._run.meanings.get_entry(UNCLEAR)
                )
                said = f"{test.name}: {{status}}; the list of errors was full"
                implied += [self._imply_fault(test, result, meaning, said) for result in silent]
            elif not self._run.entities:
                meaning = self._run.meanings.get_entry(UNCLEAR)
                implied += [
                    self._imply_fault(
                        test, result, meaning, f"{test.name}: {{status}}, without a reason"
                    )
                    for result in silent
                ]
        return implied

    def _imply_test_failure(self, test: DcgmTest, failing: list[DeviceResult]) -> list[FoundFault]:
        """A test that failed and says nothing. Where all GPUs carry one status, it may be that of
        the last one.
        """
        row = self._run.tables.find_test(test.name)
        code = (
            f"{KIND}/{row.stands_for}"
            if row is not None and row.stands_for is not None
            else UNCLEAR
        )
        meaning = self._run.meanings.get_entry(UNCLEAR if self._run.rejected else code)
        said = f"{test.name}: {{status}}, without a reason"
        gpus = {result.index for result in test.results if result.group == GPU}
        bad = {result.index for result in failing if result.group == GPU}
        stamped = self._run.entities and bad == gpus and len(gpus) > 1
        devices = [result for result in failing if result.group != GPU or not stamped]
        return [
            self._imply_fault(test, result, meaning, said)
            for result in devices or [DeviceResult(status=test.status or "Fail")]
        ]

    def _imply_fault(
        self, test: DcgmTest, result: DeviceResult, meaning: Meaning, said: str
    ) -> FoundFault:
        fault = Fault(
            code=meaning.code,
            test=test.name,
            text=said.replace("{status}", result.status),
            gpu=result.index if result.group == GPU else None,
            device=get_device_name(result),
            remedy=meaning.remedy,
            confirm=meaning.confirm,
            implied=True,
        )
        return FoundFault(fault, meaning)


def _list_named_gpus(text: str) -> list[int]:
    """The GPUs that a text names, in order, each once."""
    lists = [number for found in _NAMED_ALL.findall(text) for number in re.findall(r"\d+", found)]
    return list(dict.fromkeys(int(number) for number in [*_NAMED.findall(text), *lists]))
