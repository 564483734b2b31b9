"""
The report on a run of `dcgmi diag`: its outcome, the GPUs to blame, what was not verified, and a
reason of one line.

The documents are read first: exit code and documents disagree in both directions, and 226 alone
has three meanings. A run that could not run is never a pass, and a skipped test has neither passed
nor failed. Faults and their texts name the GPUs to blame, not statuses: from 4.0 on several tests
give all GPUs the same status.

Pure: no I/O. The catalogue has the meaning of errors, outputs.toml that of exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitald.diagnostics.dcgm import document
from vitald.diagnostics.dcgm.conversion import to_text
from vitald.diagnostics.dcgm.dcgmi_output import read_output
from vitald.diagnostics.dcgm.document import CPU, GPU, DcgmTest
from vitald.diagnostics.dcgm.faults import FaultFinder, FoundFault
from vitald.diagnostics.dcgm.gaps import GapFinder, Unverified, format_gpus
from vitald.diagnostics.dcgm.known_outputs import ExitMeaning
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.diagnostics.dcgm.run_context import (
    FAILING,
    SKIPPED,
    RunContext,
    explain_age,
    list_tested_gpus,
)
from vitald.model.diagnostic import Fault, Report, Test
from vitald.model.words import Outcome, Remedy
from vitald.text import count_more, join_first

_ISOLATE = 2
_FAILED = (205, 226)
_RETURN = re.compile(r"Return: \((-\d{1,3})\)")
_PREAMBLE = re.compile(r"^Unable to complete diagnostic for .{1,80}?\. Return: \(-?\d+\)[ :]*")
_MAX_NAMED = 3  # groups of faults in the reason


@dataclass(frozen=True, slots=True)
class _Conclusion:
    """The result of a run without its faults. `code`: a fault that it implies, if any."""

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
    """The report on a run. Never raises.

    `level`: the requested level, None if it is unknown; `gpus`: the requested GPUs, none for all.
    """
    printed = read_output(stdout)
    errors = stderr.decode("utf-8", "replace") if isinstance(stderr, bytes) else stderr
    run = RunContext(printed, meanings, exit_code, level, errors[:65536], gpus)
    return _ReportMaker(run).make_report()


class _ReportMaker:
    """Draws the conclusion of one run."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def make_report(self) -> Report:
        finder = FaultFinder(self._run)
        found = finder.find_faults()
        found += finder.find_implied(found)
        gaps = GapFinder(self._run).find_gaps(found)
        conclusion = self.draw_conclusion(found, gaps)
        if conclusion.code and conclusion.code not in {one.fault.code for one in found}:
            found.append(self._imply_from_exit(conclusion))
        faults = tuple(one.fault for one in found)
        return Report(
            outcome=conclusion.outcome,
            reason=conclusion.reason,
            remedy=conclusion.remedy,
            reboot_required=conclusion.outcome is Outcome.FAIL
            and any(f.remedy in (Remedy.RESET_GPU, Remedy.REBOOT) for f in faults),
            replacement_required=conclusion.outcome is Outcome.FAIL
            and any(f.remedy is Remedy.REPLACE for f in faults),
            tests=tuple(map(_summarize_test, self._run.tests.values())),
            faults=faults,
            culprits=self.list_culprits(conclusion.outcome, found),
            dcgm_version=self._run.find_last(lambda document: document.version),
            driver_version=self._run.find_last(lambda document: document.driver),
            device_ids=self._run.device_ids,
            serials=self.get_serials(),
        )

    def _imply_from_exit(self, conclusion: _Conclusion) -> FoundFault:
        meaning = self._run.meanings.get_entry(conclusion.code)
        fault = Fault(
            code=conclusion.code,
            test="",
            text=conclusion.reason,
            remedy=conclusion.remedy,
            confirm=meaning.confirm,
            implied=True,
        )
        return FoundFault(fault, meaning)

    def draw_conclusion(self, found: list[FoundFault], gaps: list[Unverified]) -> _Conclusion:
        """Conclude from the faults and the documents, then compare with the exit code."""
        hardware = [one for one in found if one.meaning.of_hardware]
        if hardware:
            return _Conclusion(
                Outcome.FAIL,
                _find_strongest(one.fault.remedy for one in found),
                _format_reason(found, hardware),
            )
        unusable = self._find_unusable()
        if unusable is not None:
            return unusable
        conclusion = self._conclude_from_documents(found, gaps)
        return self._compare_with_exit(conclusion, found)

    def _find_unusable(self) -> _Conclusion | None:
        """Why there is no verdict; None if the documents can be judged."""
        refused = [doc.error for doc in self._run.printed.documents if doc.error is not None]
        if refused:
            # The error that requires the most is reported.
            return max(
                map(self._explain_refusal, refused),
                key=lambda refusal: (refusal.outcome is Outcome.FAIL, refusal.remedy.rank),
            )
        if self._run.printed.broken:
            return self._conclude_without(
                "what was printed is no whole document: " + self._run.printed.broken, Remedy.RETRY
            )
        if too_old := explain_age(self._run.version):
            return _Conclusion(Outcome.ERROR, Remedy.FIX_CONFIG, too_old)
        if self._run.wrong:
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                f"the document is not of any known shape: {self._run.wrong[0]}",
            )
        if self._run.printed.not_run:
            iterations = max(1, self._run.printed.iterations)
            return self._conclude_without(
                f"{self._run.printed.not_run} of {iterations} iterations did not run",
                Remedy.RETRY,
            )
        if not self._run.documents and self._run.printed.documents:
            return self._conclude_without("the document holds no tests", Remedy.RETRY)
        if not self._run.documents:
            return self._explain_plain_text()
        return None

    def _explain_refusal(self, error: str) -> _Conclusion:
        row = self._run.tables.find_text(error)
        code = _RETURN.search(error)
        if row is None and code is not None:
            row = self._run.tables.find_exit(256 + int(code[1]))
        if row is None and self._run.exit_code:
            row = self._run.tables.find_exit(self._run.exit_code)
        row = row or ExitMeaning(means="the diagnostic could not be run")
        return _Conclusion(row.outcome, row.remedy, f"{row.means}: {_clean_error(error)}", row.code)

    def _explain_plain_text(self) -> _Conclusion:
        """Conclude from text that was printed instead of a document, or from no output."""
        text = f"{self._run.printed.outside}\n{self._run.stderr}".strip()
        row = self._run.tables.find_text(text)
        if row is None and self._run.exit_code:
            row = self._run.tables.find_exit(self._run.exit_code)
        if row is not None:
            line = _find_error_line(text)
            error = f": {_clean_error(line)}" if line else ""
            reason = f"{row.means}{self._format_code()}{error}"
            return _Conclusion(row.outcome, row.remedy, reason, row.code)
        lines = reversed(text.splitlines())
        line = next((line for line in lines if any(map(str.isalnum, line))), "")
        if text:
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                f"no document was printed{self._format_code()}: {_clean_error(line or text)}",
            )
        return _Conclusion(
            Outcome.ERROR,
            Remedy.RETRY if not self._run.exit_code else Remedy.INVESTIGATE,
            f"nothing was printed{self._format_code()}",
        )

    def _conclude_without(self, why: str, remedy: Remedy) -> _Conclusion:
        row = self._run.tables.find_exit(self._run.exit_code) if self._run.exit_code else None
        if row is None:
            return _Conclusion(Outcome.ERROR, remedy, why)
        return _Conclusion(
            row.outcome, row.remedy, f"{row.means}{self._format_code()}; {why}", row.code
        )

    def _conclude_from_documents(
        self, found: list[FoundFault], gaps: list[Unverified]
    ) -> _Conclusion:
        interrupted = [one for one in found if one.fault.remedy is Remedy.RETRY]
        if interrupted:
            reason = _format_reason(interrupted, interrupted)
            return _Conclusion(Outcome.ERROR, Remedy.RETRY, reason)
        if unknown := self._find_unknown_status():
            return _Conclusion(
                Outcome.ERROR, Remedy.INVESTIGATE, f"statuses of unknown meaning: {unknown}"
            )
        remedies = {one.fault.remedy for one in found}
        unverified = self._list_unverified(found, gaps)
        if unverified:
            reason = f"not verified: {join_first(unverified, _MAX_NAMED, '; ', '; and ')}"
            strongest = _find_strongest([*(gap.remedy for gap in gaps), *remedies])
            return _Conclusion(Outcome.INCONCLUSIVE, strongest, reason)
        settings = [one for one in found if one.fault.remedy is not Remedy.NONE]
        if settings:
            return _Conclusion(
                Outcome.CONFIG, _find_strongest(remedies), _format_reason(settings, settings)
            )
        if self._run.printed.failed:
            return _Conclusion(
                Outcome.ERROR,
                Remedy.INVESTIGATE,
                "the overall result is a failure, but no iteration shows one",
            )
        return _Conclusion(Outcome.PASS, Remedy.NONE, "")

    def _find_unknown_status(self) -> str:
        """The first test with a status that no version is known to print; "" if there is none."""
        unknown = (
            f"{test.name}: status {status!r}"
            for test in self._run.tests.values()
            for status in _list_unknown(test)
        )
        return next(unknown, "")

    def _list_unverified(self, found: list[FoundFault], gaps: list[Unverified]) -> list[str]:
        """The gaps, and the faults that only say that a test could not verify something."""
        words = [gap.words for gap in gaps]
        return words + [
            _format_group([one])
            for one in found
            if one.fault.remedy is Remedy.NONE
            and not self._is_optional(one.fault.test)
            and not any(gap.startswith(f"{one.fault.test} was skipped") for gap in words)
        ]

    def _compare_with_exit(self, conclusion: _Conclusion, found: list[FoundFault]) -> _Conclusion:
        """Correct the conclusion if the exit code reports a problem that the documents lack."""
        code = self._run.exit_code
        if not code or conclusion.outcome is Outcome.ERROR:
            return conclusion
        if code not in _FAILED:
            row = self._run.tables.find_exit(code) or ExitMeaning(
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
            and self._run.version >= (3, 3)
        )
        if not found or hidden or conclusion.outcome is Outcome.PASS:
            means = "an error that takes a GPU out of use" if code == _FAILED[0] else "a failure"
            why = (
                f"document and exit code disagree: code {code} stands for {means}, and the document"
                " shows none"
            )
            return _Conclusion(Outcome.ERROR, Remedy.INVESTIGATE, why)
        return conclusion

    def _is_optional(self, test: str) -> bool:
        row = self._run.tables.find_test(test)
        return row is not None and (row.optional or row.level > self._run.level)

    def _format_code(self) -> str:
        return (
            f" (exit code {self._run.exit_code})"
            if self._run.exit_code is not None and self._run.exit_code >= 0
            else ""
        )

    def list_culprits(self, outcome: Outcome, found: list[FoundFault]) -> tuple[int, ...]:
        """The GPUs of faults that caused the outcome. A settings error is a GPU's own only if the
        document says so.
        """
        if outcome is Outcome.FAIL:
            blamed = [one.fault for one in found if one.meaning.of_hardware]
        elif outcome in (Outcome.CONFIG, Outcome.INCONCLUSIVE):
            faults = [one.fault for one in found if not one.fault.by_text]
            blamed = [fault for fault in faults if fault.remedy is not Remedy.NONE]
        else:
            blamed = []
        return tuple(sorted({fault.gpu for fault in blamed if fault.gpu is not None}))

    def get_serials(self) -> dict[int, str]:
        """Serial numbers by index. Up to 3.x DCGM numbers them by position among tested GPUs."""
        found: dict[int, str] = {}
        for doc in self._run.printed.documents:
            tested = sorted(self._run.requested_gpus or list_tested_gpus(self._run.tests.values()))
            by_position = not doc.entities and len(tested) == len(doc.serials)
            found |= {
                tested[position] if by_position and position < len(tested) else position: serial
                for position, serial in doc.serials.items()
            }
        return found


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
    for result in test.results:
        if result.group == group and result.status:
            index = str(result.index)
            found[index] = document.find_worst([found.get(index, ""), result.status])
    return found


