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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitald.diagnostics.dcgm import document
from vitald.diagnostics.dcgm.document import (
    CPU,
    GPU,
    DcgmTest,
)
from vitald.diagnostics.dcgm.faults import FaultFinder, FoundFault
from vitald.diagnostics.dcgm.gaps import GapFinder, Unverified, format_gpus
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.diagnostics.dcgm.run_context import (
    FAILING,
    SKIPPED,
    RunContext,
    list_tested_gpus,
)
from vitald.diagnostics.dcgm.tables import (
    ExitMeaning,
)
from vitald.diagnostics.dcgm.values import to_text
from vitald.model.diagnostic import Fault, Outcome, Remedy, Report, Test
from vitald.text import count_more, join_first

_ISOLATE = 2
_FAILED = (205, 226)
_RETURN = re.compile(r"Return: \((-\d{1,3})\)")
_PREAMBLE = re.compile(r"^Unable to complete diagnostic for .{1,80}?\. Return: \(-?\d+\)[ :]*")
# `GPU 3`, `GPU 3's`, `GPU ID 3`; no PCI address and no UUID. `GPUs 0, 1 and 2` names them all.
_MAX_NAMED = 3  # groups of findings in the reason


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
            tests=tuple(map(_summarize_test, self._run.tests.values())),
            faults=faults,
            culprits=self.list_culprits(said.outcome, found),
            dcgm_version=self._run.find_last(lambda one: one.version),
            driver_version=self._run.find_last(lambda one: one.driver),
            device_ids=self._run.device_ids,
            serials=self.get_serials(),
        )

    def _imply_from_exit(self, said: _Conclusion) -> FoundFault:
        meaning = self._run.meanings.get_entry(said.code)
        fault = Fault(
            code=said.code,
            test="",
            text=said.reason,
            remedy=said.remedy,
            confirm=meaning.confirm,
            implied=True,
        )
        return FoundFault(fault, meaning)

    def draw_conclusion(self, found: list[FoundFault], gaps: list[Unverified]) -> _Conclusion:
        """From the documents, and what of it the exit code leaves standing."""
        hard = [one for one in found if one.meaning.of_hardware and not self._run.rejected]
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
        refused = [one.error for one in self._run.printed.documents if one.error is not None]
        if refused:
            # Where one of them asks for more than the others, that is what is told.
            return max(
                (self._explain_refusal(error) for error in refused),
                key=lambda said: (said.outcome is Outcome.FAIL, said.remedy.rank),
            )
        if self._run.printed.broken:
            return self._conclude_without(
                "what was printed is no whole document: " + self._run.printed.broken, Remedy.RETRY
            )
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
        """Text in the place of a document, or nothing at all."""
        text = f"{self._run.printed.outside}\n{self._run.stderr}".strip()
        row = self._run.tables.find_text(text)
        if row is None and self._run.exit_code:
            row = self._run.tables.find_exit(self._run.exit_code)
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
        interrupted = [
            found_fault for found_fault in found if found_fault.fault.remedy is Remedy.RETRY
        ]
        if interrupted:
            reason = _format_reason(interrupted, interrupted)
            return _Conclusion(Outcome.ERROR, Remedy.RETRY, reason)
        if unknown := self._find_unknown_status():
            return _Conclusion(
                Outcome.ERROR, Remedy.INVESTIGATE, f"nobody knows what this means: {unknown}"
            )
        remedies = {found_fault.fault.remedy for found_fault in found}
        unverified = self._list_unverified(found, gaps)
        if unverified:
            reason = f"not verified: {join_first(unverified, _MAX_NAMED, '; ', '; and ')}"
            strongest = _find_strongest([*(gap.remedy for gap in gaps), *remedies])
            return _Conclusion(Outcome.INCONCLUSIVE, strongest, reason)
        settings = [
            found_fault for found_fault in found if found_fault.fault.remedy is not Remedy.NONE
        ]
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
            _format_group([found_fault])
            for found_fault in found
            if found_fault.fault.remedy is Remedy.NONE
            and not self._is_optional(found_fault.fault.test)
            and not any(gap.startswith(f"{found_fault.fault.test} was skipped") for gap in words)
        ]

    def _compare_with_exit(self, said: _Conclusion, found: list[FoundFault]) -> _Conclusion:
        """An exit code that says more than the document does not let it stand as it is."""
        code = self._run.exit_code
        if not code or said.outcome is Outcome.ERROR:
            return said
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
        if not found or hidden or said.outcome is Outcome.PASS:
            means = "an error that takes a GPU out of use" if code == _FAILED[0] else "a failure"
            why = (
                f"document and exit code disagree: code {code} stands for {means}, and the document"
                " shows none"
            )
            return _Conclusion(Outcome.ERROR, Remedy.INVESTIGATE, why)
        return said

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
        for one in self._run.printed.documents:
            places = sorted(self._run.requested_gpus or list_tested_gpus(self._run.tests.values()))
            by_place = not one.entities and len(places) == len(one.serials)
            found |= {
                places[place] if by_place and place < len(places) else place: serial
                for place, serial in one.serials.items()
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
    for one in test.results:
        if one.group == group and one.status:
            found[str(one.index)] = document.find_worst([found.get(str(one.index), ""), one.status])
    return found


def _list_unknown(test: DcgmTest) -> Iterable[str]:
    known = ("", "pass", *FAILING, *SKIPPED)
    return (
        status
        for status in (test.status, *(one.status for one in test.results))
        if status.lower() not in known
    )


def _format_device(device: str) -> str:
    """`CPU 1`"""
    kind, _, number = device.partition("/")
    return f"{kind.upper() if kind == CPU else kind} {number}"


def _find_strongest(remedies: Iterable[Remedy]) -> Remedy:
    return max(remedies, key=lambda remedy: remedy.rank, default=Remedy.NONE)


def _format_reason(found: list[FoundFault], most: list[FoundFault]) -> str:
    """Findings of one kind are told once, the strongest first."""
    groups: dict[tuple[str, str], list[FoundFault]] = {}
    for one in most:
        groups.setdefault((one.meaning.code, one.fault.test), []).append(one)
    told = sorted(groups.values(), key=lambda group: -group[0].fault.remedy.rank)
    rest = len({(one.meaning.code, one.fault.test) for one in found}) - len(told[:_MAX_NAMED])
    return "; ".join(_format_group(group) for group in told[:_MAX_NAMED]) + count_more(
        rest, "; and "
    )


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
    """The line that says most, for people: the first that begins as an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Error:")), lines[0] if lines else "")
