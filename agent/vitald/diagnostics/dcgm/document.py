"""
Brings one document of `dcgmi diag -j` to one normal form. The key of its root names the generation:

    DCGM GPU Diagnostic   up to 3.3: results by GPU; the software checks name none
    DCGM Diagnostic       4.x: results by entity, and a summary of each test

Error objects have the same roots. Statuses and texts stay as they were printed. What no version
prints is not interpreted: the test, or else the document, is left out and named in `wrong`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from vitald.diagnostics.dcgm.conversion import to_index, to_int, to_serial, to_text, to_word

Json = dict[str, object]
GPU, CPU = "gpu", "cpu"
_OF_GPUS, _OF_ENTITIES = ROOTS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")
_DEVICE_KEYS = {"gpu_id": GPU, "gpu_ids": GPU, "cpu_id": CPU}  # up to 3.3
_DRIVER = "Driver Version Detected"
_MAX_TESTS = 256


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


class _ShapeError(Exception):
    """Something that no version prints, and where it stands."""


def read_document(value: Json) -> DcgmDocument:
    """Reads an object that has one of the roots. Raises nothing: what has another shape is named in
    the document.
    """
    entities = _OF_ENTITIES in value
    read = _read_of_entities if entities else _read_of_gpus
    try:
        return read(value, _get_object(value, _OF_ENTITIES if entities else _OF_GPUS))
    except _ShapeError as error:
        return DcgmDocument(entities=entities, wrong=(str(error),))


# --- up to 3.3


def _read_of_gpus(value: Json, root: Json) -> DcgmDocument:
    _refuse_keys(value, "entity_groups", "metadata")
    tests, wrong = _read_tests(root, _read_test_of_gpus)
    serials = {
        _read_index(index): to_serial(serial)
        for index, serial in _get_object(value, "GPU Device Serials").items()
    }
    return DcgmDocument(
        tests=tests,
        error=_find_error(root),
        version=_find_version(value, root),
        driver=to_word(value.get(_DRIVER)),
        device_ids=tuple(filter(None, map(to_word, _get_list(value, "GPU Device IDs")))),
        serials={index: serial for index, serial in serials.items() if serial},
        wrong=wrong,
    )


def _read_test_of_gpus(test: Json, name: str, category: str) -> DcgmTest:
    _refuse_keys(test, "test_summary")
    results: list[DeviceResult] = []
    for entry in _list_objects(test, "results", or_null=True):
        _refuse_keys(entry, "entity_id", "entity_group", "entity_group_id")
        # The software checks concern no GPU; the index that they print is always 0.
        device = ("", None) if category == "Deployment" else _find_device(entry)
        results.append(_read_result(entry, *device))
    of_test = [result for result in results if result.index is None]
    return DcgmTest(
        name=name,
        category=category,
        status=find_worst(result.status for result in of_test),
        results=tuple(result for result in results if result.index is not None),
        messages=tuple(message for result in of_test for message in result.messages),
        info=tuple(info for result in of_test for info in result.info),
    )


def _find_device(result: Json) -> tuple[str, int | None]:
    """The group and the index of the device; ("", None) if none is named."""
    devices = ((group, result[key]) for key, group in _DEVICE_KEYS.items() if key in result)
    return next(((group, _read_index(index)) for group, index in devices), ("", None))


# --- 4.x


def _read_of_entities(value: Json, root: Json) -> DcgmDocument:
    _refuse_keys(value, "GPU Device IDs", "GPU Device Serials")
    metadata = _get_object(value, "metadata")
    tests, wrong = _read_tests(root, _read_test_of_entities)
    gpus = {
        _read_index(entity.get("entity_id")): entity
        for group in _list_objects(value, "entity_groups")
        if _read_group(group) == GPU
        for entity in _list_objects(group, "entities")
    }
    serials = {index: to_serial(entity.get("serial_num")) for index, entity in gpus.items()}
    device_ids = (to_word(entity.get("device_id")) for entity in gpus.values())
    return DcgmDocument(
        tests=tests,
        error=_find_error(root),
        version=_find_version(value, root, metadata),
        driver=to_word(metadata.get(_DRIVER)),
        device_ids=tuple(filter(None, device_ids)),
        gpus=tuple(sorted(gpus)),
        serials={index: serial for index, serial in serials.items() if serial},
        entities=True,
        wrong=wrong,
    )


def _read_test_of_entities(test: Json, name: str, category: str) -> DcgmTest:
    summary = _read_result(_get_object(test, "test_summary"), "", None)
    return DcgmTest(
        name=name,
        category=category,
        status=summary.status,
        results=tuple(
            _read_result(entry, _read_group(entry), _read_index(entry.get("entity_id")))
            for entry in _list_objects(test, "results")
        ),
        messages=summary.messages,
        info=summary.info,
    )


def _read_group(holder: Json) -> str:
    group = _get_text(holder, "entity_group")
    if not group:
        raise _ShapeError("an entity has no group")
    return to_word(group).lower()


# --- both


def _find_error(root: Json) -> str | None:
    return to_text(_get_text(root, "runtime_error")) if "runtime_error" in root else None


def _find_version(*holders: Json) -> str:
    versions = (to_word(holder.get("version")) for holder in holders)
    return next(filter(None, versions), "")


def _read_tests(
    root: Json, read_test: Callable[[Json, str, str], DcgmTest]
) -> tuple[tuple[DcgmTest, ...], tuple[str, ...]]:
    """The tests, and the names of those whose shape is wrong, with the reasons."""
    if "test_categories" not in root and "runtime_error" not in root:
        raise _ShapeError("it holds no tests")
    found: list[DcgmTest] = []
    wrong: list[str] = []
    for category in _list_objects(root, "test_categories"):
        if "tests" not in category:
            raise _ShapeError("a category holds no tests")
        for test in _list_objects(category, "tests"):
            name = to_word(_get_text(test, "name"))
            try:
                if not name:
                    raise _ShapeError("a test has no name")
                if len(found) >= _MAX_TESTS:
                    raise _ShapeError("there are too many tests")
                found.append(read_test(test, name, to_word(category.get("category"))))
            except _ShapeError as error:
                wrong.append(f"{name}: {error}".removeprefix(": "))
    return tuple(merge_tests(found).values()), tuple(wrong)


def _read_result(value: Json, group: str, index: int | None) -> DeviceResult:
    info = value.get("info")
    return DeviceResult(
        group=group,
        index=index,
        status=to_word(_get_text(value, "status")),
        messages=tuple(_list_messages(value)),
        info=tuple(
            to_text(text)
            for text in (info if isinstance(info, list) else [info])
            if isinstance(text, str)
        ),
    )


def _list_messages(result: Json) -> Iterator[Message]:
    """Up to 3.2 one text, with the error's numbers beside it; then a list of objects, whose text is
    `warning`, or `warnings` in the software checks of 3.3.
    """
    if isinstance(result.get("warnings"), list):
        warnings = [*_list_objects(result, "warnings", or_null=True)]
        key = "warning"
    else:
        warnings = [result] if _get_text(result, "warnings") else []
        key = "warnings"
    if "warning" in result or (not warnings and "error_id" in result):
        raise _ShapeError("an error has no text in warnings")
    for warning in warnings:
        yield _read_message(warning, _get_text(warning, key if key in warning else "warnings"))


def _read_message(holder: Json, text: str) -> Message:
    keys = ("error_id", "error_category", "error_severity")
    values = [holder.get(key) for key in keys]
    numbers = [to_int(value) for value in values]
    if numbers.count(None) > values.count(None):
        raise _ShapeError("the number of an error is none")
    return Message(to_text(text), *numbers)


def merge_tests(tests: Iterable[DcgmTest]) -> dict[str, DcgmTest]:
    """The tests by name; of one that ran more than once, the worst status and all messages."""
    merged: dict[str, DcgmTest] = {}
    for test in tests:
        former = merged.get(test.name)
        merged[test.name] = test if former is None else _merge_two(former, test)
    return merged


def _merge_two(first: DcgmTest, other: DcgmTest) -> DcgmTest:
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


# --- values of the expected type; an absent one is empty


def _refuse_keys(holder: Json, *keys: str) -> None:
    """Refuses what only the other generation prints."""
    for key in keys:
        if key in holder:
            raise _ShapeError(f"{key} is of another version")


def _get_object(holder: Json, key: str) -> Json:
    value = holder.get(key, {})
    if not isinstance(value, dict):
        raise _ShapeError(f"{key} is no object")
    return value


def _get_list(holder: Json, key: str) -> list[object]:
    value = holder.get(key, [])
    if not isinstance(value, list):
        raise _ShapeError(f"{key} is no list")
    return value


def _list_objects(holder: Json, key: str, *, or_null: bool = False) -> Iterator[Json]:
    """`or_null`: 3.3 prints null where a GPU or a message is missing."""
    for value in _get_list(holder, key):
        if isinstance(value, dict):
            yield value
        elif value is not None or not or_null:
            raise _ShapeError(f"{key} holds something that is no object")


def _get_text(holder: Json, key: str) -> str:
    value = holder.get(key, "")
    if not isinstance(value, str):
        raise _ShapeError(f"{key} is no text")
    return value


def _read_index(value: object) -> int:
    index = to_index(value)
    if index is None:
        raise _ShapeError("the number of a device is none")
    return index
