"""
Reads the output of `dcgmi mndiag -j` (DCGM 4.3 and later): one test on many hosts at once.

Its errors have no numbers of their own: each of a GPU is number 1, to be investigated, and its text
is what the GPU's process reported. In a collective test that need not be the GPU at fault.

Source: DCGM, dcgmi/MnDiag.cpp, modules/mndiag/MnDiagMpiMnubergemmRunner.cpp and
testing/python3/dcgm_mndiag_schema.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vitald.diagnostics.dcgm.values import to_index, to_int, to_text
from vitald.diagnostics.run.tool import find_document
from vitald.model.diagnostic import Outcome

_NAME = "DCGM Multi-Node Diagnostic"
_START = re.compile(rf'^\s*\{{\s*"{_NAME}"\s*:', re.MULTILINE)
_GPU = 1  # DCGM's number of the entity group
_PASS, _FAIL = "pass", "fail"
_MAX_HOSTS, _MAX_TESTS, _MAX_RESULTS, _MAX_ERRORS = 4096, 64, 65_536, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HostError:
    """An error as it was printed. `gpu`: None if it names none; `host`: empty likewise."""

    host: str
    gpu: int | None
    text: str
    error_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """One host: the statuses of its GPUs as they were printed, by index."""

    name: str
    dcgm_version: str
    driver_version: str
    gpus: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiNodeReport:
    """A whole run. `tests`: status by name, as printed."""

    outcome: Outcome
    reason: str
    hosts: tuple[HostResult, ...] = ()
    tests: Mapping[str, str]
    errors: tuple[HostError, ...] = ()


def is_multinode(text: str) -> bool:
    """Whether a document of mndiag begins in this text, complete or not."""
    return _START.search(text) is not None


def read_multinode(text: str, exit_code: int | None = None) -> MultiNodeReport:
    """The report on one run. Never raises: what cannot be read is no pass."""
    found = _START.search(text)
    document = find_document(text[found.start() :].lstrip()) if found is not None else None
    if document is None or _NAME not in document:
        return MultiNodeReport(
            outcome=Outcome.ERROR, reason="the document is cut off, or there is none", tests={}
        )
    return _judge(_Reader(document), exit_code)


class _Reader:
    """What a document has, each part bounded and of the expected kind."""

    def __init__(self, document: Mapping[str, object]) -> None:
        names = {
            to_index(host.get("host_id")): to_text(host.get("hostname"))
            for host in _list_tables(document.get("hosts"), _MAX_HOSTS)
        }
        self.runtime_error = to_text(document.get("runtime_error"))
        self.tests: dict[str, str] = {}
        self.errors: list[HostError] = []
        self._names = names
        self._statuses: dict[str, dict[int, str]] = {}
        for test in _list_tests(document):
            self._read_test(test)
        for error in _list_tables(document.get("global_errors"), _MAX_ERRORS):
            self._add_error(error, self._find_host(error), None)
        self.hosts = self._read_hosts(document)

    def _read_test(self, test: Mapping[str, object]) -> None:
        self.tests[to_text(test.get("name")) or "?"] = to_text(test.get("status"))
        for result in _list_tables(test.get("results"), _MAX_RESULTS):
            host, gpu = self._find_host(result), to_index(result.get("entity_id"))
            if to_int(result.get("entity_group_id")) != _GPU or gpu is None:
                continue
            statuses, status = self._statuses.setdefault(host, {}), to_text(result.get("status"))
            if statuses.get(gpu, _PASS).lower() == _PASS:  # of several tests, the worst
                statuses[gpu] = status
            for error in _list_tables(result.get("warnings"), _MAX_ERRORS):
                self._add_error(error, host, gpu)
        if isinstance(test.get("mpi_error"), Mapping):
            self._add_error(test["mpi_error"], "", None)

    def _add_error(self, error: object, host: str, gpu: int | None) -> None:
        if not isinstance(error, Mapping) or len(self.errors) >= _MAX_ERRORS:
            return
        text = to_text(error.get("warning"))
        found = HostError(host=host, gpu=gpu, text=text, error_id=to_int(error.get("error_id")))
        # DCGM prints the error of MPI twice: with the test, and with the global ones.
        is_repeated = gpu is None and any(
            each.gpu is None and each.text == text for each in self.errors
        )
        if not is_repeated:
            self.errors.append(found)

    def _find_host(self, entry: Mapping[str, object]) -> str:
        index = to_index(entry.get("host_id"))
        return self._names.get(index) or ("" if index is None else f"host {index}")

    def _read_hosts(self, document: Mapping[str, object]) -> tuple[HostResult, ...]:
        listed = {
            to_text(host.get("hostname")): host
            for host in _list_tables(document.get("hosts"), _MAX_HOSTS)
        }
        return tuple(
            HostResult(
                name=name,
                dcgm_version=to_text(listed.get(name, {}).get("dcgm_version")),
                driver_version=to_text(listed.get(name, {}).get("driver_version")),
                gpus=dict(sorted(self._statuses.get(name, {}).items())),
            )
            for name in dict.fromkeys([*listed, *self._statuses])
        )


def _judge(read: _Reader, exit_code: int | None) -> MultiNodeReport:
    outcome, reason = _find_outcome(read, exit_code)
    return MultiNodeReport(
        outcome=outcome,
        reason=reason,
        hosts=read.hosts,
        tests=read.tests,
        errors=tuple(read.errors),
    )


def _find_outcome(read: _Reader, exit_code: int | None) -> tuple[Outcome, str]:
    failed = [
        f"{host.name} GPU {gpu}"
        for host in read.hosts
        for gpu, status in host.gpus.items()
        if status.lower() == _FAIL
    ]
    texts = "; ".join(dict.fromkeys(error.text for error in read.errors if error.text))
    if failed:
        return Outcome.FAIL, f"failed: {', '.join(failed)}"
    if read.runtime_error:
        return Outcome.ERROR, read.runtime_error.strip()
    if any(status.lower() == _FAIL for status in read.tests.values()):
        return Outcome.ERROR, texts or "the test failed, and no GPU is named"
    if exit_code:
        return Outcome.ERROR, f"no test failed, but dcgmi ended with exit code {exit_code}"
    without = [host.name for host in read.hosts if not host.gpus]
    statuses = {status for host in read.hosts for status in host.gpus.values()}
    statuses |= {*read.tests.values()}
    others = sorted(status for status in statuses if status.lower() != _PASS)
    if others:
        return Outcome.INCONCLUSIVE, f"not passed: {', '.join(others)}"
    if without or not read.hosts or not read.tests:
        return Outcome.INCONCLUSIVE, f"no result of {', '.join(without) or 'any host'}"
    if texts:
        return Outcome.INCONCLUSIVE, texts
    return Outcome.PASS, ""


def _list_tests(document: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for category in _list_tables(document.get("test_categories"), _MAX_TESTS):
        yield from _list_tables(category.get("tests"), _MAX_TESTS)


def _list_tables(value: object, most: int) -> list[Mapping[str, object]]:
    listed = value[:most] if isinstance(value, list) else []
    return [entry for entry in listed if isinstance(entry, dict)]
