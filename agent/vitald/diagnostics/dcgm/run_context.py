"""One run of `dcgmi diag`: its output, and what was requested."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain

from vitald.diagnostics.dcgm.dcgmi_output import DcgmOutput
from vitald.diagnostics.dcgm.document import GPU, DcgmDocument, DcgmTest, DeviceResult, merge_tests
from vitald.diagnostics.dcgm.known_outputs import Tables, Version, load_tables, parse_version
from vitald.diagnostics.dcgm.meanings import Meanings

OLDEST: Version = (3, 1)  # the oldest version whose output is read
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
        self.documents = [document for document in printed.documents if document.tests]
        self.tests = merge_tests(chain.from_iterable(document.tests for document in self.documents))
        self.entities = any(document.entities for document in self.documents)
        # Without a level the run may have been requested by the names of its tests.
        self.named = level is None
        self.level = level if level is not None else find_level(self.tests)
        self.version: Version = parse_version(
            self.find_last(lambda document: document.version)
        ) or ((4,) if self.entities else OLDEST)
        self.wrong = [what for document in printed.documents for what in document.wrong]
        device_ids = (document.device_ids for document in reversed(printed.documents))
        self.device_ids: tuple[str, ...] = next(filter(None, device_ids), ())

    def find_last(self, of: Callable[[DcgmDocument], str]) -> str:
        """The last non-empty value of a field of the documents; "" if there is none."""
        return next(filter(None, map(of, reversed(self.printed.documents))), "")


def explain_age(version: Version) -> str:
    """Why the output of this version is not read; "" if it is."""
    number = ".".join(map(str, version))
    return f"DCGM {number} is too old: DCGM 3.1 or newer is needed" if version < OLDEST else ""


def find_level(tests: Iterable[str]) -> int:
    """The lowest run level that has these tests."""
    rows = (load_tables().find_test(name) for name in tests)
    return max((row.level for row in rows if row is not None), default=1)


def is_whole_level(tests: Collection[str], version: str) -> bool:
    """Whether all tests of that level are there: if not, some were requested by name, or did not
    run.
    """
    there, level = {name.casefold() for name in tests}, find_level(tests)
    number = parse_version(version) or OLDEST
    due = [
        row
        for row in load_tables().tests
        if not row.optional and row.gpus == 1 and row.is_due(level, number)
    ]
    return all(any(name.casefold() in there for name in row.names) for row in due)


def list_tested_gpus(tests: Iterable[DcgmTest]) -> frozenset[int]:
    """The indexes of the GPUs that have a result."""
    results = chain.from_iterable(test.results for test in tests)
    indexes = (result.index for result in results if result.group == GPU)
    return frozenset(index for index in indexes if index is not None)


def get_device_name(result: DeviceResult) -> str:
    """The name of a device other than a GPU, such as `cpu/1`; "" for a GPU or no device."""
    return (
        f"{result.group}/{result.index}"
        if result.group not in ("", GPU) and result.index is not None
        else ""
    )
