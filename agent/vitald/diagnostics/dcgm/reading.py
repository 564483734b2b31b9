"""
What a run of `dcgmi diag` came to: its documents, its exit code and the level that was asked for,
as one report.

Owns     the outcome, whom the findings blame, what was not verified, and one line that says it all.
Refuses  I/O and shapes; what an error means is in the catalogue, what an exit code says is in
         outputs.toml.

The document is read first: exit code and document disagree in both directions, and 226 alone means
three things. A run that could not run is never a pass, and a test that was skipped is neither
passed nor failed. GPUs are blamed by findings and their texts: from 4.0 on several tests stamp one
status on all GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from vitald.diagnostics.dcgm import document
from vitald.diagnostics.dcgm.document import (
    CPU,
    GPU,
    DcgmDocument,
    DcgmOutput,
    DcgmTest,
    DeviceResult,
    Message,
)
from vitald.diagnostics.dcgm.meanings import KIND, LOST, UNCLEAR, Meaning, Meanings
from vitald.diagnostics.dcgm.tables import (
    ExitMeaning,
    Tables,
    TestRow,
    Version,
    load_tables,
    version_of,
)
from vitald.model.diagnostic import Fault, Outcome, Remedy, Report, Test
from vitald.text import count_more, join_first, join_ranges

_MAX_ERRORS = 32  # of a response in 4.x: those that come later are lost
_ISOLATE = 2
_FAILED = (205, 226)
_SOFTWARE_LEFT_OUT = (3, 3, 7)
_FAILING, _SKIPPED = ("fail", "warn"), ("skip", "skipped", "not run", "notrun")
_RETURN = re.compile(r"Return: \((-\d{1,3})\)")
_PREAMBLE = re.compile(r"^Unable to complete diagnostic for .{1,80}?\. Return: \(-?\d+\)[ :]*")
# `GPU 3`, `GPU 3's`, `GPU ID 3`; no PCI address and no UUID. `GPUs 0, 1 and 2` names them all.
_NAMED = re.compile(r"\bGPU(?: ID)?[ :#]+(\d{1,3})(?![\dA-Za-z]|:[\dA-Fa-f]{2}:|\.\d)")
_NAMED_ALL = re.compile(
    r"\bGPUs[ :]+(\d{1,3}(?:(?:, ?(?:and )?| and | ?&"
    r" ?)\d{1,3})*)(?![\dA-Za-z]|:[\dA-Fa-f]{2}:|\.\d)"
)
_MAX_NAMED = 3  # groups of findings in the reason


@dataclass(frozen=True, slots=True)
class _FoundFault:
    """A warning and what it means."""

    fault: Fault
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class _Unverified:
    """Something that had to be verified and was not."""

    words: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class _Conclusion:
    """What the run comes to without its findings."""

    outcome: Outcome
    remedy: Remedy
    reason: str
    code: str = ""


def read_report(
    stdout: bytes | str,
    meanings: Meanings,
    *,
    exit_code: int | None = None,
    level: int | None = None,
    stderr: bytes | str = "",
    gpus: Sequence[int] = (),
) -> Report:
    """The report. `level`: what was asked for, None where nobody knows; `gpus`: the GPUs asked for,
    none for all. Never raises.
    """
    printed = document.read_output(stdout)
    errors = stderr.decode("utf-8", "replace") if isinstance(stderr, bytes) else stderr
    return _RunReading(printed, meanings, exit_code, level, errors[:65536], gpus).make_report()


def level_of(tests: Iterable[str]) -> int:
    """The run level that has these tests: the least that it can have been."""
    rows = (load_tables().find_test(name) for name in tests)
    return max((row.level for row in rows if row is not None), default=1)


def whole_level(tests: Collection[str], version: str) -> bool:
    """Whether all tests of that level are there: if not, some were asked for by name, or did not
    run.
    """
    there, level, number = {name.casefold() for name in tests}, level_of(tests), version_of(version)
    due = [
        row
        for row in load_tables().tests
        if not row.optional and row.gpus == 1 and row.is_due(level, number or (3,))
    ]
    return all(any(name.casefold() in there for name in row.names) for row in due)


class _RunReading:
    def __init__(
        self,
        printed: DcgmOutput,
        meanings: Meanings,
        exit_code: int | None,
        level: int | None,
        stderr: str,
        gpus: Sequence[int],
    ) -> None:
        self.printed, self.meanings, self.exit_code, self.stderr = (
            printed,
            meanings,
            exit_code,
            stderr,
        )
        self.tables: Tables = load_tables()
        self.asked = frozenset(gpus)
        self.documents = [one for one in printed.documents if one.tests]
        self.tests = _merge_documents(self.documents)
        self.entities = any(one.entities for one in self.documents)
        self.named = level is None  # it may have been asked for by the names of its tests
        self.level = level if level is not None else level_of(self.tests)
        self.version: Version = version_of(self._find_last(lambda one: one.version)) or (
            (4,) if self.entities else (3,)
        )
        self.rejected = any(one.rejected for one in printed.documents)
        self.wrong = tuple(dict.fromkeys(what for one in printed.documents for what in one.wrong))
        self.device_ids: tuple[str, ...] = next(
            (one.device_ids for one in reversed(printed.documents) if one.device_ids), ()
        )

    def make_report(self) -> Report:
        found = self.find_faults()
        found += self.find_implied(found)
        gaps = self.find_gaps(found)
        said = self.draw_conclusion(found, gaps)
        if said.code and not any(one.fault.code == said.code for one in found):
            found.append(self._imply_from_exit(said))
        faults = tuple(one.fault for one in found)
        return Report(
            outcome=said.outcome,
            reason=said.reason,
            remedy=said.remedy,
            reboot_required=said.outcome is Outcome.FAIL
            and any(f.remedy in (Remedy.RESET_GPU, Remedy.REBOOT) for f in faults),
            replacement_required=said.outcome is Outcome.FAIL
            and any(f.remedy is Remedy.REPLACE for f in faults),
            tests=tuple(map(_summarize_test, self.tests.values())),
            faults=faults,
            culprits=self.list_culprits(said.outcome, found),
            dcgm_version=self._find_last(lambda one: one.version),
            driver_version=self._find_last(lambda one: one.driver),
            device_ids=self.device_ids,
            serials=self.get_serials(),
        )

    # --- findings

    def find_faults(self) -> list[_FoundFault]:
        """Every distinct one. From 4.5 on a test's summary repeats those of its devices."""
        found: list[_FoundFault] = []
        for test in self.tests.values():
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
    ) -> Iterable[_FoundFault]:
        meaning = self.meanings.find_meaning(message)
        row = self.tables.find_test(test.name)
        if (
            meaning.code == UNCLEAR
            and message.severity is None
            and row is not None
            and row.stands_for is not None
        ):
            meaning = self.meanings.get_entry(f"{KIND}/{row.stands_for}")
        if self.rejected:
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
            device=_device_name(result),
            error_id=message.error_id,
            category=message.category,
            severity=message.severity,
            remedy=meaning.remedy,
            confirm=meaning.confirm,
        )
        named = _list_named_gpus(message.text) if not result.group else []
        if not named:
            return [_FoundFault(fault, meaning)]
        return [_FoundFault(replace(fault, gpu=gpu, by_text=True), meaning) for gpu in named]

    def _only_why_skipped(self, result: DeviceResult, message: Message) -> bool:
        """A text beside `Skip` says why, unless it is an error that is known."""
        if result.status.lower() not in _SKIPPED or message.error_id is not None:
            return False
        meaning = self.meanings.find_by_text(message.text)
        return meaning is None or not meaning.of_hardware

    def find_implied(self, found: list[_FoundFault]) -> list[_FoundFault]:
        """Failures without a finding: old versions print none, and of more than 32 the later ones
        are lost.
        """
        faults = [one.fault for one in found]
        printed = len({(fault.test, fault.gpu, fault.text) for fault in faults})
        implied: list[_FoundFault] = []
        for test in self.tests.values():
            failing = [result for result in test.results if result.status.lower() in _FAILING]
            if not failing and test.status.lower() not in _FAILING:
                continue
            own = [one for one in found if one.fault.test == test.name]
            if not own:
                implied += self._imply_test_failure(test, failing)
                continue
            named = {one.fault.gpu for one in own}
            silent = [
                result for result in failing if result.group == GPU and result.index not in named
            ]
            row = self.tables.find_test(test.name)
            if (
                self.entities
                and printed >= _MAX_ERRORS
                and not (row is not None and row.one_status)
            ):
                meaning = (
                    own[0].meaning
                    if len({one.meaning.code for one in own}) == 1
                    else self.meanings.get_entry(UNCLEAR)
                )
                said = f"{test.name}: {{status}}; the list of errors was full"
                implied += [self._imply_fault(test, result, meaning, said) for result in silent]
            elif not self.entities:
                meaning = self.meanings.get_entry(UNCLEAR)
                implied += [
                    self._imply_fault(
                        test, result, meaning, f"{test.name}: {{status}}, without a reason"
                    )
                    for result in silent
                ]
        return implied

    def _imply_test_failure(self, test: DcgmTest, failing: list[DeviceResult]) -> list[_FoundFault]:
        """A test that failed and says nothing. Where all GPUs carry one status, it may be that of
        the last one.
        """
        row = self.tables.find_test(test.name)
        code = (
            f"{KIND}/{row.stands_for}"
            if row is not None and row.stands_for is not None
            else UNCLEAR
        )
        meaning = self.meanings.get_entry(UNCLEAR if self.rejected else code)
        said = f"{test.name}: {{status}}, without a reason"
        gpus = {result.index for result in test.results if result.group == GPU}
        bad = {result.index for result in failing if result.group == GPU}
        stamped = self.entities and bad == gpus and len(gpus) > 1
        devices = [result for result in failing if result.group != GPU or not stamped]
        return [
            self._imply_fault(test, result, meaning, said)
            for result in devices or [DeviceResult(status=test.status or "Fail")]
        ]

    def _imply_fault(
        self, test: DcgmTest, result: DeviceResult, meaning: Meaning, said: str
    ) -> _FoundFault:
        fault = Fault(
            code=meaning.code,
            test=test.name,
            text=said.replace("{status}", result.status),
            gpu=result.index if result.group == GPU else None,
            device=_device_name(result),
            remedy=meaning.remedy,
            confirm=meaning.confirm,
            implied=True,
        )
        return _FoundFault(fault, meaning)

    def _imply_from_exit(self, said: _Conclusion) -> _FoundFault:
        meaning = self.meanings.get_entry(said.code)
        fault = Fault(
            code=said.code,
            test="",
            text=said.reason,
            remedy=said.remedy,
            confirm=meaning.confirm,
            implied=True,
        )
        return _FoundFault(fault, meaning)

    # --- what was not verified

    def find_gaps(self, found: list[_FoundFault]) -> list[_Unverified]:
        """Of each document by itself: what one iteration verified, the next one may not have."""
        lost = frozenset(
            one.fault.gpu for one in found if one.fault.code == LOST and one.fault.gpu is not None
        )
        return list(
            dict.fromkeys(gap for one in self.documents for gap in self._list_gaps(one, lost))
        )

    def _list_gaps(self, one: DcgmDocument, lost: frozenset[int]) -> Iterable[_Unverified]:
        due = [
            row
            for row in self.tables.tests
            if not row.optional and row.is_due(self.level, self.version)
        ]
        there = {test.name.casefold(): test for test in one.tests}
        expected = (self.asked or frozenset(one.gpus) or _list_tested_gpus(one.tests)) - lost
        skipped: list[tuple[TestRow, DcgmTest, list[DeviceResult]]] = []
        # From 3.3.7 to 3.3.9 a run of tests that were named leaves the software out; all others
        # begin with it.
        software = any(
            name.casefold() in there
            for row in self.tables.tests
            if row.level == 1
            for name in row.names
        )
        without_software = not software and _SOFTWARE_LEFT_OUT <= self.version < (4,)
        for row in due:
            if (row.gpus > 1 and len(expected) < row.gpus) or self._not_offered(row):
                continue
            test = next(
                (there[name.casefold()] for name in row.names if name.casefold() in there), None
            )
            if test is None:
                if self.named and (row.level > 1 or without_software):
                    continue
                yield _Unverified(f"{row.name} is missing", Remedy.RETRY)
                continue
            yield from self._list_missing(row, test, expected)
            skips = [
                result
                for result in test.results
                if result.group == GPU and result.status.lower() in _SKIPPED
            ]
            if skips or test.status.lower() in _SKIPPED:
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
    ) -> Iterable[_Unverified]:
        if row.level == 1 and not self.entities:
            if not test.status:
                yield _Unverified(f"{test.name} has no result", Remedy.RETRY)
            return
        seen = {one.index for one in test.results if one.group == GPU and one.status}
        missing = sorted(set(expected) - seen)
        many = 0 if self.asked or self.entities else len(self.device_ids)
        if missing:
            yield _Unverified(
                f"{test.name} has no result for {_format_gpus(missing)}", Remedy.RETRY
            )
        elif len(seen) < many:
            yield _Unverified(
                f"{test.name} has results for {len(seen)} of {many} GPUs", Remedy.RETRY
            )
        elif not seen and test.status.lower() not in _SKIPPED:
            yield _Unverified(f"{test.name} names no GPU", Remedy.RETRY)

    def _explain_skip(
        self, row: TestRow, test: DcgmTest, skips: list[DeviceResult], *, none_ran: bool
    ) -> _Unverified:
        where = (
            f" on {_format_gpus(sorted(one.index for one in skips if one.index is not None))}"
            if skips
            else ""
        )
        messages = [message.text for one in skips for message in one.messages] + [
            message.text for message in test.messages
        ]
        texts = [*messages, *(text for one in skips for text in one.info), *test.info]
        known = [
            meaning for text in texts if (meaning := self.meanings.find_by_text(text)) is not None
        ]
        numbered = [message for one in skips for message in one.messages] + list(test.messages)
        known += [
            self.meanings.find_meaning(message)
            for message in numbered
            if message.error_id is not None
        ]
        if known:
            strongest = max(known, key=lambda meaning: meaning.remedy.rank)
            return _Unverified(
                f"{test.name} was skipped{where}: {strongest.title}", strongest.remedy
            )
        why = next((text for text in texts if "skip" in text.lower()), "") or next(
            iter(messages), ""
        )
        if why:
            return _Unverified(f"{test.name} was skipped{where}: {why[:160]}", Remedy.INVESTIGATE)
        if row.level == 1:
            return _Unverified(f"{test.name} was skipped{where}", Remedy.INVESTIGATE)
        if none_ran:
            return _Unverified(
                f"{test.name} was skipped{where}: DCGM does not test this model, or its packages"
                " are missing",
                Remedy.FIX_CONFIG,
            )
        if row.busy_from and self.version >= row.busy_from[: len(self.version)]:
            return _Unverified(
                f"{test.name} was skipped{where}: no reason is given; most likely the memory is"
                " in use",
                Remedy.EXCLUSIVE_RERUN,
            )
        return _Unverified(
            f"{test.name} was skipped{where}: no reason is given; most likely it is not offered for"
            " the model",
            Remedy.FIX_CONFIG,
        )

    def _not_offered(self, row: TestRow) -> bool:
        models = {one.lower() for one in self.device_ids}
        return bool(models) and models <= set(row.not_for)

    # --- the outcome

    def draw_conclusion(self, found: list[_FoundFault], gaps: list[_Unverified]) -> _Conclusion:
        """From the documents, and what of it the exit code leaves standing."""
        hard = [one for one in found if one.meaning.of_hardware and not self.rejected]
        if hard:
            return _Conclusion(
                Outcome.FAIL,
                _find_strongest(one.fault.remedy for one in found),
                _format_reason(found, hard),
            )
        unusable = self._find_unusable()
        if unusable is not None:
            return unusable
        said = self._conclude_from_documents(found, gaps)
        return self._compare_with_exit(said, found)

    def _find_unusable(self) -> _Conclusion | None:
        """Why there is no verdict at all."""
        refused = [one.error for one in self.printed.documents if one.error is not None]
        if refused:
            # Where one of them asks for more than the others, that is what is told.
            return max(
                (self._explain_refusal(error) for error in refused),
                key=lambda said: (said.outcome is Outcome.FAIL, said.remedy.rank),
            )
        if self.printed.broken:
            return self._conclude_without(
                "what was printed is no whole document: " + self.printed.broken, Remedy.RETRY
            )
        if self.wrong:
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                f"the document is not of any known shape: {self.wrong[0]}",
            )
        if self.printed.not_run:
            return self._conclude_without(
                f"{self.printed.not_run} of {max(1, self.printed.iterations)} iterations did"
                " not run",
                Remedy.RETRY,
            )
        if not self.documents and self.printed.documents:
            return self._conclude_without("the document holds no tests", Remedy.RETRY)
        if not self.documents:
            return self._explain_plain_text()
        return None

    def _explain_refusal(self, error: str) -> _Conclusion:
        row = self.tables.find_text(error)
        code = _RETURN.search(error)
        if row is None and code is not None:
            row = self.tables.find_exit(256 + int(code[1]))
        if row is None and self.exit_code:
            row = self.tables.find_exit(self.exit_code)
        row = row or ExitMeaning(means="the diagnostic could not be run")
        return _Conclusion(row.outcome, row.remedy, f"{row.means}: {_clean_error(error)}", row.code)

    def _explain_plain_text(self) -> _Conclusion:
        """Text in the place of a document, or nothing at all."""
        text = f"{self.printed.outside}\n{self.stderr}".strip()
        row = self.tables.find_text(text)
        if row is None and self.exit_code:
            row = self.tables.find_exit(self.exit_code)
        line = (
            next((one for one in reversed(text.splitlines()) if any(map(str.isalnum, one))), "")
            if row is None
            else _find_error_line(text)
        )
        if row is not None:
            return _Conclusion(
                row.outcome,
                row.remedy,
                f"{row.means}{self._format_code()}" + (f": {_clean_error(line)}" if line else ""),
                row.code,
            )
        if line and text[0] in "{[":
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                f"what was printed is no answer of dcgmi diag{self._format_code()}",
            )
        if text:
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                f"no document was printed{self._format_code()}: {_clean_error(line or text)}",
            )
        return _Conclusion(
            Outcome.ERROR,
            Remedy.RETRY if not self.exit_code else Remedy.INVESTIGATE,
            f"nothing was printed{self._format_code()}",
        )

    def _conclude_without(self, why: str, remedy: Remedy) -> _Conclusion:
        row = self.tables.find_exit(self.exit_code) if self.exit_code else None
        if row is None:
            return _Conclusion(Outcome.ERROR, remedy, why)
        return _Conclusion(
            row.outcome, row.remedy, f"{row.means}{self._format_code()}; {why}", row.code
        )

    def _conclude_from_documents(
        self, found: list[_FoundFault], gaps: list[_Unverified]
    ) -> _Conclusion:
        by_remedy = {one.fault.remedy for one in found}
        if Remedy.RETRY in by_remedy:
            stopped = [one for one in found if one.fault.remedy is Remedy.RETRY]
            return _Conclusion(Outcome.ERROR, Remedy.RETRY, _format_reason(stopped, stopped))
        unknown = next(
            (
                f"{test.name}: status {status!r}"
                for test in self.tests.values()
                for status in _list_unknown(test)
            ),
            "",
        )
        if unknown:
            return _Conclusion(
                Outcome.ERROR, Remedy.INVESTIGATE, f"nobody knows what this means: {unknown}"
            )
        told = [gap.words for gap in gaps]
        unverified = [
            one
            for one in found
            if one.fault.remedy is Remedy.NONE and not self._is_optional(one.fault.test)
        ]
        unverified = [
            one
            for one in unverified
            if not any(words.startswith(f"{one.fault.test} was skipped") for words in told)
        ]
        if gaps or unverified:
            words = told + [_format_group([one]) for one in unverified]
            remedies = [*(gap.remedy for gap in gaps), *by_remedy]
            said = f"not verified: {join_first(words, _MAX_NAMED, '; ', '; and ')}"
            return _Conclusion(Outcome.INCONCLUSIVE, _find_strongest(remedies), said)
        settings = [one for one in found if one.fault.remedy is not Remedy.NONE]
        if settings:
            return _Conclusion(
                Outcome.CONFIG, _find_strongest(by_remedy), _format_reason(settings, settings)
            )
        if self.printed.failed:
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                "the overall result is a failure, but no iteration shows one",
            )
        return _Conclusion(Outcome.PASS, Remedy.NONE, "")

    def _compare_with_exit(self, said: _Conclusion, found: list[_FoundFault]) -> _Conclusion:
        """An exit code that says more than the document does not let it stand as it is."""
        code = self.exit_code
        if not code or said.outcome is Outcome.ERROR:
            return said
        if code not in _FAILED:
            row = self.tables.find_exit(code) or ExitMeaning(
                means="dcgmi failed in a way that is not known"
            )
            return _Conclusion(
                row.outcome,
                row.remedy,
                f"{row.means}{self._format_code()}, though the document does not show it",
                row.code,
            )
        severities = [one.fault.severity for one in found if not one.fault.implied]
        hidden = (
            code == _FAILED[0]
            and None not in severities
            and _ISOLATE not in severities
            and self.version >= (3, 3)
        )
        if not found or hidden or said.outcome is Outcome.PASS:
            means = "an error that takes a GPU out of use" if code == _FAILED[0] else "a failure"
            why = (
                f"document and exit code disagree: code {code} stands for {means}, and the document"
                " shows none"
            )
            return _Conclusion(Outcome.ERROR, Remedy.INVESTIGATE, why)
        return said

    def _is_optional(self, test: str) -> bool:
        row = self.tables.find_test(test)
        return row is not None and (row.optional or row.level > self.level)

    def _format_code(self) -> str:
        return (
            f" (exit code {self.exit_code})"
            if self.exit_code is not None and self.exit_code >= 0
            else ""
        )

    # --- whom and what

    def list_culprits(self, outcome: Outcome, found: list[_FoundFault]) -> tuple[int, ...]:
        """The GPUs of findings that made the outcome. A setting is a GPU's own only where the
        document says so.
        """
        if outcome is Outcome.FAIL:
            blamed = [one.fault for one in found if one.meaning.of_hardware]
        elif outcome in (Outcome.CONFIG, Outcome.INCONCLUSIVE):
            blamed = [
                one.fault
                for one in found
                if not one.fault.by_text and one.fault.remedy is not Remedy.NONE
            ]
        else:
            blamed = []
        return tuple(sorted({fault.gpu for fault in blamed if fault.gpu is not None}))

    def get_serials(self) -> dict[int, str]:
        """By index. Up to 3.x they are numbered by position among those that were tested."""
        found: dict[int, str] = {}
        for one in self.printed.documents:
            places = sorted(self.asked or _list_tested_gpus(self.tests.values()))
            by_place = not one.entities and len(places) == len(one.serials)
            found |= {
                places[place] if by_place and place < len(places) else place: serial
                for place, serial in one.serials.items()
            }
        return found

    def _find_last(self, of: object) -> str:
        assert callable(of)
        return next(
            (str(word) for one in reversed(self.printed.documents) if (word := of(one))), ""
        )


