"""
Brings one document of `dcgmi diag -j` of all versions to one normal form: 2.x, 3.0 to 3.3, 4.x,
error objects. Statuses and texts stay as they were printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from vitald.diagnostics.dcgm.conversion import (
    MAX_GPUS,
    to_index,
    to_int,
    to_serial,
    to_text,
    to_word,
)

GPU, CPU = "gpu", "cpu"

_GROUPS = {1: GPU, 7: CPU}  # DCGM's numbers of entity groups
_MAX_TESTS, MAX_RESULTS, _MAX_MESSAGES, _MAX_COMPLAINTS = 256, 4096, 4096, 8


@dataclass(frozen=True, slots=True)
class Message:
    """A warning as it was printed."""

    text: str
    error_id: int | None = None
    category: int | None = None
    severity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """One device's result of a test. `group` is `gpu`, `cpu`, the name of another group, or "" if
    none is named.
    """

    group: str = ""
    index: int | None = None
    status: str = ""
    messages: tuple[Message, ...] = ()
    info: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmTest:
    """A test. Its `status`, `messages` and `info` are those that belong to no device."""

    name: str
    category: str = ""
    status: str = ""
    results: tuple[DeviceResult, ...] = ()
    messages: tuple[Message, ...] = ()
    info: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmDocument:
    """One document in the normal form."""

    tests: tuple[DcgmTest, ...] = ()
    error: str | None = None  # instead of results
    version: str = ""
    driver: str = ""
    device_ids: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()  # listed, whether or not they were tested
    serials: dict[int, str] = field(default_factory=dict)  # by index; by position up to 3.x
    entities: bool = False  # 4.x: results name entities, and have summaries
    wrong: tuple[str, ...] = ()  # where its shape is that of no version
    rejected: bool = False  # its root has the shape of no version


def read_document(value: dict[str, object]) -> DcgmDocument:
    """Raises nothing: what has another shape is a complaint in the document."""
    return _DocumentReader(value).read_document()


class _DocumentReader:
    """Reads the fields of one document; a field of a wrong type is left out, with a complaint."""

    def __init__(self, value: dict[str, object]) -> None:
        self.value = value
        self.wrong: list[str] = []
        self.rejected = False
        self.messages = 0
        self.tests: list[DcgmTest] = []
        self.error: str | None = None
        self.versions: list[object] = []
        roots = [(key, root) for key, root in value.items() if key.startswith("DCGM ")]
        self.roots = roots
        self.entities = "entity_groups" in value or any(
            key.startswith("DCGM Diagnostic") for key, _ in roots
        )

    def add_complaint(self, what: str) -> None:
        if len(self.wrong) < _MAX_COMPLAINTS:
            self.wrong.append(what)

    def read_document(self) -> DcgmDocument:
        for key, root in self.roots:
            self.read_root(key, root)
        metadata = self.value.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        driver_key = "Driver Version Detected"
        gpus = list(self.list_gpus())
        return DcgmDocument(
            tests=tuple(_merge_repeated(self.tests)),
            error=self.error,
            version=_find_word(self.value.get("version"), *self.versions, metadata.get("version")),
            driver=_find_word(self.value.get(driver_key), metadata.get(driver_key)),
            device_ids=tuple(
                filter(None, map(to_word, (*self.list_old_ids(), *(gpu[1] for gpu in gpus))))
            ),
            gpus=tuple(sorted({index for index, _, _ in gpus})),
            serials={
                **self.read_old_serials(),
                **{index: word for index, _, serial in gpus if (word := to_serial(serial))},
            },
            entities=self.entities,
            wrong=tuple(self.wrong),
            rejected=self.rejected,
        )

    def read_root(self, key: str, root: object) -> None:
        """The object, or in some wrong shapes the list, that holds the tests."""
        if isinstance(root, list):
            self.rejected = True
            self.add_complaint(f"{to_word(key)} is a list")
            self.tests += self.read_categories(root)
            return
        if not isinstance(root, dict):
            self.rejected = True
            self.add_complaint(f"{to_word(key)} holds no object")
            return
        self.versions.append(root.get("version"))
        if "runtime_error" in root:
            self.error = to_text(root["runtime_error"]) or "an error without a text"
        if "test_categories" in root:
            if not isinstance(root["test_categories"], list):
                self.add_complaint("test_categories is no list")
            self.tests += self.read_categories(root["test_categories"])
        elif "runtime_error" not in root:
            self.add_complaint("it holds no tests")

    def list_old_ids(self) -> list[object]:
        ids = self.value.get("GPU Device IDs")
        return ids[:MAX_GPUS] if isinstance(ids, list) else []

    def read_old_serials(self) -> dict[int, str]:
        serials = self.value.get("GPU Device Serials")
        pairs = (
            [(to_int(key), to_serial(serial)) for key, serial in serials.items()]
            if isinstance(serials, dict)
            else []
        )
        return {index: serial for index, serial in pairs[:MAX_GPUS] if index is not None and serial}

    def list_gpus(self) -> Iterator[tuple[int, object, object]]:
        """Index, device id and serial number of the GPUs that the document lists."""
        groups = self.value.get("entity_groups")
        for group in groups if isinstance(groups, list) else []:
            if not isinstance(group, dict) or _get_group_name(group) != GPU:
                continue
            entities = group.get("entities")
            for entity in entities[:MAX_GPUS] if isinstance(entities, list) else []:
                if (
                    isinstance(entity, dict)
                    and (index := to_index(entity.get("entity_id"))) is not None
                ):
                    yield index, entity.get("device_id"), entity.get("serial_num")

    def read_categories(self, value: object) -> Iterator[DcgmTest]:
        if isinstance(value, list) and len(value) > _MAX_TESTS:
            self.add_complaint("too many categories")
        for category in value[:_MAX_TESTS] if isinstance(value, list) else []:
            if category is None:
                continue
            if not isinstance(category, dict):
                self.add_complaint("a category is no object")
                continue
            name = to_word(category.get("category"))
            tests = category.get("tests")
            if not isinstance(tests, list):
                self.add_complaint(f"category {name or '?'} holds no list of tests")
                continue
            if len(tests) > _MAX_TESTS:
                self.add_complaint("too many tests")
            for test in tests[:_MAX_TESTS]:
                found = self.read_test(test, name)
                if found is not None:
                    yield found

    def read_test(self, value: object, category: str) -> DcgmTest | None:
        if value is None:
            return None
        if not isinstance(value, dict) or not to_word(value.get("name")):
            self.add_complaint("a test has no name")
            return None
        name = to_word(value["name"])
        summary, results = self.read_parts(value, name)
        # Up to 3.x the software checks concern no GPU; the index that they print is always 0.
        nameless = category.lower() == "deployment" and not self.entities
        of_test = [
            DeviceResult(
                status=self.read_status(summary.get("status"), name),
                messages=tuple(self.read_messages(summary)),
                info=tuple(_list_infos(summary)),
            )
        ]
        by_device: list[DeviceResult] = []
        for entry in results:
            if entry is None:
                continue  # an entry without a result
            if not isinstance(entry, dict):
                self.add_complaint(f"{name}: a result is no object")
                continue
            for result in self.read_result(entry, name, nameless=nameless):
                (of_test if result.index is None else by_device).append(result)
        return DcgmTest(
            name=name,
            category=category,
            status=find_worst(result.status for result in of_test),
            results=tuple(by_device),
            messages=tuple(message for result in of_test for message in result.messages),
            info=tuple(info for result in of_test for info in result.info),
        )

    def read_result(
        self, value: dict[str, object], test: str, *, nameless: bool
    ) -> list[DeviceResult]:
        """The result for each device that it names, else one without a device.

        `nameless`: only an entity id names a device.
        """
        result = DeviceResult(
            status=self.read_status(value.get("status"), test),
            messages=tuple(self.read_messages(value)),
            info=tuple(_list_infos(value)),
        )
        if nameless and "entity_id" not in value:
            return [result]
        devices = self.read_devices(value, test)
        return [replace(result, group=group, index=index) for group, index in devices] or [result]

    def read_parts(
        self, test: dict[str, object], name: str
    ) -> tuple[dict[str, object], list[object]]:
        """The summary and the results of a test; empty if they have another shape."""
        summary = test.get("test_summary")
        if summary is not None and not isinstance(summary, dict):
            self.add_complaint(f"{name}: its summary is no object")
        results = test.get("results")
        if results is not None and not isinstance(results, list):
            self.add_complaint(f"{name}: its results are no list")
        results = results if isinstance(results, list) else []
        if len(results) > MAX_RESULTS:
            self.add_complaint(f"{name}: too many results")
        return (summary if isinstance(summary, dict) else {}), results[:MAX_RESULTS]

    def read_devices(self, result: dict[str, object], test: str) -> Iterator[tuple[str, int]]:
        if "entity_id" in result or "entity_group" in result or "entity_group_id" in result:
            index = to_index(result.get("entity_id"))
            if index is None:
                self.add_complaint(f"{test}: an entity without a number")
            else:
                yield _get_group_name(result), index
            return
        for key, group in (("cpu_id", CPU), ("gpu_id", GPU), ("gpu_ids", GPU)):
            if key in result:
                value = result[key]
                for word in value.split(",")[:MAX_GPUS] if isinstance(value, str) else [value]:
                    index = to_index(word)
                    if index is None:
                        self.add_complaint(f"{test}: {key} is no number")
                    else:
                        yield group, index
                return

    def read_status(self, value: object, test: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, str):
            self.add_complaint(f"{test}: a status is no text")
            return "?"
        return to_word(value)

    def read_messages(self, holder: dict[str, object]) -> Iterator[Message]:
        """One text or a list of them, or of objects with the text as `warning` or `warnings`; the
        error numbers stand in these objects, or beside.
        """
        beside = _get_error_numbers(holder)
        value = holder.get("warnings", holder.get("warning"))
        values = value if isinstance(value, list) else [value]
        found = False
        for warning in values:
            if warning is None or warning == "":
                continue
            if self.messages >= _MAX_MESSAGES:
                self.add_complaint("too many warnings")
                return
            self.messages += 1
            found = True
            if isinstance(warning, dict):
                texts = warning.get("warning", warning.get("warnings"))
                text = (
                    " ".join(to_text(part) for part in texts)
                    if isinstance(texts, list)
                    else to_text(texts)
                )
                yield Message(text, *_get_error_numbers(warning))
            else:
                yield Message(to_text(warning), *beside)
        if not found and beside[0]:
            yield Message("", *beside)


def _find_word(*values: object) -> str:
    """The first of them that is a word; "" if none is."""
    return next(filter(None, map(to_word, values)), "")


def _get_error_numbers(holder: dict[str, object]) -> tuple[int | None, int | None, int | None]:
    return (
        to_int(holder.get("error_id")),
        to_int(holder.get("error_category")),
        to_int(holder.get("error_severity")),
    )


def _list_infos(holder: dict[str, object]) -> Iterable[str]:
    value = holder.get("info")
    values = value if isinstance(value, list) else [value]
    return [to_text(info) for info in values[:256] if isinstance(info, str) and info]


def _merge_repeated(tests: list[DcgmTest]) -> Iterable[DcgmTest]:
    """Merges tests of the same name."""
    by_name: dict[str, DcgmTest] = {}
    for test in tests:
        former = by_name.get(test.name)
        by_name[test.name] = test if former is None else merge_tests(former, test)
    return by_name.values()


def merge_tests(first: DcgmTest, other: DcgmTest) -> DcgmTest:
    """Two results of the same test: the worse status, and all messages."""
    return DcgmTest(
        name=first.name,
        category=first.category or other.category,
        status=find_worst([first.status, other.status]),
        results=first.results + other.results,
        messages=first.messages + other.messages,
        info=first.info + other.info,
    )


_BADNESS = {"": 0, "pass": 1, "skip": 2, "warn": 4, "fail": 5}


def find_worst(statuses: Iterable[str]) -> str:
    """An unknown status is worse than a skip, but no failure. Empty if there is no status."""
    return max(statuses, key=lambda status: _BADNESS.get(status.lower(), 3), default="")


def _get_group_name(holder: dict[str, object]) -> str:
    """The name of the entity group, from its name or its number."""
    name = to_word(holder.get("entity_group")).lower()
    if name:
        return name
    number = to_int(holder.get("entity_group_id"))
    return GPU if number is None else _GROUPS.get(number, f"group {number}")
