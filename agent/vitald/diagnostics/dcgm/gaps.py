"""What a run had to verify and did not: tests that are missing or were skipped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vitald.diagnostics.dcgm.document import (
    GPU,
    DcgmDocument,
    DcgmTest,
    DeviceResult,
)
from vitald.diagnostics.dcgm.faults import FoundFault
from vitald.diagnostics.dcgm.meanings import LOST
from vitald.diagnostics.dcgm.run_context import SKIPPED, RunContext, list_tested_gpus
from vitald.diagnostics.dcgm.tables import (
    TestRow,
)
from vitald.model.diagnostic import Remedy
from vitald.text import join_ranges

_SOFTWARE_LEFT_OUT = (3, 3, 7)


@dataclass(frozen=True, slots=True)
class Unverified:
    """Something that had to be verified and was not."""

    words: str
    remedy: Remedy


class GapFinder:
    """Compares the tests of one run with those that its level has."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def find_gaps(self, found: list[FoundFault]) -> list[Unverified]:
        """Of each document by itself: what one iteration verified, the next one may not have."""
        lost = frozenset(
            one.fault.gpu for one in found if one.fault.code == LOST and one.fault.gpu is not None
        )
        return list(
            dict.fromkeys(gap for one in self._run.documents for gap in self._list_gaps(one, lost))
        )

    def _list_gaps(self, one: DcgmDocument, lost: frozenset[int]) -> Iterable[Unverified]:
        due = [
            row
            for row in self._run.tables.tests
            if not row.optional and row.is_due(self._run.level, self._run.version)
        ]
        there = {test.name.casefold(): test for test in one.tests}
        expected = (self._run.asked or frozenset(one.gpus) or list_tested_gpus(one.tests)) - lost
        skipped: list[tuple[TestRow, DcgmTest, list[DeviceResult]]] = []
        # From 3.3.7 to 3.3.9 a run of tests that were named leaves the software out; all others
        # begin with it.
        software = any(
            name.casefold() in there
            for row in self._run.tables.tests
            if row.level == 1
            for name in row.names
        )
        without_software = not software and _SOFTWARE_LEFT_OUT <= self._run.version < (4,)
        for row in due:
            if (row.gpus > 1 and len(expected) < row.gpus) or self._not_offered(row):
                continue
            test = next(
                (there[name.casefold()] for name in row.names if name.casefold() in there), None
            )
            if test is None:
                if self._run.named and (row.level > 1 or without_software):
                    continue
                yield Unverified(f"{row.name} is missing", Remedy.RETRY)
                continue
            yield from self._list_missing(row, test, expected)
            skips = [
                result
                for result in test.results
                if result.group == GPU and result.status.lower() in SKIPPED
            ]
            if skips or test.status.lower() in SKIPPED:
                skipped.append((row, test, skips))
        loading = [row for row in due if row.level > 1]
        # Where nothing that loads the GPUs ran at all, DCGM has no entry for the model; where only
        # some of it did not, they are in use.
        none_ran = len(loading) > 1 and len(
            [row for row, test, skips in skipped if row.level > 1 and _is_everywhere(test, skips)]
        ) == len(loading)
        for row, test, skips in skipped:
            yield self._explain_skip(row, test, skips, none_ran=none_ran)

    def _list_missing(
        self, row: TestRow, test: DcgmTest, expected: Collection[int]
    ) -> Iterable[Unverified]:
        if row.level == 1 and not self._run.entities:
            if not test.status:
                yield Unverified(f"{test.name} has no result", Remedy.RETRY)
            return
        seen = {one.index for one in test.results if one.group == GPU and one.status}
        missing = sorted(set(expected) - seen)
        many = 0 if self._run.asked or self._run.entities else len(self._run.device_ids)
        if missing:
            yield Unverified(f"{test.name} has no result for {format_gpus(missing)}", Remedy.RETRY)
        elif len(seen) < many:
            yield Unverified(
                f"{test.name} has results for {len(seen)} of {many} GPUs", Remedy.RETRY
            )
        elif not seen and test.status.lower() not in SKIPPED:
            yield Unverified(f"{test.name} names no GPU", Remedy.RETRY)

    def _explain_skip(
        self, row: TestRow, test: DcgmTest, skips: list[DeviceResult], *, none_ran: bool
    ) -> Unverified:
        """Why a test was skipped, as far as its messages, its level and DCGM's version tell."""
        where = (
            f" on {format_gpus(sorted(one.index for one in skips if one.index is not None))}"
            if skips
            else ""
        )
        messages = [message.text for one in skips for message in one.messages] + [
            message.text for message in test.messages
        ]
        texts = [*messages, *(text for one in skips for text in one.info), *test.info]
        known = [
            meaning
            for text in texts
            if (meaning := self._run.meanings.find_by_text(text)) is not None
        ]
        numbered = [message for one in skips for message in one.messages] + list(test.messages)
        known += [
            self._run.meanings.find_meaning(message)
            for message in numbered
            if message.error_id is not None
        ]
        if known:
            strongest = max(known, key=lambda meaning: meaning.remedy.rank)
            return Unverified(
                f"{test.name} was skipped{where}: {strongest.title}", strongest.remedy
            )
        why = next((text for text in texts if "skip" in text.lower()), "") or next(
            iter(messages), ""
        )
        if why:
            return Unverified(f"{test.name} was skipped{where}: {why[:160]}", Remedy.INVESTIGATE)
        return self._guess_skip_reason(row, f"{test.name} was skipped{where}", none_ran=none_ran)

    def _guess_skip_reason(self, row: TestRow, skipped: str, *, none_ran: bool) -> Unverified:
        """The most likely reason where DCGM gives none."""
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
        models = {one.lower() for one in self._run.device_ids}
        return bool(models) and models <= set(row.not_for)


def _is_everywhere(test: DcgmTest, skips: list[DeviceResult]) -> bool:
    return len(skips) == len([one for one in test.results if one.group == GPU])


def format_gpus(numbers: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0-3, 6`."""
    return f"GPU{'s' if len(set(numbers)) > 1 else ''} {join_ranges(numbers)}"
