"""The faults that the documents of a run report, and those that a bare failure implies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vitald.diagnostics.dcgm.document import GPU, DcgmTest, DeviceResult, Message
from vitald.diagnostics.dcgm.meanings import KIND, UNCLEAR, Meaning
from vitald.diagnostics.dcgm.run_context import FAILING, SKIPPED, RunContext, get_device_name
from vitald.model.diagnostic import Fault

# `GPU 3`, `GPU 3's`, `GPU ID 3`; neither a PCI address nor a UUID. `GPUs 0, 1 and 2` names all.
_NAMED = re.compile(r"\bGPU(?: ID)?[ :#]+(\d{1,3})(?![\dA-Za-z]|:[\dA-Fa-f]{2}:|\.\d)")
_NAMED_ALL = re.compile(
    r"\bGPUs[ :]+(\d{1,3}(?:(?:, ?(?:and )?| and | ?&"
    r" ?)\d{1,3})*)(?![\dA-Za-z]|:[\dA-Fa-f]{2}:|\.\d)"
)
_MAX_ERRORS = 32  # errors in a response of 4.x; later ones are lost


@dataclass(frozen=True, slots=True)
class FoundFault:
    """A fault, and the meaning of the message that reports it."""

    fault: Fault
    meaning: Meaning


class FaultFinder:
    """Reads the faults of one run."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def find_faults(self) -> list[FoundFault]:
        """Every distinct fault. From 4.5 on a test's summary repeats those of its devices."""
        found: list[FoundFault] = []
        for test in self._run.tests.values():
            seen: set[tuple[str, int | None, str, int | None]] = set()
            for result, message in _list_messages(test):
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
        """Whether the text is the reason of a skipped test, and not a known error."""
        if result.status.lower() not in SKIPPED or message.error_id is not None:
            return False
        meaning = self._run.meanings.find_by_text(message.text)
        return meaning is None or not meaning.of_hardware

    def find_implied(self, found: list[FoundFault]) -> list[FoundFault]:
        """Failures without a fault: old versions print none, and only the first 32 errors are
        kept.
        """
        faults = [found_fault.fault for found_fault in found]
        printed = len({(fault.test, fault.gpu, fault.text) for fault in faults})
        implied: list[FoundFault] = []
        for test in self._run.tests.values():
            failing = [result for result in test.results if result.status.lower() in FAILING]
            if not failing and test.status.lower() not in FAILING:
                continue
            own = [found_fault for found_fault in found if found_fault.fault.test == test.name]
            if own:
                list_full = printed >= _MAX_ERRORS
                implied += self._imply_silent_gpus(test, failing, own, list_full=list_full)
            else:
                implied += self._imply_test_failure(test, failing)
        return implied

    def _imply_silent_gpus(
        self,
        test: DcgmTest,
        failing: list[DeviceResult],
        own: list[FoundFault],
        *,
        list_full: bool,
    ) -> list[FoundFault]:
        """The GPUs that failed a test which has faults, but none of theirs."""
        named = {found_fault.fault.gpu for found_fault in own}
        silent = [result for result in failing if result.group == GPU and result.index not in named]
        meaning = self._run.meanings.get_entry(UNCLEAR)
        text = f"{test.name}: {{status}}, without a reason"
        if self._run.entities:
            row = self._run.tables.find_test(test.name)
            if not list_full or (row is not None and row.one_status):
                return []
            if len({found_fault.meaning.code for found_fault in own}) == 1:
                meaning = own[0].meaning
            text = f"{test.name}: {{status}}; the list of errors was full"
        return [self._imply_fault(test, result, meaning, text) for result in silent]

    def _imply_test_failure(self, test: DcgmTest, failing: list[DeviceResult]) -> list[FoundFault]:
        """A test that failed without a message. If all GPUs have the same status, it may be that
        of the last one.
        """
        row = self._run.tables.find_test(test.name)
        code = (
            f"{KIND}/{row.stands_for}"
            if row is not None and row.stands_for is not None
            else UNCLEAR
        )
        meaning = self._run.meanings.get_entry(code)
        text = f"{test.name}: {{status}}, without a reason"
        gpus = {result.index for result in test.results if result.group == GPU}
        bad = {result.index for result in failing if result.group == GPU}
        stamped = self._run.entities and bad == gpus and len(gpus) > 1
        devices = [result for result in failing if result.group != GPU or not stamped]
        return [
            self._imply_fault(test, result, meaning, text)
            for result in devices or [DeviceResult(status=test.status or "Fail")]
        ]

    def _imply_fault(
        self, test: DcgmTest, result: DeviceResult, meaning: Meaning, text: str
    ) -> FoundFault:
        fault = Fault(
            code=meaning.code,
            test=test.name,
            text=text.replace("{status}", result.status),
            gpu=result.index if result.group == GPU else None,
            device=get_device_name(result),
            remedy=meaning.remedy,
            confirm=meaning.confirm,
            implied=True,
        )
        return FoundFault(fault, meaning)


def _list_messages(test: DcgmTest) -> Iterator[tuple[DeviceResult, Message]]:
    """The messages of each device, then those of the test that no device has."""
    of_devices: set[tuple[str, int | None]] = set()
    for result in test.results:
        for message in result.messages:
            of_devices.add((message.text, message.error_id))
            yield result, message
    no_device = DeviceResult(status=test.status)
    for message in test.messages:
        if (message.text, message.error_id) not in of_devices:
            yield no_device, message


def _list_named_gpus(text: str) -> list[int]:
    """The GPUs that a text names, in order, without repetitions."""
    lists = [number for found in _NAMED_ALL.findall(text) for number in re.findall(r"\d+", found)]
    return list(dict.fromkeys(int(number) for number in [*_NAMED.findall(text), *lists]))
