"""
Reads the table that `dcgmi diag` prints without -j as a document.

    | PCIe                      | Pass - GPUs: 1, 2, 3                           |    up to 3.x
    |                           | Fail - GPU: 0                                  |
    | Warning                   | GPU 0 Error using CUDA API cudaStreamCreate C  |
    |                           | heck DCGM and system logs for errors. Reset G  |
    | pcie                      | Fail                                           |    4.x
    |                           | GPU0: Fail                                     |

A cell is cut at 45 characters, also within a word. A table has no error numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vitald.diagnostics.dcgm.conversion import to_index, to_text, to_word
from vitald.diagnostics.dcgm.document import (
    GPU,
    DcgmDocument,
    DcgmTest,
    DeviceResult,
    Message,
    merge_tests,
)

_Device = tuple[str, int | None]  # ("", None): no device

_CELL = 45
_SECTION = re.compile(r"[|+]-{3,8}  (?P<name>[A-Z][\w ]{1,24}?) +-{2,16}\+-{8,80}[|+]?\s*\Z")
_BORDER = re.compile(r"\+-{8,80}\+-{8,80}\+?\s*\Z")  # below the last row
_ROW = re.compile(r"\|(?P<name>[^|]{8,40})\|(?P<cell>.{0,200}?)\|?\s*\Z")
_STATUS = re.compile(
    r"(?P<status>Pass|Fail|Skip|Warn|Not [Rr]un)\b(?: - (?:All|GPUs?: (?P<gpus>[\d, ]+)))?\s*\Z"
)
_OF_DEVICE = re.compile(r"(?P<group>GPU|CPU) ?(?P<index>\d{1,3}): (?P<status>\w+(?: \w+)?)\s*\Z")
_TEXT = re.compile(r"(?:Warning|Error|Info)\b")
_NAMED_GPU = re.compile(r"GPU ?(\d{1,3})\b")
_HEADER = re.compile(r"\| Diagnostic +\| Result +\|?\s*\Z")


def parse_table(text: str) -> tuple[DcgmDocument | None, bool]:
    """The document that the table shows, None where no test's result stands in one; and whether the
    table has its end.
    """
    lines = [line.strip() for line in text.splitlines()]
    if not any(map(_HEADER.match, lines)):
        return None, True
    reader = _TableReader()
    for line in lines:
        reader.read_line(line)
    document = reader.build_document()
    return document, document is None or reader.is_whole


class _TableReader:
    """Reads the rows in their order. Of several tables, as of several runs, the results of the same
    test are merged.
    """

    def __init__(self) -> None:
        self._section = ""
        self._metadata: dict[str, str] = {}
        self._tests: list[_TableTest] = []
        self._field = ""  # what the next row without a name continues
        self.is_whole = False

    def read_line(self, line: str) -> None:
        if (section := _SECTION.match(line)) is not None:
            self._section, self._field = section["name"], ""
            return
        if _HEADER.match(line) is not None:  # of the first table, or of one more
            self._section, self._field, self.is_whole = "", "", False
            return
        self.is_whole = self.is_whole or _BORDER.match(line) is not None
        row = _ROW.match(line)
        if row is None:
            self._field = ""
            return
        name, cell = row["name"].strip(), row["cell"][1:]
        if name:
            self._begin_field(name, cell)
        else:
            self._continue_field(cell)

    def _begin_field(self, name: str, cell: str) -> None:
        if self._section == "Metadata":
            self._field = name
            self._metadata[name] = cell[:_CELL]
        elif _TEXT.match(name):
            if not self._tests or self._tests[-1].section != self._section:
                self._tests.append(_TableTest(self._section, self._section))
            self._field = "text"
            self._tests[-1].add_text(name, cell)
        else:
            self._tests.append(_TableTest(name, self._section))
            self._field = "status"
            self._tests[-1].add_status(cell)

    def _continue_field(self, cell: str) -> None:
        if self._field == "text":
            self._tests[-1].continue_text(cell)
        elif self._field == "status":
            self._tests[-1].add_status(cell)
        elif self._field:
            self._metadata[self._field] += cell[:_CELL]

    def build_document(self) -> DcgmDocument | None:
        if not any(test.has_results for test in self._tests):
            return None
        metadata = {name: to_word(value) for name, value in self._metadata.items()}
        ids = self._metadata.get("GPU Device IDs Detected", "").split(",")
        device_ids = tuple(filter(None, map(to_word, ids)))
        named = [test for test in self._tests if test.name]
        tests = [test.build_test(len(device_ids)) for test in named]
        return DcgmDocument(
            tests=tuple(merge_tests(tests).values()),
            version=metadata.get("DCGM Version", ""),
            driver=metadata.get("Driver Version Detected", ""),
            device_ids=device_ids,
            entities=any(test.names_entities for test in self._tests),
            wrong=() if named == self._tests else ("a text belongs to no test",),
        )


class _TableTest:
    """The rows of one test."""

    def __init__(self, name: str, section: str) -> None:
        self.name = name
        self.section = section
        self.names_entities = False
        self._statuses: list[str] = []  # as printed; the last may be continued
        self._texts: list[tuple[str, str]] = []  # the name of the row, and its text

    @property
    def has_results(self) -> bool:
        return bool(self._statuses or self._texts)

    def add_status(self, cell: str) -> None:
        begins = _STATUS.match(cell.strip()) or _OF_DEVICE.match(cell.strip())
        if self._statuses and begins is None and not re.match(r"[A-Z]", cell):
            self._statuses[-1] += cell[:_CELL]  # a long list of GPUs
        else:
            self._statuses.append(cell[:_CELL])

    def add_text(self, name: str, cell: str) -> None:
        self._texts.append((name, cell[:_CELL]))

    def continue_text(self, cell: str) -> None:
        name, text = self._texts[-1]
        self._texts[-1] = name, text + cell[:_CELL]

    def build_test(self, gpus: int) -> DcgmTest:
        """`gpus`: how many there are, which `All` stands for."""
        by_device: dict[_Device, str] = {}
        of_all = ""
        for status in map(str.strip, self._statuses):
            if (device := _OF_DEVICE.match(status)) is not None:
                self.names_entities = True
                by_device[device["group"].lower(), int(device["index"])] = device["status"]
            elif (found := _STATUS.match(status)) is None:
                of_all = to_word(status)
            elif found["gpus"] is not None:
                for word in found["gpus"].split(","):
                    if (index := to_index(word.strip())) is not None:
                        by_device[GPU, index] = found["status"]
            elif " - " in status and gpus:
                by_device |= {(GPU, gpu): found["status"] for gpu in range(gpus)}
            else:
                of_all = found["status"]
        results = [*self._build_results(by_device, of_all)]
        of_test = next((one for one in results if not one.group), DeviceResult(status=of_all))
        return DcgmTest(
            name=to_word(self.name),
            category=self.section,
            status=of_test.status,
            results=tuple(result for result in results if result.group),
            messages=of_test.messages,
            info=of_test.info,
        )

    def _build_results(self, by_device: dict[_Device, str], of_all: str) -> Iterator[DeviceResult]:
        messages: dict[_Device, list[Message]] = {}
        infos: dict[_Device, list[str]] = {}
        for name, text in self._texts:
            named = _NAMED_GPU.search(name) or _NAMED_GPU.match(text.strip())
            device: _Device = (GPU, int(named[1])) if named is not None else ("", None)
            if name.startswith("Info"):
                infos.setdefault(device, []).append(to_text(text))
            else:
                messages.setdefault(device, []).append(Message(to_text(text)))
        for device in dict.fromkeys([*by_device, *messages, *infos]):
            # A text in a section without a test is an error
            is_failure = not self._statuses and device in messages
            yield DeviceResult(
                group=device[0],
                index=device[1],
                status="Fail" if is_failure else by_device.get(device, of_all),
                messages=tuple(messages.get(device, ())),
                info=tuple(infos.get(device, ())),
            )
