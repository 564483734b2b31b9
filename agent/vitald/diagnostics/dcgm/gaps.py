"""What a run should have verified and did not: tests that are missing or were skipped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vitald.diagnostics.dcgm.document import GPU, DcgmDocument, DcgmTest, DeviceResult, Message
from vitald.diagnostics.dcgm.faults import FoundFault
from vitald.diagnostics.dcgm.known_outputs import TestRow
from vitald.diagnostics.dcgm.meanings import LOST, Meaning
from vitald.diagnostics.dcgm.run_context import SKIPPED, RunContext, list_tested_gpus
from vitald.model.words import Remedy
from vitald.text import join_ranges

_SOFTWARE_LEFT_OUT = (3, 3, 7)


@dataclass(frozen=True, slots=True)
class Unverified:
    """Something that the run should have verified and did not."""

    words: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class _SkippedTest:
    """`devices`: the results of the GPUs that skipped it; empty if only the test itself says so."""

    row: TestRow
    test: DcgmTest
    devices: list[DeviceResult]

    @property
    def is_everywhere(self) -> bool:
        return len(self.devices) == sum(result.group == GPU for result in self.test.results)


class GapFinder:
    """Compares the tests of one run with those of its level."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def find_gaps(self, found: list[FoundFault]) -> list[Unverified]:
        """The gaps of each document by itself: the next iteration may not have verified what this
        one did.
        """
        faults = (found_fault.fault for found_fault in found)
        lost = frozenset(
            fault.gpu for fault in faults if fault.code == LOST and fault.gpu is not None
        )
        return list(
            dict.fromkeys(
                gap for document in self._run.documents for gap in self._list_gaps(document, lost)
            )
        )

    def _list_gaps(self, document: DcgmDocument, lost: frozenset[int]) -> Iterable[Unverified]:
        due = self._list_due()
        by_name = {test.name.casefold(): test for test in document.tests}
        listed = frozenset(document.gpus) or list_tested_gpus(document.tests)
        expected = (self._run.requested_gpus or listed) - lost
        skipped: list[_SkippedTest] = []
        for row in due:
            if (row.gpus > 1 and len(expected) < row.gpus) or self._not_offered(row):
                continue
            test = _find_test(row, by_name)
            if test is None:
                if not self._may_be_missing(row, by_name):
                    yield Unverified(f"{row.name} is missing", Remedy.RETRY)
                continue
            yield from self._list_missing(row, test, expected)
            devices = _list_skips(test)
            if devices or test.status.lower() in SKIPPED:
                skipped.append(_SkippedTest(row, test, devices))
        none_ran = _have_none_run(due, skipped)
        for skip in skipped:
            yield self._explain_skip(skip, none_ran=none_ran)

    def _list_due(self) -> list[TestRow]:
        """The tests that a run at this level by this version has."""
        return [
            row
            for row in self._run.tables.tests
            if not row.optional and row.is_due(self._run.level, self._run.version)
        ]

    def _may_be_missing(self, row: TestRow, by_name: Collection[str]) -> bool:
        """Whether a run of tests by name may lack this one. From 3.3.7 to 3.3.9 such a run has no
        software tests; with all other versions it begins with them.
        """
        if not self._run.named:
            return False
        if row.level > 1:
            return True
        has_software = any(
            name.casefold() in by_name
            for software in self._run.tables.tests
            if software.level == 1
            for name in software.names
        )
        return not has_software and _SOFTWARE_LEFT_OUT <= self._run.version < (4,)

    def _list_missing(
        self, row: TestRow, test: DcgmTest, expected: Collection[int]
    ) -> Iterable[Unverified]:
        if row.level == 1 and not self._run.entities:
            if not test.status:
                yield Unverified(f"{test.name} has no result", Remedy.RETRY)
            return
        seen = {result.index for result in test.results if result.group == GPU and result.status}
        missing = sorted(set(expected) - seen)
        many = 0 if self._run.requested_gpus or self._run.entities else len(self._run.device_ids)
        if missing:
            yield Unverified(f"{test.name} has no result for {format_gpus(missing)}", Remedy.RETRY)
        elif len(seen) < many:
            yield Unverified(
                f"{test.name} has results for {len(seen)} of {many} GPUs", Remedy.RETRY
            )
        elif not seen and test.status.lower() not in SKIPPED:
            yield Unverified(f"{test.name} names no GPU", Remedy.RETRY)

    def _explain_skip(self, skip: _SkippedTest, *, none_ran: bool) -> Unverified:
        """Why a test was skipped, as far as its messages, its level and DCGM's version tell."""
        indexes = sorted(result.index for result in skip.devices if result.index is not None)
        where = f" on {format_gpus(indexes)}" if skip.devices else ""
        skipped = f"{skip.test.name} was skipped{where}"
        holders: tuple[DeviceResult | DcgmTest, ...] = (*skip.devices, skip.test)
        messages = [message for holder in holders for message in holder.messages]
        texts = [message.text for message in messages]
        texts += (text for holder in holders for text in holder.info)
        if known := self._find_meanings(texts, messages):
            strongest = max(known, key=lambda meaning: meaning.remedy.rank)
            return Unverified(f"{skipped}: {strongest.title}", strongest.remedy)
        first = next((message.text for message in messages), "")
        why = next((text for text in texts if "skip" in text.lower()), "") or first
        if why:
            return Unverified(f"{skipped}: {why[:160]}", Remedy.INVESTIGATE)
        return self._guess_skip_reason(skip.row, skipped, none_ran=none_ran)

    def _find_meanings(self, texts: Iterable[str], messages: Iterable[Message]) -> list[Meaning]:
        """The meanings of known texts, then those of messages with a number."""
        by_text = (self._run.meanings.find_by_text(text) for text in texts)
        by_number = (
            self._run.meanings.find_meaning(message)
            for message in messages
            if message.error_id is not None
        )
        return [*(meaning for meaning in by_text if meaning is not None), *by_number]

    def _guess_skip_reason(self, row: TestRow, skipped: str, *, none_ran: bool) -> Unverified:
        """The most likely reason if DCGM gives none."""
        if row.level == 1:
            return Unverified(skipped, Remedy.INVESTIGATE)
        if none_ran:
            return Unverified(
                f"{skipped}: DCGM does not test this model, or its packages are missing",
                Remedy.FIX_CONFIG,
            )
        if row.busy_from and self._run.version >= row.busy_from[: len(self._run.version)]:
            return Unverified(
                f"{skipped}: no reason is given; most likely the memory is in use",
                Remedy.EXCLUSIVE_RERUN,
            )
        return Unverified(
            f"{skipped}: no reason is given; most likely it is not offered for the model",
            Remedy.FIX_CONFIG,
        )

    def _not_offered(self, row: TestRow) -> bool:
        models = {device_id.lower() for device_id in self._run.device_ids}
        return bool(models) and models <= set(row.not_for)


def _find_test(row: TestRow, by_name: Mapping[str, DcgmTest]) -> DcgmTest | None:
    names = (name.casefold() for name in row.names)
    return next((by_name[name] for name in names if name in by_name), None)


def _list_skips(test: DcgmTest) -> list[DeviceResult]:
    return [
        result
        for result in test.results
        if result.group == GPU and result.status.lower() in SKIPPED
    ]


def _have_none_run(due: Iterable[TestRow], skipped: Iterable[_SkippedTest]) -> bool:
    """Whether all of several tests that load the GPUs were skipped: then DCGM has no entry for the
    model. If only some were, the GPUs are in use.
    """
    loading = sum(row.level > 1 for row in due)
    return 1 < loading == sum(skip.row.level > 1 and skip.is_everywhere for skip in skipped)


def format_gpus(numbers: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0-3, 6`."""
    return f"GPU{'s' if len(set(numbers)) > 1 else ''} {join_ranges(numbers)}"