def _merge_documents(documents: Iterable[DcgmDocument]) -> dict[str, DcgmTest]:
    """The tests of all documents: of what was run more than once, the worst."""
    tests: dict[str, DcgmTest] = {}
    for one in documents:
        for test in one.tests:
            tests[test.name] = (
                document.merge_tests(tests[test.name], test) if test.name in tests else test
            )
    return tests


def _list_tested_gpus(tests: Iterable[DcgmTest]) -> frozenset[int]:
    found = (one.index for test in tests for one in test.results if one.group == GPU)
    return frozenset(index for index in found if index is not None)


def _summarize_test(test: DcgmTest) -> Test:
    return Test(
        name=test.name,
        category=test.category,
        status=test.status,
        gpus=_get_statuses(test, GPU),
        cpus=_get_statuses(test, CPU),
    )


def _get_statuses(test: DcgmTest, group: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in test.results:
        if one.group == group and one.status:
            found[str(one.index)] = document.find_worst([found.get(str(one.index), ""), one.status])
    return found


def _list_unknown(test: DcgmTest) -> Iterable[str]:
    known = ("", "pass", *_FAILING, *_SKIPPED)
    return (
        status
        for status in (test.status, *(one.status for one in test.results))
        if status.lower() not in known
    )


def _is_everywhere(test: DcgmTest, skips: list[DeviceResult]) -> bool:
    return len(skips) == len([one for one in test.results if one.group == GPU])


def _device_name(result: DeviceResult) -> str:
    """The name of a device that is no GPU."""
    return (
        f"{result.group}/{result.index}"
        if result.group not in ("", GPU) and result.index is not None
        else ""
    )


def _format_device(device: str) -> str:
    """`CPU 1`"""
    kind, _, number = device.partition("/")
    return f"{kind.upper() if kind == CPU else kind} {number}"


def _list_named_gpus(text: str) -> list[int]:
    """The GPUs that a text names, in order, each once."""
    lists = [number for found in _NAMED_ALL.findall(text) for number in re.findall(r"\d+", found)]
    return list(dict.fromkeys(int(number) for number in [*_NAMED.findall(text), *lists]))


def _find_strongest(remedies: Iterable[Remedy]) -> Remedy:
    return max(remedies, key=lambda remedy: remedy.rank, default=Remedy.NONE)


def _format_gpus(numbers: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0-3, 6`."""
    return f"GPU{'s' if len(set(numbers)) > 1 else ''} {join_ranges(numbers)}"


def _format_reason(found: list[_FoundFault], most: list[_FoundFault]) -> str:
    """Findings of one kind are told once, the strongest first."""
    groups: dict[tuple[str, str], list[_FoundFault]] = {}
    for one in most:
        groups.setdefault((one.meaning.code, one.fault.test), []).append(one)
    told = sorted(groups.values(), key=lambda group: -group[0].fault.remedy.rank)
    rest = len({(one.meaning.code, one.fault.test) for one in found}) - len(told[:_MAX_NAMED])
    return "; ".join(_format_group(group) for group in told[:_MAX_NAMED]) + count_more(
        rest, "; and "
    )


def _format_group(group: Sequence[_FoundFault]) -> str:
    fault, meaning = group[0].fault, group[0].meaning
    gpus = sorted({one.fault.gpu for one in group if one.fault.gpu is not None})
    devices = sorted({_format_device(one.fault.device) for one in group if one.fault.device})
    who = ", ".join([*([_format_gpus(gpus)] if gpus else []), *devices])
    number = f"error {fault.error_id}, " if fault.error_id is not None else ""
    place = f" ({number}{fault.test})" if fault.test else ""
    return f"{who}: {meaning.title}{place}" if who else f"{meaning.title}{place}"


def _clean_error(text: str) -> str:
    line = document.text_of(text).strip().removeprefix("Error: ")
    return (_PREAMBLE.sub("", line).strip() or "no text")[:300]


def _find_error_line(text: str) -> str:
    """The line that says most, for people: the first that begins as an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Error:")), lines[0] if lines else "")
