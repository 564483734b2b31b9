"""One run of `dcgmi diag`: its output, and what was requested."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from vitald.diagnostics.dcgm import document
from vitald.diagnostics.dcgm.document import (
    GPU,
    DcgmDocument,
    DcgmOutput,
    DcgmTest,
    DeviceResult,
)
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.diagnostics.dcgm.tables import (
    Tables,
    Version,
    load_tables,
    parse_version,
)

FAILING, SKIPPED = ("fail", "warn"), ("skip", "skipped", "not run", "notrun")


class RunContext:
    """The documents of a run, merged, with their version and level."""

    def __init__(
        self,
        printed: DcgmOutput,
        meanings: Meanings,
        exit_code: int | None,
        level: int | None,
        stderr: str,
        gpus: Sequence[int],
    ) -> None:
        self.printed = printed
        self.meanings = meanings
        self.exit_code = exit_code
        self.stderr = stderr
        self.tables: Tables = load_tables()
        self.requested_gpus = frozenset(gpus)
        self.documents = [one for one in printed.documents if one.tests]
        self.tests = _merge_documents(self.documents)
        self.entities = any(one.entities for one in self.documents)
        # Without a level the run may have been requested by the names of its tests.
        self.named = level is None
        self.level = level if level is not None else find_level(self.tests)
        self.version: Version = parse_version(self.find_last(lambda one: one.version)) or (
            (4,) if self.entities else (3,)
        )
        self.rejected = any(one.rejected for one in printed.documents)
        self.wrong = tuple(dict.fromkeys(what for one in printed.documents for what in one.wrong))
        self.device_ids: tuple[str, ...] = next(
            (one.device_ids for one in reversed(printed.documents) if one.device_ids), ()
        )

    def find_last(self, of: Callable[[DcgmDocument], str]) -> str:
        """The last non-empty value of a field of the documents; "" if there is none."""
        return next(
            (str(word) for one in reversed(self.printed.documents) if (word := of(one))), ""
        )


def find_level(tests: Iterable[str]) -> int:
    """The run level that has these tests: the least that it can have been."""
    rows = (load_tables().find_test(name) for name in tests)
    return max((row.level for row in rows if row is not None), default=1)


def is_whole_level(tests: Collection[str], version: str) -> bool:
    """Whether all tests of that level are there: if not, some were asked for by name, or did not
    run.
    """
    there, level, number = (
        {name.casefold() for name in tests},
        find_level(tests),
        parse_version(version),
    )
    due = [
        row
        for row in load_tables().tests
        if not row.optional and row.gpus == 1 and row.is_due(level, number or (3,))
    ]
    return all(any(name.casefold() in there for name in row.names) for row in due)


def _merge_documents(documents: Iterable[DcgmDocument]) -> dict[str, DcgmTest]:
    """The tests of all documents: of what was run more than once, the worst."""
    tests: dict[str, DcgmTest] = {}
    for one in documents:
        for test in one.tests:
            tests[test.name] = (
                document.merge_tests(tests[test.name], test) if test.name in tests else test
            )
    return tests


def list_tested_gpus(tests: Iterable[DcgmTest]) -> frozenset[int]:
    found = (one.index for test in tests for one in test.results if one.group == GPU)
    return frozenset(index for index in found if index is not None)


def get_device_name(result: DeviceResult) -> str:
    """The name of a device that is no GPU."""
    return (
        f"{result.group}/{result.index}"
        if result.group not in ("", GPU) and result.index is not None
        else ""
    )