def _list_unknown(test: DcgmTest) -> Iterable[str]:
    known = ("", "pass", *FAILING, *SKIPPED)
    return (
        status
        for status in (test.status, *(result.status for result in test.results))
        if status.lower() not in known
    )


def _format_device(device: str) -> str:
    """`cpu/1` -> `CPU 1`"""
    kind, _, number = device.partition("/")
    return f"{kind.upper() if kind == CPU else kind} {number}"


def _find_strongest(remedies: Iterable[Remedy]) -> Remedy:
    return max(remedies, key=lambda remedy: remedy.rank, default=Remedy.NONE)


def _format_reason(found: list[FoundFault], most: list[FoundFault]) -> str:
    """Names each kind of fault in `most` once, the strongest first, and counts those in `found`."""
    groups: dict[tuple[str, str], list[FoundFault]] = {}
    for found_fault in most:
        groups.setdefault(_get_kind(found_fault), []).append(found_fault)
    strongest_first = sorted(groups.values(), key=lambda group: -group[0].fault.remedy.rank)
    named = strongest_first[:_MAX_NAMED]
    rest = len(set(map(_get_kind, found))) - len(named)
    return "; ".join(map(_format_group, named)) + count_more(rest, "; and ")


def _get_kind(found_fault: FoundFault) -> tuple[str, str]:
    return found_fault.meaning.code, found_fault.fault.test


def _format_group(group: Sequence[FoundFault]) -> str:
    fault, meaning = group[0].fault, group[0].meaning
    gpus = sorted({one.fault.gpu for one in group if one.fault.gpu is not None})
    devices = sorted({_format_device(one.fault.device) for one in group if one.fault.device})
    who = ", ".join([*([format_gpus(gpus)] if gpus else []), *devices])
    number = f"error {fault.error_id}, " if fault.error_id is not None else ""
    place = f" ({number}{fault.test})" if fault.test else ""
    return f"{who}: {meaning.title}{place}" if who else f"{meaning.title}{place}"


def _clean_error(text: str) -> str:
    line = to_text(text).strip().removeprefix("Error: ")
    return (_PREAMBLE.sub("", line).strip() or "no text")[:300]


def _find_error_line(text: str) -> str:
    """The first line that begins with `Error:`, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Error:")), lines[0] if lines else "")
